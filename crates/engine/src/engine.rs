//! The handle of the engine thread.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::saved::Saved;
use crate::worker::{Command, Worker};
use crate::{DiskCache, EmbeddingSender, EngineError, Event, Proposer, Request, RequestId, Runner};

/// Settings of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// Tokens of one step over all slots, at least 1. A cancellation waits for one step at most, so the
    /// model's micro-batch is the right size.
    pub step_tokens: u32,
    /// When a sequence is full, drop the older half of what follows the kept beginning and go on, instead of
    /// finishing.
    pub context_shift: bool,
    /// Bytes of host memory for what slots held before other requests took them; 0 for none.
    pub store_bytes: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { step_tokens: 512, context_shift: false, store_bytes: 0 }
    }
}

/// Takes the events of one request; returns false when nobody listens any more, which cancels the request.
/// Called on the engine thread, so it must not block.
pub type EventSender = Box<dyn FnMut(Event) -> bool + Send>;

/// What helps an engine beside its model.
#[derive(Default)]
pub struct Aids {
    /// Guess how texts go on; the first that has a guess is used. The model must have been loaded with room for
    /// [`GUESSED_ROWS`](crate::GUESSED_ROWS) more output rows.
    pub proposers: Vec<Box<dyn Proposer>>,
    /// Keeps what sequences hold in files.
    pub disk: Option<DiskCache>,
}

/// What an engine counts while it runs.
#[derive(Default, Debug)]
pub struct Meters {
    /// Steps of the model.
    pub steps: AtomicU64,
    /// The same, each as often as it had sequences.
    pub sequence_steps: AtomicU64,
    /// Bytes that are kept in memory of what slots held before ([`EngineOptions::store_bytes`]).
    pub stored_bytes: AtomicU64,
}

/// A running engine. Dropping it ends all requests and the thread.
pub struct Engine {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    next: AtomicU64,
    meters: Arc<Meters>,
    context: u32,
    context_is_learned: bool,
    vocabulary: u32,
    sequences: u32,
    embeds: bool,
    speculates: bool,
}

impl Engine {
    /// Moves the model to a thread of its own. Fails only if the system has no thread.
    pub fn start(model: impl Runner + 'static, options: EngineOptions) -> Result<Engine, EngineError> {
        Self::start_with(model, options, Aids::default())
    }

    /// The same with what helps it.
    pub fn start_with(
        model: impl Runner + 'static,
        options: EngineOptions,
        aids: Aids,
    ) -> Result<Engine, EngineError> {
        let (commands, received) = channel();
        let (context, vocabulary, sequences) = (model.context(), model.vocabulary(), model.sequences());
        let (embeds, speculates) = (model.embeds(), !aids.proposers.is_empty());
        let context_is_learned = model.context_is_learned();
        let meters = Arc::<Meters>::default();
        let told = meters.clone();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || Worker::new(Box::new(model), options, aids, told).serve(&received))
            .map_err(EngineError::Thread)?;
        let next = AtomicU64::new(0);
        Ok(Engine {
            commands,
            thread: Some(thread),
            next,
            meters,
            context,
            context_is_learned,
            vocabulary,
            sequences,
            embeds,
            speculates,
        })
    }

    /// Positions that one sequence can hold.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Whether it is no more because the model has learned no more.
    pub fn context_is_learned(&self) -> bool {
        self.context_is_learned
    }

    /// Number of tokens that exist.
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    /// Number of sequences that can be served at once.
    pub fn sequences(&self) -> u32 {
        self.sequences
    }

    /// Whether the model makes embeddings, so that requests for text fail.
    pub fn embeds(&self) -> bool {
        self.embeds
    }

    /// Whether it guesses how texts go on.
    pub fn speculates(&self) -> bool {
        self.speculates
    }

    /// What it counts.
    pub fn meters(&self) -> Arc<Meters> {
        self.meters.clone()
    }

    /// Queues texts to embed. For each there is a row, or a row per token one after another, not normalised. Texts of
    /// several requests share steps. Those that nobody waits for any more are dropped before the next step.
    pub fn embed_to(&self, texts: Vec<Vec<u32>>, sender: Box<dyn EmbeddingSender>) {
        if let Err(error) = self.commands.send(Command::Embed(texts, sender))
            && let Command::Embed(_, sender) = error.0
        {
            sender.send(Err(EngineError::Stopped));
        }
    }

    /// Queues a request; its events arrive at the receiver. Dropping the receiver cancels the request.
    pub fn submit(&self, request: Request) -> (RequestId, Receiver<Event>) {
        let (sender, receiver) = channel();
        let id = self.submit_to(request, Box::new(move |event| sender.send(event).is_ok()));
        (id, receiver)
    }

    /// Queues a request whose events go to `events`.
    pub fn submit_to(&self, request: Request, events: EventSender) -> RequestId {
        let id = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        if let Err(error) = self.commands.send(Command::Submit(id, Box::new(request), events))
            && let Command::Submit(_, _, mut events) = error.0
        {
            events(Event::Failed(EngineError::Stopped));
        }
        id
    }

    /// Ends a request after the step in progress. One that is done already is left alone.
    pub fn cancel(&self, id: RequestId) {
        // A stopped engine has no requests.
        let _ = self.commands.send(Command::Cancel(id));
    }

    /// Writes the sequence in the form that [`Engine::restore`] reads; how many bytes that was. Fails with
    /// [`EngineError::Busy`] while a request uses it.
    pub fn save(&self, sequence: u32, to: &mut impl Write) -> Result<u64, EngineError> {
        let saved = self.ask(|reply| Command::Save(sequence, reply))?;
        saved.write(0, to).map_err(|source| EngineError::NotWritten { source })?;
        Ok(saved.file_bytes())
    }

    /// Replaces the sequence by a saved one of so many bytes and returns its tokens. It was saved when adapters counted
    /// like `adapters` ([`Request::adapters`]); none if they count as they do in the sequence now.
    pub fn restore(
        &self,
        sequence: u32,
        from: &mut impl Read,
        bytes: u64,
        adapters: Arc<[f32]>,
    ) -> Result<Vec<u32>, EngineError> {
        let saved = Saved::read(from, bytes).map_err(|source| EngineError::NotSaved { source })?;
        self.ask(|reply| Command::Restore(sequence, saved, adapters, reply))
    }

    /// Empties the sequence.
    pub fn clear(&self, sequence: u32) -> Result<(), EngineError> {
        self.ask(|reply| Command::Clear(sequence, reply))
    }

    /// The tokens that the sequence holds, also while a request uses it.
    pub fn held(&self, sequence: u32) -> Result<Vec<u32>, EngineError> {
        self.ask(|reply| Command::Held(sequence, reply))
    }

    fn ask<T>(
        &self,
        command: impl FnOnce(Sender<Result<T, EngineError>>) -> Command,
    ) -> Result<T, EngineError> {
        let (reply, answer) = channel();
        self.commands.send(command(reply)).map_err(|_| EngineError::Stopped)?;
        answer.recv().map_err(|_| EngineError::Stopped)?
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // The thread catches panics itself; there is nothing to hand on.
            let _ = thread.join();
        }
    }
}
