//! The engine thread: commands, steps, events.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use crate::ahead::Ahead;
use crate::embedding::{EmbeddingSender, Embeddings};
use crate::job::Slot;
use crate::speculation::Speculation;
use crate::store::Store;
use crate::{
    Aids, DiskCache, EngineError, EngineOptions, Event, EventSender, FinishReason, Request, RequestId, Runner,
};

/// For so long commands are obeyed between two steps, at least one. Cancellations take far less.
const LISTENING: Duration = Duration::from_millis(5);

type Reply<T> = Sender<Result<T, EngineError>>;

pub(crate) enum Command {
    Submit(RequestId, Box<Request>, EventSender),
    Cancel(RequestId),
    Embed(Vec<Vec<u32>>, EmbeddingSender),
    Save(u32, Reply<Vec<u8>>),
    Restore(u32, Vec<u8>, Arc<[f32]>, Reply<Vec<u32>>),
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
    pub(crate) fn new(mut model: Box<dyn Runner>, options: EngineOptions, aids: Aids) -> Self {
        let mut disk = aids.disk;
        if let Some(disk) = &mut disk {
            disk.serve_model(model.identity());
        }
        let worn: Arc<[f32]> = model.adapters().into();
        let slot = |_| Slot { adapters: worn.clone(), ..Slot::default() };
        let slots: Vec<Slot> = (0..model.sequences()).map(slot).collect();
        let mut store = Store::new(options.store_bytes);
        store.serve(worn.clone());
        Self {
            worn,
            speculation: Speculation::new(aids.proposers, slots.len()),
            store,
            disk,
            model,
            options,
            slots,
            queue: VecDeque::new(),
            embeddings: Embeddings::default(),
            clock: 0,
            ahead: Ahead::default(),
        }
    }

    /// Serves until told to stop or until the handle is gone.
    pub(crate) fn serve(mut self, commands: &Receiver<Command>) {
        while self.listen(commands) {
            match self.unfiled().filter(|_| self.is_idle()) {
                Some(slot) => self.file(slot, false),
                None => self.step(),
            }
            self.assign();
        }
        for slot in &mut self.slots {
            if let Some(job) = slot.job.take() {
                job.finish(FinishReason::Cancelled);
            }
        }
        while let Some(slot) = self.unfiled() {
            self.file(slot, true);
        }
        for mut queued in self.queue {
            (queued.events)(Event::Failed(EngineError::Stopped));
        }
        self.embeddings.stop();
    }

    fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.job.is_none()) && self.embeddings.is_empty()
    }

    /// Does what it was told; waits for something if there is nothing else to do. Only for a while: however much comes,
    /// steps go on. False if this is the end.
    fn listen(&mut self, commands: &Receiver<Command>) -> bool {
        let mut begun = None;
        while begun.is_none_or(|begun: Instant| begun.elapsed() < LISTENING) {
            let wait = self.is_idle() && self.unfiled().is_none();
            let command = match wait {
                true => commands.recv().map_err(|_| TryRecvError::Disconnected),
                false => commands.try_recv(),
            };
            begun.get_or_insert_with(Instant::now);
            match command {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => break,
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
                match request.validate(vocabulary, context, self.slots.len() as u32) {
                    Ok(()) if self.model.embeds() => {
                        events(Event::Failed(EngineError::Purpose { made_for: "embeddings" }));
                    }
                    Ok(()) => self.queue.push_back(Queued { id, request, events }),
                    Err(error) => {
                        events(Event::Failed(error));
                    }
                }
            }
            Command::Cancel(id) => self.cancel(id),
            Command::Embed(texts, sender) => self.embeddings.push(&*self.model, texts, sender),
            Command::Save(sequence, reply) => {
                let _ = reply.send(self.save(sequence));
            }
            Command::Restore(sequence, bytes, adapters, reply) => {
                let _ = reply.send(self.restore(sequence, &bytes, adapters));
            }
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
        }
        if let Some(index) = self.queue.iter().position(|queued| queued.id == id)
            && let Some(mut queued) = self.queue.remove(index)
        {
            let timings = crate::Timings::default();
            (queued.events)(Event::Finished { reason: FinishReason::Cancelled, timings });
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
        if self.slots[slot].job.is_some() { Err(EngineError::Busy { sequence }) } else { Ok(slot) }
    }

    fn save(&mut self, sequence: u32) -> Result<Vec<u8>, EngineError> {
        let slot = self.idle(sequence)?;
        self.wear(slot)?;
        guarded(|| self.model.save(sequence, &self.slots[slot].held))
    }

    fn restore(
        &mut self,
        sequence: u32,
        bytes: &[u8],
        adapters: Arc<[f32]>,
    ) -> Result<Vec<u32>, EngineError> {
        let slot = self.idle(sequence)?;
        let adapters = if adapters.is_empty() { self.slots[slot].adapters.clone() } else { adapters };
        self.wear_these(adapters.clone())?;
        let result = guarded(|| self.model.restore(sequence, bytes));
        match &result {
            Ok(tokens) => {
                self.slots[slot].held.clone_from(tokens);
                self.slots[slot].adapters = adapters;
                self.slots[slot].filed = false;
            }
            Err(EngineError::Panic { .. }) => self.clear(slot),
            Err(_) => self.synchronise(slot),
        }
        result
    }

    pub(crate) fn clear(&mut self, slot: usize) {
        self.slots[slot].held.clear();
        // If even this panics, the next run of the sequence reports it.
        let _ = guarded(|| {
            self.model.clear(slot as u32);
            Ok::<_, EngineError>(())
        });
    }

    /// Gives idle slots to queued requests, in the order they came.
    fn assign(&mut self) {
        let mut index = 0;
        while index < self.queue.len() {
            let request = &self.queue[index].request;
            let Some(slot) = self.choose(request) else {
                index += 1;
                continue;
            };
            if let Some(queued) = self.queue.remove(index) {
                self.begin(slot, queued);
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

pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
