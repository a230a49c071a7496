//! Every chat template of the fixtures against what Hugging Face transformers renders.
#![allow(clippy::print_stdout)] // counts and skipped files

use std::path::PathBuf;

use puna_chat::{Conversation, Error, LocalTime, Template};
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates")
}

fn conversation(value: &Value) -> Conversation {
    let mut members = value.as_object().unwrap().clone();
    let messages = members.remove("messages").unwrap().as_array().unwrap().clone();
    let tools = members.remove("tools");
    let prompt = members.remove("add_generation_prompt").is_none_or(|value| value.as_bool().unwrap());
    let now = Some(LocalTime::from_date(2026, 7, 4, 9, 5, 3));
    Conversation { messages, tools, add_generation_prompt: prompt, extra: members, now }
}

#[test]
fn every_template_renders_as_transformers_does() {
    let fixtures = std::fs::read_to_string(folder().join("rendered.json")).unwrap();
    let fixtures: Value = serde_json::from_str(&fixtures).unwrap();
    assert_eq!(fixtures["now"], "2026-07-04T09:05:03");
    let (bos, eos) = (fixtures["bos_token"].as_str().unwrap(), fixtures["eos_token"].as_str().unwrap());
    let (mut passed, mut failures) = (0, Vec::new());
    for (file, cases) in fixtures["rendered"].as_object().unwrap() {
        let source = std::fs::read_to_string(folder().join(file)).unwrap();
        let template = match Template::parse(&source, bos, eos) {
            Ok(template) => template,
            Err(error) => {
                failures.push(format!("{file}: {error}"));
                continue;
            }
        };
        for (name, expected) in cases.as_object().unwrap() {
            let result = template.render(&conversation(&fixtures["conversations"][name]));
            match check(expected, &result) {
                Ok(()) => passed += 1,
                Err(message) => failures.push(format!("{file} {name}: {message}")),
            }
        }
    }
    println!("{passed} of {} renderings are equal", passed + failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(passed, 560);
}

/// Texts must be equal byte for byte. Where the template raised, the message must be equal; where Python failed, the
/// engine must fail too, in its own words.
fn check(expected: &Value, result: &Result<String, Error>) -> Result<(), String> {
    if let Some(expected) = expected.get("text").and_then(Value::as_str) {
        return match result {
            Ok(text) if text == expected => Ok(()),
            Ok(text) => Err(difference(text, expected)),
            Err(error) => Err(error.to_string()),
        };
    }
    let message = expected.get("template_error").or(expected.get("python_error")).unwrap().as_str().unwrap();
    match result {
        Err(Error::Raised { message: raised, .. }) if raised == message => Ok(()),
        Err(Error::Render { .. }) => Ok(()),
        Err(error) => Err(format!("{error}, expected {message:?}")),
        Ok(text) => Err(format!("rendered {text:?}, expected error {message:?}")),
    }
}

fn difference(found: &str, expected: &str) -> String {
    let same = found.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    let show = |text: &str| {
        let bytes = &text.as_bytes()[same.saturating_sub(30)..(same + 40).min(text.len())];
        String::from_utf8_lossy(bytes).into_owned()
    };
    format!("differs at byte {same}: {:?}, expected {:?}", show(found), show(expected))
}
