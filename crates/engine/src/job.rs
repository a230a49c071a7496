//! One request being served, and the slot that serves it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_grammar::{Budget, Constraint, Countdown, allows};
use puna_runtime::{BestRow, Logits};
use puna_sampling::{BestLogits, Chain, log_probabilities};

use crate::ahead::{Ahead, Pending};
use crate::reuse::Arrival;
use crate::transfer::Transfer;
use crate::{
    EngineError, Event, EventSender, FinishReason, Request, RequestId, Timings, UNLIMITED, UNTIL_FULL,
};

/// One sequence of the model: what it holds and whom it serves. Its index is its number.
#[derive(Default)]
pub(crate) struct Slot {
    /// Tokens in the cache, in order of position.
    pub(crate) held: Vec<u32>,
    pub(crate) job: Option<Job>,
    /// A request that will be its job when what was kept for it is here.
    pub(crate) arrival: Option<Arrival>,
    /// What is being copied from or to it.
    pub(crate) transfer: Option<Transfer>,
    /// How strongly adapters counted for what it holds.
    pub(crate) adapters: Arc<[f32]>,
    /// What it holds has been offered to the disk.
    pub(crate) filed: bool,
    /// How the text may go on after what is pending; checked by the next step.
    pub(crate) guess: Vec<u32>,
    /// What is pending was right of a guess and is evaluated again, because a recurrent state went back to before it.
    pub(crate) again: bool,
    /// Step counter of the last use, to find the one idle for longest.
    pub(crate) used: u64,
}

impl Slot {
    /// Whether it serves nobody.
    pub(crate) fn is_free(&self) -> bool {
        self.job.is_none() && self.arrival.is_none()
    }

    /// Tokens that wait to be evaluated.
    pub(crate) fn pending(&self) -> &[u32] {
        self.job.as_ref().and_then(|job| job.tokens.get(self.held.len()..)).unwrap_or_default()
    }

    /// Whether what waits is a prompt, or so much of a text that is computed anew, and not what was generated last.
    pub(crate) fn reads_prompt(&self) -> bool {
        let generated = self.job.as_ref().map_or(0, |job| job.generated);
        match generated {
            0 => !self.pending().is_empty(),
            _ => self.pending().len() > 1 && !self.again,
        }
    }
}

/// A request that has a slot.
pub(crate) struct Job {
    pub(crate) id: RequestId,
    /// Lower for those that go first.
    pub(crate) arrival: u64,
    events: EventSender,
    request: Request,
    chain: Chain,
    /// The grammar's place in the text, with the mask for the next token; being made while the model computes.
    constraint: Option<Pending>,
    /// How much of its reasoning is left.
    countdown: Option<Countdown>,
    /// What the sequence shall hold: the prompt and what was generated, less what shifts dropped.
    pub(crate) tokens: Vec<u32>,
    cached: usize,
    /// Tokens of the prompt that the model has read so far, those from the cache included.
    read: usize,
    pub(crate) generated: usize,
    guesses: usize,
    guessed: usize,
    accepted: usize,
    started: Instant,
    first_logits: Option<Instant>,
    /// A step with this job failed, so the next one runs without others.
    pub(crate) alone: bool,
    /// The owner no longer listens.
    pub(crate) deserted: bool,
    /// The context was full: a part of its text was dropped, or it ends.
    pub(crate) full: bool,
}

/// What a job does after its logits came.
pub(crate) enum Next {
    Continue,
    Finish(FinishReason),
}

impl Job {
    pub(crate) fn new(
        id: RequestId,
        request: Request,
        events: EventSender,
        vocabulary: u32,
        cached: usize,
        ahead: &mut Ahead,
    ) -> Result<Self, (EngineError, EventSender)> {
        let mut sampling = request.sampling.clone();
        if request.ignore_end {
            sampling.suppress.extend(request.end_of_generation.iter().filter(|token| **token < vocabulary));
        }
        let mut chain = match Chain::new(&sampling, vocabulary as usize) {
            Ok(chain) => chain,
            Err(error) => return Err((error.into(), events)),
        };
        let constraint = match request.grammar.as_ref().map(|grammar| ahead.begin(grammar)).transpose() {
            Ok(constraint) => constraint,
            Err(error) => return Err((error, events)),
        };
        for token in &request.prompt {
            chain.accept(*token);
        }
        Ok(Self {
            id,
            arrival: request.order(id),
            events,
            tokens: request.prompt.clone(),
            countdown: request.reasoning.as_ref().map(Budget::countdown),
            request,
            chain,
            constraint,
            cached,
            read: cached,
            generated: 0,
            guesses: 0,
            guessed: 0,
            accepted: 0,
            started: Instant::now(),
            first_logits: None,
            alone: false,
            deserted: false,
            full: false,
        })
    }

    /// Tells the owner; notes when nobody listens.
    pub(crate) fn send(&mut self, event: Event) {
        if !(self.events)(event) {
            self.deserted = true;
        }
    }

    /// Tells how far the prompt is. `held` is the number of tokens in the cache.
    pub(crate) fn report_progress(&mut self, held: usize) {
        if self.first_logits.is_none() {
            self.read = held;
            self.send(Event::Progress { processed: held, total: self.request.prompt.len() });
        }
    }

    /// Whether a full context may be shifted for this request, and how many tokens at the beginning stay.
    pub(crate) fn shiftable(&self) -> bool {
        self.request.predict != UNTIL_FULL
    }

    /// Tokens that a shift drops of so many that are not kept.
    pub(crate) fn discard(&self, of: usize) -> usize {
        match self.request.discard as usize {
            0 => of / 2,
            wanted => wanted.min(of),
        }
    }

