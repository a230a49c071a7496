//! JSON that is still being written: where its parts end, and what of a text is there. Nothing here recurses, and what
//! was read once is not read again when more comes.

/// How far something is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It goes on.
    Open,
    /// It is this long.
    Closed(usize),
    /// From here on it is no JSON.
    Broken(usize),
}

/// Where blanks from `at` on end.
pub(super) fn skip_blanks(text: &str, at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.len() - rest.trim_start().len()
}

/// Looks for the end of a value.
#[derive(Default, Debug)]
pub(super) struct ValueScan {
    /// Bytes that were looked at.
    at: usize,
    /// What closes the brackets that are open.
    open: Vec<u8>,
    quoted: bool,
    escaped: bool,
}

impl ValueScan {
    /// Where the value ends that `text` begins with. The text is that of the last time, and perhaps more; once an end
    /// was found, there is nothing to ask for. Bytes that were looked at are added to `work`.
    pub(super) fn end(&mut self, text: &str, work: &mut u64) -> End {
        let before = self.at;
        let end = match text.as_bytes().first() {
            None => End::Open,
            Some(b'{' | b'[') => self.brackets(text),
            Some(b'"') => self.string(text),
            Some(b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => self.word(text),
            Some(_) => End::Broken(0),
        };
        *work += (self.at - before) as u64;
        end
    }

    fn brackets(&mut self, text: &str) -> End {
        for byte in text.as_bytes().get(self.at..).unwrap_or_default() {
            let place = self.at;
            self.at += 1;
            if self.quoted {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.quoted = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.quoted = true,
                b'{' => self.open.push(b'}'),
                b'[' => self.open.push(b']'),
                b'}' | b']' => {
                    if self.open.pop() != Some(*byte) {
                        return End::Broken(place);
                    }
                    if self.open.is_empty() {
                        return End::Closed(place + 1);
                    }
                }
                _ => {}
            }
        }
        End::Open
    }

    fn string(&mut self, text: &str) -> End {
        string_end(text, &mut self.at, |_| ())
    }

    fn word(&mut self, text: &str) -> End {
        let ends = |next: char| ",}]".contains(next) || next.is_whitespace();
        let Some(length) = text.get(self.at..).and_then(|rest| rest.find(ends)) else {
            self.at = text.len();
            return End::Open;
        };
        self.at += length;
        match serde_json::from_str::<serde_json::Value>(&text[..self.at]).is_ok() {
            true => End::Closed(self.at),
            false => End::Broken(0),
        }
    }
}

/// A string that is decoded while it comes.
#[derive(Default, Debug)]
pub(super) struct TextScan {
    at: usize,
    /// What is there of it.
    pub(super) decoded: String,
}

impl TextScan {
    /// Decodes what is new of the string that `text` begins with; its length counts both quotes.
    pub(super) fn read(&mut self, text: &str, work: &mut u64) -> End {
        let before = self.at;
        let decoded = &mut self.decoded;
        let end = string_end(text, &mut self.at, |character| decoded.push(character));
        *work += (self.at - before) as u64;
        end
    }
}

/// Goes on through a string from `at`, its first quote if that is 0.
fn string_end(text: &str, at: &mut usize, mut found: impl FnMut(char)) -> End {
    if !text.starts_with('"') {
        return if text.is_empty() { End::Open } else { End::Broken(0) };
    }
    *at = (*at).max(1);
    while let Some(character) = text.get(*at..).and_then(|rest| rest.chars().next()) {
        match character {
            '"' => return End::Closed(*at + 1),
            '\\' => match escape(&text[*at..]) {
                None => return End::Broken(*at),
                Some(None) => break,
                Some(Some((character, length))) => {
                    found(character);
                    *at += length;
                }
            },
            other => {
                found(other);
                *at += other.len_utf8();
            }
        }
    }
    End::Open
}

/// The character of an escape and the escape's length; `Some(None)` if more of it must come.
fn escape(text: &str) -> Option<Option<(char, usize)>> {
    let simple = match text.as_bytes().get(1) {
        None => return Some(None),
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(quoted @ (b'"' | b'\\' | b'/')) => char::from(*quoted),
        Some(b'u') => return unicode_escape(text),
        Some(_) => return None,
    };
    Some(Some((simple, 2)))
}

fn unicode_escape(text: &str) -> Option<Option<(char, usize)>> {
    let unit = |from: usize| match text.get(from..from + 4) {
        // Four characters that are more than four bytes are no digits.
        None => (text.len() < from + 4).then_some(None),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u32::from_str_radix(digits, 16).ok().map(Some)
        }
        Some(_) => None,
    };
    let Some(high) = unit(2)? else { return Some(None) };
    if !(0xd800..0xdc00).contains(&high) {
        return Some(Some((char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), 6)));
    }
    let lone = Some(Some((char::REPLACEMENT_CHARACTER, 6)));
    let rest = &text[6..];
    if !"\\u".starts_with(rest.get(..2).unwrap_or(rest)) {
        return lone;
    }
    if rest.len() < 6 {
        return Some(None);
    }
    let Some(low) = unit(8)? else { return Some(None) };
    if !(0xdc00..0xe000).contains(&low) {
        return lone;
    }
    let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    Some(Some((char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)))
}

/// Text as the inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::{End, TextScan, ValueScan};

    /// What is found, whether the text comes at once or letter by letter.
    fn value(text: &str) -> End {
        let whole = ValueScan::default().end(text, &mut 0);
        let mut scan = ValueScan::default();
        let mut pieces = End::Open;
        let mut work = 0;
        for (place, letter) in text.char_indices() {
            pieces = scan.end(&text[..place + letter.len_utf8()], &mut work);
            if pieces != End::Open {
                break;
            }
        }
        assert_eq!(pieces, whole, "{text}");
        assert!(work <= 2 * text.len() as u64, "{text}: {work}");
        whole
    }

    #[test]
    fn values_end_where_they_end() {
        let cases = [
            ("{\"a\": [1, \"}\\\"\"]} x", End::Closed(17)),
            ("[1}", End::Broken(2)),
            ("\"a\\u00e9\" ", End::Closed(9)),
            ("\"\\ud83e\\udd99\",", End::Closed(14)),
            ("\"\\x\"", End::Broken(1)),
            ("\"\\u00é0\"", End::Broken(1)),
            ("12.5,", End::Closed(4)),
            ("nul,", End::Broken(0)),
            ("true", End::Open),
            ("", End::Open),
            ("{", End::Open),
            (")", End::Broken(0)),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), expected, "{text}");
        }
    }

    #[test]
    fn strings_are_decoded_as_they_come() {
        let text = "\"a\\n\\u00e9\\ud83e\\udd99\\ud83eé\" ";
        let mut scan = TextScan::default();
        let mut end = End::Open;
        for (place, letter) in text.char_indices() {
            if end == End::Open {
                end = scan.read(&text[..place + letter.len_utf8()], &mut 0);
            }
        }
        assert_eq!((scan.decoded.as_str(), end), ("a\né🦙\u{fffd}é", End::Closed(text.len() - 1)));
    }
}
