//! Calls that name the function outside of the JSON object with its arguments.

use super::json_calls::closing;
use super::partial_json::{End, skip_blanks, value_end};
use super::{Body, Call, Reading};

/// Longest name that is taken for one.
pub(super) const LONGEST_NAME: usize = 256;

/// How such a call is written.
pub(super) struct Named {
    /// What stands before the name and ends here, such as an id.
    pub(super) before: Option<&'static str>,
    /// What the name ends with.
    pub(super) until: &'static [&'static str],
    /// What else stands before the arguments ends with one of these.
    pub(super) then: &'static [&'static str],
    /// What may follow the arguments.
    pub(super) ends: &'static [&'static str],
}

impl Named {
    pub(super) fn read(&self, body: &Body<'_>) -> Reading {
        let text = body.text;
        let wait = || if body.done { Reading::Nothing } else { Reading::Partial(Vec::new()) };
        let mut at = 0;
        if let Some(mark) = self.before {
            match text.find(mark) {
                Some(place) if place < LONGEST_NAME => at = place + mark.len(),
                None if text.len() < LONGEST_NAME => return wait(),
                _ => return Reading::Nothing,
            }
        }
        let Some((place, mark)) = earliest(&text[at..], self.until) else {
            return if text.len() - at < LONGEST_NAME { wait() } else { Reading::Nothing };
        };
        let name = clean(&text[at..at + place]);
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(char::is_whitespace) {
            return Reading::Nothing;
        }
        // A brace that ends the name begins the arguments.
        at += place + if mark == "{" { 0 } else { mark.len() };
        let call = |arguments: &str| vec![Call { name: name.to_owned(), arguments: arguments.to_owned() }];
        if !self.then.is_empty() && !self.then.contains(&mark) {
            match earliest(&text[at..], self.then) {
                Some((place, mark)) => at += place + mark.len(),
                None if text.len() - at < LONGEST_NAME => return wait(),
                None => return Reading::Nothing,
            }
        }
        at = skip_blanks(text, at);
        let rest = &text[at..];
        for fence in ["```json", "```"] {
            if rest.starts_with(fence) {
                at = skip_blanks(text, at + fence.len());
                break;
            }
            if !body.done && fence.starts_with(rest) {
                return Reading::Partial(call(""));
            }
        }
        let rest = &text[at..];
        if !rest.starts_with('{') {
            // No arguments at all.
            return if rest.is_empty() && !body.done {
                Reading::Partial(call(""))
            } else {
                closing(body, call(""), at, &[], self.ends)
            };
        }
        match value_end(rest) {
            End::Closed(length) => closing(body, call(&rest[..length]), at + length, &[], self.ends),
            End::Broken(length) => Reading::Complete(call(&rest[..length]), at + length),
            End::Open if body.done => Reading::Complete(call(rest), text.len()),
            End::Open => Reading::Partial(call(rest)),
        }
    }
}

/// The first of these marks in the text, the longest where two begin together.
pub(super) fn earliest<'a>(text: &str, marks: &[&'a str]) -> Option<(usize, &'a str)> {
    let places = marks.iter().filter_map(|mark| text.find(mark).map(|place| (place, *mark)));
    places.min_by_key(|(place, mark)| (*place, usize::MAX - mark.len()))
}

/// `functions.NAME:0` is NAME.
fn clean(name: &str) -> &str {
    let name = name.trim();
    let name = name.strip_prefix("functions.").unwrap_or(name);
    match name.rsplit_once(':') {
        Some((before, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            before
        }
        _ => name,
    }
}
