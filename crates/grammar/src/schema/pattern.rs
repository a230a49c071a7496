//! Regular expressions of JSON schemas (those of ECMA 262), rewritten for llguidance, whose syntax is that of
//! Rust's `regex`. What cannot be written there is refused.

/// Groups within each other.
const MOST_NESTING: usize = 100;
/// Repetitions of one part.
const MOST_REPETITIONS: u32 = 50_000;
/// Characters of a pattern.
const MOST_TEXT: usize = 10_000;

/// The same pattern in the other syntax.
pub(crate) fn rewrite(pattern: &str) -> Result<String, String> {
    if pattern.len() > MOST_TEXT {
        return Err(format!(
            "the pattern has {} characters, at most {MOST_TEXT} are possible",
            pattern.len()
        ));
    }
    let mut rewriter = Rewriter { rest: pattern.chars().collect(), at: 0, out: String::new() };
    rewriter.run()?;
    Ok(rewriter.out)
}

struct Rewriter {
    rest: Vec<char>,
    at: usize,
    out: String,
}

/// What was read last.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    /// Nothing that can be repeated.
    Nothing,
    /// Something that can be.
    Part,
    /// A repetition.
    Repetition,
}

impl Rewriter {
    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let found = self.peek()?;
        self.at += 1;
        Some(found)
    }

    fn take(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        self.at += usize::from(there);
        there
    }

    fn follows(&self, text: &str) -> bool {
        self.rest.iter().skip(self.at).take(text.chars().count()).copied().eq(text.chars())
    }

    fn run(&mut self) -> Result<(), String> {
        let mut depth = 0usize;
        let mut last = Last::Nothing;
        while let Some(c) = self.next() {
            let place = self.at;
            last = match c {
                '\\' => {
                    let escape = self.escape(false)?;
                    self.out.push_str(&escape);
                    Last::Part
                }
                '[' => {
                    self.class()?;
                    Last::Part
                }
                '(' => {
                    depth += 1;
                    if depth > MOST_NESTING {
                        return Err(format!("more than {MOST_NESTING} groups within each other"));
                    }
                    self.group()?;
                    Last::Nothing
                }
                ')' => {
                    depth = depth.checked_sub(1).ok_or("a group is closed that was not opened")?;
                    self.out.push(')');
                    Last::Part
                }
                '|' | '^' | '$' => {
                    self.out.push(c);
                    Last::Nothing
                }
                '.' => {
                    // Anything but a line break.
                    self.out.push_str("[^\\n\\r\\u{2028}\\u{2029}]");
                    Last::Part
                }
                '*' | '+' | '?' | '{' => {
                    let bounds = match c {
                        '{' => self.bounds()?,
                        c => Some(c.to_string()),
                    };
                    match (bounds, last) {
                        // A brace that begins no repetition is a brace.
                        (None, _) => {
                            self.out.push_str("\\{");
                            Last::Part
                        }
                        (Some(bounds), Last::Part) => {
                            self.out.push_str(&bounds);
                            // Which of several matches is found makes no difference here.
                            self.take('?');
                            Last::Repetition
                        }
                        _ => {
                            return Err(format!(
                                "there is nothing to repeat before {c:?} (character {place})"
                            ));
                        }
                    }
                }
                '/' => {
                    self.out.push('/');
                    Last::Part
                }
                c => {
                    self.out.push_str(&literal(c));
                    Last::Part
                }
            };
        }
        if depth > 0 { Err("a group is not closed".into()) } else { Ok(()) }
    }

    /// What comes after the opening parenthesis.
    fn group(&mut self) -> Result<(), String> {
        for (text, what) in
            [("?=", "look-ahead"), ("?!", "look-ahead"), ("?<=", "look-behind"), ("?<!", "look-behind")]
        {
            if self.follows(text) {
                return Err(format!("{what} cannot be enforced"));
            }
        }
        if self.follows("?:") {
            self.at += 2;
        } else if self.follows("?<") {
            self.at += 2;
            while self.peek().is_some_and(|c| c != '>') {
                self.at += 1;
            }
            if !self.take('>') {
                return Err("the name of a group is not closed".into());
            }
        } else if self.peek() == Some('?') {
            return Err("unknown kind of group".into());
        }
        // Nothing refers to groups.
        self.out.push_str("(?:");
        Ok(())
    }

    /// `{m}`, `{m,}` or `{m,n}` after the brace; nothing if it is none.
    fn bounds(&mut self) -> Result<Option<String>, String> {
        let start = self.at;
        let number = |rewriter: &mut Self| {
            let mut digits = String::new();
            while let Some(c) = rewriter.peek().filter(char::is_ascii_digit) {
                digits.push(c);
                rewriter.at += 1;
            }
            digits
        };
        let least = number(self);
        let (comma, most) = match self.take(',') {
            true => (true, number(self)),
            false => (false, String::new()),
        };
        if least.is_empty() || !self.take('}') {
            self.at = start;
            return Ok(None);
        }
        let value = |digits: &str| digits.parse::<u32>().ok().filter(|value| *value <= MOST_REPETITIONS);
        let too_many = || format!("more than {MOST_REPETITIONS} repetitions");
        let low = value(&least).ok_or_else(too_many)?;
        let high = if most.is_empty() { None } else { Some(value(&most).ok_or_else(too_many)?) };
        if high.is_some_and(|high| high < low) {
            return Err("the upper bound of a repetition is below the lower one".into());
        }
        Ok(Some(match (comma, high) {
            (false, _) => format!("{{{low}}}"),
            (true, None) => format!("{{{low},}}"),
            (true, Some(high)) => format!("{{{low},{high}}}"),
        }))
    }

    /// What comes after a backslash.
    fn escape(&mut self, in_class: bool) -> Result<String, String> {
        let Some(c) = self.next() else { return Err("the pattern ends with a backslash".into()) };
        Ok(match c {
            'd' => "[0-9]".into(),
            'D' => "[^0-9]".into(),
            'w' => "[A-Za-z0-9_]".into(),
            'W' => "[^A-Za-z0-9_]".into(),
            's' => SPACE.into(),
            'S' => NO_SPACE.into(),
            't' => "\\t".into(),
            'n' => "\\n".into(),
            'r' => "\\r".into(),
            'v' => "\\x0B".into(),
            'f' => "\\x0C".into(),
            '0' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => "\\x00".into(),
            'b' if in_class => "\\x08".into(),
            'b' | 'B' => return Err(format!("\\{c} (word boundary) cannot be enforced")),
            '0'..='9' | 'k' => return Err("references to groups cannot be enforced".into()),
            'x' => character(self.hexadecimal(2)?)?,
            'u' if self.take('{') => {
                let mut code = 0u32;
                while let Some(digit) = self.peek().and_then(|c| c.to_digit(16)) {
                    code = code.saturating_mul(16).saturating_add(digit);
                    self.at += 1;
                }
                if !self.take('}') {
                    return Err("\\u{ is not closed".into());
                }
                character(code)?
            }
            'u' => {
                let first = self.hexadecimal(4)?;
                match first {
                    // Two halves of one character.
                    0xd800..0xdc00 if self.follows("\\u") => {
                        self.at += 2;
                        let second = self.hexadecimal(4)?;
                        let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400);
                        let low = low.ok_or("half of a surrogate pair")?;
                        character(0x10000 + ((first - 0xd800) << 10) + low)?
                    }
                    code => character(code)?,
                }
            }
            'c' => match self.next().filter(char::is_ascii_alphabetic) {
                Some(letter) => character(u32::from(letter) % 32)?,
                None => return Err("\\c needs a letter".into()),
            },
            'p' | 'P' if self.peek() == Some('{') => {
                let mut property = format!("\\{c}");
                while let Some(next) = self.next() {
                    property.push(next);
                    if next == '}' {
                        break;
                    }
                }
                property
            }
            c if c.is_ascii_alphanumeric() => return Err(format!("unknown escape \\{c}")),
            c => literal(c),
        })
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<u32, String> {
        let mut code = 0;
        for _ in 0..digits {
            let digit = self.next().and_then(|c| c.to_digit(16));
            code = code * 16 + digit.ok_or_else(|| format!("expected {digits} hexadecimal digits"))?;
        }
        Ok(code)
    }

    /// A set of characters, after its bracket.
    fn class(&mut self) -> Result<(), String> {
        let negated = self.take('^');
        if self.take(']') {
            // The empty set matches nothing, its complement everything.
            self.out.push_str(if negated { "(?s:.)" } else { "[a&&b]" });
            return Ok(());
        }
        self.out.push_str(if negated { "[^" } else { "[" });
        loop {
            let Some(c) = self.next() else { return Err("a set of characters is not closed".into()) };
            if c == ']' {
                self.out.push(']');
                return Ok(());
            }
            let item = if c == '\\' { self.escape(true)? } else { literal(c) };
            self.out.push_str(&item);
            // A range, unless one side is a set or the dash is the last character.
            if self.peek() == Some('-') && self.rest.get(self.at + 1).is_some_and(|c| *c != ']') {
                self.at += 1;
                let Some(c) = self.next() else { continue };
                let upper = if c == '\\' { self.escape(true)? } else { literal(c) };
                let range = !item.starts_with('[') && !upper.starts_with('[');
                self.out.push_str(if range { "-" } else { "\\-" });
                self.out.push_str(&upper);
            }
        }
    }
}

