//! Rules as automata over bytes: states with edges that read bytes, read a token, call a rule, or read nothing.

use std::collections::{HashMap, HashSet, VecDeque};

use super::parser::{Node, NodeId, Parsed};
use super::ranges::Ranges;
use crate::GrammarError;

/// States of all automata together.
const MOST_STATES: usize = 400_000;
/// States of a rule that is written out where it is named.
const MOST_INLINED: usize = 200;
/// Edges of all automata together.
const MOST_EDGES: usize = 1_600_000;

pub(crate) type StateId = u32;
pub(crate) type RuleId = u32;

/// What can be done in one state.
#[derive(Debug, Default, Clone)]
pub(crate) struct State {
    /// Classes of bytes (from, to; both included) and where they lead.
    pub(crate) bytes: Vec<(u8, u8, StateId)>,
    /// Where one gets without reading.
    pub(crate) empty: Vec<StateId>,
    /// Rules to be read first, and where to go on after them.
    pub(crate) calls: Vec<(RuleId, StateId)>,
    /// Tokens, or all but one token, and where they lead.
    pub(crate) tokens: Vec<(u32, bool, StateId)>,
    /// The rule may end here.
    pub(crate) accepts: bool,
    /// The rule ends here and nothing else is possible.
    pub(crate) last: bool,
}

impl State {
    /// Something can be read here without calling rules.
    pub(crate) fn reads(&self) -> bool {
        !self.bytes.is_empty() || !self.tokens.is_empty()
    }
}

/// One rule.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) start: StateId,
    /// It can be read without reading anything.
    pub(crate) nullable: bool,
    /// Rules that a rule can begin with have higher ranks.
    pub(crate) rank: u32,
}

/// All rules of a grammar. Byte edges are of classes: bytes that no edge tells apart have one number.
#[derive(Debug)]
pub(crate) struct Automaton {
    pub(crate) states: Vec<State>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) root: RuleId,
    /// For each state one that allows the same tokens: itself, or an earlier one of a long repetition.
    pub(crate) alike: Vec<StateId>,
    /// Class of each byte.
    pub(crate) class: [u8; 256],
    /// Number of classes.
    pub(crate) classes: usize,
}

impl Automaton {
    /// Builds the automata and checks that no rule begins with itself. `longest` is the length of the longest
    /// token in bytes.
    pub(crate) fn new(parsed: &Parsed, longest: usize) -> Result<Self, GrammarError> {
        let mut builder = Builder {
            parsed,
            inlined: inlined(parsed),
            longest,
            states: Vec::new(),
            alike: HashMap::new(),
            edges: 0,
            encodings: HashMap::new(),
        };
        let mut rules = Vec::with_capacity(parsed.rules.len());
        for (_, body) in &parsed.rules {
            let (start, end) = (builder.state()?, builder.state()?);
            builder.build(*body, start, end)?;
            if let Some(end) = builder.states.get_mut(end as usize) {
                (end.accepts, end.last) = (true, true);
            }
            rules.push(Rule { start, nullable: false, rank: 0 });
        }
        let mut alike: Vec<StateId> = (0..builder.states.len() as StateId).collect();
        for (state, other) in builder.alike {
            if let Some(place) = alike.get_mut(state as usize) {
                *place = other;
            }
        }
        let root = parsed.root as RuleId;
        let mut automaton = Self { states: builder.states, rules, root, alike, class: [0; 256], classes: 0 };
        automaton.find_last();
        automaton.find_nullable();
        automaton.rank(parsed)?;
        automaton.classify();
        Ok(automaton)
    }

    fn state(&self, state: StateId) -> Option<&State> {
        self.states.get(state as usize)
    }

    /// Finds the states in which nothing can be done but to end the rule, perhaps after some empty edges.
    fn find_last(&mut self) {
        for start in 0..self.states.len() {
            let mut at = start;
            // Longer ways are rare, and not knowing of them is not wrong.
            for _ in 0..64 {
                let state = &self.states[at];
                let only = match state.empty.as_slice() {
                    [next] if !state.accepts && !state.reads() && state.calls.is_empty() => *next as usize,
                    _ => break,
                };
                at = only;
            }
            let last = self.states[at].last;
            self.states[start].last |= last;
        }
    }

