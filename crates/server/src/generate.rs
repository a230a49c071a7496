//! Answers being generated: from the engine's events to text in whole characters, with stop texts found.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use puna_chat::Stops;
use puna_engine::{Event, FinishReason, Request, RequestId, Timings};
use puna_sampling::LogProbabilities;
use puna_tokenizer::Decoder;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::app::{App, Place, Slots, View};
use crate::caller::Caller;
use crate::error::{ApiError, ApiResult, Kind};
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::residence::Awake;

/// Events that may wait for a client that reads slowly; beyond that its request ends.
const MOST_WAITING: usize = 1 << 16;

/// A token with its log-probabilities.
#[derive(Clone, Debug)]
pub struct Scored {
    /// Its id.
    pub token: u32,
    /// Of the raw logits.
    pub log_probabilities: LogProbabilities,
    /// Bytes of text before it.
    start: usize,
}

/// New text of one answer.
#[derive(Clone, Debug, Default)]
pub struct Piece {
    /// The text, perhaps none.
    pub text: String,
    /// Tokens since the last piece.
    pub tokens: Vec<u32>,
    /// The same with log-probabilities, if they were asked for.
    pub scored: Vec<Scored>,
    /// Tokens generated so far.
    pub generated: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The slot that it runs in.
    pub slot: u32,
    /// What the answer took so far.
    pub timings: Timings,
}

/// Why an answer ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The model ended it.
    EndOfGeneration,
    /// This stop text.
    Stop(String),
    /// A limit of tokens or time, or the context.
    Limit,
}

/// An answer that is done.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Why.
    pub reason: Reason,
    /// What it took.
    pub timings: Timings,
    /// All of its text.
    pub text: String,
    /// All of its tokens.
    pub tokens: Vec<u32>,
    /// All of its tokens with log-probabilities, if they were asked for.
    pub scored: Vec<Scored>,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// The slot that it ran in.
    pub slot: u32,
}

/// What happened to one of the answers.
#[derive(Clone, Debug)]
pub enum Output {
    /// Prompt tokens in the cache now, those that were there before, and all.
    Progress {
        /// In the cache now.
        processed: usize,
        /// There before.
        cached: usize,
        /// All.
        total: usize,
        /// Since it got its slot.
        time: Duration,
    },
    /// There is new text.
    Piece(Piece),
    /// It is done.
    Ending(Box<Ending>),
}

struct Choice {
    id: RequestId,
    decoder: Decoder,
    stops: Stops,
    piece: Piece,
    text: String,
    tokens: Vec<u32>,
    scored: Vec<Scored>,
    /// Bytes decoded so far, those held back included.
    decoded: usize,
    prompt_tokens: usize,
    slot: u32,
    cached: usize,
    started: Instant,
    first: Option<Instant>,
    late: bool,
    done: bool,
}

/// The answers to one request. Dropping it cancels what still runs.
pub struct Generation {
    engine: Awake,
    caller: Arc<Caller>,
    plan: Arc<Plan>,
    events: Receiver<(usize, Event)>,
    choices: Vec<Choice>,
    ready: VecDeque<(usize, Output)>,
}

impl Generation {
    /// Queues all requests of a plan, or none.
    pub async fn start(app: &Arc<App>, caller: &Arc<Caller>, plan: &Arc<Plan>) -> ApiResult<Self> {
        let places = app.admit(plan.requests.len())?;
        let engine = app.served.engine.awake().await?;
        let (sender, events) = channel(MOST_WAITING);
        let mut all = Self {
            engine,
            caller: caller.clone(),
            plan: plan.clone(),
            events,
            choices: Vec::new(),
            ready: VecDeque::new(),
        };
        for (index, (request, place)) in plan.requests.iter().zip(places).enumerate() {
            let prompt_tokens = request.prompt.len();
            let view = View { settings: plan.settings.clone(), prompt: prompt_tokens, ..View::default() };
            let mut watch = Watch::new(app, caller, view, place);
            let sender: Sender<(usize, Event)> = sender.clone();
            let priority = caller.priority(request.priority);
            let id = all.engine.submit_to(
                Request { priority, ..request.clone() },
                Box::new(move |event| {
                    watch.see(&event);
                    sender.try_send((index, event)).is_ok()
                }),
            );
            all.choices.push(Choice {
                id,
                decoder: Decoder::new(&app.served.tokenizer, plan.special).showing(plan.shown.clone()),
                stops: Stops::new(&plan.stops),
                piece: Piece::default(),
                text: String::new(),
                tokens: Vec::new(),
                scored: Vec::new(),
                decoded: 0,
                prompt_tokens,
                slot: 0,
                cached: 0,
                started: Instant::now(),
                first: None,
                late: false,
                done: false,
            });
        }
        Ok(all)
    }

