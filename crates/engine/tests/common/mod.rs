//! Requests and what comes of them.
#![allow(dead_code)] // each test file uses a part

use puna_engine::{Engine, EngineError, Event, FinishReason, Request, Timings};
use puna_sampling::{LogProbabilities, Parameters};

/// A greedy request.
pub fn greedy(prompt: &[u32], predict: i32) -> Request {
    Request { predict, sampling: Parameters::greedy(), ..Request::new(prompt.to_vec()) }
}

/// All that a request gave.
#[derive(Debug, Default)]
pub struct Collected {
    pub tokens: Vec<u32>,
    pub log_probabilities: Vec<Option<LogProbabilities>>,
    pub progress: Vec<(usize, usize)>,
    pub end: Option<(FinishReason, Timings)>,
    pub error: Option<String>,
}

pub fn collect(events: impl IntoIterator<Item = Event>) -> Collected {
    let mut collected = Collected::default();
    for event in events {
        assert!(collected.end.is_none() && collected.error.is_none(), "nothing follows the end");
        match event {
            Event::Started { .. } => assert!(collected.progress.is_empty(), "it starts once, first"),
            Event::Progress { processed, total } => collected.progress.push((processed, total)),
            Event::Token { id, log_probabilities } => {
                collected.tokens.push(id);
                collected.log_probabilities.push(log_probabilities);
            }
            Event::Finished { reason, timings } => collected.end = Some((reason, timings)),
            Event::Failed(error) => collected.error = Some(error.to_string()),
        }
    }
    collected
}

/// The bytes of a saved sequence.
pub fn save(engine: &Engine, sequence: u32) -> Result<Vec<u8>, EngineError> {
    let mut bytes = Vec::new();
    let written = engine.save(sequence, &mut bytes)?;
    assert_eq!(written, bytes.len() as u64);
    Ok(bytes)
}

/// Puts a saved sequence into the place of this one, whose adapters are those of the saved one; its tokens.
pub fn restore(engine: &Engine, sequence: u32, bytes: &[u8]) -> Result<Vec<u32>, EngineError> {
    engine.restore(sequence, &mut &*bytes, bytes.len() as u64, [].into())
}
