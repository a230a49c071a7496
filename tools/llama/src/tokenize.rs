//! `llama tokenize`: the tokens of a text.

use crate::failure::Failure;
use crate::files::{self, PROMPT};
use crate::invocation::Invocation;
use crate::{load, pages, source};
use puna_flags::{Config, FLAGS, Spec, ToolSet};

/// Flags of `tokenize`.
pub const SPEC: Spec<Config> = Spec {
    name: "tokenize",
    tool: ToolSet::TOKENIZE,
    about: "Print the tokens of a text with a model's tokenizer",
    groups: FLAGS,
    positional: None,
};

/// `llama tokenize`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let prompt = &config.prompt;
    if !config.tokenize.stdin
        && prompt.text.is_none()
        && prompt.file.is_none()
        && prompt.binary_file.is_none()
    {
        return Err(invocation.usage("no text: give -p TEXT, -f FILE or --stdin"));
    }
    let path = source::model(invocation, &config.model, &console, false)?;
    let mut metadata = load::metadata(&path, &console)?;
    for (key, value) in &config.model.overrides {
        metadata.set(key.clone(), value.clone());
    }
    let tokenizer = load::tokenizer(&path, &metadata, &console)?;

    let text = text(&config)?;
    let add_special = config.tokenize.add_bos && tokenizer.vocabulary().add_bos();
    let tokens = tokenizer.encode(&text, add_special, config.tokenize.parse_special);
    let mut out = Vec::new();
    if config.tokenize.ids {
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        out.extend_from_slice(format!("[{}]\n", ids.join(", ")).as_bytes());
    } else {
        for token in &tokens {
            out.extend_from_slice(format!("{token:6} -> '").as_bytes());
            out.extend_from_slice(&tokenizer.piece(*token, true));
            out.extend_from_slice(b"'\n");
        }
    }
    if config.tokenize.show_count {
        out.extend_from_slice(format!("Total number of tokens: {}\n", tokens.len()).as_bytes());
    }
    pages::print(&out)
}

/// The text to split: from the standard input, else a file, else the flag.
fn text(config: &Config) -> Result<String, Failure> {
    let prompt = &config.prompt;
    let (text, name) = if config.tokenize.stdin {
        (files::read_input(PROMPT)?, files::INPUT.to_string())
    } else if let Some(path) = &prompt.binary_file {
        return files::read_text(path, PROMPT);
    } else if let Some(path) = &prompt.file {
        (files::read(path, PROMPT)?, path.display().to_string())
    } else {
        (prompt.text.clone().unwrap_or_default().into_bytes(), "-p".to_string())
    };
    let text = files::text(text, &name)?;
    if !prompt.escape {
        return Ok(text);
    }
    files::text(unescape(text.as_bytes()), &format!("{name}, escapes replaced"))
}

/// Replaces `\n`, `\r`, `\t`, `\'`, `\"`, `\\` and `\xHH`; other backslashes stay.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'\\' {
            plain.push(*first);
            continue;
        }
        let (byte, used) = match after {
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b't', ..] => (b'\t', 1),
            [quoted @ (b'\'' | b'"' | b'\\'), ..] => (*quoted, 1),
            [b'x', high, low, ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high * 16 + low, 3),
                _ => (b'\\', 0),
            },
            _ => (b'\\', 0),
        };
        plain.push(byte);
        rest = &after[used..];
    }
    plain
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        for (text, expected) in [
            (r"a\nb\tc\rd", "a\nb\tc\rd"),
            (r#"\'\"\\"#, "'\"\\"),
            (r"\x41\x4", "A\\x4"),
            (r"\xzz\q\", r"\xzz\q\"),
            (r"\\n", r"\n"),
            ("", ""),
        ] {
            assert_eq!(unescape(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }
}
