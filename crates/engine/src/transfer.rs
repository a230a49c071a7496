//! Whole caches on the move, a part at a time between steps: what a slot holds goes to memory, to the disk or to whoever
//! asked, and what was saved comes back. Nobody's next token waits until a large one is copied.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use crate::EngineError;
use crate::reuse::Arrival;
use crate::saved::Saved;
use crate::worker::{Reply, Worker, guarded};

/// Bytes of a part, about: copied in less than a millisecond.
const PART: u32 = 1 << 20;
/// For so long parts are moved between two steps, or an eighth of the last step's time if that is more: of what is moved
/// many may wait, too.
const MOVING: Duration = Duration::from_millis(5);

/// What is being moved from or to a slot.
pub(crate) enum Transfer {
    /// What the slot holds is copied.
    Save { parts: Vec<Vec<u8>>, aim: Aim },
    /// What the slot shall hold is read from the disk.
    Read(Receiver<std::io::Result<Saved>>, std::path::PathBuf),
    /// What the slot shall hold is copied into it.
    Restore { saved: Arc<Saved>, part: usize, adapters: Arc<[f32]>, reply: Option<Reply<Vec<u32>>> },
}

/// Why something is saved.
pub(crate) enum Aim {
    /// To have it when the slot holds something else.
    Keep {
        store: bool,
        disk: bool,
        /// The slot is emptied then.
        clear: bool,
    },
    /// Somebody asked for it.
    Reply(Reply<Saved>),
}

impl Transfer {
    pub(crate) fn save(aim: Aim) -> Self {
        Self::Save { parts: Vec::new(), aim }
    }

    /// Whether it makes cells free.
    pub(crate) fn clears(&self) -> bool {
        matches!(self, Self::Save { aim: Aim::Keep { clear: true, .. }, .. })
    }
}

impl Worker {
    /// Moves parts for a while. Returns whether there was anything to move.
    pub(crate) fn transfer(&mut self) -> bool {
        let begun = Instant::now();
        let time = MOVING.max(self.last_step / 8);
        let mut moved = false;
        loop {
            self.resume();
            // What a request waits for goes first.
            let movable: Vec<usize> = (0..self.slots.len()).filter(|index| self.can_move(*index)).collect();
            let order = |index: &usize| self.slots[*index].arrival.as_ref().map_or(u64::MAX, Arrival::order);
            let Some(index) = movable.into_iter().min_by_key(order) else { return moved };
            self.advance_transfer(index);
            moved = true;
            if begun.elapsed() >= time {
                return true;
            }
        }
    }

    fn can_move(&mut self, index: usize) -> bool {
        match &mut self.slots[index].transfer {
            None => false,
            Some(Transfer::Read(coming, _)) => {
                let saved = match coming.try_recv() {
                    Ok(saved) => Some(saved),
                    Err(TryRecvError::Empty) => return false,
                    Err(TryRecvError::Disconnected) => None,
                };
                self.take_read(index, saved);
                self.can_move(index)
            }
            Some(Transfer::Save { .. } | Transfer::Restore { .. }) => true,
        }
    }

