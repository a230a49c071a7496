//! Answers of models: parsed in pieces they give what they give at once, and stop texts are found the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use puna_chat::{Delta, OutputParser, Stops};

const TEMPLATE: &str = "<think> <tool_call>{\"name\": \"arguments\"} </tool_call>";

fn joined(deltas: Vec<Delta>) -> String {
    // Neighbours of one kind belong together, however they were cut.
    let mut all = String::new();
    let mut kind = None;
    for delta in deltas {
        let (name, text) = match &delta {
            Delta::Content(text) => ("content", text.clone()),
            Delta::Reasoning(text) => ("reasoning", text.clone()),
            other => ("other", format!("{other:?}")),
        };
        if kind != Some(name) || name == "other" {
            all.push_str(&format!("\n{name}: "));
            kind = Some(name);
        }
        all.push_str(&text);
    }
    all
}

fuzz_target!(|text: &str| {
    let mut whole = OutputParser::new(TEMPLATE, "", true, true);
    let mut expected = whole.push(text);
    expected.extend(whole.finish());
    let mut parser = OutputParser::new(TEMPLATE, "", true, true);
    let mut found = Vec::new();
    for character in text.chars() {
        found.extend(parser.push(&character.to_string()));
    }
    found.extend(parser.finish());
    assert_eq!(joined(found), joined(expected));

    let stops = ["</s>".to_owned(), "ab".to_owned(), "bc".to_owned()];
    let (mut whole, mut pieces) = (Stops::new(&stops), Stops::new(&stops));
    let mut expected = whole.push(text);
    expected.push_str(&whole.finish());
    let mut found: String = text.chars().map(|character| pieces.push(&character.to_string())).collect();
    found.push_str(&pieces.finish());
    assert_eq!((found, pieces.found()), (expected, whole.found()));
});