    /// What happened next and to which answer; nothing once all are done. After an error nothing follows.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<ApiResult<(usize, Output)>> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Some(Ok(output));
            }
            if self.choices.iter().all(|choice| choice.done) {
                return None;
            }
            let Some((index, event)) = self.events.recv().await else {
                self.choices.clear();
                self.caller.failed("unavailable_error");
                let message = "the answer was not read in time, or the server ends";
                return Some(Err(ApiError::new(Kind::Unavailable, message)));
            };
            if let Err(error) = self.take(index, event) {
                // The others are not worth anything without this one.
                self.cancel();
                self.choices.clear();
                self.caller.failed(error.row().name);
                return Some(Err(error));
            }
        }
    }

    fn take(&mut self, index: usize, event: Event) -> ApiResult<()> {
        let Some(choice) = self.choices.get_mut(index) else { return Ok(()) };
        match event {
            Event::Started { sequence, cached } => {
                (choice.slot, choice.cached, choice.started) = (sequence, cached, Instant::now());
            }
            Event::Progress { processed, total } => {
                let (cached, time) = (choice.cached, choice.started.elapsed());
                let output = Output::Progress { processed, cached, total, time };
                self.ready.push_back((index, output));
            }
            Event::Token { id, log_probabilities } => {
                if choice.stops.stopped() || choice.late {
                    return Ok(());
                }
                let newline = choice.push(id, log_probabilities);
                let first = *choice.first.get_or_insert_with(Instant::now);
                choice.late = newline && self.plan.deadline.is_some_and(|limit| first.elapsed() > limit);
                if choice.stops.stopped() || choice.late {
                    self.engine.cancel(choice.id);
                }
                choice.hand_over(index, &mut self.ready, false);
            }
            Event::Finished { reason, timings } => {
                let reason = match choice.stops.found() {
                    Some(stop) => Reason::Stop(stop.to_owned()),
                    None if choice.late => Reason::Limit,
                    None => match reason {
                        FinishReason::EndOfGeneration { .. } | FinishReason::GrammarEnd => {
                            Reason::EndOfGeneration
                        }
                        FinishReason::Length => Reason::Limit,
                        FinishReason::Cancelled => {
                            let message = "the server ends before the answer is complete";
                            return Err(ApiError::new(Kind::Unavailable, message));
                        }
                    },
                };
                choice.finish(index, reason, timings, &mut self.ready);
            }
            Event::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn cancel(&self) {
        for choice in self.choices.iter().filter(|choice| !choice.done) {
            self.engine.cancel(choice.id);
        }
    }

    /// Waits for all answers, in order.
    pub async fn complete(mut self) -> ApiResult<Vec<Ending>> {
        let mut endings: Vec<Option<Ending>> = self.choices.iter().map(|_| None).collect();
        while let Some(output) = self.next().await {
            if let (index, Output::Ending(ending)) = output?
                && let Some(place) = endings.get_mut(index)
            {
                *place = Some(*ending);
            }
        }
        Ok(endings.into_iter().flatten().collect())
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.choices.iter().any(|choice| !choice.done) {
            self.caller.failed("client_left");
        }
        self.cancel();
    }
}

impl Choice {
    /// Adds a token; true if its text has a line break.
    fn push(&mut self, token: u32, log_probabilities: Option<LogProbabilities>) -> bool {
        let start = self.decoded;
        let text = self.decoder.push(token);
        self.decoded += text.len();
        self.tokens.push(token);
        self.piece.tokens.push(token);
        if let Some(log_probabilities) = log_probabilities {
            self.piece.scored.push(Scored { token, log_probabilities, start });
        }
        self.piece.text.push_str(&self.stops.push(&text));
        text.contains('\n')
    }

    /// What it took so far.
    fn so_far(&self) -> Timings {
        let first = self.first.unwrap_or_else(Instant::now);
        Timings {
            cached_tokens: self.cached,
            prompt_tokens: self.prompt_tokens.saturating_sub(self.cached),
            prompt: first - self.started,
            generated_tokens: self.tokens.len(),
            generation: first.elapsed(),
            ..Timings::default()
        }
    }

    /// Hands over the piece. While no text is complete its tokens wait, unless the answer ends.
    fn hand_over(&mut self, index: usize, ready: &mut VecDeque<(usize, Output)>, last: bool) {
        if self.piece.text.is_empty() && (!last || self.piece.tokens.is_empty()) {
            return;
        }
        let mut piece = std::mem::take(&mut self.piece);
        piece.generated = self.tokens.len();
        (piece.prompt_tokens, piece.slot, piece.timings) = (self.prompt_tokens, self.slot, self.so_far());
        self.text.push_str(&piece.text);
        if self.stops.stopped() {
            // Tokens of the stop text belong to nothing that is shown.
            piece.scored.retain(|scored| scored.start < self.text.len());
        }
        self.scored.extend(piece.scored.iter().cloned());
        ready.push_back((index, Output::Piece(piece)));
    }

    fn finish(
        &mut self,
        index: usize,
        reason: Reason,
        timings: Timings,
        ready: &mut VecDeque<(usize, Output)>,
    ) {
        let rest = self.decoder.finish();
        let shown = self.stops.push(&rest);
        self.piece.text.push_str(&shown);
        self.piece.text.push_str(&self.stops.finish());
        // The last bytes may have completed a stop text.
        let reason = match self.stops.found() {
            Some(stop) => Reason::Stop(stop.to_owned()),
            None => reason,
        };
        self.hand_over(index, ready, true);
        self.done = true;
        let ending = Ending {
            reason,
            timings,
            text: std::mem::take(&mut self.text),
            tokens: std::mem::take(&mut self.tokens),
            scored: std::mem::take(&mut self.scored),
            prompt_tokens: self.prompt_tokens,
            slot: self.slot,
        };
        ready.push_back((index, Output::Ending(Box::new(ending))));
    }
}

/// Keeps counters and the slot's view up to date on the engine thread, whatever the client does.
///
/// It must not own the engine: the last owner joins the engine thread, which cannot join itself.
struct Watch {
    metrics: Arc<Metrics>,
    slots: Arc<Slots>,
    caller: Arc<Caller>,
    view: Arc<View>,
    started: bool,
    _place: Place,
}

impl Watch {
    fn new(app: &Arc<App>, caller: &Arc<Caller>, view: View, place: Place) -> Self {
        app.metrics.wait();
        let (metrics, slots) = (app.metrics.clone(), app.slots.clone());
        Self { metrics, slots, caller: caller.clone(), view: Arc::new(view), started: false, _place: place }
    }

    fn see(&mut self, event: &Event) {
        self.caller.see(event, self.view.prompt);
        match event {
            Event::Started { sequence, cached } => {
                self.started = true;
                self.view.cached.store(*cached, Ordering::Relaxed);
                self.metrics.start();
                self.slots.take(*sequence, &self.view);
            }
            Event::Progress { processed, .. } => self.view.processed.store(*processed, Ordering::Relaxed),
            Event::Token { .. } => {
                self.view.decoded.fetch_add(1, Ordering::Relaxed);
            }
            Event::Finished { timings, .. } => self.metrics.count(timings),
            Event::Failed(_) => {}
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.view.done.store(1, Ordering::Relaxed);
        self.metrics.end(self.started);
    }
}
