//! Following a text through the automata: everything that may be going on at one place is a set of states, each
//! with what comes after its rule. Equal sets are the same set, and where each byte leads is remembered, so that
//! a place which was seen before costs one look-up.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::automaton::{Automaton, RuleId, StateId};
use crate::GrammarError;

/// States of one set.
const MOST_ITEMS: usize = 4096;
/// Steps towards the members of sets, for one token.
const MOST_STEPS: usize = 2_000_000;

pub(crate) type SetId = u32;
/// What comes after a rule: ways to go on.
pub(crate) type ReturnId = u32;
/// After the root comes the end.
pub(crate) const END: ReturnId = 0;
/// Returns that stand for unknown ones are 1 to this number.
pub(crate) const UNKNOWN: ReturnId = 64;
/// The set from which nothing leads on.
pub(crate) const DEAD: SetId = 0;
/// A transition that nobody asked for yet.
const NOT_YET: SetId = SetId::MAX;

/// One thing that may be going on: a state, and what comes after its rule.
pub(crate) type Item = (StateId, ReturnId);

/// Everything that may be going on at one place.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Set {
    /// States that read something, in order.
    pub(crate) items: Vec<Item>,
    /// Returns for what was unknown are possible here, in order; `END` among them if the text may end.
    pub(crate) leaves: Vec<ReturnId>,
}

/// Hash of keys that are numbers, quick and good enough for interning.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// The sets seen so far.
#[derive(Clone, Debug)]
pub(crate) struct Sets {
    pub(crate) sets: Vec<Set>,
    index: NumberMap<Set, SetId>,
    /// Where each class of bytes leads, a row for each set.
    transitions: Vec<SetId>,
    /// Ways to go on after a rule: states of callers, and what comes after these. Parts have lower numbers.
    returns: Vec<Vec<Item>>,
    return_index: NumberMap<Vec<Item>, ReturnId>,
    classes: usize,
    /// ASCII bytes that lead from a set to itself, for those sets that were asked about.
    loops: NumberMap<SetId, u128>,
    /// Steps that may still be made.
    budget: usize,
    /// Space for the search, kept to save allocations.
    space: Space,
}

#[derive(Clone, Debug, Default)]
struct Space {
    work: Vec<Item>,
    seen: std::collections::HashSet<Item, BuildHasherDefault<NumberHasher>>,
    pending: NumberMap<RuleId, Vec<Item>>,
}

impl Sets {
    /// Knows the dead set only.
    pub(crate) fn new(automaton: &Automaton) -> Self {
        let mut sets = Self {
            sets: Vec::new(),
            index: NumberMap::default(),
            transitions: Vec::new(),
            returns: vec![Vec::new(); UNKNOWN as usize + 1],
            return_index: NumberMap::default(),
            classes: automaton.classes,
            loops: NumberMap::default(),
            budget: MOST_STEPS,
            space: Space::default(),
        };
        sets.intern(Set::default());
        sets
    }

    /// Number of sets and returns that are remembered.
    pub(crate) fn size(&self) -> usize {
        self.sets.len() + self.returns.len()
    }

    pub(crate) fn get(&self, set: SetId) -> Option<&Set> {
        self.sets.get(set as usize)
    }

    /// Whether the text may end here.
    pub(crate) fn ends(&self, set: SetId) -> bool {
        self.get(set).is_some_and(|set| set.leaves.first() == Some(&END))
    }

    /// Another token: the steps are counted anew.
    pub(crate) fn begin_token(&mut self) {
        self.budget = MOST_STEPS;
    }

    pub(crate) fn intern(&mut self, set: Set) -> SetId {
        if let Some(known) = self.index.get(&set) {
            return *known;
        }
        let id = self.sets.len() as SetId;
        self.index.insert(set.clone(), id);
        self.sets.push(set);
        // The dead set leads to itself.
        let first = if id == DEAD { DEAD } else { NOT_YET };
        self.transitions.resize(self.transitions.len() + self.classes, first);
        id
    }