    /// Goes on with requests whose slots have nothing on the move any more.
    fn resume(&mut self) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.transfer.is_none()
                && let Some(arrival) = slot.arrival.take()
            {
                self.begin(index, arrival);
            }
        }
    }

    /// A file was read, or cannot be: then it is damaged, and the request goes on without.
    fn take_read(&mut self, index: usize, saved: Option<std::io::Result<Saved>>) {
        let slot = &mut self.slots[index];
        let Some(Transfer::Read(_, path)) = slot.transfer.take() else { return };
        let Some(mut arrival) = slot.arrival.take() else { return };
        match saved {
            Some(Ok(saved)) if arrival.waits() => arrival.found(Arc::new(saved)),
            Some(Ok(_)) => {}
            _ => {
                arrival.look_again();
                self.disk.iter_mut().for_each(|disk| disk.forget(&path));
            }
        }
        self.begin(index, arrival);
    }

    fn advance_transfer(&mut self, index: usize) {
        match self.slots[index].transfer.take() {
            Some(Transfer::Save { parts, aim }) => self.save_part(index, parts, aim),
            Some(Transfer::Restore { saved, part, adapters, reply }) => {
                self.restore_part(index, saved, part, adapters, reply);
            }
            other => self.slots[index].transfer = other,
        }
    }

    fn save_part(&mut self, index: usize, mut parts: Vec<Vec<u8>>, aim: Aim) {
        // The first part is of the model as it computed what the slot holds.
        let worn = if parts.is_empty() { self.wear(index) } else { Ok(()) };
        let held = &self.slots[index].held;
        let sequence = index as u32;
        // Steps of others may have left fewer than there were.
        if parts.len() < self.model.saved_parts(sequence, PART) {
            let part =
                worn.and_then(|()| guarded(|| self.model.save_part(sequence, held, PART, parts.len())));
            match part {
                Ok(part) => parts.push(part),
                Err(error) => return self.saved(index, aim, Err(error)),
            }
        }
        if parts.len() < self.model.saved_parts(sequence, PART) {
            self.slots[index].transfer = Some(Transfer::Save { parts, aim });
            return;
        }
        let parts = self.checked(index, parts);
        self.saved(index, aim, parts);
    }

    /// The parts, saved again at once if steps of others have changed the sequence in between.
    fn checked(&mut self, index: usize, mut parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, EngineError> {
        if parts.len() == 1 {
            return Ok(parts);
        }
        self.wear(index)?;
        let (sequence, held) = (index as u32, &self.slots[index].held);
        let first = guarded(|| self.model.save_part(sequence, held, PART, 0))?;
        if first == parts[0] {
            return Ok(parts);
        }
        parts = vec![first];
        while parts.len() < self.model.saved_parts(sequence, PART) {
            parts.push(guarded(|| self.model.save_part(sequence, held, PART, parts.len()))?);
        }
        Ok(parts)
    }

    fn saved(&mut self, index: usize, aim: Aim, parts: Result<Vec<Vec<u8>>, EngineError>) {
        let (tokens, reach) = (self.slots[index].held.clone(), self.model.reach(index as u32));
        match aim {
            // A reply that nobody waits for is dropped.
            Aim::Reply(reply) => drop(reply.send(parts.map(|parts| Saved { tokens, reach, parts }))),
            Aim::Keep { store, disk, clear } => {
                // Without success it is lost.
                if let (Ok(parts), Ok(())) = (parts, self.wear(index)) {
                    let saved = Arc::new(Saved { tokens, reach, parts });
                    if let Some(files) = self.disk.as_mut().filter(|_| disk) {
                        files.put(saved.clone(), self.ending);
                    }
                    if store {
                        self.store.put(saved);
                    }
                }
                if clear {
                    self.clear(index);
                }
            }
        }
    }

    fn restore_part(
        &mut self,
        index: usize,
        saved: Arc<Saved>,
        part: usize,
        adapters: Arc<[f32]>,
        reply: Option<Reply<Vec<u32>>>,
    ) {
        // The first part is checked against the model as it computed the sequence.
        let worn = if part == 0 { self.wear_these(adapters.clone()) } else { Ok(()) };
        let done = worn.and_then(|()| guarded(|| self.model.restore_part(index as u32, &saved.parts, part)));
        let slot = &mut self.slots[index];
        match done {
            Ok(()) => {
                if part == 0 {
                    slot.held.clone_from(&saved.tokens);
                    slot.adapters = adapters.clone();
                    slot.filed = reply.is_none();
                }
                if part + 1 < saved.parts.len() {
                    slot.transfer = Some(Transfer::Restore { saved, part: part + 1, adapters, reply });
                    return;
                }
                // Of a forged file tokens and caches may not belong together.
                self.synchronise(index);
                if let Some(reply) = reply {
                    let _ = reply.send(Ok(self.slots[index].held.clone()));
                }
            }
            Err(error) => {
                if matches!(error, EngineError::Panic { .. }) {
                    self.store.clear();
                    self.clear(index);
                }
                self.synchronise(index);
                // A request goes on without what could not be restored.
                if let Some(reply) = reply {
                    let _ = reply.send(Err(error));
                }
            }
        }
    }

    /// Gives up what is on the move: the model cannot be trusted. Requests look again at what is there.
    pub(crate) fn abandon(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.arrival.iter_mut().for_each(Arrival::look_again);
        let gone = || EngineError::Panic { message: "a step failed in between".into() };
        match slot.transfer.take() {
            Some(Transfer::Save { aim: Aim::Reply(reply), .. }) => drop(reply.send(Err(gone()))),
            Some(Transfer::Restore { reply: Some(reply), .. }) => drop(reply.send(Err(gone()))),
            _ => {}
        }
    }
}