    /// Tokens at the beginning that a shift keeps.
    pub(crate) fn keep(&self) -> usize {
        usize::try_from(self.request.keep).unwrap_or(self.request.prompt.len())
    }

    /// Whether its deadline is over.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.request.is_late(now)
    }

    /// Tokens that may still be generated.
    pub(crate) fn left(&self) -> usize {
        usize::try_from(self.request.predict).map_or(usize::MAX, |limit| limit.saturating_sub(self.generated))
    }

    /// Counts a guess of so many tokens, of which so many were right.
    pub(crate) fn count_guess(&mut self, guessed: usize, accepted: usize) {
        self.guesses += 1;
        self.guessed += guessed;
        self.accepted += accepted;
    }

    /// How many of the highest logits of each row suffice to choose the next tokens, of which so many are guessed; `None` if
    /// all are needed.
    pub(crate) fn suffices(&self, guessed: usize) -> Option<usize> {
        let may_force = self.countdown.as_ref().is_some_and(|left| guessed > 0 || left.forced().is_some());
        let raw = self.request.log_probabilities.is_some() && !self.request.after_sampling;
        if self.request.predict == 0 {
            return Some(1);
        }
        if self.request.grammar.is_some() || may_force || raw {
            return None;
        }
        self.chain.suffices(guessed)
    }

    /// Chooses the next token from the logits of the last one.
    pub(crate) fn advance(&mut self, row: Logits<'_>, ahead: &mut Ahead) -> Result<Next, EngineError> {
        self.first_logits.get_or_insert_with(Instant::now);
        self.alone = false;
        if self.request.predict == 0 {
            return Ok(Next::Finish(FinishReason::Length));
        }
        let mut constraint = self.constraint.take().map(Pending::wait).transpose()?;
        let allowed = constraint.as_mut().map(Constraint::mask).transpose()?.flatten();
        if allowed.is_some_and(|allowed| self.only_ends(allowed)) {
            let complete = constraint.map(|mut constraint| constraint.is_complete()).transpose()?;
            return match complete {
                Some(true) => Ok(Next::Finish(FinishReason::GrammarEnd)),
                _ => Err(puna_sampling::SamplingError::NoCandidate.into()),
            };
        }
        let (token, logits) = match row {
            Logits::All(logits) => {
                let forced = self.forced(allowed, logits);
                (self.chain.sample(logits, forced.as_deref().or(allowed))?, logits)
            }
            // Only where nothing rules tokens out or asks for all logits: see `suffices`.
            Logits::Best(BestRow { columns: tokens, numbers: logits, not_finite }) => {
                (self.chain.sample_best(&BestLogits { tokens, logits, not_finite })?, &[][..])
            }
        };
        if !self.request.ignore_end && self.request.end_of_generation.contains(&token) {
            return Ok(Next::Finish(FinishReason::EndOfGeneration { token }));
        }
        let log_probabilities = match self.request.log_probabilities {
            Some(count) if self.request.after_sampling => Some(self.chain.log_probabilities(token, count)),
            Some(count) => Some(log_probabilities(logits, token, count)?),
            None => None,
        };
        self.chain.accept(token);
        self.countdown.iter_mut().for_each(|countdown| countdown.accept(token));
        self.constraint = constraint.map(|constraint| ahead.accept(constraint, token)).transpose()?;
        self.tokens.push(token);
        self.generated += 1;
        self.send(Event::Token { id: token, log_probabilities });
        let limit = usize::try_from(self.request.predict).ok();
        debug_assert!(limit.is_some() || self.request.predict <= UNLIMITED);
        if limit.is_some_and(|limit| self.generated >= limit) {
            return Ok(Next::Finish(FinishReason::Length));
        }
        Ok(Next::Continue)
    }

    /// The mask of the one token that has to come next, if the reasoning must end and that token may come here.
    fn forced(&self, allowed: Option<&[u32]>, logits: &[f32]) -> Option<Vec<u32>> {
        let token = self.countdown.as_ref()?.forced()?;
        let possible = logits.get(token as usize).is_some_and(|logit| *logit > f32::NEG_INFINITY)
            && allowed.is_none_or(|allowed| allows(allowed, token))
            && !self.chain.forbids(token);
        possible.then(|| {
            let mut mask = vec![0; logits.len().div_ceil(32)];
            mask[token as usize / 32] = 1 << (token % 32);
            mask
        })
    }

    /// Whether a mask allows no token that this request may get.
    fn only_ends(&self, allowed: &[u32]) -> bool {
        let ends: &[u32] = if self.request.ignore_end { &self.request.end_of_generation } else { &[] };
        allowed.iter().enumerate().all(|(index, word)| {
            let here = ends.iter().filter(|token| **token as usize / 32 == index);
            word & !here.fold(0, |bits, token| bits | 1 << (token % 32)) == 0
        })
    }

    /// Ends the job with its timings.
    pub(crate) fn finish(mut self, reason: FinishReason) {
        let now = Instant::now();
        // Who stops while the prompt is read has read a part of it only.
        let read = self.first_logits.map_or(self.read, |_| self.request.prompt.len());
        let timings = Timings {
            cached_tokens: self.cached,
            prompt_tokens: read.saturating_sub(self.cached),
            prompt: self.first_logits.unwrap_or(now) - self.started,
            generated_tokens: self.generated,
            generation: self.first_logits.map_or(Duration::ZERO, |first| now - first),
            guessed_tokens: self.guessed,
            accepted_tokens: self.accepted,
            guesses: self.guesses,
            full: self.full,
        };
        self.send(Event::Finished { reason, timings });
    }

    /// Ends the job with an error.
    pub(crate) fn fail(mut self, error: EngineError) {
        self.send(Event::Failed(error));
    }
}
