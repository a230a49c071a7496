//! The engine thread: commands, steps, events.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use crate::ahead::Ahead;
use crate::embedding::{EmbeddingSender, Embeddings};
use crate::job::Slot;
use crate::reuse::Arrival;
use crate::saved::Saved;
use crate::speculation::Speculation;
use crate::store::Store;
use crate::transfer::{Aim, Transfer};
use crate::{
    Aids, DiskCache, EngineError, EngineOptions, Event, EventSender, FinishReason, Meters, Request,
    RequestId, Runner,
};

/// For so long commands are obeyed between two steps, at least one. Cancellations take far less.
const LISTENING: Duration = Duration::from_millis(5);
/// So long nothing is done while all wait for the disk.
const WAITING: Duration = Duration::from_millis(1);

pub(crate) type Reply<T> = Sender<Result<T, EngineError>>;

pub(crate) enum Command {
    Submit(RequestId, Box<Request>, EventSender),
    Cancel(RequestId),
    Embed(Vec<Vec<u32>>, Box<dyn EmbeddingSender>),
    Save(u32, Reply<Saved>),
    Restore(u32, Saved, Arc<[f32]>, Reply<Vec<u32>>),
    Clear(u32, Reply<()>),
    Held(u32, Reply<Vec<u32>>),
    Stop,
}

pub(crate) struct Queued {
    pub(crate) id: RequestId,
    pub(crate) request: Box<Request>,
    pub(crate) events: EventSender,
}

pub(crate) struct Worker {
    pub(crate) model: Box<dyn Runner>,
    pub(crate) options: EngineOptions,
    pub(crate) slots: Vec<Slot>,
    pub(crate) store: Store,
    pub(crate) disk: Option<DiskCache>,
    queue: VecDeque<Queued>,
    /// Commands for slots from or to which something is being copied.
    later: Vec<Command>,
    /// What the last step took.
    pub(crate) last_step: Duration,
    pub(crate) meters: Arc<Meters>,
    /// Nobody is served any more.
    pub(crate) ending: bool,
    pub(crate) embeddings: Embeddings,
    /// Counts steps and assignments.
    pub(crate) clock: u64,
    pub(crate) ahead: Ahead,
    pub(crate) speculation: Speculation,
    /// How strongly adapters count in the model now.
    pub(crate) worn: Arc<[f32]>,
}

/// Runs something of the model; a panic becomes an error.
pub(crate) fn guarded<T, E: Into<EngineError>>(f: impl FnOnce() -> Result<T, E>) -> Result<T, EngineError> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(Into::into),
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_string());
            let message = text.or_else(|| payload.downcast_ref::<String>().cloned());
            Err(EngineError::Panic { message: message.unwrap_or_else(|| "panic".into()) })
        }
    }
}

impl Worker {
    /// `meters` tell others what it counts.
    pub(crate) fn new(
        mut model: Box<dyn Runner>,
        options: EngineOptions,
        aids: Aids,
        meters: Arc<Meters>,
    ) -> Self {
        let mut disk = aids.disk;
        if let Some(disk) = &mut disk {
            disk.serve_model(model.identity());
        }
        let worn: Arc<[f32]> = model.adapters().into();
        let slot = |_| Slot { adapters: worn.clone(), ..Slot::default() };
        let slots: Vec<Slot> = (0..model.sequences()).map(slot).collect();
        let mut store = Store::new(options.store_bytes, meters.clone());
        store.serve(worn.clone());
        Self {
            worn,
            speculation: Speculation::new(aids.proposers, slots.len(), model.weight_bytes()),
            store,
            disk,
            model,
            options,
            slots,
            queue: VecDeque::new(),
            later: Vec::new(),
            last_step: Duration::ZERO,
            ending: false,
            meters,
            embeddings: Embeddings::default(),
            clock: 0,
            ahead: Ahead::default(),
        }
    }

