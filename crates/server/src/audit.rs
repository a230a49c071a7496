//! The audit log: a line of JSON for each request, appended by a thread of its own, and the rules that tell how
//! risky a prompt is.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use regex_automata::meta::Regex;
use serde::Deserialize;

use crate::error::ServerError;
use crate::options::{AuditOptions, Warnings};

/// Lines that may wait to be written; with more, requests are told to come back: none may go unlogged.
const MOST_WAITING: usize = 10_000;
/// Time between attempts to write.
const AGAIN: Duration = Duration::from_millis(200);
/// Largest file of rules in bytes, and the largest compiled pattern.
const LARGEST: u64 = 4 << 20;
/// Most rules.
const MOST_RULES: usize = 1000;

/// The log.
pub struct Audit {
    /// How risky prompts are.
    pub rules: Rules,
    /// Write prompts, too.
    pub prompts: bool,
    lines: Mutex<Option<Sender<String>>>,
    waiting: Arc<AtomicUsize>,
    ending: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    /// Opens the log and reads the rules.
    pub fn open(options: &AuditOptions, warn: &Warnings) -> Result<Self, ServerError> {
        let rules = match &options.rules {
            None => Rules::none(),
            Some(path) => {
                Rules::read(path).map_err(|reason| ServerError::Audit { file: path.clone(), reason })?
            }
        };
        let file = Appender::open(&options.file)
            .map_err(|error| ServerError::Audit { file: options.file.clone(), reason: error.to_string() })?;
        let (sender, lines) = channel();
        let (waiting, ending): (Arc<AtomicUsize>, Arc<AtomicBool>) = Default::default();
        let writer = Writer { file, waiting: waiting.clone(), ending: ending.clone(), warn: warn.clone() };
        let thread = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || writer.serve(&lines))
            .map_err(|reason| ServerError::Runtime { reason })?;
        let (prompts, thread) = (options.prompts, Mutex::new(Some(thread)));
        Ok(Self { rules, prompts, lines: Mutex::new(Some(sender)), waiting, ending, thread })
    }

    /// Hands a line to the thread that writes. Never waits.
    pub fn write(&self, line: String) {
        if let Some(lines) = &*self.lines.lock().unwrap_or_else(PoisonError::into_inner) {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            // The thread lives as long as this.
            let _ = lines.send(line);
        }
    }

    /// Whether lines are being written as fast as they come.
    pub fn keeps_up(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < MOST_WAITING
    }

    /// Waits until all lines are written, if they can be. What comes afterwards is not.
    pub fn close(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.ending.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has nothing to hand on.
            let _ = thread.join();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.close();
    }
}

struct Writer {
    file: Appender,
    waiting: Arc<AtomicUsize>,
    ending: Arc<AtomicBool>,
    warn: Warnings,
}

