//! What a request finds of its prompt in the slots and in what was saved, and what becomes of the rest.

use std::sync::Arc;

use crate::disk::Found;
use crate::job::{Job, Slot};
use crate::saved::Saved;
use crate::transfer::{Aim, Transfer};
use crate::worker::{Queued, Worker, common_prefix, guarded};
use crate::{EngineError, Event, Request};

/// A request that has a slot, but not yet all that was kept for it.
pub(crate) struct Arrival {
    pub(crate) queued: Queued,
    stage: Stage,
}

enum Stage {
    /// Nothing was looked for yet.
    Look,
    /// What the slot held is kept; this shall come in its place.
    Fetch(Option<Found>),
    /// All that can be there is there.
    Start,
}

impl Arrival {
    pub(crate) fn new(queued: Queued) -> Self {
        Self { queued, stage: Stage::Look }
    }

    /// Lower for those that go first.
    pub(crate) fn order(&self) -> u64 {
        self.queued.request.order(self.queued.id)
    }

    /// Whether it waits for something to be read; if not, what is read was meant for one that left.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.stage, Stage::Start)
    }

    /// What was being read is here.
    pub(crate) fn found(&mut self, saved: Arc<Saved>) {
        self.stage = Stage::Fetch(Some(Found::Here(saved)));
    }

    /// What there was is of no use any more.
    pub(crate) fn look_again(&mut self) {
        self.stage = Stage::Look;
    }
}

