//! JSON that is still being written: what of it is there, and where it ends. Nothing here recurses.

/// A member of an object.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) key: String,
    /// The value as it is written, so far.
    pub(super) value: &'a str,
    /// Whether the value is all there.
    pub(super) whole: bool,
}

/// An object so far.
#[derive(Debug)]
pub(super) struct Object<'a> {
    pub(super) members: Vec<Member<'a>>,
    /// Bytes up to and with the closing brace, or up to where it is no JSON any more.
    pub(super) end: Option<usize>,
}

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

/// The object that `text` begins with; nothing if it does not begin like one.
pub(super) fn object(text: &str) -> Option<Object<'_>> {
    if !text.starts_with('{') {
        return None;
    }
    let mut members = Vec::new();
    let mut at = 1;
    loop {
        at = skip_blanks(text, at);
        match text.as_bytes().get(at) {
            None => return Some(Object { members, end: None }),
            Some(b'}') => return Some(Object { members, end: Some(at + 1) }),
            Some(b',') if !members.is_empty() => {
                at += 1;
                continue;
            }
            Some(b'"') => {}
            Some(_) => return Some(Object { members, end: Some(at) }),
        }
        let (key, end) = string(&text[at..]);
        match end {
            End::Open => return Some(Object { members, end: None }),
            End::Closed(length) => at = skip_blanks(text, at + length),
            End::Broken(length) => return Some(Object { members, end: Some(at + length) }),
        }
        match text.as_bytes().get(at) {
            None => return Some(Object { members, end: None }),
            Some(b':') => at = skip_blanks(text, at + 1),
            Some(_) => return Some(Object { members, end: Some(at) }),
        }
        let rest = &text[at..];
        match value_end(rest) {
            End::Closed(length) => {
                members.push(Member { key, value: &rest[..length], whole: true });
                at += length;
            }
            End::Open => {
                members.push(Member { key, value: rest, whole: false });
                return Some(Object { members, end: None });
            }
            End::Broken(length) => {
                members.push(Member { key, value: &rest[..length], whole: false });
                return Some(Object { members, end: Some(at + length) });
            }
        }
    }
}

/// The string that `text` begins with, decoded as far as it is there; its length counts both quotes.
pub(super) fn string(text: &str) -> (String, End) {
    let mut decoded = String::new();
    if !text.starts_with('"') {
        return (decoded, End::Broken(0));
    }
    let mut at = 1;
    while let Some(character) = text[at..].chars().next() {
        match character {
            '"' => return (decoded, End::Closed(at + 1)),
            '\\' => match escape(&text[at..]) {
                None => return (decoded, End::Broken(at)),
                Some(None) => break,
                Some(Some((character, length))) => {
                    decoded.push(character);
                    at += length;
                }
            },
            other => {
                decoded.push(other);
                at += other.len_utf8();
            }
        }
    }
    (decoded, End::Open)
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
        None => Some(None),
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(Some),
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

/// Where the value at the beginning of `text` ends.
pub(super) fn value_end(text: &str) -> End {
    match text.as_bytes().first() {
        None => End::Open,
        Some(b'{' | b'[') => brackets_end(text),
        Some(b'"') => string(text).1,
        Some(b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
            let end = text.find(|next: char| ",}]".contains(next) || next.is_whitespace());
            let known = |end: &usize| serde_json::from_str::<serde_json::Value>(&text[..*end]).is_ok();
            match end {
                None => End::Open,
                Some(end) => {
                    if known(&end) {
                        End::Closed(end)
                    } else {
                        End::Broken(0)
                    }
                }
            }
        }
        Some(_) => End::Broken(0),
    }
}

fn brackets_end(text: &str) -> End {
    let mut open = Vec::new();
    let (mut quoted, mut escaped) = (false, false);
    for (place, byte) in text.bytes().enumerate() {
        if quoted {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' => open.push(b'}'),
            b'[' => open.push(b']'),
            b'}' | b']' => {
                if open.pop() != Some(byte) {
                    return End::Broken(place);
                }
                if open.is_empty() {
                    return End::Closed(place + 1);
                }
            }
            _ => {}
        }
    }
    End::Open
}

/// Text as the inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
