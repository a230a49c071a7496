//! Which tokens may come next.
//!
//! Going through the whole vocabulary takes milliseconds, so it is done once for each situation: the states of a
//! set, without what comes after their rules. Tokens that stay within these rules are the same whatever comes
//! after; for those that leave a rule the place in the tree of tokens is noted where they do, and only from
//! there on, mostly a few tokens, the real continuation is followed.

use std::sync::{Arc, Mutex, PoisonError};

use super::automaton::Automaton;
use super::sets::{DEAD, END, Item, NumberMap, ReturnId, Set, SetId, Sets, UNKNOWN};
use crate::GrammarError;
use crate::tokens::{Tokens, allow};

/// Situations that are remembered, in bytes.
const MOST_BYTES: usize = 64 << 20;
/// Sets that are remembered for finding them.
const MOST_SETS: usize = 20_000;

/// A grammar with what was found out about it; shared by everything that follows it.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) automaton: Automaton,
    pub(crate) tokens: Arc<Tokens>,
    known: Mutex<Known>,
}

/// What is true of a situation whatever comes after its rules.
#[derive(Debug)]
struct Situation {
    mask: Vec<u32>,
    /// For each of the unknown returns, the places in the tree of tokens where it happens.
    leaves: Vec<Vec<u32>>,
}

#[derive(Debug)]
struct Known {
    situations: NumberMap<Vec<Item>, Arc<Situation>>,
    sets: Sets,
}

impl Compiled {
    pub(crate) fn new(automaton: Automaton, tokens: Arc<Tokens>) -> Self {
        let sets = Sets::new(&automaton);
        // Not while an answer waits for its first mask.
        tokens.trie();
        let known = Mutex::new(Known { situations: NumberMap::default(), sets });
        Self { automaton, tokens, known }
    }

    /// Sets the bits of all tokens that may come after this set.
    pub(crate) fn mask(&self, sets: &mut Sets, set: SetId, mask: &mut [u32]) -> Result<(), GrammarError> {
        let Some(found) = sets.get(set) else { return Ok(()) };
        if found.leaves.first() == Some(&END) {
            self.tokens.ends().iter().for_each(|token| allow(mask, *token));
        }
        // Returns are renamed in the order in which they occur.
        let mut returns: Vec<ReturnId> = Vec::new();
        let mut key: Vec<Item> = Vec::with_capacity(found.items.len());
        for (state, after) in &found.items {
            let index = returns.iter().position(|known| known == after).unwrap_or_else(|| {
                returns.push(*after);
                returns.len() - 1
            });
            let alike = self.automaton.alike.get(*state as usize).copied().unwrap_or(*state);
            key.push((alike, index as ReturnId + 1));
        }
        key.sort_unstable();
        key.dedup();
        if returns.len() > UNKNOWN as usize {
            return self.walk(sets, set, 0, u32::MAX, mask, None, &mut Vec::new());
        }
        let situation = self.situation(key)?;
        for (word, known) in mask.iter_mut().zip(&situation.mask) {
            *word |= known;
        }
        let trie = self.tokens.trie();
        let mut path = Vec::new();
        for (after, places) in returns.iter().zip(&situation.leaves) {
            let next = sets.after(&self.automaton, *after)?;
            // After the root there may be thousands of places and nothing that goes on.
            if sets.get(next).is_none_or(|set| set.items.is_empty()) {
                continue;
            }
            for place in places {
                let place = *place as usize;
                let end = trie.nodes.get(place).map_or(0, |node| node.end);
                if end as usize > place + 1 {
                    self.walk(sets, next, place + 1, end, mask, None, &mut path)?;
                }
            }
        }
        Ok(())
    }

    fn situation(&self, key: Vec<Item>) -> Result<Arc<Situation>, GrammarError> {
        // What is in there is valid after any panic: it is only ever added to.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.situations.get(&key) {
            return Ok(found.clone());
        }
        let bytes = (self.tokens.words() * 4).max(1024);
        if known.situations.len() >= MOST_BYTES / bytes {
            known.situations.clear();
        }
        if known.sets.size() > MOST_SETS {
            known.sets = Sets::new(&self.automaton);
        }
        let mut mask = vec![0; self.tokens.words()];
        let most = key.iter().map(|(_, after)| *after).max().unwrap_or(0);
        let mut leaves = vec![Vec::new(); most as usize];
        known.sets.begin_token();
        // What can be reached without reading is in there already.
        let set = known.sets.intern(Set { items: key.clone(), leaves: Vec::new() });
        for (state, _) in &key {
            for (token, negated, _) in
                self.automaton.states.get(*state as usize).map_or(&[][..], |s| &s.tokens)
            {
                match negated {
                    false => allow(&mut mask, *token),
                    true => {
                        let others = self.tokens.iter().filter(|(id, other)| id != token && !other.end);
                        others.for_each(|(id, _)| allow(&mut mask, id));
                    }
                }
            }
        }
        let path = &mut Vec::new();
        self.walk(&mut known.sets, set, 0, u32::MAX, &mut mask, Some(&mut leaves), path)?;
        let situation = Arc::new(Situation { mask, leaves });
        known.situations.insert(key, situation.clone());
        Ok(situation)
    }

    /// Follows the tokens of a part of the tree, `from` to before `to`, whose parent led to `start`. Where a
    /// return is possible that is not known, the place is added to those of the return in `leaves`. `path` is space.
    #[allow(clippy::too_many_arguments)] // the state of one walk
    fn walk(
        &self,
        sets: &mut Sets,
        start: SetId,
        from: usize,
        to: u32,
        mask: &mut [u32],
        mut leaves: Option<&mut Vec<Vec<u32>>>,
        path: &mut Vec<SetId>,
    ) -> Result<(), GrammarError> {
        let trie = self.tokens.trie();
        let to = (to as usize).min(trie.nodes.len());
        let base = trie.nodes.get(from).map_or(1, |node| node.depth) as usize;
        path.clear();
        path.push(start);
        let mut at = from;
        while at < to {
            let Some(node) = trie.nodes.get(at) else { break };
            path.truncate(node.depth as usize - base + 1);
            let before = path.last().copied().unwrap_or(DEAD);
            let class = self.automaton.class[node.byte as usize];
            let next = sets.step(&self.automaton, before, class)?;
            if next == DEAD {
                at = node.end as usize;
                continue;
            }
            if next == before && !node.other && node.ascii & !sets.loops(&self.automaton, next)? == 0 {
                // All that is below stays in this set.
                trie.below(at).iter().for_each(|token| allow(mask, *token));
                at = node.end as usize;
                continue;
            }
            trie.own(at).iter().for_each(|token| allow(mask, *token));
            if let Some(leaves) = &mut leaves
                && let Some(set) = sets.get(next)
            {
                for leaf in set.leaves.iter().filter(|leaf| **leaf != END) {
                    if let Some(places) = leaves.get_mut(*leaf as usize - 1) {
                        places.push(at as u32);
                    }
                }
            }
            path.push(next);
            at += 1;
        }
        Ok(())
    }
}
