//! Grammars of calls: what real templates write follows them, and whatever follows them is read as calls.
#![allow(clippy::print_stdout)] // counts

use std::sync::Arc;

use puna_chat::dialects::{self, Delta, Demand, Dialect, OutputParser, Start, Tool, Tools};
use puna_grammar::{Constraint, Grammar, Tokens, allows, lark_schema};
use serde_json::{Value, json};

/// Functions whose parameters a grammar can enforce.
fn prepared(tools: &Tools) -> Vec<Tool> {
    let prepare = |tool: &Tool| Tool {
        name: tool.name.clone(),
        parameters: lark_schema(&tool.parameters, false).unwrap(),
    };
    tools.0.iter().map(prepare).collect()
}

fn grammar(
    template: &str,
    prompt: &str,
    dialect: &Dialect,
    tools: &[Tool],
    required: bool,
) -> (Grammar, Vec<Start>) {
    let asked = Demand { tools, parallel: true, required, answer: None };
    let (text, starts) = dialects::demand(template, prompt, dialect, &asked, &[]);
    let grammar = Grammar::lark(&text, &Tokens::bytes());
    (grammar.unwrap_or_else(|error| panic!("{}: {error}\n{text}", dialect.name)), starts)
}

/// Bytes of the longest beginning of a text that follows the grammar as a whole.
fn longest(grammar: &Grammar, text: &str) -> usize {
    let mut constraint = grammar.constraint().unwrap();
    let mut complete = 0;
    for (place, byte) in text.bytes().enumerate() {
        if constraint.accept(u32::from(byte)).is_err() {
            break;
        }
        if constraint.is_complete().unwrap() {
            complete = place + 1;
        }
    }
    complete
}

/// The first place where calls may begin.
fn first(starts: &[Start], text: &str) -> Option<usize> {
    let places = starts.iter().filter_map(|start| match start {
        Start::Word(word) => text.find(word.as_str()),
        Start::Pattern(_) => text.find("{\"name\"").or_else(|| text.find("get_weather\n")),
    });
    places.min()
}

#[test]
fn what_templates_write_follows_the_grammar() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/templates");
    let rendered: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{folder}/rendered.json")).unwrap()).unwrap();
    let tools = rendered["conversations"]["tool_round"]["tools"].as_array().unwrap();
    let tools = prepared(&Tools::from_json(tools));
    let (mut checked, mut failures) = (0, Vec::new());
    for (file, cases) in rendered["rendered"].as_object().unwrap() {
        let template = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
        let Some(text) = cases["tool_round"]["text"].as_str() else { continue };
        let turn = text.rsplit_once("Weather in Paris?").unwrap().1;
        let Some(end) = turn.find("21}").filter(|_| turn.contains("get_weather")) else { continue };
        let Some(dialect) = dialects::detect(&template) else { continue };
        let (grammar, starts) = grammar(&template, "", dialect, &tools, false);
        let Some(place) = first(&starts, &turn[..end]) else {
            failures.push(format!("{file} ({}): none of {starts:?} in {turn:?}", dialect.name));
            continue;
        };
        let call = &turn[place..end];
        let length = longest(&grammar, call);
        checked += 1;
        if !call[..length].contains("Paris") || !call[..length].contains("unit") {
            failures.push(format!("{file} ({}): {length} bytes of {call:?}", dialect.name));
        }
    }
    println!("{checked} templates");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(checked >= 50, "{checked}");
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// A text that follows a grammar; nothing if it does not come to an end.
fn walk(constraint: &mut Constraint, random: &mut Random) -> Option<String> {
    let mut text = Vec::new();
    for _ in 0..4000 {
        let complete = constraint.is_complete().unwrap();
        let mask = constraint.mask().unwrap().unwrap().to_vec();
        let allowed: Vec<u8> = (0..128).filter(|byte| allows(&mask, u32::from(*byte))).collect();
        if allowed.is_empty() || (complete && random.below(3) == 0) {
            // Marks with other letters than ASCII.
            let others: Vec<u8> = (128..=255).filter(|byte| allows(&mask, u32::from(*byte))).collect();
            if complete || others.is_empty() {
                return complete.then(|| String::from_utf8(text).unwrap());
            }
            let byte = others[random.below(others.len())];
            constraint.accept(u32::from(byte)).unwrap();
            text.push(byte);
            continue;
        }
        // What closes something is likely, so that texts end.
        let closing: Vec<u8> = allowed.iter().copied().filter(|byte| b"\"}]>)/<|,".contains(byte)).collect();
        let from = if closing.is_empty() || random.below(2) == 0 { &allowed } else { &closing };
        let byte = from[random.below(from.len())];
        constraint.accept(u32::from(byte)).unwrap();
        text.push(byte);
    }
    None
}

