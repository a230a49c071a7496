//! Saving a sequence with its caches, and restoring it.
//!
//! Layout, all numbers little-endian: magic (8 bytes), version (u32), length of the whole (u64), checksum of what
//! follows (u64); the model: architecture (u32 length, text), layers and embedding length (u32 each), checksums of its
//! operations, of the formats and of the contents of its weights, and of its adapters (u64 each); formats of keys and values
//! (u32 each), next position (u32), whether the text is a long one (u32, 0 or 1); tokens (u32 count, u32 each); cache
//! groups (u32 count; each: u32 of the first position not lost, u32 count, positions as u32); states (u32 count; each: u64
//! length, bytes). The bytes of a state are its group's cells in the order of positions.

use std::ops::Range;

use puna_graph::{CacheGroup, StateId};
use puna_quant::DType;

use crate::identity::Identity;
use crate::{Checksum, Model, RuntimeError, SavedError};

const MAGIC: &[u8; 8] = b"PUNASEQ\0";
const VERSION: u32 = 3;
/// Bytes before those that the checksum covers.
const PREFIX: usize = 8 + 4 + 8 + 8;

/// What a saved sequence holds beside the contents of its caches, checked for form but not against a model.
#[derive(Debug)]
pub(crate) struct Head {
    model: Identity,
    formats: [u32; 2],
    next: u32,
    long: bool,
    pub(crate) tokens: Vec<u32>,
    groups: Vec<SavedGroup>,
}

impl Head {
    /// Cells saved of each cache group.
    pub(crate) fn cells(&self) -> Vec<usize> {
        self.groups.iter().map(|group| group.positions.len()).collect()
    }

    /// Positions saved of a cache group, ascending.
    pub(crate) fn positions(&self, group: usize) -> &[u32] {
        self.groups.get(group).map_or(&[], |group| &group.positions)
    }
}

#[derive(Debug)]
struct SavedGroup {
    lost: u32,
    positions: Vec<u32>,
}

/// Reads from the front of bytes that may end anywhere.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], SavedError> {
        let short = SavedError::Length { found: self.rest.len() as u64, expected: count };
        let split = usize::try_from(count).ok().and_then(|count| self.rest.split_at_checked(count));
        let (taken, rest) = split.ok_or(short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SavedError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, SavedError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, SavedError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A counted list; the bytes are there before room for them is made.
    fn list(&mut self) -> Result<Vec<u32>, SavedError> {
        let count = self.u32()?;
        let bytes = self.take(4 * count as u64)?;
        let numbers = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(numbers.collect())
    }

    fn head(&mut self) -> Result<Head, SavedError> {
        let length = self.u32()?;
        let model = Identity {
            architecture: String::from_utf8_lossy(self.take(length as u64)?).chars().take(64).collect(),
            layers: self.u32()?,
            embedding: self.u32()?,
            computation: self.u64()?,
            formats: self.u64()?,
            contents: self.u64()?,
            adapters: self.u64()?,
        };
        let formats = [self.u32()?, self.u32()?];
        let next = self.u32()?;
        let long = self.u32()? != 0;
        let tokens = self.list()?;
        let mut groups = Vec::new();
        for _ in 0..self.u32()? {
            groups.push(SavedGroup { lost: self.u32()?, positions: self.list()? });
        }
        Ok(Head { model, formats, next, long, tokens, groups })
    }
}

/// Reads the form, checksum first: the head and the contents of each state.
fn parse(bytes: &[u8]) -> Result<(Head, Vec<&[u8]>), SavedError> {
    let mut reader = Reader { rest: bytes };
    if reader.take(8).map_err(|_| SavedError::Magic)? != MAGIC {
        return Err(SavedError::Magic);
    }
    let version = reader.u32()?;
    if version != VERSION {
        return Err(SavedError::Version { found: version, expected: VERSION });
    }
    let (found, expected) = (bytes.len() as u64, reader.u64()?);
    if found != expected {
        return Err(SavedError::Length { found, expected });
    }
    let checksum = reader.u64()?;
    if Checksum::of(reader.rest) != checksum {
        return Err(SavedError::Checksum);
    }
    let head = reader.head()?;
    let mut states = Vec::new();
    for _ in 0..reader.u32()? {
        let length = reader.u64()?;
        states.push(reader.take(length)?);
    }
    if !reader.rest.is_empty() {
        return Err(SavedError::Inconsistent { part: "lengths" });
    }
    Ok((head, states))
}

