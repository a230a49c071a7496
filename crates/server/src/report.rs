//! What the server of one model tells the router that started it: lines on its standard output.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Begins each line, so that anything else on the output is told apart.
const MARK: &str = "@router ";

/// One line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The model is loaded and the server answers here.
    Listening(SocketAddr),
    /// The model cannot be loaded, and the process ends.
    Failed(String),
    /// Weights and caches were freed.
    Sleeping,
    /// They are there again.
    Awake,
    /// A key has used so many tokens.
    Used {
        /// Name of the key.
        key: String,
        /// Tokens of prompts and answers.
        tokens: u64,
    },
    /// A request is over.
    Over {
        /// The router's number of it.
        request: u64,
        /// Its line for the audit log.
        line: String,
    },
}

impl Report {
    /// The line without its break.
    pub fn line(&self) -> String {
        // Plain data always has a form in JSON.
        format!("{MARK}{}", serde_json::to_string(self).unwrap_or_default())
    }

    /// What a line says, if it is one of these.
    pub fn parse(line: &str) -> Option<Self> {
        // Whatever else was printed without a line break stands before it.
        let (_, text) = line.split_once(MARK)?;
        serde_json::from_str(text.trim_end()).ok()
    }
}

/// Where reports go. A server that has this was started by a router and believes what it says about keys.
#[derive(Clone)]
pub struct Reports(Arc<dyn Fn(&Report) -> bool + Send + Sync>);

impl Reports {
    /// To this function, from any thread; false if nobody hears it any more.
    pub fn to(hear: impl Fn(&Report) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    /// Says something. Whoever heard may be gone: then it is of use to nobody, or has to be told elsewhere.
    pub fn say(&self, report: &Report) -> bool {
        (self.0)(report)
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Reports")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were() {
        for report in [
            Report::Listening("127.0.0.1:80".parse().unwrap()),
            Report::Failed("line\nbreak \"é\"".into()),
            Report::Sleeping,
            Report::Awake,
            Report::Used { key: "ann".into(), tokens: u64::MAX },
            Report::Over { request: 7, line: "{\"key\":\"é\"}".into() },
        ] {
            let line = report.line();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(Report::parse(&line), Some(report.clone()), "{line}");
            assert_eq!(Report::parse(&format!("test a ... {line}\r\n")), Some(report));
        }
        for line in
            ["", "@router ", "@router {}", "@router {\"Used\":1}", "listening on x", "@router \"other\""]
        {
            assert_eq!(Report::parse(line), None, "{line}");
        }
    }
}