#[test]
fn what_follows_the_grammar_is_read_as_calls() {
    let text = json!({"type": "string"});
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let tools = Tools::from_json(&[
        function(
            "find_it",
            json!({"type": "object", "properties": {
            "what": {"enum": ["one", "two words"], "type": "string"}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "deep": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}, "note": text,
        }, "required": ["what", "count"]}),
        ),
        function("stop", json!({"type": "object", "properties": {}})),
    ]);
    let ready = prepared(&tools);
    let mut random = Random(7);
    for dialect in dialects::DIALECTS {
        for template in ["", "[ARGS] ```json <tool_calls>[ <|function_call|> <seed:tool_call> function_calls"]
        {
            let prompt = dialect.opened.unwrap_or("");
            let (grammar, _) = grammar(template, prompt, dialect, &ready, true);
            let mut read = 0;
            for _ in 0..40 {
                let Some(text) = walk(&mut grammar.constraint().unwrap(), &mut random) else { continue };
                read += 1;
                check(dialect, prompt, &tools, &text);
            }
            assert!(read >= 20, "{}: only {read} texts came to an end", dialect.name);
        }
    }
}

/// The text is nothing but calls of declared functions with arguments as their schemas say.
fn check(dialect: &'static Dialect, prompt: &str, tools: &Tools, text: &str) {
    let name = dialect.name;
    let mut parser = OutputParser::new("", prompt, false, Some(dialect), tools.clone());
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish());
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::Call(name) => calls.push((name, String::new())),
            Delta::Arguments(text) => calls.last_mut().unwrap().1.push_str(&text),
            other => panic!("{name}: {other:?} in {text:?}"),
        }
    }
    assert!(!calls.is_empty(), "{name}: no call in {text:?}");
    for (function, arguments) in calls {
        let arguments: Value = serde_json::from_str(&arguments)
            .unwrap_or_else(|error| panic!("{name}: {error} in {arguments:?} of {text:?}"));
        match function.as_str() {
            "stop" => assert_eq!(arguments, json!({}), "{name}: {text:?}"),
            "find_it" => {
                assert!(
                    ["one", "two words"].contains(&arguments["what"].as_str().unwrap_or("")),
                    "{name}: {arguments} of {text:?}"
                );
                assert!(
                    arguments["count"].as_u64().is_some_and(|count| count < 100),
                    "{name}: {arguments} of {text:?}"
                );
                assert!(
                    arguments.get("deep").is_none_or(|deep| deep["on"].is_boolean()),
                    "{name}: {arguments} of {text:?}"
                );
                assert!(
                    arguments.get("note").is_none_or(Value::is_string),
                    "{name}: {arguments} of {text:?}"
                );
            }
            other => panic!("{name}: a call of {other:?} in {text:?}"),
        }
    }
}

#[test]
fn control_tokens_are_tokens() {
    // A vocabulary of bytes in which the marks are single tokens.
    let mut tokens: Vec<puna_grammar::Token> =
        Tokens::bytes().iter().map(|(_, token)| token.clone()).collect();
    let mark = |name: &str| puna_grammar::Token { bytes: name.into(), control: true, end: false };
    tokens.extend(["[TOOL_CALLS]", "[ARGS]"].map(mark));
    let tokens: Arc<Tokens> = Tokens::new(tokens);
    let control = [("[TOOL_CALLS]".to_owned(), 257), ("[ARGS]".to_owned(), 258)];
    let dialect = dialects::detect("[TOOL_CALLS] [ARGS]").unwrap();
    let tools = [Tool {
        name: "f".into(),
        parameters: json!({"type": "object", "properties": {}, "additionalProperties": false}),
    }];
    let asked = Demand { tools: &tools, parallel: false, required: true, answer: None };
    let (text, _) = dialects::demand("[TOOL_CALLS] [ARGS]", "", dialect, &asked, &control);
    let grammar = Grammar::lark(&text, &tokens).unwrap();
    let mut constraint = grammar.constraint().unwrap();
    assert!(!allows(constraint.mask().unwrap().unwrap(), u32::from(b'[')));
    for token in [257, u32::from(b'f'), 258, u32::from(b'{'), u32::from(b'}')] {
        constraint.accept(token).unwrap();
    }
    assert!(constraint.is_complete().unwrap());
    // One call is all.
    assert!(!allows(constraint.mask().unwrap().unwrap(), 257));
}