    /// Finds the rules that can be read without reading anything: each is searched until it must read or call a
    /// rule that is not known to be nullable, and searched on from there when that becomes known.
    fn find_nullable(&mut self) {
        let mut seen: HashSet<(usize, StateId)> = HashSet::new();
        let mut waiting: HashMap<RuleId, Vec<(usize, StateId)>> = HashMap::new();
        let mut work: Vec<(usize, StateId)> =
            self.rules.iter().enumerate().map(|(rule, entry)| (rule, entry.start)).collect();
        while let Some((rule, state)) = work.pop() {
            if !seen.insert((rule, state)) {
                continue;
            }
            let Some(entry) = self.states.get(state as usize) else { continue };
            if entry.accepts && !self.rules[rule].nullable {
                self.rules[rule].nullable = true;
                work.extend(waiting.remove(&(rule as RuleId)).unwrap_or_default());
            }
            work.extend(entry.empty.iter().map(|next| (rule, *next)));
            for (called, next) in &entry.calls {
                if self.rules.get(*called as usize).is_some_and(|called| called.nullable) {
                    work.push((rule, *next));
                } else {
                    waiting.entry(*called).or_default().push((rule, *next));
                }
            }
        }
    }

    /// Rules that this one can begin with.
    fn first_calls(&self, rule: usize) -> Vec<RuleId> {
        let mut seen = HashSet::new();
        let mut calls = Vec::new();
        let mut work = vec![self.rules[rule].start];
        while let Some(state) = work.pop() {
            let Some(entry) = self.state(state).filter(|_| seen.insert(state)) else { continue };
            work.extend(&entry.empty);
            for (called, next) in &entry.calls {
                calls.push(*called);
                if self.rules.get(*called as usize).is_some_and(|called| called.nullable) {
                    work.push(*next);
                }
            }
        }
        calls.sort_unstable();
        calls.dedup();
        calls
    }

    /// Puts the rules in an order in which each comes before those that it can begin with. There is none if a
    /// rule can begin with itself.
    fn rank(&mut self, parsed: &Parsed) -> Result<(), GrammarError> {
        let calls: Vec<Vec<RuleId>> = (0..self.rules.len()).map(|rule| self.first_calls(rule)).collect();
        let mut callers = vec![0usize; self.rules.len()];
        for called in calls.iter().flatten() {
            callers[*called as usize] += 1;
        }
        let mut ready: VecDeque<usize> = (0..self.rules.len()).filter(|rule| callers[*rule] == 0).collect();
        let mut rank = 0;
        while let Some(rule) = ready.pop_front() {
            self.rules[rule].rank = rank;
            rank += 1;
            for called in &calls[rule] {
                callers[*called as usize] -= 1;
                if callers[*called as usize] == 0 {
                    ready.push_back(*called as usize);
                }
            }
        }
        let Some(first) = callers.iter().position(|count| *count > 0) else { return Ok(()) };
        Err(GrammarError::LeftRecursion { cycle: self.cycle(parsed, &calls, &callers, first) })
    }

    /// The names of rules that begin with each other. Every rule with callers left leads back to another one.
    fn cycle(&self, parsed: &Parsed, calls: &[Vec<RuleId>], callers: &[usize], first: usize) -> String {
        let mut path = Vec::new();
        let mut at = first;
        // Going backwards always ends in a cycle: each rule left over has a caller left over.
        while !path.contains(&at) {
            path.push(at);
            let caller =
                (0..calls.len()).find(|rule| callers[*rule] > 0 && calls[*rule].contains(&(at as RuleId)));
            let Some(caller) = caller else { break };
            at = caller;
            if path.len() > 50 {
                break;
            }
        }
        let start = path.iter().position(|rule| *rule == at).unwrap_or(0);
        let mut names: Vec<&str> = path[start..].iter().map(|rule| parsed.rules[*rule].0.as_str()).collect();
        names.reverse();
        names.push(names.first().copied().unwrap_or(""));
        names.join(" begins with ")
    }

