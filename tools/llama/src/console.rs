//! Messages on the standard error: levels, colours, a log file, progress bars.
//!
//! Results go to the standard output, everything else goes through here. Nothing here fails: a message that
//! cannot be printed is dropped.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use puna_flags::{Log, Toggle};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Levels of messages.
pub const WARNINGS: u32 = 2;
/// Levels of messages.
pub const INFORMATION: u32 = 3;

/// Characters of a message that are shown.
const LONGEST: usize = 2000;

/// The last line, which says why the program ends, is JSON as the others.
static JSON: AtomicBool = AtomicBool::new(false);

/// Where messages go, which of them, and how they are written.
pub struct Console {
    level: u32,
    colour: bool,
    json: bool,
    prefix: bool,
    times: bool,
    /// The model that they are about, where there are several.
    model: Option<String>,
    file: Option<Mutex<File>>,
}

impl Console {
    /// As the flags say; `level` is the tool's own choice.
    pub fn new(log: &Log, level: u32) -> Result<Self, Failure> {
        let open = |path: &std::path::PathBuf| {
            File::create(path)
                .map(Mutex::new)
                .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
        };
        JSON.store(log.json, Ordering::Relaxed);
        Ok(Self {
            level: if log.disable { 0 } else { log.verbosity.unwrap_or(level) },
            colour: colour(log.colors, io::stderr().is_terminal()) && !log.json,
            json: log.json,
            prefix: log.prefix,
            times: log.times,
            model: None,
            file: log.file.as_ref().map(open).transpose()?,
        })
    }

    /// The same for messages about this model.
    pub fn about(self, model: Option<String>) -> Self {
        Self { model, ..self }
    }

    /// Something that may be wrong.
    pub fn warn(&self, message: &str) {
        self.message(WARNINGS, message, false);
    }

    /// What is going on.
    pub fn info(&self, message: &str) {
        self.message(INFORMATION, message, false);
    }

    /// The same, dimmed if `colour`.
    pub fn aside(&self, message: &str, colour: bool) {
        self.message(INFORMATION, message, colour);
    }

    /// Shows a line and writes its plain form to the log file.
    fn message(&self, level: u32, message: &str, dim: bool) {
        if level > self.level {
            return;
        }
        let message = printable(message, LONGEST);
        let logged = &self.line(level, &message, SystemTime::now(), ["", ""]);
        match (level, self.colour) {
            (WARNINGS, true) => {
                plain(&self.line(level, &message, SystemTime::now(), ["\x1b[33m", "\x1b[0m"]))
            }
            _ if dim && !self.json => plain(&format!("\x1b[2m{logged}\x1b[0m")),
            _ => plain(logged),
        }
        if let Some(Ok(mut file)) = self.file.as_ref().map(Mutex::lock) {
            let _ = writeln!(file, "{logged}");
        }
    }

    /// A message as it is written; what marks its level stands between `marks`.
    fn line(&self, level: u32, message: &str, time: SystemTime, marks: [&str; 2]) -> String {
        let time = || puna_server::time_text(time);
        if self.json {
            let mut line = serde_json::Map::new();
            line.insert("time".into(), time().into());
            line.insert("level".into(), if level == WARNINGS { "warning" } else { "info" }.into());
            line.extend(self.model.as_ref().map(|model| ("model".to_owned(), model.as_str().into())));
            line.insert("message".into(), message.into());
            return serde_json::Value::Object(line).to_string();
        }
        let mut line = if self.times { format!("{} ", time()) } else { String::new() };
        if let Some(model) = &self.model {
            line.push_str(&format!("[{}] ", printable(model, LONGEST)));
        }
        let mark = match (level, self.prefix) {
            (WARNINGS, true) => "W ",
            (_, true) => "I ",
            (WARNINGS, false) => "warning: ",
            (_, false) => "",
        };
        line.push_str(&format!("{}{mark}{}{message}", marks[0], marks[1]));
        line
    }

    /// A bar for so many bytes; invisible on pipes and when information is hidden.
    pub fn progress(&self, bytes: Option<u64>) -> ProgressBar {
        let visible = self.level >= INFORMATION && io::stderr().is_terminal();
        let target =
            if visible { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(bytes, target);
        let template = match bytes {
            Some(_) => "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            None => "{spinner} {bytes} {bytes_per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if visible {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        bar
    }
}

/// Whether to use colours; `NO_COLOR` and a dumb terminal count where the flag leaves the choice.
pub fn colour(flag: Toggle, terminal: bool) -> bool {
    let wanted = || {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    };
    match flag {
        Toggle::On => true,
        Toggle::Off => false,
        Toggle::Auto => terminal && wanted(),
    }
}

/// The line that says why the program ends.
pub fn error(message: &str) {
    let message = printable(&message.replace('\n', " "), LONGEST);
    if JSON.load(Ordering::Relaxed) {
        let time = puna_server::time_text(SystemTime::now());
        return plain(&serde_json::json!({ "time": time, "level": "error", "message": message }).to_string());
    }
    match colour(Toggle::Auto, io::stderr().is_terminal()) {
        true => plain(&format!("\x1b[31merror:\x1b[0m {message}")),
        false => plain(&format!("error: {message}")),
    }
}

/// Text that may come from a file, for a terminal: at most `most` characters, those that steer terminals or turn the
/// direction of text written as escapes.
pub fn printable(text: &str, most: usize) -> String {
    let steers = |letter: char| {
        let turns = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'].contains(&letter);
        let embeds =
            ('\u{202a}'..='\u{202e}').contains(&letter) || ('\u{2066}'..='\u{2069}').contains(&letter);
        letter.is_control() || turns || embeds
    };
    let mut letters = text.chars();
    let mut shown = String::new();
    for letter in letters.by_ref().take(most) {
        if steers(letter) { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    match letters.count() {
        0 => shown,
        more => format!("{shown}... ({more} more characters)"),
    }
}

/// One line on the standard error. What comes from files has to be made [`printable`] before.
pub fn plain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Bytes for people: `93.8 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_files_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\r\n\u{9b}2J\u{202e}", 100), "a\\u{1b}[31mb\\r\\n\\u{9b}2J\\u{202e}");
        assert_eq!(printable("plain 'text' \"é漢🦀\"", 100), "plain 'text' \"é漢🦀\"");
        assert_eq!(printable("abcdef", 4), "abcd... (2 more characters)");
        assert_eq!(printable("abcdef", 6), "abcdef");
    }

    #[test]
    fn lines_in_every_form() {
        let log = |json, prefix, times| Log { json, prefix, times, ..Log::default() };
        let line = |log: Log, level| {
            let console = Console::new(&log, INFORMATION).unwrap().about(Some("tiny".into()));
            console.line(level, "a \"b\"", SystemTime::UNIX_EPOCH, ["<", ">"])
        };
        assert_eq!(line(log(false, false, false), WARNINGS), "[tiny] <warning: >a \"b\"");
        assert_eq!(line(log(false, true, false), INFORMATION), "[tiny] <I >a \"b\"");
        let timed = line(log(false, true, true), WARNINGS);
        assert!(
            timed.starts_with("1970-01-01T00:00:00") && timed.ends_with("Z [tiny] <W >a \"b\""),
            "{timed}"
        );
        let json: serde_json::Value = serde_json::from_str(&line(log(true, true, true), WARNINGS)).unwrap();
        assert_eq!(
            (&json["level"], &json["model"], &json["message"]),
            (&"warning".into(), &"tiny".into(), &"a \"b\"".into())
        );
        JSON.store(false, Ordering::Relaxed);
    }

    #[test]
    fn sizes() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (98_362_432, "93.8 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }
}