impl Worker {
    /// The idle slot that spares most of the request's prompt; of equal ones that idle for longest.
    pub(crate) fn choose(&self, request: &Request) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(index, slot)| {
            slot.is_free() && request.sequence.is_none_or(|wanted| wanted as usize == *index)
        });
        idle.max_by_key(|&(index, slot)| {
            let reused = request.reuse && self.fits(index, &request.adapters);
            let spared = if reused { self.spared(index, &request.prompt) } else { 0 };
            (spared, u64::MAX - slot.used)
        })
        .map(|(index, _)| index)
    }

    /// Gives a free slot to a request, which starts now or when all that was kept for it is there.
    pub(crate) fn begin(&mut self, index: usize, mut arrival: Arrival) {
        let moving = self.slots[index].transfer.is_some();
        let waits = if moving { Ok(true) } else { self.prepare(index, &mut arrival) };
        match waits {
            Ok(true) => self.slots[index].arrival = Some(arrival),
            Ok(false) => self.start(index, arrival.queued),
            Err(error) => {
                (arrival.queued.events)(Event::Failed(error));
            }
        }
    }

    /// Sets going what a request needs before it can start: that what its slot holds is kept, and that what was kept comes
    /// back. Returns whether it has to wait for that.
    fn prepare(&mut self, index: usize, arrival: &mut Arrival) -> Result<bool, EngineError> {
        let request = &arrival.queued.request;
        if !self.fits(index, &request.adapters) {
            // What it holds with other strengths is of no use for this one.
            if self.hand_over(index, true) {
                return Ok(true);
            }
            self.clear(index);
            self.slots[index].adapters = request.adapters.clone();
        }
        self.wear(index)?;
        if self.model.decoder_start().is_some() {
            return Ok(false);
        }
        if matches!(arrival.stage, Stage::Look) {
            let cached = self.reusable(index, request);
            // Looked for first, so that what is kept then does not push it out.
            let found = if request.reuse { self.find(&request.prompt, cached) } else { None };
            arrival.stage = Stage::Fetch(found);
            let held = self.slots[index].held.len();
            if (held - cached) * 2 > held && self.hand_over(index, false) {
                return Ok(true);
            }
        }
        match std::mem::replace(&mut arrival.stage, Stage::Start) {
            Stage::Fetch(Some(Found::Coming(path, coming))) => {
                self.slots[index].transfer = Some(Transfer::Read(coming, path));
                Ok(true)
            }
            Stage::Fetch(Some(Found::Here(saved))) => {
                let own = self.slots[index].held.len();
                if self.make_cells(index, saved.tokens.len().saturating_sub(own)) {
                    arrival.found(saved);
                } else {
                    let adapters = self.slots[index].adapters.clone();
                    let transfer = Transfer::Restore { saved, part: 0, adapters, reply: None };
                    self.slots[index].transfer = Some(transfer);
                }
                Ok(true)
            }
            Stage::Look | Stage::Fetch(None) | Stage::Start => Ok(false),
        }
    }

    /// The same of a request that may want none of it, or whose text does not suit what the slot holds.
    fn reusable(&mut self, index: usize, request: &Request) -> usize {
        if !request.reuse || !self.suits(index, request.prompt.len()) {
            return 0;
        }
        self.spared(index, &request.prompt)
    }

    /// How many tokens of a prompt a slot can go back to.
    fn spared(&self, index: usize, prompt: &[u32]) -> usize {
        // The last prompt token is always evaluated: its logits are needed.
        let common = common_prefix(&self.slots[index].held, prompt).min(prompt.len().saturating_sub(1));
        // Windowed and recurrent layers can go back to some lengths only.
        self.model.longest_truncation(index as u32, u32::try_from(common).unwrap_or(u32::MAX)) as usize
    }

    fn start(&mut self, index: usize, queued: Queued) {
        let Queued { id, mut request, mut events } = queued;
        if let Err(error) = self.wear(index) {
            events(Event::Failed(error));
            return;
        }
        if let Some(start) = self.model.decoder_start() {
            // The encoder reads the prompt; the decoder's text begins anew.
            self.clear(index);
            if let Err(error) = guarded(|| self.model.encode(index as u32, &request.prompt)) {
                events(Event::Failed(error));
                return;
            }
            (request.prompt, request.reuse) = (vec![start], false);
        }
        let mut cached = self.reusable(index, &request);
        if request.reuse && request.move_parts > 0 {
            cached = self.move_parts(index, &request.prompt, cached, request.move_parts);
        }
        self.cut(index, &mut cached, request.prompt.len());
        // The next turn may come with another end of this one.
        self.model.mark(index as u32);
        self.clock += 1;
        self.slots[index].used = self.clock;
        match Job::new(id, *request, events, self.model.vocabulary(), cached, &mut self.ahead) {
            Ok(mut job) => {
                job.send(Event::Started { sequence: index as u32, cached });
                job.report_progress(cached);
                self.slots[index].job = Some(job);
                self.slots[index].filed = false;
                self.slots[index].again = false;
                self.speculation.begin(index);
            }
            Err((error, mut events)) => {
                events(Event::Failed(error));
            }
        }
    }

    /// Whether what a slot holds can stay if its text gets so long.
    pub(crate) fn suits(&mut self, index: usize, length: usize) -> bool {
        self.model.expect(index as u32, u32::try_from(length).unwrap_or(u32::MAX))
    }

    /// Makes a slot forget what follows its first tokens; if it cannot, or if they do not suit a prompt of this length,
    /// everything.
    fn cut(&mut self, index: usize, cached: &mut usize, length: usize) {
        if *cached < self.slots[index].held.len() {
            let kept = *cached > 0
                && self.suits(index, length)
                && guarded(|| self.model.truncate(index as u32, *cached as u32)).is_ok();
            if kept {
                self.slots[index].held.truncate(*cached);
            } else {
                self.clear(index);
                *cached = 0;
            }
        }
    }

    /// Looks in what a slot holds after the `cached` tokens that it shares with the prompt for parts of the prompt's
    /// rest, at least `least` tokens long, and moves them to where the prompt has them. Returns how many tokens of the
    /// prompt the slot holds then. Moving is what a context shift does, so models that cannot do that move nothing.
    fn move_parts(&mut self, index: usize, prompt: &[u32], cached: usize, least: usize) -> usize {
        // The last prompt token is always evaluated.
        let prompt = &prompt[..prompt.len().saturating_sub(1)];
        let (mut place, mut start) = (cached, cached);
        while prompt.len() - place >= least && start + least <= self.slots[index].held.len() {
            let same = common_prefix(&self.slots[index].held[start..], &prompt[place..]);
            if same < least {
                start += 1;
                continue;
            }
            let discard = start - place;
            if discard > 0 {
                let shifted = guarded(|| self.model.shift(index as u32, place as u32, discard as u32));
                if shifted.is_err() {
                    self.synchronise(index);
                    break;
                }
                self.slots[index].held.drain(place..start);
            }
            place += same;
            start = place;
        }
        place.min(self.slots[index].held.len())
    }

    /// Begins to keep what a slot holds in memory and on disk, because it is about to lose it; then it is emptied, if it is
    /// to be. False if nobody wants it.
    fn hand_over(&mut self, index: usize, clear: bool) -> bool {
        if self.wear(index).is_err() {
            return false;
        }
        let (held, reach) = (&self.slots[index].held, self.model.reach(index as u32));
        let disk = self.disk.as_ref().is_some_and(|disk| disk.wants(held, &reach));
        let store = self.store.wants(held, &reach);
        if disk || store {
            self.slots[index].transfer = Some(Transfer::save(Aim::Keep { store, disk, clear }));
        }
        disk || store
    }

    /// A free slot that holds what is not on the disk yet, if there is a disk.
    pub(crate) fn unfiled(&self) -> Option<usize> {
        // What a decoder holds belongs to a prompt that its encoder has read.
        self.disk.as_ref().filter(|_| self.model.decoder_start().is_none())?;
        let unfiled = |slot: &Slot| slot.is_free() && slot.transfer.is_none() && !slot.filed;
        self.slots.iter().position(|slot| unfiled(slot) && !slot.held.is_empty())
    }

    /// Begins to write what a slot holds to the disk, so that it is there whenever the program ends.
    pub(crate) fn file(&mut self, index: usize) {
        let worn = self.wear(index).is_ok();
        let reach = self.model.reach(index as u32);
        let slot = &mut self.slots[index];
        slot.filed = true;
        if worn && self.disk.as_ref().is_some_and(|disk| disk.wants(&slot.held, &reach)) {
            slot.transfer = Some(Transfer::save(Aim::Keep { store: false, disk: true, clear: false }));
        }
    }

    /// What was saved in memory or on disk and spares more than `least` tokens of a prompt.
    fn find(&mut self, prompt: &[u32], least: usize) -> Option<Found> {
        let stored = self.store.find(prompt, least);
        let least = stored.as_ref().map_or(least, |(shared, _)| *shared);
        let filed = self.disk.as_mut().and_then(|disk| disk.find(prompt, least));
        filed.or(stored.map(|(_, saved)| Found::Here(saved)))
    }

    /// Has free slots other than `kept` give up what they hold, those idle for longest first, until `wanted` cells are
    /// free. Returns whether some will be later, when what was in them is kept.
    pub(crate) fn make_cells(&mut self, kept: usize, wanted: usize) -> bool {
        loop {
            let leaving = |slot: &&Slot| slot.transfer.as_ref().is_some_and(Transfer::clears);
            let coming: usize = self.slots.iter().filter(leaving).map(|slot| slot.held.len()).sum();
            if self.model.free_cells() as usize + coming >= wanted {
                return self.model.free_cells() < u32::try_from(wanted).unwrap_or(u32::MAX);
            }
            let idle = self.slots.iter().enumerate().filter(|(index, _)| *index != kept);
            let oldest = idle
                .filter(|(_, slot)| slot.is_free() && slot.transfer.is_none() && !slot.held.is_empty())
                .min_by_key(|(_, slot)| slot.used);
            let Some((index, _)) = oldest else { return coming > 0 };
            if !self.hand_over(index, true) {
                self.clear(index);
            }
        }
    }

    /// After a failure of the model: a sequence that it had to empty is empty here, too.
    pub(crate) fn synchronise(&mut self, index: usize) {
        if self.model.length(index as u32) as usize != self.slots[index].held.len() {
            self.clear(index);
        }
    }
}
