//! A JSON object that is still being written, read member by member.

use super::json_calls::{ARGUMENTS, NAMES};
use super::partial_json::{End, TextScan, ValueScan, skip_blanks};

/// A member that is remembered.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: String,
    /// Where its value begins, in the whole text.
    pub(super) from: usize,
    /// Up to where it is there.
    pub(super) to: usize,
    /// It is all there.
    pub(super) whole: bool,
    /// The text that it is, if it is one and a name.
    pub(super) text: Option<String>,
}

/// What the next step of reading found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A part of a member; there is more.
    Part,
    /// More text is needed.
    Wait,
    /// The object ends here, or is no JSON from here on.
    End(usize),
}

#[derive(Debug)]
enum Stage {
    /// Before a key, a comma or the closing brace.
    Between,
    Key(TextScan),
    /// After this key, before the colon.
    Colon(String),
    /// Before the value of this key.
    Before(String),
    Value(ValueScan),
}

/// An object as far as it was read. Of its members the first is remembered, the first name and the first arguments.
#[derive(Debug)]
pub(super) struct ObjectScan {
    at: usize,
    stage: Stage,
    slots: Vec<Slot>,
    name: Option<usize>,
    arguments: Option<usize>,
    /// The member that is being read is the last of those that are remembered.
    remembered: bool,
    members: usize,
    /// There is a member `function`.
    pub(super) has_function: bool,
    /// Nothing more comes.
    pub(super) ended: bool,
}

impl ObjectScan {
    /// For the object that begins at `start` with a brace.
    pub(super) fn new(start: usize) -> Self {
        Self {
            at: start + 1,
            stage: Stage::Between,
            slots: Vec::new(),
            name: None,
            arguments: None,
            remembered: false,
            members: 0,
            has_function: false,
            ended: false,
        }
    }

    pub(super) fn first(&self) -> Option<&Slot> {
        self.slots.first()
    }

    pub(super) fn name(&self) -> Option<&Slot> {
        self.slots.get(self.name?)
    }

    pub(super) fn arguments(&self) -> Option<&Slot> {
        self.slots.get(self.arguments?)
    }

    /// Reads on in the text, which is that of the last time and perhaps more.
    pub(super) fn next(&mut self, text: &str, work: &mut u64) -> Event {
        if self.ended {
            return Event::End(self.at);
        }
        match &mut self.stage {
            Stage::Key(scan) => {
                let rest = text.get(self.at..).unwrap_or_default();
                match scan.read(rest, work) {
                    End::Open => return Event::Wait,
                    End::Closed(length) => {
                        self.at += length;
                        self.stage = Stage::Colon(std::mem::take(&mut scan.decoded));
                    }
                    End::Broken(length) => return self.end(self.at + length),
                }
            }
            Stage::Value(scan) => {
                let rest = text.get(self.at..).unwrap_or_default();
                let end = scan.end(rest, work);
                let length = match end {
                    End::Open => rest.len(),
                    End::Closed(length) | End::Broken(length) => length,
                };
                self.value(&rest[..length], end, work);
                match end {
                    End::Open => return Event::Wait,
                    End::Closed(_) => (self.at, self.stage) = (self.at + length, Stage::Between),
                    End::Broken(_) => return self.end(self.at + length),
                }
            }
            Stage::Between => {
                self.at = self.skip(text, work);
                match text.as_bytes().get(self.at) {
                    None => return Event::Wait,
                    Some(b'}') => return self.end(self.at + 1),
                    Some(b',') if self.members > 0 => self.at += 1,
                    Some(b'"') => self.stage = Stage::Key(TextScan::default()),
                    Some(_) => return self.end(self.at),
                }
            }
            Stage::Colon(key) => {
                let key = std::mem::take(key);
                self.at = self.skip(text, work);
                let next = text.as_bytes().get(self.at);
                self.at += usize::from(next == Some(&b':'));
                match next {
                    Some(b':') => self.stage = Stage::Before(key),
                    None => {
                        self.stage = Stage::Colon(key);
                        return Event::Wait;
                    }
                    Some(_) => return self.end(self.at),
                }
            }
            Stage::Before(key) => {
                let key = std::mem::take(key);
                self.at = self.skip(text, work);
                if self.at == text.len() {
                    self.stage = Stage::Before(key);
                    return Event::Wait;
                }
                self.begin(key);
                self.stage = Stage::Value(ValueScan::default());
            }
        }
        Event::Part
    }

    fn skip(&self, text: &str, work: &mut u64) -> usize {
        let end = skip_blanks(text, self.at);
        *work += (end - self.at) as u64;
        end
    }

    fn end(&mut self, at: usize) -> Event {
        (self.at, self.ended) = (at, true);
        Event::End(at)
    }

    /// A member with this key begins.
    fn begin(&mut self, key: String) {
        let named = self.name.is_none() && NAMES.contains(&key.as_str());
        let arguments = self.arguments.is_none() && ARGUMENTS.contains(&key.as_str());
        self.has_function |= key == "function";
        self.remembered = self.members == 0 || named || arguments;
        self.members += 1;
        if !self.remembered {
            return;
        }
        if named {
            self.name = Some(self.slots.len());
        }
        if arguments {
            self.arguments = Some(self.slots.len());
        }
        self.slots.push(Slot { key, from: self.at, to: self.at, whole: false, text: None });
    }

    /// So much is there of the value of the member that is being read.
    fn value(&mut self, value: &str, end: End, work: &mut u64) {
        let named = self.name.is_some_and(|name| name + 1 == self.slots.len());
        let Some(slot) = self.slots.last_mut().filter(|_| self.remembered) else { return };
        slot.to = slot.from + value.len();
        slot.whole = matches!(end, End::Closed(_));
        if slot.whole && named && value.starts_with('"') {
            let mut scan = TextScan::default();
            scan.read(value, work);
            slot.text = Some(scan.decoded);
        }
    }
}