/// Reads a head that stands alone.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Head, SavedError> {
    let mut reader = Reader { rest: bytes };
    let head = reader.head()?;
    if !reader.rest.is_empty() {
        return Err(SavedError::Inconsistent { part: "lengths" });
    }
    Ok(head)
}

fn put_list(bytes: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u32>) {
    bytes.extend((numbers.len() as u32).to_le_bytes());
    numbers.for_each(|number| bytes.extend(number.to_le_bytes()));
}

/// Names of cache formats, for messages.
fn formats_text(formats: [u32; 2]) -> String {
    let name =
        |id| DType::from_id(id).map_or_else(|| format!("unknown format {id}"), |dtype| dtype.to_string());
    format!("{} and {}", name(formats[0]), name(formats[1]))
}

impl Model {
    /// The sequence's caches and, for the caller's use, its tokens, as bytes that [`Model::restore`] takes. They
    /// fit the same model with the same cache formats and strengths of adapters, whatever its other options: also with or
    /// without states for a draft head ([`crate::HeadInputs`]), whose own caches are not among them. There must be one token
    /// for each position.
    pub fn save(&mut self, sequence: u32, tokens: &[u32]) -> Result<Vec<u8>, RuntimeError> {
        let head = self.save_head(sequence, tokens)?;
        let held = self.held_cells(sequence);
        let groups = self.state_groups();
        let cells = |state: usize| held.get(groups[state]).map_or(0, Vec::len);
        let contents: usize = (0..groups.len()).map(|state| cells(state) * self.cell_bytes[state]).sum();
        // At once in its whole size, with length and checksum still to come: it may fill much of the memory.
        let mut bytes = Vec::with_capacity(PREFIX + head.len() + contents + 8 * groups.len() + 4);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.resize(PREFIX, 0);
        bytes.extend(head);
        bytes.extend((self.graph.states.len() as u32).to_le_bytes());
        for (state, group) in groups.into_iter().enumerate() {
            let state = StateId(state as u32);
            // Nothing is kept of what serves a step alone.
            let contents = match (held.get(group), self.states_of(state)) {
                (Some(cells), Some(states)) => states.save(state, cells)?,
                _ => Vec::new(),
            };
            bytes.extend((contents.len() as u64).to_le_bytes());
            bytes.extend(contents);
        }
        let length = bytes.len() as u64;
        let checksum = Checksum::of(&bytes[PREFIX..]);
        bytes[12..20].copy_from_slice(&length.to_le_bytes());
        bytes[20..PREFIX].copy_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// What is saved of a sequence beside the contents of its caches.
    pub(crate) fn save_head(&mut self, sequence: u32, tokens: &[u32]) -> Result<Vec<u8>, RuntimeError> {
        self.check_sequence(sequence)?;
        let length = self.length(sequence);
        if tokens.len() != length as usize {
            return Err(RuntimeError::TokenCount { sequence, tokens: tokens.len(), length });
        }
        let mut bytes = Vec::with_capacity(8 * tokens.len() + 1024);
        let model = self.kind();
        bytes.extend((model.architecture.len() as u32).to_le_bytes());
        bytes.extend(model.architecture.as_bytes());
        bytes.extend([model.layers, model.embedding].map(u32::to_le_bytes).concat());
        let sums = [model.computation, model.formats, model.contents, model.adapters];
        bytes.extend(sums.map(u64::to_le_bytes).concat());
        for format in self.formats() {
            bytes.extend(format.to_le_bytes());
        }
        bytes.extend(length.to_le_bytes());
        bytes.extend(u32::from(self.texts.is_long(sequence)).to_le_bytes());
        put_list(&mut bytes, tokens.iter().copied());
        bytes.extend((self.ledgers.len() as u32).to_le_bytes());
        for ledger in &self.ledgers {
            bytes.extend(ledger.lost(sequence).to_le_bytes());
            let held = ledger.held(sequence);
            put_list(&mut bytes, held.iter().map(|(position, _)| position.unsigned_abs()));
        }
        Ok(bytes)
    }

    /// The cells of each cache group that a sequence holds, in the order of positions.
    pub(crate) fn held_cells(&self, sequence: u32) -> Vec<Vec<u32>> {
        let cells = |held: Vec<(i32, u32)>| held.into_iter().map(|(_, cell)| cell).collect();
        self.ledgers.iter().map(|ledger| cells(ledger.held(sequence))).collect()
    }

    /// Replaces the sequence by a saved one and returns the tokens saved with it. Bytes that do not fit in any
    /// way are refused and leave the sequence as it was; only if a device fails while taking them, it is emptied.
    pub fn restore(&mut self, sequence: u32, bytes: &[u8]) -> Result<Vec<u32>, RuntimeError> {
        self.check_sequence(sequence)?;
        let (head, contents) = parse(bytes)?;
        self.check_head(&head)?;
        self.check_contents(&head, &contents)?;
        self.adopt(sequence, &head)?;
        if let Err(error) = self.restore_states(sequence, &head, &contents) {
            self.clear(sequence);
            return Err(error);
        }
        Ok(head.tokens)
    }

    /// Replaces the sequence by one with a head that was checked. Contents are still to come, for those of its positions that
    /// there was room for.
    pub(crate) fn adopt(&mut self, sequence: u32, head: &Head) -> Result<(), RuntimeError> {
        // All numbers were found to be positions below the context.
        let next = head.next as i32;
        let mut ledgers = self.ledgers.clone();
        for (ledger, group) in ledgers.iter_mut().zip(&head.groups) {
            let positions: Vec<i32> = group.positions.iter().map(|position| *position as i32).collect();
            // The encoder's rows have positions of their own.
            let next = if ledger.group() == CacheGroup::Encoder { positions.len() as i32 } else { next };
            let adopted = ledger.adopt(sequence, &positions, next, group.lost as i32);
            adopted.map_err(|refusal| self.refused(sequence, next, refusal))?;
        }
        self.ledgers = ledgers;
        self.texts.set(sequence, head.long);
        Ok(())
    }

    /// Writes the contents of every state.
    fn restore_states(&mut self, sequence: u32, head: &Head, contents: &[&[u8]]) -> Result<(), RuntimeError> {
        for (index, contents) in contents.iter().enumerate() {
            self.restore_cells(sequence, head, StateId(index as u32), 0..usize::MAX, contents)?;
        }
        Ok(())
    }

    /// Writes the contents of some of the cells that were saved of a state, those of positions which the sequence holds: older
    /// ones may have got no cells, or have lost them to other sequences since.
    pub(crate) fn restore_cells(
        &mut self,
        sequence: u32,
        head: &Head,
        state: StateId,
        cells: Range<usize>,
        contents: &[u8],
    ) -> Result<(), RuntimeError> {
        let group = self.state_groups()[state.index()];
        // Nothing is kept of what serves a step alone.
        let Some(ledger) = self.ledgers.get(group) else { return Ok(()) };
        let size = self.cell_bytes[state.index()].max(1);
        let held = ledger.held(sequence);
        let positions = head.positions(group);
        let positions = positions.get(cells.start..cells.end.min(positions.len())).unwrap_or(&[]);
        let (mut given, mut parts) = (Vec::with_capacity(positions.len()), Vec::new());
        for (position, bytes) in positions.iter().zip(contents.chunks_exact(size)) {
            if let Ok(place) = held.binary_search_by_key(position, |(held, _)| held.unsigned_abs()) {
                given.push(held[place].1);
                parts.push(bytes);
            }
        }
        let whole = given.len() == positions.len();
        let Some(states) = self.states_of(state).filter(|_| !given.is_empty()) else { return Ok(()) };
        match whole {
            true => states.restore(state, &given, contents)?,
            false => states.restore(state, &given, &parts.concat())?,
        }
        Ok(())
    }

    /// Refuses a head of another model, one that contradicts itself, or one that is too long.
    pub(crate) fn check_head(&mut self, head: &Head) -> Result<(), RuntimeError> {
        self.check_model(head)?;
        let vocabulary = self.information.vocabulary;
        if let Some(token) = head.tokens.iter().find(|token| **token >= vocabulary) {
            return Err(RuntimeError::TokenOutOfRange { token: *token, vocabulary });
        }
        let context = self.information.context;
        if head.next > context {
            return Err(RuntimeError::ContextFull { needed: head.next, free: context, context });
        }
        let inconsistent = |part| Err(SavedError::Inconsistent { part }.into());
        if head.tokens.len() != head.next as usize {
            return inconsistent("numbers of tokens and positions");
        }
        if head.groups.len() != self.ledgers.len() {
            return inconsistent("caches");
        }
        for (ledger, group) in self.ledgers.iter().zip(&head.groups) {
            let ascending = group.positions.is_sorted_by(|a, b| a < b);
            let next = match ledger.group() {
                CacheGroup::Encoder => group.positions.len() as u32,
                _ => head.next,
            };
            let inside = group.positions.iter().all(|position| (group.lost..next).contains(position));
            if !ascending
                || !inside
                || !ledger.may_lose(group.lost, next)
                || !ledger.is_enough(&group.positions, next)
            {
                return inconsistent("positions");
            }
        }
        Ok(())
    }

    fn check_model(&mut self, saved: &Head) -> Result<(), SavedError> {
        if let Some(difference) = saved.model.difference(&self.kind()) {
            return Err(SavedError::OtherModel { difference });
        }
        if saved.formats != self.formats() {
            let (found, expected) = (formats_text(saved.formats), formats_text(self.formats()));
            return Err(SavedError::CacheFormat { found, expected });
        }
        Ok(())
    }

    /// Refuses contents that are not those of the head's cells.
    fn check_contents(&self, head: &Head, contents: &[&[u8]]) -> Result<(), SavedError> {
        if contents.len() != self.graph.states.len() {
            return Err(SavedError::Inconsistent { part: "caches" });
        }
        for (index, group) in self.state_groups().into_iter().enumerate() {
            let cells = head.groups.get(group).map_or(0, |group| group.positions.len());
            if Some(contents[index].len()) != cells.checked_mul(self.cell_bytes[index]) {
                return Err(SavedError::Inconsistent { part: "cache contents" });
            }
        }
        Ok(())
    }

    /// A number that saved sequences of this model with these cache formats share.
    pub fn identity(&mut self) -> u64 {
        let mut hash = Checksum::default();
        hash.add(&self.kind().value().to_le_bytes());
        self.formats().into_iter().for_each(|format| hash.add(&format.to_le_bytes()));
        hash.value()
    }

    fn formats(&self) -> [u32; 2] {
        [self.options.keys.id(), self.options.values.id()]
    }

    /// Index of each state's cache group.
    pub(crate) fn state_groups(&self) -> Vec<usize> {
        let groups = self.graph.groups();
        let index = |group| groups.iter().position(|other| *other == group).unwrap_or(0);
        self.graph.states.iter().map(|state| index(state.group())).collect()
    }

    /// The partition's caches that hold a state.
    pub(crate) fn states_of(&mut self, state: StateId) -> Option<&mut dyn puna_backend::States> {
        let partitions = self.segments.iter_mut().map(|segment| segment.partition.states());
        partitions.into_iter().find(|states| states.states().contains(&state))
    }
}
