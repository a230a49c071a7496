//! One step: room, guesses, batch, run, tokens.

use std::sync::atomic::Ordering;
use std::time::Instant;

use puna_runtime::{Batch, OutputRows, Outputs, Work};

use crate::job::Next;
use crate::speculation::{Evaluated, Wish};
use crate::worker::{Worker, guarded};
use crate::{Demand, EngineError, FinishReason, GUESSED_ROWS, Limits, Share, schedule};

/// Where a prompt's state is kept: so many tokens before its end, to come back with the same prompt or another last word.
const BEFORE_END: usize = 4;

impl Worker {
    /// One step. Returns whether there was anything to do.
    pub(crate) fn step(&mut self) -> bool {
        self.clock += 1;
        let embeds = !self.embeddings.is_empty();
        if embeds {
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
        self.guess();
        let demands = self.alike(self.demands());
        let wanted: usize = demands.iter().map(|demand| demand.pending).sum();
        if wanted == 0 {
            return embeds;
        }
        let tokens = self.options.step_tokens.max(1) as usize;
        self.make_cells(usize::MAX, wanted.min(tokens));
        let limits =
            Limits { tokens, cells: self.model.free_cells() as usize, guessed: GUESSED_ROWS as usize };
        let shares = schedule(&demands, limits);
        if shares.is_empty() {
            // What is on the move ends, and may leave cells then.
            let moving = self.slots.iter().any(|slot| slot.transfer.is_some() || slot.arrival.is_some());
            if !moving {
                self.give_up_largest();
            }
            return !moving;
        }
        let start = Instant::now();
        let result = self.run(&shares);
        // Times of large steps say little about those in which a guess may pay.
        self.last_step = start.elapsed();
        self.meters.steps.fetch_add(1, Ordering::Relaxed);
        self.meters.sequence_steps.fetch_add(shares.len() as u64, Ordering::Relaxed);
        let rows = shares.iter().map(|share| share.tokens + share.guessed).sum();
        if self.speculation.is_on() && rows <= 2 * GUESSED_ROWS as usize {
            self.speculation.note(rows, self.last_step);
        }
        match result {
            Ok(outputs) => {
                self.learn(&shares, &outputs);
                self.advance(&shares, &outputs);
            }
            Err(error) => self.isolate(&shares, error),
        }
        true
    }

    /// Guesses how texts go on of which one token is pending.
    fn guess(&mut self) {
        if !self.speculation.is_on() {
            return;
        }
        let context = self.model.context() as usize;
        self.slots.iter_mut().for_each(|slot| slot.guess.clear());
        // Prompts are computed as is fastest, and guesses as their tokens would be one by one: not in one step.
        if self.slots.iter().any(|slot| slot.reads_prompt()) {
            return;
        }
        let rows = self.slots.iter().map(|slot| slot.pending().len()).sum();
        let wishes: Vec<Wish<'_>> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(sequence, slot)| {
                let job = slot.job.as_ref().filter(|job| job.generated > 0 && !job.alone)?;
                // A full sequence ends or is shifted before anything after the pending token is of use.
                let room = context.saturating_sub(job.tokens.len());
                let most = room.min(job.left().saturating_sub(1)).min(GUESSED_ROWS as usize);
                let ready = slot.pending().len() == 1 && most > 0;
                ready.then_some(Wish { sequence, tokens: &job.tokens, most })
            })
            .collect();
        let guesses = self.speculation.guess(&wishes, rows, self.model.vocabulary());
        for (sequence, guess) in guesses {
            // Not beyond the length from which on the text has to be computed anew.
            let slot = &self.slots[sequence];
            if self.suits(sequence, slot.held.len() + slot.pending().len() + guess.len()) {
                self.slots[sequence].guess = guess;
            }
        }
    }

    fn demands(&self) -> Vec<Demand> {
        let context = self.model.context() as usize;
        let checkpoints = self.model.keeps_checkpoints();
        let wanting = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let job = slot.job.as_ref()?;
            let pending = slot.pending().len().min(context.saturating_sub(slot.held.len()));
            let before_end = pending.saturating_sub(BEFORE_END);
            let pending =
                if checkpoints && job.generated == 0 && before_end > 0 { before_end } else { pending };
            (pending > 0).then_some(Demand {
                slot: index,
                pending,
                guessed: slot.guess.len(),
                arrival: job.arrival,
                generating: job.generated > 0 && !slot.reads_prompt(),
                alone: job.alone,
            })
        });
        wanting.collect()
    }

    /// A sequence that is full is shifted or finished. Where the model cannot move what it holds (recurrent layers, positions
    /// that are more than a rotation), what is left of the text is computed anew.
    fn make_room(&mut self, index: usize) {
        let context = self.model.context() as usize;
        let slot = &mut self.slots[index];
        let pending = !slot.pending().is_empty();
        let Some(job) = slot.job.as_mut().filter(|_| pending && slot.held.len() >= context) else { return };
        job.full = true;
        // Some room must be left to move in, however much shall be kept.
        let keep = job.keep().min(context.saturating_sub(4));
        let discard = job.discard(slot.held.len() - keep);
        let possible = self.options.context_shift && job.shiftable() && discard > 0;
        let moved =
            possible && guarded(|| self.model.shift(index as u32, keep as u32, discard as u32)).is_ok();
        // What a decoder holds cannot be computed without what its encoder has read.
        if !moved && (!possible || self.model.decoder_start().is_some()) {
            self.synchronise(index);
            return self.finish(index, FinishReason::Length);
        }
        let slot = &mut self.slots[index];
        if let Some(job) = &mut slot.job {
            job.tokens.drain(keep..keep + discard);
        }
        if moved {
            slot.held.drain(keep..keep + discard);
        } else {
            self.clear(index);
        }
    }

    /// No cell is free and nobody is idle: the request that holds most ends, so that the others go on.
    fn give_up_largest(&mut self) {
        let active = self.slots.iter().enumerate().filter(|(_, slot)| slot.job.is_some());
        let Some((index, _)) = active.max_by_key(|(_, slot)| slot.held.len()) else { return };
        let job = self.slots[index].job.as_mut();
        let generated = job.is_some_and(|job| {
            job.full = true;
            job.generated > 0
        });
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
        if let Some(first) = shares.first() {
            self.wear(first.slot)?;
        }
        let work = shares.iter().map(|share| {
            let slot = &self.slots[share.slot];
            let pending = slot.pending().iter().take(share.tokens);
            Work {
                sequence: share.slot as u32,
                tokens: pending.chain(slot.guess.iter().take(share.guessed)).copied().collect(),
                outputs: match (self.completes(share), share.guessed) {
                    (false, _) => OutputRows::None,
                    (true, 0) => OutputRows::Last,
                    (true, _) => OutputRows::All,
                },
            }
        });
        // A text that is guessed at is the same as without: its rows are computed as they would be one by one. Where none has
        // more than its next token, or a prompt is read, a step is what it would be if nothing was guessed.
        let slots = || shares.iter().map(|share| (share, &self.slots[share.slot]));
        let deterministic = slots().any(|(share, slot)| share.guessed > 0 || slot.again)
            && !slots().any(|(_, slot)| slot.reads_prompt());
        let batch = Batch { work: work.collect(), deterministic, best: self.suffices(shares) };
        guarded(|| self.model.run(&batch))
    }

    /// How many of the highest logits of each row suffice for all who choose a token after this step.
    fn suffices(&self, shares: &[Share]) -> Option<u32> {
        let choosing = shares.iter().filter(|share| self.completes(share));
        let counts = choosing.map(|share| self.slots[share.slot].job.as_ref()?.suffices(share.guessed));
        let most = counts.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        u32::try_from(most).ok().filter(|most| *most < self.model.vocabulary())
    }

    /// Tells what guesses the states of the rows that were computed, if the model hands them out.
    fn learn(&mut self, shares: &[Share], outputs: &Outputs) {
        let rows: usize = shares.iter().map(|share| share.tokens + share.guessed).sum();
        let width = outputs.states.len() / rows.max(1);
        if width == 0 {
            return;
        }
        let mut states = outputs.states.chunks_exact(width);
        for share in shares {
            let (slot, rows) = (&self.slots[share.slot], share.tokens + share.guessed);
            let pending = slot.pending().iter().take(share.tokens);
            let evaluated = pending.chain(slot.guess.iter().take(share.guessed));
            let tokens: Vec<u32> = slot.held.iter().chain(evaluated).copied().collect();
            let own: Vec<f32> = states.by_ref().take(rows).flatten().copied().collect();
            let (sequence, states) = (share.slot, &own[..]);
            self.speculation.learn(&Evaluated { sequence, tokens: &tokens, rows, states });
        }
    }

    fn advance(&mut self, shares: &[Share], outputs: &Outputs) {
        for share in shares {
            let complete = self.completes(share);
            let slot = &mut self.slots[share.slot];
            slot.used = self.clock;
            let evaluated: Vec<u32> = slot.pending().iter().take(share.tokens).copied().collect();
            slot.held.extend(evaluated);
            let held = slot.held.len();
            let Some(job) = &mut slot.job else { continue };
            job.report_progress(held);
            if !complete {
                if slot.pending().len() == BEFORE_END {
                    self.model.mark(share.slot as u32);
                }
                continue;
            }
            slot.again = false;
            match self.choose_tokens(share, outputs) {
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

    /// Chooses the next token of a slot, and as many more as its guess was right about; the rest of the guess is taken
    /// back.
    fn choose_tokens(&mut self, share: &Share, outputs: &Outputs) -> Result<Next, EngineError> {
        let (slot, ahead) = (&mut self.slots[share.slot], &mut self.ahead);
        let mut guess = std::mem::take(&mut slot.guess);
        guess.truncate(share.guessed);
        let Some(job) = &mut slot.job else { return Ok(Next::Continue) };
        let mut rows = outputs.logits_of(share.slot as u32);
        let mut accepted = 0;
        let next = loop {
            let missing = || EngineError::Panic { message: "the model returned no logits".into() };
            let next = guarded(|| job.advance(rows.next().ok_or_else(missing)?, ahead))?;
            let right = accepted < guess.len() && job.tokens.last() == Some(&guess[accepted]);
            match next {
                Next::Continue if right => accepted += 1,
                next => break next,
            }
        };
        if !guess.is_empty() {
            slot.held.extend(&guess[..accepted]);
            job.count_guess(guess.len(), accepted);
            // An answer that ends within its guess proves nothing wrong.
            let wrong = accepted < guess.len() && matches!(next, Next::Continue);
            self.speculation.judge(share.slot, accepted, wrong);
            self.take_back(share.slot);
        }
        Ok(next)
    }

    /// Makes the model forget what it holds of a slot beyond its tokens. A recurrent state goes back to where the step
    /// began, and what was right of a guess is evaluated again with the next step.
    fn take_back(&mut self, index: usize) {
        let (sequence, held) = (index as u32, self.slots[index].held.len());
        if self.model.length(sequence) as usize == held {
            return;
        }
        let length = self.model.longest_truncation(sequence, u32::try_from(held).unwrap_or(u32::MAX));
        if length > 0 && guarded(|| self.model.truncate(sequence, length)).is_ok() {
            let again = held.saturating_sub(length as usize);
            self.slots[index].held.truncate(length as usize);
            self.slots[index].again = again > 0;
            if again > 0 {
                // As if it had been wrong: it costs as much.
                self.speculation.judge(index, 0, true);
            }
        } else {
            self.clear(index);
        }
    }

    /// A step failed. With one request in it, that request is to blame; otherwise each gets a step alone.
    fn isolate(&mut self, shares: &[Share], error: EngineError) {
        let panicked = matches!(error, EngineError::Panic { .. });
        // A guess is never to blame for the end of a request, so it is tried without.
        if let [share] = shares
            && share.guessed == 0
        {
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
            for slot in 0..self.slots.len() {
                self.abandon(slot);
                self.clear(slot);
            }
            self.store.clear();
        }
    }
}
