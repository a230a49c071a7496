//! Rust source split into code and comments, so that a check for a word is not misled by a text or a comment.

use std::ops::Range;

/// A source of which each byte is either code or comment; what is not is blanked, so line numbers agree.
pub struct RustText {
    /// Code, with the contents of strings and characters blanked.
    pub code: String,
    /// Comments.
    pub comments: String,
}

impl RustText {
    /// Splits a source.
    pub fn new(source: &str) -> Self {
        let bytes = source.as_bytes();
        let mut code = blank(bytes);
        let mut comments = blank(bytes);
        let mut at = 0;
        while at < bytes.len() {
            let rest = &source.as_bytes()[at..];
            let (length, target) = if rest.starts_with(b"//") {
                (rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()), Some(&mut comments))
            } else if rest.starts_with(b"/*") {
                (block_comment(rest), Some(&mut comments))
            } else if let Some(length) = string(bytes, at) {
                // The quotes stay, so that the code keeps its shape.
                code[at] = b'"';
                code[at + length - 1] = b'"';
                (length, None)
            } else if let Some(length) = character(rest) {
                (length, None)
            } else {
                (1, Some(&mut code))
            };
            if let Some(target) = target {
                target[at..at + length].copy_from_slice(&bytes[at..at + length]);
            }
            at += length;
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: text(code), comments: text(comments) }
    }

    /// The code without items that only exist in tests.
    pub fn product_code(&self) -> String {
        let mut code = self.code.clone().into_bytes();
        for (start, _) in self.code.match_indices("#[cfg(test)]") {
            let end = item_end(&self.code, start);
            let blanked = blank(&code[start..end]);
            code[start..end].copy_from_slice(&blanked);
        }
        String::from_utf8_lossy(&code).into_owned()
    }
}

/// Spaces, with the line ends kept.
fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect()
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

/// Length of the string literal at `at`, its prefix included.
fn string(bytes: &[u8], at: usize) -> Option<usize> {
    let inside_word = at > 0 && is_word(bytes[at - 1]);
    let rest = &bytes[at..];
    let prefix = rest.iter().position(|byte| !matches!(byte, b'b' | b'c' | b'r'))?;
    if prefix > 2 || prefix > 0 && inside_word {
        return None;
    }
    let raw = rest[..prefix].contains(&b'r');
    let hashes = if raw { rest[prefix..].iter().take_while(|byte| **byte == b'#').count() } else { 0 };
    let open = prefix + hashes;
    if rest.get(open) != Some(&b'"') {
        return None;
    }
    let mut end = open + 1;
    while end < rest.len() {
        match rest[end] {
            b'\\' if !raw => end += 2,
            b'"' if rest[end + 1..].iter().take_while(|byte| **byte == b'#').count() >= hashes => {
                return Some(end + 1 + hashes);
            }
            _ => end += 1,
        }
    }
    Some(rest.len())
}

/// Length of the character literal at the start of `rest`; a lifetime is none.
fn character(rest: &[u8]) -> Option<usize> {
    match rest {
        [b'\'', b'\\', _, tail @ ..] => Some(4 + tail.iter().position(|byte| *byte == b'\'')?),
        [b'\'', tail @ ..] => {
            let text = std::str::from_utf8(&tail[..tail.len().min(4)])
                .or_else(|error| std::str::from_utf8(&tail[..error.valid_up_to()]));
            let width = text.ok()?.chars().next()?.len_utf8();
            (tail.get(width) == Some(&b'\'')).then_some(width + 2)
        }
        _ => None,
    }
}

/// End of the item that starts at `start`: its closing brace or semicolon.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0_i32;
    for (index, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b'}' | b']' | b')' => {
                depth -= 1;
                if depth == 0 && byte == b'}' {
                    return index + 1;
                }
            }
            b';' if depth == 0 => return index + 1,
            _ => (),
        }
    }
    code.len()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where `pattern` stands in `code` without being the end or the start of a longer word.
pub fn find_word(code: &str, pattern: &str) -> Vec<Range<usize>> {
    let bytes = code.as_bytes();
    let free = |index: Option<usize>, edge: Option<u8>| {
        let neighbour = index.and_then(|index| bytes.get(index)).copied();
        !(edge.is_some_and(is_word) && neighbour.is_some_and(is_word))
    };
    code.match_indices(pattern)
        .map(|(start, found)| start..start + found.len())
        .filter(|range| {
            free(range.start.checked_sub(1), pattern.bytes().next())
                && free(Some(range.end), pattern.bytes().last())
        })
        .collect()
}

/// Number of the line, from 1, that holds the byte at `offset`.
pub fn line_number(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_comments_are_no_code() {
        let source = "let a = \"unsafe \\\" {\"; // unsafe one\nlet b = r#\"unsafe \"x\"#; /* unsafe /* two */ */ let c = b'\\'';\nfn f<'a>(x: &'a str) { unsafe {} } let q = '\"'; let é = 'é';\n";
        let text = RustText::new(source);
        assert_eq!(find_word(&text.code, "unsafe").len(), 1, "{}", text.code);
        assert_eq!(find_word(&text.comments, "unsafe").len(), 2, "{}", text.comments);
        assert!(text.code.contains("fn f<'a>(x: &'a str) { unsafe {} }"));
        assert_eq!(text.code.lines().count(), source.lines().count());
        assert_eq!(line_number(&text.code, find_word(&text.code, "unsafe")[0].start), 3);
    }

    #[test]
    fn test_items_are_no_product() {
        let source = "fn a() { one!() }\n#[cfg(test)]\nmod tests { fn b() { two!() } }\n#[cfg(test)]\nuse two;\nfn c() { three!() }\n";
        let code = RustText::new(source).product_code();
        assert!(code.contains("one!") && code.contains("three!") && !code.contains("two"), "{code}");
    }

    #[test]
    fn words_have_ends() {
        let starts = |code, word| find_word(code, word).iter().map(|range| range.start).collect::<Vec<_>>();
        assert_eq!(starts("eprintln!(); println!()", "println!"), [13]);
        assert_eq!(starts("target_feature = 1, feature = 2", "feature"), [20]);
    }
}
