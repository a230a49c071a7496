//! RWKV's tokenizer: the longest token that begins the rest of the text, byte by byte.

use crate::model::{Model, Source};
use crate::prefix_table::PrefixTable;
use crate::vocabulary::Vocabulary;
use crate::{Error, Role, Token};

#[derive(Debug)]
struct LongestMatch {
    table: PrefixTable,
}

pub(crate) fn build(source: Source<'_>) -> Result<Box<dyn Model>, Error> {
    let entries = source.vocabulary.iter().map(|(token, text, _)| (unescape(text), token));
    Ok(Box::new(LongestMatch { table: PrefixTable::new(entries, source.warnings) }))
}

impl Model for LongestMatch {
    fn encode(&self, vocabulary: &Vocabulary, text: &str, _after_special: bool, tokens: &mut Vec<Token>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let found = self.table.longest_prefix(rest);
            tokens.extend(found.map(|(_, token)| token).or_else(|| vocabulary.role(Role::Unknown)));
            rest = rest.get(found.map_or(1, |(length, _)| length)..).unwrap_or_default();
        }
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        unescape(text)
    }
}

/// The bytes of a token text, which is written with Python's escapes.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('\\') {
        let (before, escape) = rest.split_at(position);
        bytes.extend_from_slice(before.as_bytes());
        let mut characters = escape.chars();
        characters.next();
        match characters.next() {
            Some('t') => bytes.push(b'\t'),
            Some('n') => bytes.push(b'\n'),
            Some('r') => bytes.push(b'\r'),
            Some('x') => {
                let digits =
                    characters.as_str().get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
                match digits {
                    Some(byte) => {
                        bytes.push(byte);
                        characters = characters.as_str().get(2..).unwrap_or("").chars();
                    }
                    None => bytes.extend_from_slice(b"\\x"),
                }
            }
            Some(other) => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            None => bytes.push(b'\\'),
        }
        rest = characters.as_str();
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes_become_bytes() {
        assert_eq!(unescape(r"a\tb\n\r"), b"a\tb\n\r");
        assert_eq!(unescape(r"\xe4\xB8\x"), b"\xe4\xb8\\x");
        assert_eq!(unescape(r#"\'\"\\漢\"#), "'\"\\漢\\".as_bytes());
    }
}
