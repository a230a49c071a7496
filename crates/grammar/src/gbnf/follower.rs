//! One text that follows a GBNF grammar.

use std::collections::VecDeque;
use std::sync::Arc;

use super::mask::Compiled;
use super::sets::{DEAD, SetId, Sets};
use crate::GrammarError;

/// Tokens that can be taken back.
const MOST_BACK: usize = 256;
/// Sets and returns that are remembered at least before those no longer needed are forgotten.
const REMEMBERED: usize = 20_000;

/// How far a text is.
#[derive(Clone)]
pub(crate) struct Follower {
    grammar: Arc<Compiled>,
    sets: Sets,
    /// Where the text was before each of the last tokens, and where it is.
    path: VecDeque<Place>,
    /// Size of `sets` at which to forget.
    limit: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Place {
    set: SetId,
    /// A token that ends the text was accepted.
    ended: bool,
}

impl Follower {
    pub(crate) fn new(grammar: Arc<Compiled>) -> Result<Self, GrammarError> {
        let mut sets = Sets::new(&grammar.automaton);
        let set = sets.start(&grammar.automaton)?;
        Ok(Self { grammar, sets, path: VecDeque::from([Place { set, ended: false }]), limit: REMEMBERED })
    }

    fn place(&self) -> Place {
        self.path.back().copied().unwrap_or(Place { set: DEAD, ended: false })
    }

    pub(crate) fn mask(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        self.sets.begin_token();
        match self.place() {
            Place { ended: true, .. } => Ok(()),
            Place { set, .. } => self.grammar.mask(&mut self.sets, set, mask),
        }
    }

    /// The text may end here.
    pub(crate) fn is_complete(&self) -> bool {
        let place = self.place();
        place.ended || self.sets.ends(place.set)
    }

    pub(crate) fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.sets.begin_token();
        let place = self.place();
        let refused = GrammarError::NotAllowed { token };
        let Some(entry) = self.grammar.tokens.get(token).filter(|_| !place.ended) else {
            return Err(refused);
        };
        if entry.end {
            if !self.is_complete() {
                return Err(refused);
            }
            self.remember(Place { ended: true, ..place });
            return Ok(());
        }
        let read = match entry.bytes.is_empty() {
            true => DEAD,
            false => self.read(place.set, &entry.bytes.clone())?.0,
        };
        let next = self.sets.step_token(&self.grammar.automaton, place.set, token, read)?;
        if next == DEAD {
            return Err(refused);
        }
        self.remember(Place { set: next, ended: false });
        Ok(())
    }

    /// Where these bytes lead, and how many of them the grammar allows.
    fn read(&mut self, mut set: SetId, bytes: &[u8]) -> Result<(SetId, usize), GrammarError> {
        for (index, byte) in bytes.iter().enumerate() {
            let class = self.grammar.automaton.class[*byte as usize];
            set = self.sets.step(&self.grammar.automaton, set, class)?;
            if set == DEAD {
                return Ok((DEAD, index));
            }
        }
        Ok((set, bytes.len()))
    }

    fn remember(&mut self, place: Place) {
        self.path.push_back(place);
        if self.path.len() > MOST_BACK + 1 {
            self.path.pop_front();
        }
        if self.sets.size() > self.limit {
            let wanted: Vec<SetId> = self.path.iter().map(|place| place.set).collect();
            let kept = self.sets.keep_only(&self.grammar.automaton, &wanted);
            for (place, set) in self.path.iter_mut().zip(kept) {
                place.set = set;
            }
            self.limit = (2 * self.sets.size()).max(REMEMBERED);
        }
    }

    pub(crate) fn rollback(&mut self, count: usize) -> Result<(), GrammarError> {
        let known = self.path.len().saturating_sub(1);
        if count > known {
            return Err(GrammarError::Rollback { asked: count, known });
        }
        self.path.truncate(self.path.len() - count);
        Ok(())
    }

    pub(crate) fn reset(&mut self) -> Result<(), GrammarError> {
        self.sets.begin_token();
        let set = self.sets.start(&self.grammar.automaton)?;
        self.path = VecDeque::from([Place { set, ended: false }]);
        Ok(())
    }
}
