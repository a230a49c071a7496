//! Which tokens may come next.
//!
//! Going through the whole vocabulary takes milliseconds, so it is done once for each state, without what comes after its
//! rule: a set of states allows what its states allow. Tokens that stay within the rule are the same whatever comes after; for
//! those that leave it the place in the tree of tokens is noted where they do, and only from there on, mostly a few tokens,
//! the real continuation is followed. What a set of states allows together is remembered, too.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::automaton::{Automaton, StateId};
use super::sets::{DEAD, END, Item, NumberMap, ReturnId, Set, SetId, Sets, UNKNOWN};
use crate::GrammarError;
use crate::tokens::{Tokens, Trie, allow};

/// Bytes of what is remembered about states, and about sets of them.
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

/// What is true of a state, or of several, whatever comes after their rule.
#[derive(Debug)]
struct Alone {
    mask: Vec<u32>,
    exits: Exits,
}

/// Where tokens go on after the rule has ended within them: nodes of the tree of tokens, by their bytes.
#[derive(Debug, Default)]
struct Exits {
    nodes: Vec<u32>,
    /// Where those of each byte begin; behind them all is the end. Empty if there are none.
    starts: Vec<u32>,
}

/// What is true of states together.
#[derive(Debug)]
struct Together {
    mask: Vec<u32>,
    /// For each return the states that come before it and have exits.
    before: Vec<Vec<Arc<Alone>>>,
}

#[derive(Debug)]
struct Known {
    alone: NumberMap<StateId, Arc<Alone>>,
    together: NumberMap<Vec<Item>, Arc<Together>>,
    /// States that were met together with others only.
    met: HashSet<StateId>,
    bytes: usize,
    sets: Sets,
}

impl Exits {
    /// Those at these places.
    fn new(trie: &Trie, places: &[u32]) -> Self {
        let children = || places.iter().flat_map(|place| trie.children(*place as usize));
        let byte = |node: usize| trie.nodes.get(node).map_or(0, |node| node.byte as usize);
        let mut starts = vec![0u32; 257];
        children().for_each(|node| starts[byte(node) + 1] += 1);
        (0..256).for_each(|byte| starts[byte + 1] += starts[byte]);
        if starts[256] == 0 {
            return Self::default();
        }
        let mut nodes = vec![0; starts[256] as usize];
        let mut next = starts.clone();
        for node in children() {
            let place = &mut next[byte(node)];
            nodes[*place as usize] = node as u32;
            *place += 1;
        }
        Self { nodes, starts }
    }

    /// Those with this byte.
    fn with(&self, byte: u8) -> &[u32] {
        let start = |index: usize| self.starts.get(index).map_or(0, |start| *start as usize);
        self.nodes.get(start(byte as usize)..start(byte as usize + 1)).unwrap_or_default()
    }
}