    /// Serves until told to stop or until the handle is gone.
    pub(crate) fn serve(mut self, commands: &Receiver<Command>) {
        let mut worked = true;
        while self.listen(commands, worked) {
            if self.is_idle()
                && let Some(slot) = self.unfiled()
            {
                self.file(slot);
            }
            self.expire();
            let moved = self.transfer();
            worked = self.step() || moved;
            self.assign();
        }
        self.end();
    }

    /// Ends requests whose deadline is over.
    fn expire(&mut self) {
        let now = Instant::now();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if let Some(job) = slot.job.take_if(|job| job.is_late(now)) {
                match job.generated {
                    0 => job.fail(EngineError::Late),
                    _ => job.finish(FinishReason::Length),
                }
            }
            let late = slot.arrival.take_if(|arrival| arrival.queued.request.is_late(now));
            late.into_iter().for_each(|arrival| fail(arrival.queued));
        }
        while let Some(index) = self.queue.iter().position(|queued| queued.request.is_late(now)) {
            self.queue.remove(index).into_iter().for_each(fail);
        }

        fn fail(mut queued: Queued) {
            (queued.events)(Event::Failed(EngineError::Late));
        }
    }

    fn end(&mut self) {
        self.ending = true;
        self.queue
            .extend(self.slots.iter_mut().filter_map(|slot| slot.arrival.take()).map(|waits| waits.queued));
        for index in 0..self.slots.len() {
            match self.slots[index].transfer.take() {
                // A part is missing.
                Some(Transfer::Restore { .. }) => self.clear(index),
                // It is filed below.
                Some(Transfer::Save { aim: Aim::Keep { disk: true, .. }, .. }) => {
                    self.slots[index].filed = false
                }
                _ => {}
            }
            self.finish(index, FinishReason::Cancelled);
        }
        while let Some(slot) = self.unfiled() {
            self.file(slot);
            while self.slots[slot].transfer.is_some() {
                self.transfer();
            }
        }
        for mut queued in self.queue.drain(..) {
            (queued.events)(Event::Failed(EngineError::Stopped));
        }
        self.embeddings.stop();
    }

    fn is_idle(&self) -> bool {
        let idle = |slot: &Slot| slot.is_free() && slot.transfer.is_none();
        self.slots.iter().all(idle) && self.embeddings.is_empty() && self.later.is_empty()
    }

    /// Does what it was told; waits for something if there is nothing else to do, or a moment if nothing could be done.
    /// Only for a while: however much comes, steps go on. False if this is the end.
    fn listen(&mut self, commands: &Receiver<Command>, worked: bool) -> bool {
        for command in std::mem::take(&mut self.later) {
            self.obey(command);
        }
        let mut begun = None;
        while begun.is_none_or(|begun: Instant| begun.elapsed() < LISTENING) {
            let wait = self.is_idle() && self.unfiled().is_none();
            let command = match (wait, worked || begun.is_some()) {
                (true, _) => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                (false, true) => commands.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                }),
                (false, false) => commands.recv_timeout(WAITING),
            };
            begun.get_or_insert_with(Instant::now);
            match command {
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => break,
            }
            self.assign();
        }
        true
    }

    fn obey(&mut self, command: Command) {
        // A reply that nobody waits for is dropped.
        match command {
            Command::Submit(id, request, mut events) => {
                let (vocabulary, context) = (self.model.vocabulary(), self.model.context());
                let learned = self.model.context_is_learned();
                match request.validate(vocabulary, context, learned, self.slots.len() as u32) {
                    Ok(()) if self.model.embeds() => {
                        events(Event::Failed(EngineError::Purpose { made_for: "embeddings" }));
                    }
                    Ok(()) => {
                        let before = |other: &Queued| other.request.priority <= request.priority;
                        let place = self.queue.partition_point(before);
                        self.queue.insert(place, Queued { id, request, events });
                    }
                    Err(error) => {
                        events(Event::Failed(error));
                    }
                }
            }
            Command::Cancel(id) => self.cancel(id),
            Command::Embed(texts, sender) => self.embeddings.push(&*self.model, texts, sender),
            Command::Save(sequence, _) | Command::Restore(sequence, ..) | Command::Clear(sequence, _)
                if self
                    .known(sequence)
                    .is_ok_and(|slot| self.slots[slot].is_free() && self.slots[slot].transfer.is_some()) =>
            {
                self.later.push(command);
            }
            Command::Save(sequence, reply) => match self.idle(sequence) {
                Ok(slot) => self.slots[slot].transfer = Some(Transfer::save(Aim::Reply(reply))),
                Err(error) => drop(reply.send(Err(error))),
            },
            Command::Restore(sequence, saved, adapters, reply) => match self.may_restore(sequence, &saved) {
                Ok(slot) => {
                    let own = &self.slots[slot].adapters;
                    let adapters = if adapters.is_empty() { own.clone() } else { adapters };
                    let (saved, reply) = (Arc::new(saved), Some(reply));
                    self.slots[slot].transfer = Some(Transfer::Restore { saved, part: 0, adapters, reply });
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Command::Clear(sequence, reply) => {
                let _ = reply.send(self.idle(sequence).map(|slot| self.clear(slot)));
            }
            Command::Held(sequence, reply) => {
                let _ = reply.send(self.known(sequence).map(|slot| self.slots[slot].held.clone()));
            }
            Command::Stop => {}
        }
    }

    fn cancel(&mut self, id: RequestId) {
        for slot in &mut self.slots {
            if let Some(job) = slot.job.take_if(|job| job.id == id) {
                return job.finish(FinishReason::Cancelled);
            }
            if let Some(arrival) = slot.arrival.take_if(|arrival| arrival.queued.id == id) {
                return cancelled(arrival.queued);
            }
        }
        if let Some(index) = self.queue.iter().position(|queued| queued.id == id)
            && let Some(queued) = self.queue.remove(index)
        {
            cancelled(queued);
        }
    }

    fn known(&self, sequence: u32) -> Result<usize, EngineError> {
        let sequences = self.slots.len() as u32;
        if sequence < sequences {
            Ok(sequence as usize)
        } else {
            Err(EngineError::NoSequence { sequence, sequences })
        }
    }

    fn idle(&self, sequence: u32) -> Result<usize, EngineError> {
        let slot = self.known(sequence)?;
        if self.slots[slot].is_free() { Ok(slot) } else { Err(EngineError::Busy { sequence }) }
    }

    fn may_restore(&self, sequence: u32, saved: &Saved) -> Result<usize, EngineError> {
        let vocabulary = self.model.vocabulary();
        match saved.tokens.iter().find(|token| **token >= vocabulary) {
            Some(token) => Err(EngineError::TokenOutOfRange { token: *token, vocabulary }),
            None => self.idle(sequence),
        }
    }

    pub(crate) fn clear(&mut self, slot: usize) {
        self.slots[slot].held.clear();
        self.slots[slot].again = false;
        // If even this panics, the next run of the sequence reports it.
        let _ = guarded(|| {
            self.model.clear(slot as u32);
            Ok::<_, EngineError>(())
        });
    }

    /// Gives idle slots to queued requests, in their order.
    fn assign(&mut self) {
        let mut index = 0;
        while index < self.queue.len() {
            let request = &self.queue[index].request;
            let Some(slot) = self.choose(request) else {
                index += 1;
                continue;
            };
            if let Some(queued) = self.queue.remove(index) {
                self.begin(slot, Arrival::new(queued));
            }
        }
    }

    pub(crate) fn finish(&mut self, index: usize, reason: FinishReason) {
        if let Some(job) = self.slots[index].job.take() {
            job.finish(reason);
        }
    }

    pub(crate) fn fail(&mut self, index: usize, error: EngineError) {
        if let Some(job) = self.slots[index].job.take() {
            job.fail(error);
        }
    }
}

fn cancelled(mut queued: Queued) {
    let timings = crate::Timings::default();
    (queued.events)(Event::Finished { reason: FinishReason::Cancelled, timings });
}

pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