impl Writer {
    fn serve(mut self, lines: &Receiver<String>) {
        while let Ok(line) = lines.recv() {
            let mut warned = false;
            while let Err(error) = self.file.append(&line) {
                if !warned {
                    warned = true;
                    self.warn.say(&format!("audit log {}: {error}", self.file.path.display()));
                }
                if self.ending.load(Ordering::Acquire) {
                    return;
                }
                std::thread::sleep(AGAIN);
            }
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Appends whole lines to a file, and to a new one of its name once the old one was moved.
struct Appender {
    path: PathBuf,
    file: File,
    /// The file may end in the middle of a line.
    torn: bool,
}

impl Appender {
    fn open(path: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        options.append(true).read(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        // A process that was killed may have left half a line.
        let mut torn = false;
        if file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            torn = last != *b"\n";
        }
        Ok(Self { path: path.to_owned(), file, torn })
    }

    fn append(&mut self, line: &str) -> std::io::Result<()> {
        if self.moved()? {
            *self = Self::open(&self.path)?;
        }
        let start = if self.torn { "\n" } else { "" };
        self.torn = true;
        // One call, so that lines of several processes do not mix.
        self.file.write_all(format!("{start}{line}\n").as_bytes())?;
        self.torn = false;
        Ok(())
    }

    /// Whether the name belongs to another file now, or to none.
    fn moved(&self) -> std::io::Result<bool> {
        let named = match std::fs::metadata(&self.path) {
            Ok(data) => data,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let own = self.file.metadata()?;
            Ok((named.dev(), named.ino()) != (own.dev(), own.ino()))
        }
        #[cfg(not(unix))]
        {
            // An open file cannot be moved there.
            let _ = named;
            Ok(false)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleRow {
    name: String,
    pattern: String,
    level: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleRows {
    rules: Vec<RuleRow>,
    otherwise: String,
}

struct Rule {
    name: String,
    pattern: Regex,
    level: String,
}

/// Rules in order; the first that fits tells the level.
pub struct Rules {
    rules: Vec<Rule>,
    otherwise: Option<String>,
}

impl Rules {
    fn none() -> Self {
        Self { rules: Vec::new(), otherwise: None }
    }

    fn read(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
        read.map_err(|error| error.to_string())?;
        if text.len() as u64 > LARGEST {
            return Err(format!("larger than {LARGEST} bytes"));
        }
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let rows: RuleRows = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if rows.rules.len() > MOST_RULES {
            return Err(format!("{} rules, at most {MOST_RULES}", rows.rules.len()));
        }
        let limit = Some(LARGEST as usize);
        let compile = |row: RuleRow| {
            let config = Regex::config().nfa_size_limit(limit);
            let built = Regex::builder().configure(config).build(&row.pattern);
            let pattern = built.map_err(|error| format!("rule '{}': {error}", row.name))?;
            Ok(Rule { name: row.name, pattern, level: row.level })
        };
        let rules = rows.rules.into_iter().map(compile).collect::<Result<_, String>>()?;
        Ok(Self { rules, otherwise: Some(rows.otherwise) })
    }

    /// The level of a prompt and the rule that gave it; the level is empty if there are no rules.
    pub fn assess(&self, text: &str) -> (String, Option<String>) {
        match self.rules.iter().find(|rule| rule.pattern.is_match(text)) {
            Some(rule) => (rule.level.clone(), Some(rule.name.clone())),
            None => (self.otherwise.clone().unwrap_or_default(), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_follow_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        std::fs::write(&path, "half a li").unwrap();
        let mut file = Appender::open(&path).unwrap();
        file.append("one").unwrap();
        file.append("two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "half a li\none\ntwo\n");
        std::fs::rename(&path, &old).unwrap();
        file.append("three").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert!(std::fs::read_to_string(&old).unwrap().ends_with("two\n"));
        std::fs::remove_file(&path).unwrap();
        file.append("four").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\n");
        // Another process appends to the same file.
        let mut other = Appender::open(&path).unwrap();
        other.append("five").unwrap();
        file.append("six").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\nfive\nsix\n");
    }

    #[test]
    fn the_first_rule_that_fits() {
        let text = r#"{"rules":[{"name":"a","pattern":"(?i)secret","level":"high"},
            {"name":"b","pattern":"\\bpay\\b","level":"medium"}],"otherwise":"low"}"#;
        let rules = Rules::parse(text).unwrap();
        let level = |text: &str| rules.assess(text).0;
        assert_eq!(
            (level("pay my Secret"), level("pay"), level("payment")),
            ("high".into(), "medium".into(), "low".into())
        );
        assert_eq!(rules.assess("pay").1.as_deref(), Some("b"));
        assert_eq!(Rules::none().assess("x"), (String::new(), None));
        for (text, part) in [
            (r#"{"rules":[{"name":"a","pattern":"(","level":"x"}],"otherwise":"low"}"#, "rule 'a'"),
            (
                r#"{"rules":[{"name":"a","pattern":"(a{1000}){1000}","level":"x"}],"otherwise":"low"}"#,
                "rule 'a'",
            ),
            (r#"{"rules":[]}"#, "otherwise"),
        ] {
            let error = Rules::parse(text).err().unwrap();
            assert!(error.contains(part), "{error}");
        }
    }
}
