//! The process of one model: started, listened to, told to end by the end of its standard input, and killed if it does
//! not.

use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::report::Report;

/// How long the last lines of a process that has ended may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How a process ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Why, for people.
    pub reason: String,
    /// Its exit code, if it was not ended by a signal.
    pub code: Option<i32>,
    /// It was told to end.
    pub asked: bool,
    /// It never listened.
    pub loading: bool,
    /// When.
    pub at: Instant,
}

/// Runs a process until it ends or `stop` is heard (or dropped): then it has `stop_time` to end by itself.
pub async fn run(
    command: std::process::Command,
    mut stop: oneshot::Receiver<()>,
    stop_time: Duration,
    mut hear: impl FnMut(&Report),
) -> Ended {
    let mut ended =
        Ended { reason: String::new(), code: None, asked: false, loading: true, at: Instant::now() };
    let mut command = Command::from(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C is for the router, which tells its processes what to do.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            ended.reason = format!("the process cannot be started: {error}");
            return ended;
        }
    };
    let mut input = child.stdin.take();
    let mut lines = child.stdout.take().map(|output| BufReader::new(output).lines());
    let mut kill_at = None;
    let status = loop {
        let line = async {
            match &mut lines {
                Some(lines) => lines.next_line().await,
                None => std::future::pending().await,
            }
        };
        let too_long = async {
            match kill_at {
                Some(time) => tokio::time::sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            line = line => match line {
                Ok(Some(line)) => listen(&line, &mut ended, &mut hear),
                _ => lines = None,
            },
            status = child.wait() => break status,
            _ = &mut stop, if !ended.asked => {
                ended.asked = true;
                drop(input.take());
                kill_at = Some(tokio::time::Instant::now() + stop_time);
            }
            () = too_long => {
                kill_at = None;
                // It may have ended just now.
                let _ = child.start_kill();
            }
        }
    };
    // Why it ended may be in what was not read yet. Nobody else should hold the other end.
    let rest = async {
        while let Some(Ok(Some(line))) = async { Some(lines.as_mut()?.next_line().await) }.await {
            listen(&line, &mut ended, &mut hear);
        }
    };
    let _ = tokio::time::timeout(LAST_LINES, rest).await;
    ended.at = Instant::now();
    match status {
        Ok(status) => {
            ended.code = status.code();
            if ended.reason.is_empty() {
                ended.reason = if ended.asked { "it was unloaded".into() } else { describe(status) };
            }
        }
        Err(error) => ended.reason = format!("the process cannot be watched: {error}"),
    }
    ended
}

fn listen(line: &str, ended: &mut Ended, hear: &mut impl FnMut(&Report)) {
    let Some(report) = Report::parse(line) else { return };
    match &report {
        Report::Listening(_) => ended.loading = false,
        Report::Failed(reason) => ended.reason.clone_from(reason),
        Report::Sleeping | Report::Awake | Report::Used { .. } | Report::Over { .. } => {}
    }
    hear(&report);
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("its process ended with exit code {code}"),
        // On Unix this names the signal.
        None => format!("its process ended: {status}"),
    }
}
