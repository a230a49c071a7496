//! The engine thread: commands, steps, events.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use puna_runtime::{Batch, OutputRows, Outputs, Work};

use crate::ahead::Ahead;
use crate::embedding::{EmbeddingSender, Embeddings};
use crate::job::{Job, Next, Slot};
use crate::store::Store;
use crate::{
    Demand, EngineError, EngineOptions, Event, EventSender, FinishReason, Limits, Request, RequestId, Runner,
    Share, schedule,
};

type Reply<T> = Sender<Result<T, EngineError>>;

pub(crate) enum Command {
    Submit(RequestId, Box<Request>, EventSender),
    Cancel(RequestId),
    Embed(Vec<Vec<u32>>, EmbeddingSender),
    Save(u32, Reply<Vec<u8>>),
    Restore(u32, Vec<u8>, Reply<Vec<u32>>),
    Clear(u32, Reply<()>),
    Held(u32, Reply<Vec<u32>>),
    Stop,
}

struct Queued {
    id: RequestId,
    request: Box<Request>,
    events: EventSender,
}

pub(crate) struct Worker {
    model: Box<dyn Runner>,
    options: EngineOptions,
    slots: Vec<Slot>,
    store: Store,
    queue: VecDeque<Queued>,
    embeddings: Embeddings,
    /// Counts steps and assignments.
    clock: u64,
    ahead: Ahead,
}

