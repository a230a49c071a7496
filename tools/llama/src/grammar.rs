//! `llama grammar`: whether a text follows a grammar or a schema, and where it stops doing so.

use crate::constraint::{self, Source};
use crate::failure::Failure;
use crate::files::{self, PROMPT};
use crate::invocation::Invocation;
use crate::{load, pages, prompt, source};
use puna_flags::{Config, FLAGS, GrammarSource, Positional, Spec, ToolSet};
use puna_grammar::{GrammarError, Mismatch, Tokens, check};
use puna_server::grammar_tokens;
use std::path::Path;

/// Flags of `grammar`.
pub const SPEC: Spec<Config> = Spec {
    name: "grammar",
    tool: ToolSet::GRAMMAR,
    about: "Check a text against a grammar (GBNF, or Lark after %llguidance) or a JSON schema. Without a text the \
            grammar alone is checked. Exit code 0 if it is right, 1 if not",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "[GRAMMAR_FILE] [TEXT_FILE]",
        help: "File with the grammar, unless a flag gives it; file with the text, - for the standard input",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// Bytes of the text shown around the mistake.
const SHOWN: usize = 60;

/// `llama grammar`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let mut files = config.positional.iter();
    let given = config.sampling.grammar.clone();
    let Some(grammar) = given.or_else(|| files.next().map(|path| GrammarSource::File(path.into()))) else {
        return Err(
            invocation.usage("no grammar: give a file, --grammar, --json-schema or --json-schema-file")
        );
    };
    let text = text(&config, files.next().map(String::as_str))?;
    if files.next().is_some() {
        return Err(invocation.usage("expected a grammar and a text at most"));
    }
    let compiled = (|| {
        let read = constraint::read(invocation, &grammar)?;
        if config.model.path.is_some() || config.model.hf_repo.is_some() || config.model.url.is_some() {
            // References to tokens need a model; its text is checked with single bytes all the same.
            let path = source::model(invocation, &config.model, &console, false)?;
            let tokenizer = load::tokenizer(&path, &load::metadata(&path, &console)?, &console)?;
            compile(&read, &grammar_tokens(&tokenizer))?;
            return Ok(None);
        }
        compile(&read, &Tokens::bytes()).map(Some)
    })()?;
    let Some(text) = text else { return pages::print(b"The grammar is valid.\n") };
    let Some(compiled) = compiled else {
        return Err(invocation.usage("a text cannot be checked together with -m: give one of both"));
    };
    let found = check(&compiled, &text).map_err(|error| Failure::Failed(error.to_string()))?;
    let Some(mismatch) = found else {
        return pages::print(b"Input string is valid according to the grammar.\n");
    };
    pages::print(&report(&text, &mismatch))?;
    Err(Failure::Told)
}

fn compile(source: &Source, tokens: &std::sync::Arc<Tokens>) -> Result<puna_grammar::Grammar, Failure> {
    constraint::compile(source, tokens).map_err(|error: GrammarError| Failure::Failed(error.to_string()))
}

/// The text: of the file named after the grammar, or of the flags; none if nobody gives one.
fn text(config: &Config, file: Option<&str>) -> Result<Option<Vec<u8>>, Failure> {
    match file {
        Some("-") => files::read_input(PROMPT).map(Some),
        Some(path) => files::read(Path::new(path), PROMPT).map(Some),
        None => Ok(prompt::given(config)?.map(String::into_bytes)),
    }
}

/// What is wrong and where.
fn report(text: &[u8], mismatch: &Mismatch) -> Vec<u8> {
    let offset = mismatch.offset;
    let before = text.get(..offset).unwrap_or(text);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let column = String::from_utf8_lossy(before.get(start..).unwrap_or_default()).chars().count() + 1;
    let found = match text.get(offset..).map(String::from_utf8_lossy).and_then(|rest| rest.chars().next()) {
        Some(found) => format!("{found:?}"),
        None => "the end of the text".into(),
    };
    let mut out = String::from("Input string is invalid according to the grammar.\n");
    out += &format!("Error: found {found} at position {offset} (line {line}, column {column})\n");
    out += &format!("Expected: {}\n\nInput string:\n", mismatch.expected_text());
    let mut out = out.into_bytes();
    let from = offset.saturating_sub(SHOWN).max(start);
    let rest = text.get(from..).unwrap_or_default();
    let rest = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    out.extend_from_slice(rest.get(..rest.len().min(2 * SHOWN)).unwrap_or_default());
    let width = String::from_utf8_lossy(text.get(from..offset).unwrap_or_default()).chars().count();
    out.extend_from_slice(format!("\n{}^\n", " ".repeat(width)).as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use puna_grammar::Grammar;

    #[test]
    fn the_first_wrong_character_is_shown() {
        let grammar = Grammar::new("root ::= (\"é\" | [0-9])+ \"\\n\"? [a-c]", &Tokens::bytes()).unwrap();
        let text = "é1\nx".as_bytes();
        let mismatch = check(&grammar, text).unwrap().unwrap();
        let shown = String::from_utf8(report(text, &mismatch)).unwrap();
        let expected = "Input string is invalid according to the grammar.\n\
                        Error: found 'x' at position 4 (line 2, column 1)\n\
                        Expected: a to c\n\n\
                        Input string:\nx\n^\n";
        assert_eq!(shown, expected);
        let mismatch = check(&grammar, "é1".as_bytes()).unwrap().unwrap();
        let shown = String::from_utf8(report("é1".as_bytes(), &mismatch)).unwrap();
        assert!(shown.contains("found the end of the text at position 3 (line 1, column 3)"), "{shown}");
        assert!(shown.ends_with("é1\n  ^\n"), "{shown}");
    }
}
