//! The built-in templates against what llama.cpp writes under the same names (`tests/templates/builtin.py`).

use puna_chat::{Conversation, Error, Template, builtin};
use serde_json::Value;

fn folder() -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates")
}

fn recorded() -> Value {
    let text = std::fs::read_to_string(folder().join("builtin.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn render(name: &str, messages: &Value, prompt: bool) -> String {
    let template = Template::parse(builtin::find(name).unwrap(), "<s>", "</s>").unwrap();
    let messages = messages.as_array().unwrap().clone();
    let conversation = Conversation { messages, add_generation_prompt: prompt, ..Conversation::default() };
    template.render(&conversation).unwrap()
}

#[test]
fn every_built_in_template_writes_what_its_namesake_does() {
    let recorded = recorded();
    let rendered = recorded["rendered"].as_object().unwrap();
    let mut names: Vec<&str> = builtin::names().collect();
    names.sort_unstable();
    let mut expected: Vec<&str> = rendered.keys().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let mut checked = 0;
    for (name, texts) in rendered {
        for (conversation, texts) in texts.as_object().unwrap() {
            for (text, prompt) in texts.as_array().unwrap().iter().zip([true, false]) {
                let found = render(name, &recorded["conversations"][conversation], prompt);
                assert_eq!(found, text.as_str().unwrap(), "{name} {conversation} {prompt}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 54 * 12 * 2);
}

#[test]
fn models_templates_are_recognised() {
    let recorded = recorded();
    let recognised = recorded["recognised"].as_object().unwrap();
    assert_eq!(recognised.len(), 70);
    for (file, name) in recognised {
        let source = std::fs::read_to_string(folder().join(file)).unwrap();
        assert_eq!(builtin::recognise(&source), name.as_str(), "{file}");
    }
    assert_eq!(builtin::recognise(""), None);
    assert_eq!(builtin::recognise("{{ messages[0].content }}"), None);
}

#[test]
fn unknown_names_are_refused() {
    let Err(Error::UnknownBuiltin { name }) = builtin::find("nosuch") else { panic!("it is found") };
    assert_eq!(name, "nosuch");
    assert!(builtin::find(builtin::FALLBACK).is_ok());
}