/// Runs something of the model; a panic becomes an error.
fn guarded<T, E: Into<EngineError>>(f: impl FnOnce() -> Result<T, E>) -> Result<T, EngineError> {
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
    pub(crate) fn new(model: Box<dyn Runner>, options: EngineOptions) -> Self {
        let slots = (0..model.sequences()).map(|_| Slot::default()).collect();
        Self {
            store: Store::new(options.store_bytes),
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
        loop {
            let idle = self.slots.iter().all(|slot| slot.job.is_none()) && self.embeddings.is_empty();
            let command = if idle {
                commands.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                commands.try_recv()
            };
            match command {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => break,
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => self.step(),
            }
            self.assign();
        }
        for slot in &mut self.slots {
            if let Some(job) = slot.job.take() {
                job.finish(FinishReason::Cancelled);
            }
        }
        for mut queued in self.queue {
            (queued.events)(Event::Failed(EngineError::Stopped));
        }
        self.embeddings.stop();
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
            Command::Restore(sequence, bytes, reply) => {
                let _ = reply.send(self.restore(sequence, &bytes));
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
        guarded(|| self.model.save(sequence, &self.slots[slot].held))
    }

    fn restore(&mut self, sequence: u32, bytes: &[u8]) -> Result<Vec<u32>, EngineError> {
        let slot = self.idle(sequence)?;
        let result = guarded(|| self.model.restore(sequence, bytes));
        match &result {
            Ok(tokens) => self.slots[slot].held.clone_from(tokens),
            Err(EngineError::Panic { .. }) => self.clear(slot),
            Err(_) => self.synchronise(slot),
        }
        result
    }

    fn clear(&mut self, slot: usize) {
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

    /// The idle slot that shares the longest beginning with the request; of equal ones that idle for longest.
    fn choose(&self, request: &Request) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(index, slot)| {
            slot.job.is_none() && request.sequence.is_none_or(|wanted| wanted as usize == *index)
        });
        idle.max_by_key(|(_, slot)| {
            let common = if request.reuse { common_prefix(&slot.held, &request.prompt) } else { 0 };
            (common, u64::MAX - slot.used)
        })
        .map(|(index, _)| index)
    }

    fn begin(&mut self, index: usize, queued: Queued) {
        let Queued { id, mut request, mut events } = queued;
        if let Some(start) = self.model.decoder_start() {
            // The encoder reads the prompt; the decoder's text begins anew.
            self.clear(index);
            if let Err(error) = guarded(|| self.model.encode(index as u32, &request.prompt)) {
                events(Event::Failed(error));
                return;
            }
            (request.prompt, request.reuse) = (vec![start], false);
        }
        // The last prompt token is always evaluated: its logits are needed.
        let most = request.prompt.len().saturating_sub(1);
        let mut cached = 0;
        if request.reuse && self.suits(index, request.prompt.len()) {
            let common = common_prefix(&self.slots[index].held, &request.prompt).min(most);
            // Windowed and recurrent layers can go back to some lengths only.
            let common = u32::try_from(common).unwrap_or(u32::MAX);
            cached = self.model.longest_truncation(index as u32, common) as usize;
        }
        // Looked for first, so that what is saved below does not push it out.
        let stored = request.reuse && self.store.find(&request.prompt, cached).is_some();
        let held = self.slots[index].held.len();
        if (held - cached) * 2 > held {
            self.keep(index);
        }
        if stored && let Some(found) = self.fetch(index, &request.prompt, cached) {
            cached = found;
        }
        if cached < self.slots[index].held.len() {
            let kept = cached > 0
                && self.suits(index, request.prompt.len())
                && guarded(|| self.model.truncate(index as u32, cached as u32)).is_ok();
            if kept {
                self.slots[index].held.truncate(cached);
            } else {
                self.clear(index);
                cached = 0;
            }
        }
        self.clock += 1;
        self.slots[index].used = self.clock;
        match Job::new(id, *request, events, self.model.vocabulary(), cached, &mut self.ahead) {
            Ok(mut job) => {
                job.send(Event::Started { sequence: index as u32, cached });
                job.report_progress(cached);
                self.slots[index].job = Some(job);
            }
            Err((error, mut events)) => {
                events(Event::Failed(error));
            }
        }
    }

    /// Whether what a slot holds can stay if its text gets so long.
    fn suits(&mut self, index: usize, length: usize) -> bool {
        self.model.expect(index as u32, u32::try_from(length).unwrap_or(u32::MAX))
    }

    /// Saves what a slot holds in memory, because it is about to lose it. Without success it is lost.
    fn keep(&mut self, index: usize) {
        let held = &self.slots[index].held;
        if !self.store.wants(held) {
            return;
        }
        if let Ok(bytes) = guarded(|| self.model.save(index as u32, held)) {
            self.store.put(held.clone(), bytes);
        }
    }

    /// Gives an idle slot what was saved of a prompt, if that is more than the `cached` tokens that it shares with it.
    /// Returns how many tokens of the prompt it can go back to.
    fn fetch(&mut self, index: usize, prompt: &[u32], cached: usize) -> Option<usize> {
        let (tokens, _) = self.store.find(prompt, cached)?;
        let own = self.slots[index].held.len();
        self.free_cells_beside(index, tokens.saturating_sub(own));
        let (_, bytes) = self.store.find(prompt, cached)?;
        let sequence = index as u32;
        match guarded(|| self.model.restore(sequence, bytes)) {
            Ok(tokens) => self.slots[index].held = tokens,
            Err(EngineError::Panic { .. }) => {
                self.store.clear();
                self.clear(index);
                return Some(0);
            }
            Err(_) => {
                self.synchronise(index);
                return Some(cached.min(self.slots[index].held.len()));
            }
        }
        let common = common_prefix(&self.slots[index].held, prompt).min(prompt.len().saturating_sub(1));
        Some(self.model.longest_truncation(sequence, u32::try_from(common).unwrap_or(u32::MAX)) as usize)
    }

    /// One step: room, batch, run, tokens.
    fn step(&mut self) {
        self.clock += 1;
        if !self.embeddings.is_empty() {
            let (model, tokens) = (&mut self.model, self.options.step_tokens as usize);
            self.embeddings.step(tokens, |texts| guarded(|| model.embed(texts)));
        }
        for index in 0..self.slots.len() {
            if self.slots[index].job.as_ref().is_some_and(|job| job.deserted) {
                self.finish(index, FinishReason::Cancelled);
            } else {
                self.make_room(index);
                let length = self.slots[index].held.len() + self.slots[index].pending().len();
                if self.slots[index].job.is_some() && !self.suits(index, length) {
                    self.clear(index);
                    // An empty sequence takes the announcement.
                    self.suits(index, length);
                }
            }
        }
        let demands = self.demands();
        let wanted: usize = demands.iter().map(|demand| demand.pending).sum();
        if wanted == 0 {
            return;
        }
        let tokens = self.options.step_tokens.max(1) as usize;
        self.free_cells(wanted.min(tokens));
        let limits = Limits { tokens, cells: self.model.free_cells() as usize };
        let shares = schedule(&demands, limits);
        if shares.is_empty() {
            return self.give_up_largest();
        }
        match self.run(&shares) {
            Ok(outputs) => self.advance(&shares, &outputs),
            Err(error) => self.isolate(&shares, error),
        }
    }

    fn demands(&self) -> Vec<Demand> {
        let context = self.model.context() as usize;
        let wanting = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let job = slot.job.as_ref()?;
            let pending = slot.pending().len().min(context.saturating_sub(slot.held.len()));
            (pending > 0).then_some(Demand {
                slot: index,
                pending,
                generating: job.generated > 0 && pending == 1,
                alone: job.alone,
            })
        });
        wanting.collect()
    }

    /// A sequence that is full is shifted or finished.
    fn make_room(&mut self, index: usize) {
        let context = self.model.context() as usize;
        let slot = &self.slots[index];
        let Some(job) = &slot.job else { return };
        if slot.held.len() < context || slot.pending().is_empty() {
            return;
        }
        // Some room must be left to move in, however much shall be kept.
        let keep = job.keep().min(context.saturating_sub(4));
        let discard = (slot.held.len() - keep) / 2;
        let possible = self.options.context_shift && job.shiftable() && discard > 0;
        if possible && guarded(|| self.model.shift(index as u32, keep as u32, discard as u32)).is_ok() {
            let slot = &mut self.slots[index];
            slot.held.drain(keep..keep + discard);
            if let Some(job) = &mut slot.job {
                job.tokens.drain(keep..keep + discard);
            }
        } else {
            self.synchronise(index);
            self.finish(index, FinishReason::Length);
        }
    }

    /// After a failure of the model: a sequence that it had to empty is empty here, too.
    fn synchronise(&mut self, index: usize) {
        if self.model.length(index as u32) as usize != self.slots[index].held.len() {
            self.clear(index);
        }
    }

    /// Empties idle slots, those idle for longest first, until `wanted` cells are free or none is left.
    fn free_cells(&mut self, wanted: usize) {
        self.free_cells_beside(usize::MAX, wanted);
    }

    /// The same, but one slot is left alone.
    fn free_cells_beside(&mut self, kept: usize, wanted: usize) {
        while (self.model.free_cells() as usize) < wanted {
            let idle = self.slots.iter().enumerate().filter(|(index, _)| *index != kept);
            let oldest = idle
                .filter(|(_, slot)| slot.job.is_none() && !slot.held.is_empty())
                .min_by_key(|(_, slot)| slot.used);
            let Some((index, _)) = oldest else { return };
            self.keep(index);
            self.clear(index);
        }
    }

    /// No cell is free and nobody is idle: the request that holds most ends, so that the others go on.
    fn give_up_largest(&mut self) {
        let active = self.slots.iter().enumerate().filter(|(_, slot)| slot.job.is_some());
        let Some((index, _)) = active.max_by_key(|(_, slot)| slot.held.len()) else { return };
        let generated = self.slots[index].job.as_ref().is_some_and(|job| job.generated > 0);
        if generated {
            self.finish(index, FinishReason::Length);
        } else {
            self.fail(index, EngineError::NoRoom { context: self.model.context() });
        }
        // Also what it held: otherwise nothing would be gained.
        self.clear(index);
    }

    /// Whether the share is all that waits, so that the logits of its last token are needed.
    fn completes(&self, share: &Share) -> bool {
        self.slots[share.slot].pending().len() == share.tokens
    }

    fn run(&mut self, shares: &[Share]) -> Result<Outputs, EngineError> {
        let work = shares.iter().map(|share| Work {
            sequence: share.slot as u32,
            tokens: self.slots[share.slot].pending().iter().take(share.tokens).copied().collect(),
            outputs: if self.completes(share) { OutputRows::Last } else { OutputRows::None },
        });
        let batch = Batch { work: work.collect() };
        guarded(|| self.model.run(&batch))
    }

    fn advance(&mut self, shares: &[Share], outputs: &Outputs) {
        for share in shares {
            let complete = self.completes(share);
            let (slot, ahead) = (&mut self.slots[share.slot], &mut self.ahead);
            slot.used = self.clock;
            let evaluated: Vec<u32> = slot.pending().iter().take(share.tokens).copied().collect();
            slot.held.extend(evaluated);
            let held = slot.held.len();
            let Some(job) = &mut slot.job else { continue };
            job.report_progress(held);
            if !complete {
                continue;
            }
            let missing = || EngineError::Panic { message: "the model returned no logits".into() };
            let next = guarded(|| job.advance(outputs.last(share.slot as u32).ok_or_else(missing)?, ahead));
            match next {
                Ok(Next::Continue) => {}
                Ok(Next::Finish(reason)) => self.finish(share.slot, reason),
                Err(error) => {
                    self.fail(share.slot, error);
                    // Whatever spoilt the logits may be in the cache.
                    self.clear(share.slot);
                }
            }
        }
    }

    /// A step failed. With one request in it, that request is to blame; otherwise each gets a step alone.
    fn isolate(&mut self, shares: &[Share], error: EngineError) {
        let panicked = matches!(error, EngineError::Panic { .. });
        if let [share] = shares {
            self.fail(share.slot, error);
            self.clear(share.slot);
        } else {
            for share in shares {
                if let Some(job) = &mut self.slots[share.slot].job {
                    job.alone = true;
                }
            }
        }
        for share in shares {
            self.synchronise(share.slot);
        }
        if panicked {
            // Nothing that the model holds can be trusted; requests start over from their tokens.
            (0..self.slots.len()).for_each(|slot| self.clear(slot));
            self.store.clear();
        }
    }

    fn finish(&mut self, index: usize, reason: FinishReason) {
        if let Some(job) = self.slots[index].job.take() {
            job.finish(reason);
        }
    }

    fn fail(&mut self, index: usize, error: EngineError) {
        if let Some(job) = self.slots[index].job.take() {
            job.fail(error);
        }
    }
}

pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
