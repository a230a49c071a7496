//! Starting the back end in tests.

use std::sync::{Arc, Mutex};

use puna_backend_openvino::OpenVino;

/// Properties under which a plugin computes as exactly as it can.
pub const EXACT: (&str, &str) = (
    "GGML_OPENVINO_PROPERTIES",
    "INFERENCE_PRECISION_HINT=f32,KV_CACHE_PRECISION=f32,DYNAMIC_QUANTIZATION_GROUP_SIZE=0",
);

/// The back end with these variables on top of the environment's, and what it logs; `None`, with a line that says why,
/// where the library is missing.
pub fn start(variables: &[(&str, &str)]) -> Option<(OpenVino, Arc<Mutex<Vec<String>>>)> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    let log = Arc::new(move |line: &str| sink.lock().expect("no panic").push(line.to_owned()));
    let lookup = |name: &str| {
        let own = variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        // The user's own settings are no part of a test.
        own.or_else(|| (!name.starts_with("GGML_")).then(|| std::env::var(name).ok()).flatten())
    };
    match OpenVino::new(&lookup, 2, log) {
        Ok(backend) => Some((backend, lines)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}
