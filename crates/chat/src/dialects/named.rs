//! Calls that name the function outside of the JSON object with its arguments.

use super::json_calls::closing;
use super::partial_json::{End, ValueScan};
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

/// What was read.
#[derive(Default, Debug)]
pub(super) struct State {
    stage: Stage,
    /// Where the next part begins.
    at: usize,
    name: String,
}

#[derive(Default, Debug)]
enum Stage {
    #[default]
    Name,
    /// Before what else stands before the arguments.
    Then,
    /// Before the fence that there may be.
    Fence,
    /// Before the brace.
    Open,
    Arguments(ValueScan),
    Closing,
}

impl Named {
    pub(super) fn read(&self, body: &mut Body<'_>) -> Reading {
        let mut state = std::mem::take(&mut body.memory.named);
        let reading = loop {
            if let Some(reading) = self.step(&mut state, body) {
                break reading;
            }
        };
        body.memory.named = state;
        reading
    }

    /// One part of the call; nothing if there is another one to read.
    fn step(&self, state: &mut State, body: &mut Body<'_>) -> Option<Reading> {
        let wait = if body.done { Reading::Nothing } else { Reading::Partial };
        match &mut state.stage {
            Stage::Name => return self.name(state, body),
            Stage::Then => {
                let rest = body.rest(state.at);
                match near(rest, self.then) {
                    Some((place, mark)) => state.at += place + mark.len(),
                    None if rest.len() < LONGEST_NAME => return Some(wait),
                    None => return Some(Reading::Nothing),
                }
                state.begin(body);
            }
            Stage::Fence => {
                state.at = body.skip_blanks(state.at);
                state.stage = Stage::Open;
                for fence in ["```json", "```"] {
                    let rest = body.rest(state.at);
                    if rest.starts_with(fence) {
                        state.at += fence.len();
                        break;
                    }
                    if !body.done && fence.starts_with(rest) {
                        state.stage = Stage::Fence;
                        return Some(Reading::Partial);
                    }
                }
            }
            Stage::Open => {
                state.at = body.skip_blanks(state.at);
                if state.at == body.text.len() && !body.done {
                    return Some(Reading::Partial);
                }
                // There may be no arguments at all.
                state.stage = match body.rest(state.at).starts_with('{') {
                    true => Stage::Arguments(ValueScan::default()),
                    false => Stage::Closing,
                };
            }
            Stage::Arguments(scan) => {
                let rest = body.rest(state.at);
                let end = scan.end(rest, &mut body.memory.work);
                let length = match end {
                    End::Open => rest.len(),
                    End::Closed(length) | End::Broken(length) => length,
                };
                if let Some(call) = body.memory.calls.last_mut() {
                    call.arguments.push_str(rest.get(call.arguments.len()..length).unwrap_or_default());
                }
                match end {
                    End::Closed(_) => (state.at, state.stage) = (state.at + length, Stage::Closing),
                    End::Broken(_) => return Some(Reading::Complete(state.at + length)),
                    End::Open if body.done => return Some(Reading::Complete(body.text.len())),
                    End::Open => return Some(Reading::Partial),
                }
            }
            Stage::Closing => return Some(closing(body, state.at, &[], self.ends)),
        }
        None
    }

    fn name(&self, state: &mut State, body: &mut Body<'_>) -> Option<Reading> {
        let text = body.text;
        let wait = if body.done { Reading::Nothing } else { Reading::Partial };
        let mut at = 0;
        if let Some(mark) = self.before {
            match text.find(mark) {
                Some(place) if place + mark.len() <= LONGEST_NAME => at = place + mark.len(),
                None if text.len() < LONGEST_NAME => return Some(wait),
                _ => return Some(Reading::Nothing),
            }
        }
        let Some((place, mark)) = near(&text[at..], self.until) else {
            return Some(if text.len() - at < LONGEST_NAME { wait } else { Reading::Nothing });
        };
        let name = clean(&text[at..at + place]);
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(char::is_whitespace) {
            return Some(Reading::Nothing);
        }
        name.clone_into(&mut state.name);
        // A brace that ends the name begins the arguments.
        state.at = at + place + if mark == "{" { 0 } else { mark.len() };
        match self.then.is_empty() || self.then.contains(&mark) {
            true => state.begin(body),
            false => state.stage = Stage::Then,
        }
        None
    }
}

impl State {
    /// It is a call.
    fn begin(&mut self, body: &mut Body<'_>) {
        body.memory.calls.push(Call { name: std::mem::take(&mut self.name), arguments: String::new() });
        self.stage = Stage::Fence;
    }
}

/// The first of these marks in the text, the longest where two begin together.
pub(super) fn earliest<'a>(text: &str, marks: &[&'a str]) -> Option<(usize, &'a str)> {
    let places = marks.iter().filter_map(|mark| text.find(mark).map(|place| (place, *mark)));
    places.min_by_key(|(place, mark)| (*place, usize::MAX - mark.len()))
}

/// The same, if it ends within the length of a name.
pub(super) fn near<'a>(text: &str, marks: &[&'a str]) -> Option<(usize, &'a str)> {
    earliest(text, marks).filter(|(place, mark)| place + mark.len() <= LONGEST_NAME)
}

/// The first byte that is no blank, if it is near.
pub(super) fn first_byte(text: &str) -> Option<u8> {
    text.bytes().take(LONGEST_NAME).find(|byte| !byte.is_ascii_whitespace())
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