impl Compiled {
    pub(crate) fn new(automaton: Automaton, tokens: Arc<Tokens>) -> Self {
        let sets = Sets::new(&automaton);
        // Not while an answer waits for its first mask.
        tokens.trie();
        let (alone, together) = (NumberMap::default(), NumberMap::default());
        let known = Mutex::new(Known { alone, together, met: HashSet::new(), bytes: 0, sets });
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
            key.push((alike, index as ReturnId));
        }
        key.sort_unstable();
        key.dedup();
        if returns.len() > UNKNOWN as usize {
            return self.walk(sets, set, 0, u32::MAX, mask, None, &mut Vec::new());
        }
        let together = self.together(key, returns.len())?;
        for (word, known) in mask.iter_mut().zip(&together.mask) {
            *word |= known;
        }
        let trie = self.tokens.trie();
        let mut path = Vec::new();
        for (after, before) in returns.iter().zip(&together.before) {
            let next = sets.after(&self.automaton, *after)?;
            // After the root there may be thousands of places and nothing that goes on.
            if before.is_empty() || sets.get(next).is_none_or(|set| set.items.is_empty()) {
                continue;
            }
            for byte in 0..=u8::MAX {
                if sets.step(&self.automaton, next, self.automaton.class[byte as usize])? == DEAD {
                    continue;
                }
                for node in before.iter().flat_map(|alone| alone.exits.with(byte)) {
                    let end = trie.nodes.get(*node as usize).map_or(0, |node| node.end);
                    self.walk(sets, next, *node as usize, end, mask, None, &mut path)?;
                }
            }
        }
        Ok(())
    }

    /// What states allow together, each before one of so many returns.
    fn together(&self, key: Vec<Item>, returns: usize) -> Result<Arc<Together>, GrammarError> {
        // What is in there is valid after any panic: it is only ever added to.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.together.get(&key) {
            return Ok(found.clone());
        }
        if known.bytes > MOST_BYTES {
            (known.alone, known.together) = (NumberMap::default(), NumberMap::default());
            known.bytes = 0;
        }
        let mut mask = vec![0; self.tokens.words()];
        let mut before = Vec::with_capacity(returns);
        for index in 0..returns {
            let states: Vec<StateId> =
                key.iter().filter(|(_, after)| *after as usize == index).map(|(state, _)| *state).collect();
            let mut found = self.all_of(&mut known, &states)?;
            for alone in &found {
                for (word, known) in mask.iter_mut().zip(&alone.mask) {
                    *word |= known;
                }
            }
            found.retain(|alone| !alone.exits.nodes.is_empty());
            before.push(found);
        }
        known.bytes += mask.len() * 4 + key.len() * 16 + 1024;
        let together = Arc::new(Together { mask, before });
        known.together.insert(key, together.clone());
        Ok(together)
    }

    /// What these states allow, which come before the same return. Of several that are new one at most is looked at by itself,
    /// if it was met before: each takes as long as all of them together.
    fn all_of(&self, known: &mut Known, states: &[StateId]) -> Result<Vec<Arc<Alone>>, GrammarError> {
        let mut new: Vec<StateId> =
            states.iter().filter(|state| !known.alone.contains_key(*state)).copied().collect();
        if let Some(place) = new.iter().position(|state| known.met.contains(state)) {
            self.alone(known, new.swap_remove(place))?;
        }
        let mut all = Vec::with_capacity(states.len());
        match new.len() {
            0 | 1 => new.clear(),
            _ => match self.walked(known, &new) {
                Ok(together) => {
                    known.met.extend(&new);
                    all.push(Arc::new(together));
                }
                // Each has fewer ways to be read.
                Err(_) => new.clear(),
            },
        }
        for state in states.iter().filter(|state| !new.contains(state)) {
            all.push(self.alone(known, *state)?);
        }
        Ok(all)
    }

    /// What one state allows.
    fn alone(&self, known: &mut Known, state: StateId) -> Result<Arc<Alone>, GrammarError> {
        if let Some(found) = known.alone.get(&state) {
            return Ok(found.clone());
        }
        let alone = Arc::new(self.walked(known, &[state])?);
        known.alone.insert(state, alone.clone());
        Ok(alone)
    }

    /// What some states allow together.
    fn walked(&self, known: &mut Known, states: &[StateId]) -> Result<Alone, GrammarError> {
        if known.sets.size() > MOST_SETS {
            known.sets = Sets::new(&self.automaton);
        }
        let mut mask = vec![0; self.tokens.words()];
        known.sets.begin_token();
        // What can be reached without reading is beside them in each set.
        let mut items: Vec<Item> = states.iter().map(|state| (*state, 1)).collect();
        items.sort_unstable();
        let set = known.sets.intern(Set { items, leaves: Vec::new() });
        let states = states.iter().filter_map(|state| self.automaton.states.get(*state as usize));
        for (token, negated, _) in states.flat_map(|state| &state.tokens) {
            match negated {
                false => allow(&mut mask, *token),
                true => {
                    let others = self.tokens.iter().filter(|(id, other)| id != token && !other.end);
                    others.for_each(|(id, _)| allow(&mut mask, id));
                }
            }
        }
        let mut places = Vec::new();
        self.walk(&mut known.sets, set, 0, u32::MAX, &mut mask, Some(&mut places), &mut Vec::new())?;
        let exits = Exits::new(self.tokens.trie(), &places);
        known.bytes += (mask.len() + exits.nodes.len() + exits.starts.len()) * 4 + 1024;
        Ok(Alone { mask, exits })
    }

    /// Follows the tokens of a part of the tree, `from` to before `to`, whose parent led to `start`. Where the return
    /// is possible that is not known, the place is added to `places`. `path` is space.
    #[allow(clippy::too_many_arguments)] // the state of one walk
    fn walk(
        &self,
        sets: &mut Sets,
        start: SetId,
        from: usize,
        to: u32,
        mask: &mut [u32],
        mut places: Option<&mut Vec<u32>>,
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
            let ends = !node.other && node.ascii == 0;
            if ends || (!node.other && node.ascii & !sets.loops(&self.automaton, next)? == 0) {
                // All that is below stays in this set; or there is nothing, and nothing to go on with after a return.
                trie.below(at).iter().for_each(|token| allow(mask, *token));
                at = node.end as usize;
                continue;
            }
            trie.own(at).iter().for_each(|token| allow(mask, *token));
            if let Some(places) = &mut places
                && sets.get(next).is_some_and(|set| set.leaves.iter().any(|leaf| *leaf != END))
            {
                places.push(at as u32);
            }
            path.push(next);
            at += 1;
        }
        Ok(())
    }
}
