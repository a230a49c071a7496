//! GPT-2's one-to-one map between bytes and printable characters, in which byte-level vocabularies are written.

/// The character that stands for a byte.
pub(crate) fn character(byte: u8) -> char {
    let code = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte - 0x7f),
        0xad => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that a character stands for.
pub(crate) fn byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use super::{byte, character};

    #[test]
    fn the_map_is_one_to_one() {
        for value in 0..=255 {
            assert_eq!(byte(character(value)), Some(value));
        }
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
        assert_eq!(character(0xad), 'Ń');
        assert_eq!(byte('漢'), None);
    }
}