const SPACE: &str = "[\\t\\n\\x0B\\x0C\\r \\u{A0}\\u{1680}\\u{2000}-\\u{200A}\\u{2028}\\u{2029}\\u{202F}\\u{205F}\\u{3000}\\u{FEFF}]";
const NO_SPACE: &str = "[^\\t\\n\\x0B\\x0C\\r \\u{A0}\\u{1680}\\u{2000}-\\u{200A}\\u{2028}\\u{2029}\\u{202F}\\u{205F}\\u{3000}\\u{FEFF}]";

fn character(code: u32) -> Result<String, String> {
    let c = char::from_u32(code).ok_or_else(|| format!("U+{code:X} is no character"))?;
    Ok(literal(c))
}

/// The character itself, outside and inside of sets.
fn literal(c: char) -> String {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | ' ' => c.to_string(),
        c if c.is_ascii_graphic() => format!("\\{c}"),
        c if c.is_ascii() || c.is_control() => format!("\\x{{{:X}}}", c as u32),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the rewritten pattern compiles and is found in the text.
    fn finds(pattern: &str, text: &str) -> bool {
        let rewritten = rewrite(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let regex = regex_automata::meta::Regex::new(&rewritten);
        regex.unwrap_or_else(|error| panic!("{pattern} as {rewritten}: {error}")).is_match(text)
    }

    #[test]
    fn patterns_mean_the_same() {
        for (pattern, yes, no) in [
            (r"^\d+$", "42", "4x"),
            (r"^[\w-]+$", "a-b_1", "a b"),
            (r"^(anon-)?\d{11,}$", "anon-12345678901", "anon-1"),
            (r"^\S+$", "abc", "a\u{a0}b"),
            (r"^hello there indeed\!$", "hello there indeed!", "hello there indeed"),
            (r"^[^]$", "\n", ""),
            (r"^a.c$", "abc", "a\nc"),
            (r"^[a&&b]$", "&", "c"),
            (r"^[[]$", "[", "]"),
            (r"^[a\-z]$", "-", "b"),
            (r"^[\d-x]$", "-", "a"),
            (r"^\u0041\x42\u{1F600}\uD83D\uDE00$", "AB😀😀", "AB"),
            (r"^a{2}b{1,}c{0,2}$", "aabcc", "abcc"),
            (r"^a{,2}$", "a{,2}", "aa"),
            (r"^(?<year>\d{4})-(?:x|y)$", "2026-x", "2026-z"),
            (r"^/a\/b~$", "/a/b~", "a/b~"),
            (r"^\p{Lu}$", "É", "é"),
            (r"^x+?$", "xx", "y"),
            (r"^[\b]$", "\u{8}", "b"),
            (r"]}", "]}", "]"),
        ] {
            assert!(finds(pattern, yes), "{pattern} should match {yes:?}");
            assert!(!finds(pattern, no), "{pattern} should not match {no:?}");
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        for pattern in [
            "*",
            "(?<=x)*",
            "a{2}{3}",
            "[",
            "a{9999999}",
            "(",
            ")",
            "(?!a)b",
            "(?=a)",
            r"\bword\b",
            r"(a)\1",
            "a**",
            "^*",
            r"\",
            r"\xg0",
            r"\u12",
            r"\q",
            "a{3,2}",
            "(?P<x>a)",
            "(?i)a",
            "|*",
            r"\uD800",
        ] {
            assert!(rewrite(pattern).is_err(), "{pattern}");
        }
        assert!(rewrite(&"(".repeat(50_000)).is_err());
        assert!(rewrite(&format!("{}a{}", "(".repeat(101), ")".repeat(101))).is_err());
    }
}
