//! Faults that users of other engines reported about templates and answers; the tests are named after their numbers, and
//! those about calls are in `dialects.rs`.

use puna_chat::dialects::{self, Delta, Demand, OutputParser, Tool, Tools};
use puna_chat::{Conversation, Error, Template};
use serde_json::{Value, json};

fn render(source: &str, messages: Value, tools: Option<Value>) -> Result<String, Error> {
    let messages = messages.as_array().unwrap().clone();
    Template::parse(source, "<s>", "</s>")?.render(&Conversation {
        messages,
        tools,
        ..Conversation::default()
    })
}

#[test]
fn c01_tojson_is_that_of_transformers() {
    let function = json!({
        "name": "f", "description": "temp > 10 & humidity < 50 (user's choice) — a/b",
        "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": [1, 2.5, null, true]}}},
    });
    let found = render("{{ tools[0] | tojson }}", json!([]), Some(json!([function]))).unwrap();
    let expected = r#"{"name": "f", "description": "temp > 10 & humidity < 50 (user's choice) — a/b", "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": [1, 2.5, null, true]}}}}"#;
    assert_eq!(found, expected);
}

#[test]
fn c03_an_unknown_filter_is_an_error_with_its_name_and_line() {
    let error = render("a\n\n{{ x | nosuchfilter }}", json!([]), None).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("nosuchfilter") && text.contains("line 3"), "{text}");
}

#[test]
fn c04_selectattr_and_rejectattr() {
    // All templates of the fixtures are in `templates.rs`; this is what Mistral Nemo's does.
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let source = "{% set rest = messages | rejectattr('role', 'equalto', 'system') | list %}{{ rest | length }}{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ m.content }}{% endfor %}{{ (messages | selectattr('name', 'defined') | list) | length }}";
    assert_eq!(render(source, messages, None).unwrap(), "2ab0");
}

#[test]
fn c06_what_a_template_refuses_is_an_error_in_its_words() {
    let source = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}";
    let messages = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let error = render(source, messages, None).unwrap_err();
    assert!(matches!(error, Error::Raised { message, .. } if message == "roles must alternate"));
}

#[test]
fn c09_messages_without_content() {
    let source = "{% for m in messages %}{% if m.content is string %}[{{ m.content }}]{% else %}-{% endif %}{% endfor %}";
    let messages = json!([{"role": "assistant", "content": null}, {"role": "assistant"}, {"role": "assistant", "content": "x"}]);
    assert_eq!(render(source, messages, None).unwrap(), "--[x]");
}

#[test]
fn c20_reasoning_that_speaks_of_its_mark() {
    // The rule: the first closing mark ends the reasoning, and no text is lost between the two parts.
    let text = "<think>I close with `</think>` then.</think>Answer";
    let mut parser = OutputParser::new("<think></think>", "", true, None, Tools::default());
    let mut deltas: Vec<Delta> = text.chars().flat_map(|letter| parser.push(&letter.to_string())).collect();
    deltas.extend(parser.finish());
    let (mut reasoning, mut content) = (String::new(), String::new());
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => reasoning.push_str(&text),
            Delta::Content(text) => content.push_str(&text),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((reasoning.as_str(), content.as_str()), ("I close with `", "` then.</think>Answer"));
}

#[test]
fn c23_descriptions_do_not_matter_to_the_grammar() {
    let letters =
        ['"', '\\', '{', '}', '<', '>', '/', 'é', '漢', '\n', '`', '|', 'a', '[', ']', '\'', '~', '%'];
    let mut state = 1u32;
    let mut random = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize % below
    };
    let grammar = |dialect: &dialects::Dialect, description: &str| {
        let function = json!({"name": "f", "description": description, "parameters": {
            "type": "object", "properties": {"a": {"type": "string"}},
        }});
        // Descriptions of parameters are left out when a schema is checked; that of the function is not read.
        let tools = Tools::from_json(&[json!({"type": "function", "function": function})]);
        let asked = Demand { tools: &tools.0, parallel: true, required: true, answer: None };
        dialects::demand("", "", dialect, &asked, &[])
    };
    for dialect in dialects::DIALECTS {
        let plain = grammar(dialect, "");
        for _ in 0..200 {
            let mut text: String = (0..random(20)).map(|_| letters[random(letters.len())]).collect();
            text.push_str(["", "<tool_call>", "</tool_call>", "\"}}"][random(4)]);
            assert_eq!(grammar(dialect, &text), plain, "{}: {text:?}", dialect.name);
        }
    }
}

#[test]
fn c23_names_are_written_as_they_are() {
    // Names with characters that mean something to grammars and patterns.
    let tools = [Tool { name: "a.b-c/d\"e\\".into(), parameters: json!({"type": "object"}) }];
    for dialect in dialects::DIALECTS {
        let asked = Demand { tools: &tools, parallel: false, required: true, answer: None };
        let (grammar, _) = dialects::demand("", "", dialect, &asked, &[]);
        assert!(grammar.contains("a.b-c/d"), "{}: {grammar}", dialect.name);
    }
}
