//! SentencePiece's `tokenizer.model`: a protocol buffer of pieces and settings.

use puna_gguf::Metadata;
use serde_json::Value;

use super::byte_pair::{added, adds_space};
use super::{CONTROL, Files, NORMAL, USER_DEFINED, Vocabulary};
use crate::ConvertError;

const FILE: &str = "tokenizer.model";

fn wrong(reason: impl Into<String>) -> ConvertError {
    ConvertError::Tokenizer { file: FILE, reason: reason.into() }
}

/// One field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Word(u32),
}

/// The fields of a message, until one is damaged.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Word(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

/// Calls `each` with all fields of a message.
fn read<'a>(
    bytes: &'a [u8],
    mut each: impl FnMut(u64, Field<'a>) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let mut fields = Fields { rest: bytes };
    while !fields.rest.is_empty() {
        let (number, field) = fields.field().ok_or_else(|| wrong("it is damaged"))?;
        each(number, field)?;
    }
    Ok(())
}

/// From the file itself; `json` tells about added tokens and the space in front.
pub(crate) fn from_protobuf(
    files: &Files<'_>,
    bytes: &[u8],
    json: Option<&Value>,
    metadata: &mut Metadata,
) -> Result<Vocabulary, ConvertError> {
    // A piece takes two bytes at least.
    let mut vocabulary = Vocabulary::of(bytes.len() / 2);
    let mut scores = Vec::new();
    // Unigram unless the file says otherwise.
    let mut kind = 1;
    let (mut space, mut squeezes, mut map) = (true, true, None);
    read(bytes, |number, field| {
        match (number, field) {
            (1, Field::Bytes(piece)) => {
                let (mut text, mut score, mut piece_kind) = (String::new(), 0.0, 1);
                read(piece, |number, field| {
                    match (number, field) {
                        (1, Field::Bytes(bytes)) => text = String::from_utf8_lossy(bytes).into_owned(),
                        (2, Field::Word(bits)) => score = f32::from_bits(bits),
                        (3, Field::Number(number)) => piece_kind = number,
                        _ => {}
                    }
                    Ok(())
                })?;
                // The numbers of kinds are those of GGUF.
                let kind = i32::try_from(piece_kind).ok().filter(|kind| (1..=6).contains(kind));
                let id = vocabulary.tokens.len() as u64;
                vocabulary.set(FILE, id, &text, kind.unwrap_or(NORMAL))?;
                scores.push(score);
            }
            (2, Field::Bytes(trainer)) => read(trainer, |number, field| {
                if let (3, Field::Number(number)) = (number, field) {
                    kind = number;
                }
                Ok(())
            })?,
            (3, Field::Bytes(normaliser)) => read(normaliser, |number, field| {
                match (number, field) {
                    (2, Field::Bytes(bytes)) if !bytes.is_empty() => map = Some(bytes.to_vec()),
                    (3, Field::Number(flag)) => space = flag != 0,
                    (4, Field::Number(flag)) => squeezes = flag != 0,
                    _ => {}
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    vocabulary.scores = scores;
    if vocabulary.tokens.is_empty() {
        return Err(wrong("it has no pieces"));
    }
    add_tokens(&mut vocabulary, files, json)?;
    let byte_pairs = kind == 2;
    metadata.set("tokenizer.ggml.model", if byte_pairs { "llama" } else { "t5" });
    metadata.set("tokenizer.ggml.pre", "default");
    metadata.set("tokenizer.ggml.add_space_prefix", json.map_or(space, |json| adds_space(json) && space));
    if !byte_pairs {
        metadata.set("tokenizer.ggml.remove_extra_whitespaces", squeezes);
        if let Some(map) = map {
            metadata.set("tokenizer.ggml.precompiled_charsmap", map);
        }
    }
    Ok(vocabulary)
}

/// Adds the tokens that files beside the pieces name.
fn add_tokens(
    vocabulary: &mut Vocabulary,
    files: &Files<'_>,
    json: Option<&Value>,
) -> Result<(), ConvertError> {
    let mut more: Vec<(u64, String, bool)> = Vec::new();
    if let Some(Value::Object(list)) = files.json("added_tokens.json")? {
        more.extend(list.iter().filter_map(|(text, id)| Some((id.as_u64()?, text.clone(), true))));
    }
    for (id, text, special) in json.map(added).unwrap_or_default() {
        more.push((id, text.to_owned(), special));
    }
    let settings = files.json("tokenizer_config.json")?.unwrap_or(Value::Null);
    if let Some(Value::Object(list)) = settings.get("added_tokens_decoder") {
        for (id, token) in list {
            let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
            if let (Ok(id), Some(text)) = (id.parse(), token.get("content").and_then(Value::as_str)) {
                more.push((id, text.to_owned(), special));
            }
        }
    }
    for (id, text, special) in more {
        // What the pieces say about unknown and byte tokens stands.
        let place = usize::try_from(id).unwrap_or(usize::MAX);
        if vocabulary.kinds.get(place).is_none_or(|kind| [NORMAL, USER_DEFINED, CONTROL].contains(kind)) {
            vocabulary.set(FILE, id, &text, if special { CONTROL } else { USER_DEFINED })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_messages_are_refused() {
        let none = |_, _: Field<'_>| Ok(());
        for bytes in [&[0x0a, 5, 1][..], &[0x0a, 0xff], &[0xff; 11], &[0x0b], &[0x0d, 1, 2]] {
            assert!(read(bytes, none).is_err(), "{bytes:?}");
        }
        assert!(read(&[0x0a, 1, 65, 0x10, 3], none).is_ok());
        assert!(read(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], none).is_err());
    }
}