    pub(crate) fn intern_return(&mut self, mut ways: Vec<Item>) -> ReturnId {
        ways.sort_unstable();
        ways.dedup();
        if let Some(known) = self.return_index.get(&ways) {
            return *known;
        }
        let id = self.returns.len() as ReturnId;
        self.return_index.insert(ways.clone(), id);
        self.returns.push(ways);
        id
    }

    /// The set at the start of a text.
    pub(crate) fn start(&mut self, automaton: &Automaton) -> Result<SetId, GrammarError> {
        let root = automaton.rules.get(automaton.root as usize).map(|rule| (rule.start, END));
        self.close(automaton, root.as_slice())
    }

    /// What may go on after the rule whose returns these are.
    pub(crate) fn after(&mut self, automaton: &Automaton, after: ReturnId) -> Result<SetId, GrammarError> {
        let ways = self.returns.get(after as usize).cloned().unwrap_or_default();
        self.close(automaton, &ways)
    }

    /// Where a byte of this class leads.
    #[inline]
    pub(crate) fn step(
        &mut self,
        automaton: &Automaton,
        set: SetId,
        class: u8,
    ) -> Result<SetId, GrammarError> {
        let place = set as usize * self.classes + class as usize;
        match self.transitions.get(place) {
            Some(&next) if next != NOT_YET => Ok(next),
            _ => self.find_step(automaton, set, class, place),
        }
    }

    /// ASCII bytes that lead from this set to itself; none if a return is possible in it.
    pub(crate) fn loops(&mut self, automaton: &Automaton, set: SetId) -> Result<u128, GrammarError> {
        if let Some(known) = self.loops.get(&set) {
            return Ok(*known);
        }
        let mut all = 0;
        if self.get(set).is_some_and(|set| set.leaves.iter().all(|leaf| *leaf == END)) {
            let mut same = [false; 256];
            for (class, same) in same.iter_mut().enumerate().take(self.classes) {
                *same = self.step(automaton, set, class as u8)? == set;
            }
            let ascii = (0..128u8).filter(|byte| same[automaton.class[*byte as usize] as usize]);
            all = ascii.fold(0, |all, byte| all | 1 << byte);
        }
        self.loops.insert(set, all);
        Ok(all)
    }

    #[cold]
    fn find_step(
        &mut self,
        automaton: &Automaton,
        set: SetId,
        class: u8,
        place: usize,
    ) -> Result<SetId, GrammarError> {
        let mut begin = Vec::new();
        for (state, after) in self.get(set).map_or(&[][..], |set| &set.items) {
            let Some(state) = automaton.states.get(*state as usize) else { continue };
            for (_, _, next) in state.bytes.iter().filter(|(low, high, _)| (*low..=*high).contains(&class)) {
                begin.push((*next, *after));
            }
        }
        let next = if begin.is_empty() { DEAD } else { self.close(automaton, &begin)? };
        if let Some(place) = self.transitions.get_mut(place) {
            *place = next;
        }
        Ok(next)
    }

    /// Where a token as a whole leads, together with `besides`, to which its bytes led.
    pub(crate) fn step_token(
        &mut self,
        automaton: &Automaton,
        set: SetId,
        token: u32,
        besides: SetId,
    ) -> Result<SetId, GrammarError> {
        let mut begin = Vec::new();
        for (state, after) in self.get(set).map_or(&[][..], |set| &set.items) {
            let Some(state) = automaton.states.get(*state as usize) else { continue };
            for (_, _, next) in state.tokens.iter().filter(|(id, negated, _)| (*id == token) != *negated) {
                begin.push((*next, *after));
            }
        }
        if begin.is_empty() {
            return Ok(besides);
        }
        let besides = self.get(besides).cloned().unwrap_or_default();
        begin.extend(besides.items);
        let joined = self.close(automaton, &begin)?;
        let mut joined = self.get(joined).cloned().unwrap_or_default();
        joined.leaves.extend(besides.leaves);
        joined.leaves.sort_unstable();
        joined.leaves.dedup();
        Ok(self.intern(joined))
    }

