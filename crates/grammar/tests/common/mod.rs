//! Checking texts, and tokens of a real model.
#![allow(clippy::print_stdout)] // a skipped test says why
#![allow(dead_code)] // each test file uses a part

use std::path::PathBuf;
use std::sync::Arc;

use puna_gguf::File;
use puna_grammar::{Grammar, Mismatch, Token, Tokens, check};
use puna_tokenizer::{Kind, Tokenizer};

/// A grammar for single bytes.
#[track_caller]
pub fn grammar(text: &str) -> Grammar {
    Grammar::new(text, &Tokens::bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A schema for single bytes.
#[track_caller]
pub fn schema(schema: &serde_json::Value) -> Grammar {
    Grammar::json_schema(schema, &Tokens::bytes()).unwrap_or_else(|error| panic!("{error}\n{schema}"))
}

#[track_caller]
pub fn mismatch(grammar: &Grammar, text: &str) -> Option<Mismatch> {
    check(grammar, text.as_bytes()).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

/// All of the first texts are right, all of the second ones wrong.
#[track_caller]
pub fn accepts(grammar: &Grammar, right: &[&str], wrong: &[&str]) {
    for text in right {
        let found = mismatch(grammar, text);
        assert!(found.is_none(), "{text:?}: {found:?}");
    }
    for text in wrong {
        assert!(mismatch(grammar, text).is_some(), "{text:?} should not be accepted");
    }
}

/// The tokens and tokenizer of a vocabulary of the shared fixtures.
pub fn vocabulary(name: &str) -> Option<(Arc<Tokens>, Tokenizer)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = path.join(format!("../../../shared/fixtures/vocab/ggml-vocab-{name}.gguf"));
    if !path.exists() {
        println!("skipped: the vocabulary {name} is not there");
        return None;
    }
    let metadata = File::header(&path).expect("the vocabulary is readable").metadata;
    let tokenizer = Tokenizer::from_metadata(&metadata).expect("a tokenizer").expect("a tokenizer");
    let vocabulary = tokenizer.vocabulary();
    let token = |id: u32| {
        let kind = vocabulary.kind(id);
        let none = matches!(kind, Some(Kind::Unused | Kind::Unknown));
        Token {
            bytes: if none { Vec::new() } else { tokenizer.piece(id, true) },
            control: kind == Some(Kind::Control),
            end: vocabulary.is_end_of_generation(id),
        }
    };
    Some((Tokens::new((0..vocabulary.len() as u32).map(token).collect()), tokenizer))
}