    /// Gives each byte its class, and rewrites edges of bytes to edges of classes.
    fn classify(&mut self) {
        // Bytes at which some edge begins or has just ended.
        let mut borders = [false; 257];
        for (low, high, _) in self.states.iter().flat_map(|state| &state.bytes) {
            borders[*low as usize] = true;
            borders[*high as usize + 1] = true;
        }
        let mut class = 0u8;
        for byte in 0..256 {
            if byte > 0 && borders[byte] {
                class += 1;
            }
            self.class[byte] = class;
        }
        self.classes = class as usize + 1;
        for state in &mut self.states {
            for (low, high, _) in &mut state.bytes {
                *low = self.class[*low as usize];
                *high = self.class[*high as usize];
            }
            state.bytes.sort_unstable();
        }
    }
}

/// Which rules are written out where they are named: small ones that do not contain themselves. Tokens that end
/// such a rule need not be followed further each time.
fn inlined(parsed: &Parsed) -> Vec<bool> {
    // Rules named by each rule, and those that name it.
    let mut names: Vec<Vec<usize>> = vec![Vec::new(); parsed.rules.len()];
    let mut named_by: Vec<Vec<usize>> = vec![Vec::new(); parsed.rules.len()];
    for (rule, (_, body)) in parsed.rules.iter().enumerate() {
        let mut work = vec![*body];
        while let Some(node) = work.pop() {
            match parsed.nodes.get(node) {
                Some(Node::Rule(called)) => {
                    names[rule].push(*called);
                    named_by[*called].push(rule);
                }
                Some(Node::Sequence(parts) | Node::Choice(parts)) => work.extend(parts),
                Some(Node::Repeat { node, .. }) => work.push(*node),
                _ => {}
            }
        }
    }
    // Rules whose parts are all known have a size; those that contain themselves never get one.
    let mut unknown: Vec<usize> = names.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..unknown.len()).filter(|rule| unknown[*rule] == 0).collect();
    let mut sizes = vec![usize::MAX; unknown.len()];
    while let Some(rule) = ready.pop() {
        sizes[rule] = size(parsed, parsed.rules[rule].1, &sizes);
        for caller in &named_by[rule] {
            unknown[*caller] -= 1;
            if unknown[*caller] == 0 {
                ready.push(*caller);
            }
        }
    }
    sizes.into_iter().map(|size| size <= MOST_INLINED).collect()
}

/// About how many states a part of a rule has.
fn size(parsed: &Parsed, node: NodeId, rules: &[usize]) -> usize {
    let mut total = 0usize;
    let mut work = vec![(node, 1usize)];
    while let Some((node, times)) = work.pop() {
        let own = match parsed.nodes.get(node) {
            Some(Node::Literal(characters)) => characters.len(),
            Some(Node::Rule(rule)) => rules.get(*rule).copied().unwrap_or(usize::MAX).saturating_add(1),
            Some(Node::Sequence(parts) | Node::Choice(parts)) => {
                work.extend(parts.iter().map(|part| (*part, times)));
                parts.len()
            }
            Some(Node::Repeat { node, least, most }) => {
                let copies = most.unwrap_or(least.saturating_add(1)).max(1) as usize;
                work.push((*node, times.saturating_mul(copies)));
                copies
            }
            _ => 1,
        };
        total = total.saturating_add(own.saturating_mul(times));
        if total > MOST_INLINED {
            break;
        }
    }
    total
}

struct Builder<'a> {
    parsed: &'a Parsed,
    inlined: Vec<bool>,
    longest: usize,
    alike: HashMap<StateId, StateId>,
    states: Vec<State>,
    edges: usize,
    encodings: HashMap<&'a Ranges, Vec<Vec<(u8, u8)>>>,
}

impl<'a> Builder<'a> {
    fn state(&mut self) -> Result<StateId, GrammarError> {
        if self.states.len() >= MOST_STATES {
            let found = self.states.len() + 1;
            return Err(GrammarError::TooLarge { what: "states", found, most: MOST_STATES });
        }
        self.states.push(State::default());
        Ok(self.states.len() as StateId - 1)
    }

    fn at(&mut self, state: StateId) -> Result<&mut State, GrammarError> {
        self.edges += 1;
        if self.edges > MOST_EDGES {
            return Err(GrammarError::TooLarge { what: "edges", found: self.edges, most: MOST_EDGES });
        }
        let missing = GrammarError::Matcher { problem: "a state is missing".into() };
        self.states.get_mut(state as usize).ok_or(missing)
    }

