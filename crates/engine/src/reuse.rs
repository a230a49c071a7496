//! What a request finds of its prompt in the slots and in what was saved, and what becomes of the rest.

use std::sync::Arc;

use crate::job::Job;
use crate::worker::{Queued, Worker, common_prefix, guarded};
use crate::{EngineError, Event, Request};

impl Worker {
    /// The idle slot that shares the longest beginning with the request; of equal ones that idle for longest.
    pub(crate) fn choose(&self, request: &Request) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(index, slot)| {
            slot.job.is_none() && request.sequence.is_none_or(|wanted| wanted as usize == *index)
        });
        idle.max_by_key(|&(index, slot)| {
            let reused = request.reuse && self.fits(index, &request.adapters);
            let common = if reused { common_prefix(&slot.held, &request.prompt) } else { 0 };
            (common, u64::MAX - slot.used)
        })
        .map(|(index, _)| index)
    }

    pub(crate) fn begin(&mut self, index: usize, queued: Queued) {
        let Queued { id, mut request, mut events } = queued;
        if let Err(error) = self.change(index, &request) {
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
        let saved = if request.reuse { self.saved(&request.prompt, cached) } else { None };
        let held = self.slots[index].held.len();
        if (held - cached) * 2 > held {
            self.keep(index);
        }
        if let Some((tokens, bytes)) = saved {
            cached = self.fetch(index, &request.prompt, cached, tokens, &bytes);
        }
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

    /// Saves what a slot holds in memory and on disk, because it is about to lose it. Without success it is lost.
    pub(crate) fn keep(&mut self, index: usize) {
        if self.wear(index).is_err() {
            return;
        }
        let held = &self.slots[index].held;
        let disk = self.disk.as_mut().filter(|disk| disk.wants(held));
        let stored = self.store.wants(held);
        if !stored && disk.is_none() {
            return;
        }
        if let Ok(bytes) = guarded(|| self.model.save(index as u32, held)) {
            let bytes = Arc::new(bytes);
            if let Some(disk) = disk {
                disk.put(held, bytes.clone(), false);
            }
            if stored {
                self.store.put(held.clone(), bytes);
            }
        }
    }

    /// A slot without a request that holds what is not on the disk yet, if there is a disk.
    pub(crate) fn unfiled(&self) -> Option<usize> {
        // What a decoder holds belongs to a prompt that its encoder has read.
        self.disk.as_ref().filter(|_| self.model.decoder_start().is_none())?;
        self.slots.iter().position(|slot| slot.job.is_none() && !slot.filed && !slot.held.is_empty())
    }

    /// Writes what a slot holds to the disk, so that it is there whenever the program ends.
    pub(crate) fn file(&mut self, index: usize, patient: bool) {
        let worn = self.wear(index).is_ok();
        let slot = &mut self.slots[index];
        slot.filed = true;
        if !worn {
            return;
        }
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.wants(&slot.held))
            && let Ok(bytes) = guarded(|| self.model.save(index as u32, &slot.held))
        {
            disk.put(&slot.held, Arc::new(bytes), patient);
        }
    }

    /// What was saved in memory or on disk and shares more than `least` tokens with a prompt, with the number of its
    /// tokens.
    fn saved(&mut self, prompt: &[u32], least: usize) -> Option<(usize, Arc<Vec<u8>>)> {
        let stored = self.store.find(prompt, least);
        let least = stored.as_ref().map_or(least, |(_, shared, _)| *shared);
        let filed = self.disk.as_mut().and_then(|disk| disk.find(prompt, least));
        filed.or(stored.map(|(tokens, _, bytes)| (tokens, bytes)))
    }

    /// Gives an idle slot a saved sequence of so many tokens instead of what it holds, of which it could keep `cached`
    /// tokens. Returns how many tokens of the prompt it can go back to.
    fn fetch(&mut self, index: usize, prompt: &[u32], cached: usize, tokens: usize, bytes: &[u8]) -> usize {
        let own = self.slots[index].held.len();
        self.free_cells_beside(index, tokens.saturating_sub(own));
        // Others may have been saved for that.
        if self.wear(index).is_err() {
            return cached.min(own);
        }
        let sequence = index as u32;
        match guarded(|| self.model.restore(sequence, bytes)) {
            Ok(tokens) => self.slots[index].held = tokens,
            Err(EngineError::Panic { .. }) => {
                self.store.clear();
                self.clear(index);
                return 0;
            }
            Err(_) => {
                self.synchronise(index);
                return cached.min(self.slots[index].held.len());
            }
        }
        let common = common_prefix(&self.slots[index].held, prompt).min(prompt.len().saturating_sub(1));
        self.model.longest_truncation(sequence, u32::try_from(common).unwrap_or(u32::MAX)) as usize
    }

    /// Empties idle slots, those idle for longest first, until `wanted` cells are free or none is left.
    pub(crate) fn free_cells(&mut self, wanted: usize) {
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

    /// After a failure of the model: a sequence that it had to empty is empty here, too.
    pub(crate) fn synchronise(&mut self, index: usize) {
        if self.model.length(index as u32) as usize != self.slots[index].held.len() {
            self.clear(index);
        }
    }
}
