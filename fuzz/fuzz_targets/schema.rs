//! A JSON schema, a zero byte, and a text for it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use puna_grammar::{Grammar, Tokens, check};

fuzz_target!(|data: &[u8]| {
    let (schema, text) = match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[][..]),
    };
    let Ok(schema) = serde_json::from_slice(schema) else { return };
    let Ok(grammar) = Grammar::json_schema(&schema, &Tokens::bytes()) else { return };
    // What is accepted is JSON.
    if let Ok(None) = check(&grammar, text) {
        serde_json::from_slice::<serde_json::de::IgnoredAny>(text).expect("accepted text is JSON");
    }
});
