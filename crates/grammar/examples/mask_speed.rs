//! How long masks take: `cargo run --release -p puna-grammar --example mask_speed VOCABULARY.gguf`.
//!
//! For each grammar a text that follows it is gone through token by token, as a model would write it; times are of
//! the mask and of accepting the token, together.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use puna_gguf::File;
use puna_grammar::{Grammar, Token, Tokens};
use puna_tokenizer::{Kind, Tokenizer};
use serde_json::{Value, json};

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

/// What a grammar is made of.
enum Source<'a> {
    Text(&'a str),
    Schema(&'a Value),
}

fn main() {
    let path = std::env::args().nth(1).expect("the path of a vocabulary or a model");
    let metadata = File::header(std::path::Path::new(&path)).expect("a readable file").metadata;
    let tokenizer = Tokenizer::from_metadata(&metadata).expect("a tokenizer").expect("a tokenizer");
    let vocabulary = tokenizer.vocabulary();
    let start = Instant::now();
    let token = |id: u32| Token {
        bytes: tokenizer.piece(id, true),
        control: vocabulary.kind(id) == Some(Kind::Control),
        end: vocabulary.is_end_of_generation(id),
    };
    let tokens = Tokens::new((0..vocabulary.len() as u32).map(token).collect());
    println!("{} tokens, read in {:?}", tokens.len(), start.elapsed());

    let person = r#"{"name": "Ada Lovelace", "age": 36, "email": "ada@example.com", "tags": ["mathematics", "computing"], "address": {"street": "12 St James's Square", "city": "London", "note": "near the library, second floor — ring twice"}, "active": true, "score": 99.5}"#;
    let deep = format!("{}{}{}", "{\"a\": [".repeat(12), person, "]}".repeat(12));
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": {"type": "string", "format": "email"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}},
            "address": {"$ref": "#/$defs/address"}, "active": {"type": "boolean"}, "score": {"type": "number"},
        },
        "required": ["name", "age", "address"],
        "$defs": {"address": {"type": "object", "properties": {
            "street": {"type": "string"}, "city": {"type": "string", "pattern": "^[A-Z][a-z]+$"}, "note": {"type": "string", "maxLength": 2000}}}},
    });
    let prose = "It was the best of times, it was the worst of times, it was the age of wisdom. \u{1f999} Über alles. ".repeat(6);
    let anything = json!({"type": "object"});
    let rows = [
        ("GBNF, JSON", Source::Text(JSON), person),
        ("GBNF, JSON, deep", Source::Text(JSON), &deep),
        ("GBNF, anything", Source::Text("root ::= .*"), &prose),
        ("GBNF, 2000 characters", Source::Text("root ::= [^\\x00]{0,2000}"), &prose),
        ("GBNF, yes or no last", Source::Text("root ::= [^\\x00]* (\"yes\" | \"no\")?"), &prose),
        ("schema", Source::Schema(&schema), person),
        ("schema, any JSON", Source::Schema(&anything), &deep),
        ("Lark, words", Source::Text("%llguidance {}\nstart: /[^\\x00]*/"), &prose),
    ];
    for (name, source, text) in rows {
        let start = Instant::now();
        let grammar = match source {
            Source::Text(text) => Grammar::new(text, &tokens),
            Source::Schema(schema) => Grammar::json_schema(schema, &tokens),
        };
        let grammar = grammar.expect("the grammar compiles");
        let compiled = start.elapsed();
        let text = tokenizer.encode(text, false, false);
        for round in ["first", "again"] {
            let mut constraint = grammar.constraint().expect("it begins");
            let mut times = Vec::with_capacity(text.len());
            for token in &text {
                let start = Instant::now();
                constraint.mask().expect("a mask");
                constraint.accept(*token).unwrap_or_else(|error| panic!("{name}: {error}"));
                times.push(start.elapsed());
            }
            times.sort();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            let mean = times.iter().sum::<Duration>() / times.len() as u32;
            println!(
                "{name:24} {round}: {:4} tokens, compiled in {compiled:.1?}, median {:.1?}, mean {mean:.1?}, 99% {:.1?}, most {:.1?}",
                times.len(),
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
    }
}