    /// The set of everything that can be reached from these without reading.
    ///
    /// A rule that several callers want to begin here is begun once, with all of them to go on after it. That
    /// needs all callers first; so rules are begun in the order of their ranks, in which none can be wanted by
    /// a later one. Rules that read nothing are also passed over at once, so nothing has to come back to them.
    pub(crate) fn close(&mut self, automaton: &Automaton, begin: &[Item]) -> Result<SetId, GrammarError> {
        let mut space = std::mem::take(&mut self.space);
        space.work.clear();
        space.work.extend_from_slice(begin);
        space.seen.clear();
        space.pending.clear();
        let mut set = Set::default();
        loop {
            while let Some(item) = space.work.pop() {
                if !space.seen.insert(item) {
                    continue;
                }
                self.budget = self.budget.saturating_sub(1);
                if self.budget == 0 || set.items.len() > MOST_ITEMS {
                    self.space = space;
                    let (what, most) =
                        if self.budget == 0 { ("steps", MOST_STEPS) } else { ("states", MOST_ITEMS) };
                    return Err(GrammarError::TooAmbiguous { what, most });
                }
                let (id, after) = item;
                let Some(state) = automaton.states.get(id as usize) else { continue };
                if state.reads() {
                    set.items.push(item);
                }
                if state.accepts {
                    match after <= UNKNOWN {
                        true => set.leaves.push(after),
                        false => space.work.extend_from_slice(&self.returns[after as usize]),
                    }
                }
                space.work.extend(state.empty.iter().map(|next| (*next, after)));
                for (called, next) in &state.calls {
                    let Some(rule) = automaton.rules.get(*called as usize) else { continue };
                    if automaton.states.get(*next as usize).is_some_and(|next| next.last) {
                        // Nothing is left to do after it but to return: returns can do that at once, which
                        // keeps the way back short however often a rule ends with itself.
                        space.work.push((rule.start, after));
                    } else {
                        space.pending.entry(*called).or_default().push((*next, after));
                    }
                    if rule.nullable {
                        space.work.push((*next, after));
                    }
                }
            }
            let rank = |rule: &RuleId| automaton.rules.get(*rule as usize).map_or(0, |rule| rule.rank);
            let Some(rule) = space.pending.keys().copied().min_by_key(rank) else { break };
            let ways = space.pending.remove(&rule).unwrap_or_default();
            let after = self.intern_return(ways);
            let start = automaton.rules.get(rule as usize).map_or(0, |rule| rule.start);
            space.work.push((start, after));
        }
        self.space = space;
        set.items.sort_unstable();
        set.leaves.sort_unstable();
        set.leaves.dedup();
        Ok(self.intern(set))
    }

    /// The same sets with nothing else remembered. Returns the numbers that they have now.
    pub(crate) fn keep_only(&mut self, automaton: &Automaton, wanted: &[SetId]) -> Vec<SetId> {
        let mut needed = vec![false; self.returns.len()];
        for set in wanted.iter().filter_map(|set| self.get(*set)) {
            for (_, after) in &set.items {
                needed[*after as usize] = true;
            }
        }
        // Parts have lower numbers, so one pass downwards finds all, and one upwards renames.
        for id in (UNKNOWN as usize + 1..self.returns.len()).rev() {
            if needed[id] {
                for (_, after) in &self.returns[id] {
                    needed[*after as usize] = true;
                }
            }
        }
        let mut kept = Self::new(automaton);
        let mut names: Vec<ReturnId> = (0..self.returns.len() as ReturnId).collect();
        for id in UNKNOWN as usize + 1..self.returns.len() {
            if needed[id] {
                let ways = self.returns[id].iter().map(|(state, after)| (*state, names[*after as usize]));
                names[id] = kept.intern_return(ways.collect());
            }
        }
        let rename = |set: &SetId| {
            let set = self.get(*set).cloned().unwrap_or_default();
            let mut items: Vec<Item> =
                set.items.iter().map(|(state, after)| (*state, names[*after as usize])).collect();
            items.sort_unstable();
            kept.intern(Set { items, leaves: set.leaves })
        };
        let renamed = wanted.iter().map(rename).collect();
        *self = kept;
        renamed
    }
}