    /// Everything that `node` can read leads from one state to the other. With a stack of its own, since groups
    /// within each other are as deep as the text says.
    fn build(&mut self, node: NodeId, from: StateId, to: StateId) -> Result<(), GrammarError> {
        let mut work = vec![(node, from, to)];
        while let Some((node, from, to)) = work.pop() {
            let parsed = self.parsed;
            match parsed.nodes.get(node) {
                None => {}
                Some(Node::Character(ranges)) => self.character(ranges, from, to)?,
                Some(Node::Literal(characters)) => self.literal(characters, from, to)?,
                Some(Node::Token { id, negated }) => self.at(from)?.tokens.push((*id, *negated, to)),
                Some(Node::Rule(rule)) => match (self.inlined.get(*rule), parsed.rules.get(*rule)) {
                    (Some(true), Some((_, body))) => work.push((*body, from, to)),
                    _ => self.at(from)?.calls.push((*rule as RuleId, to)),
                },
                Some(Node::Choice(parts)) => work.extend(parts.iter().map(|part| (*part, from, to))),
                Some(Node::Sequence(parts)) => {
                    let mut at = from;
                    for (index, part) in parts.iter().enumerate() {
                        let next = if index + 1 == parts.len() { to } else { self.state()? };
                        work.push((*part, at, next));
                        at = next;
                    }
                    if parts.is_empty() {
                        self.at(from)?.empty.push(to);
                    }
                }
                Some(Node::Repeat { node, least, most }) => {
                    self.repeat(*node, *least, *most, from, to, &mut work)?;
                }
            }
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        node: NodeId,
        least: u32,
        most: Option<u32>,
        from: StateId,
        to: StateId,
        work: &mut Vec<(NodeId, StateId, StateId)>,
    ) -> Result<(), GrammarError> {
        // A state of its own: what leads to `from` must not come back into the loop, nor leave it.
        let mut at = self.state()?;
        self.at(from)?.empty.push(at);
        // Far from the end of single characters one more or less makes no difference to any token.
        let single = matches!(self.parsed.nodes.get(node), Some(Node::Character(_)));
        let far = |left: u32| single && left as usize > self.longest;
        let (far_least, far_most) = (far(least), most.is_some_and(|most| far(most - least)));
        let longest = self.longest;
        let first = at;
        for done in 0..least {
            if far_least && (least - done) as usize > longest {
                self.alike.insert(at, first);
            }
            let next = self.state()?;
            work.push((node, at, next));
            at = next;
        }
        let first = at;
        match most {
            None => work.push((node, at, at)),
            Some(most) => {
                for done in least..most {
                    if far_most && (most - done) as usize > longest {
                        self.alike.insert(at, first);
                    }
                    self.at(at)?.empty.push(to);
                    let next = self.state()?;
                    work.push((node, at, next));
                    at = next;
                }
            }
        }
        self.at(at)?.empty.push(to);
        Ok(())
    }

    fn literal(&mut self, characters: &[char], from: StateId, to: StateId) -> Result<(), GrammarError> {
        let text: String = characters.iter().collect();
        let mut at = from;
        for (index, byte) in text.bytes().enumerate() {
            let next = if index + 1 == text.len() { to } else { self.state()? };
            self.at(at)?.bytes.push((byte, byte, next));
            at = next;
        }
        if text.is_empty() {
            self.at(from)?.empty.push(to);
        }
        Ok(())
    }

    fn character(&mut self, ranges: &'a Ranges, from: StateId, to: StateId) -> Result<(), GrammarError> {
        let sequences = self.encodings.entry(ranges).or_insert_with(|| ranges.sequences()).clone();
        // Sequences with equal ends share the states of these, or a set of characters would make many.
        let mut suffixes: HashMap<Vec<(u8, u8)>, StateId> = HashMap::new();
        for sequence in &sequences {
            let mut next = to;
            for start in (1..sequence.len()).rev() {
                let (low, high) = sequence[start];
                let suffix = sequence[start..].to_vec();
                next = match suffixes.get(&suffix) {
                    Some(state) => *state,
                    None => {
                        let state = self.state()?;
                        self.at(state)?.bytes.push((low, high, next));
                        suffixes.insert(suffix, state);
                        state
                    }
                };
            }
            if let Some((low, high)) = sequence.first() {
                self.at(from)?.bytes.push((*low, *high, next));
            }
        }
        Ok(())
    }
}
