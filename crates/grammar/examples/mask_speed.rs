//! How long masks take: `cargo run --release -p puna-grammar --example mask_speed VOCABULARY.gguf [FILE|FOLDER]...`.
//!
//! Without files, texts that follow some grammars are gone through token by token, as a model would write them. Files are
//! grammars (`.gbnf`) and JSON schemas (`.json`), those in folders too: of each, tokens are drawn from its own masks, some
//! of them marks, some anything. Times are of the mask and of accepting the token, together.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_gguf::File;
use puna_grammar::{Constraint, Grammar, Token, Tokens, allows};
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

/// Tokens that are drawn of a file's grammar.
const DRAWN: usize = 400;
/// Times from which on a token is told of.
const SLOW: Duration = Duration::from_millis(2);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("the path of a vocabulary or a model");
    let metadata = File::header(Path::new(&path)).expect("a readable file").metadata;
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
    let mut files = Vec::new();
    arguments.for_each(|path| collect(Path::new(&path), &mut files));
    match files.is_empty() {
        true => texts(&tokenizer, &tokens),
        false => drawn(&files, &tokens),
    }
}

/// All files at a place, in order.
fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else { return files.push(path.to_owned()) };
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries.iter().for_each(|path| collect(path, files));
}

/// Mean, median, share and most of times.
fn summary(times: &mut [Duration]) -> String {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    format!(
        "{} tokens, median {:.1?}, mean {mean:.1?}, 99% {:.1?}, most {:.1?}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

/// Goes through texts that are known.
fn texts(tokenizer: &Tokenizer, tokens: &Arc<Tokens>) {
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
    let gbnf = |text: &str| Grammar::new(text, tokens);
    let json_schema = |schema: &Value| Grammar::json_schema(schema, tokens);
    type Make<'a> = Box<dyn Fn() -> Result<Grammar, puna_grammar::GrammarError> + 'a>;
    let rows: [(&str, Make<'_>, &str); 8] = [
        ("GBNF, JSON", Box::new(|| gbnf(JSON)), person),
        ("GBNF, JSON, deep", Box::new(|| gbnf(JSON)), &deep),
        ("GBNF, anything", Box::new(|| gbnf("root ::= .*")), &prose),
        ("GBNF, 2000 characters", Box::new(|| gbnf("root ::= [^\\x00]{0,2000}")), &prose),
        ("GBNF, yes or no last", Box::new(|| gbnf("root ::= [^\\x00]* (\"yes\" | \"no\")?")), &prose),
        ("schema", Box::new(|| json_schema(&schema)), person),
        ("schema, any JSON", Box::new(|| json_schema(&anything)), &deep),
        ("Lark, words", Box::new(|| gbnf("%llguidance {}\nstart: /[^\\x00]*/")), &prose),
    ];
    for (name, make, text) in rows {
        let start = Instant::now();
        let grammar = make().expect("the grammar compiles");
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
            println!("{name:24} {round}: compiled in {compiled:.1?}, {}", summary(&mut times));
        }
    }
}

/// Draws tokens from the masks of grammars.
fn drawn(files: &[PathBuf], tokens: &Arc<Tokens>) {
    let (mut all, mut refused, mut failed, mut made) = (Vec::new(), 0, 0, Vec::new());
    for path in files {
        let text = std::fs::read_to_string(path).expect("a readable file");
        let start = Instant::now();
        let grammar = match path.extension().is_some_and(|extension| extension == "gbnf") {
            true => Grammar::new(&text, tokens),
            false => match serde_json::from_str::<Value>(&text) {
                Ok(schema) => Grammar::json_schema(&schema, tokens),
                Err(error) => panic!("{}: {error}", path.display()),
            },
        };
        let compiled = start.elapsed();
        let mut constraint = match grammar.and_then(|grammar| grammar.constraint()) {
            Ok(constraint) => constraint,
            Err(error) => {
                refused += 1;
                println!("{}: refused in {compiled:.1?}: {error}", path.display());
                continue;
            }
        };
        made.push(compiled);
        let (mut times, error) = draw(&mut constraint, tokens, path);
        if let Some(error) = error {
            failed += 1;
            println!("{}: after {} tokens: {error}", path.display(), times.len());
        }
        if times.is_empty() {
            continue;
        }
        all.extend_from_slice(&times);
        let line = summary(&mut times);
        if files.len() <= 40 || times.last().is_some_and(|most| *most > SLOW) {
            println!("{}: compiled in {compiled:.1?}, {line}", path.display());
        }
    }
    println!("{} files, {refused} refused, {failed} failed", files.len());
    if !all.is_empty() {
        let over = all.iter().filter(|time| **time > Duration::from_millis(5)).count();
        println!("masks: {}, {over} over 5 ms", summary(&mut all));
        println!("compiling: {}", summary(&mut made).replace("tokens", "grammars"));
    }
}

/// Follows a grammar with tokens drawn from its masks, and how long each took.
fn draw(
    constraint: &mut Constraint,
    tokens: &Tokens,
    path: &Path,
) -> (Vec<Duration>, Option<puna_grammar::GrammarError>) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % most.max(1)
    };
    let marks = |token: &Token| token.bytes.iter().all(|byte| b"\"{}[]:,()\n".contains(byte));
    let mut times = Vec::with_capacity(DRAWN);
    let mut text = String::new();
    while times.len() < DRAWN {
        let start = Instant::now();
        let mask = match constraint.mask() {
            Ok(mask) => mask.map(<[u32]>::to_vec).unwrap_or_default(),
            Err(error) => return (times, Some(error)),
        };
        let took = start.elapsed();
        let mut allowed: Vec<(u32, &Token)> =
            tokens.iter().filter(|(id, token)| allows(&mask, *id) && !token.end).collect();
        if below(2) == 0 && allowed.iter().any(|(_, token)| marks(token)) {
            allowed.retain(|(_, token)| marks(token));
        }
        let Some((id, token)) = allowed.get(below(allowed.len())) else { break };
        let start = Instant::now();
        if let Err(error) = constraint.accept(*id) {
            return (times, Some(error));
        }
        text.push_str(&String::from_utf8_lossy(&token.bytes));
        let took = took + start.elapsed();
        if took > SLOW {
            let end: String = text.chars().rev().take(60).collect::<Vec<_>>().into_iter().rev().collect();
            println!("{}: token {} took {took:.1?} after {end:?}", path.display(), times.len());
        }
        times.push(took);
    }
    (times, None)
}
