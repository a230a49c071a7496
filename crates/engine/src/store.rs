//! Saved sequences in memory, so that a prompt whose slot went to another request need not be computed again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use puna_runtime::Reach;

use crate::Meters;
use crate::saved::Saved;
use crate::worker::common_prefix;

/// Sequences with fewer tokens are computed again sooner than they are copied.
pub(crate) const SHORTEST: usize = 16;

/// How many tokens of a prompt a saved sequence spares: as long as both are the same, as far as the model can go back to
/// that, and never the last one, whose logits are needed.
pub(crate) fn spared(prompt: &[u32], tokens: &[u32], reach: &Reach) -> usize {
    let common = common_prefix(tokens, prompt).min(prompt.len().saturating_sub(1));
    reach.longest(u32::try_from(common).unwrap_or(u32::MAX)) as usize
}

struct Entry {
    /// How strongly adapters counted.
    adapters: Arc<[f32]>,
    saved: Arc<Saved>,
    /// Counts uses, to find the one not used for longest.
    used: u64,
}

/// A bounded store of saved sequences; those not used for longest go first.
pub(crate) struct Store {
    limit: usize,
    size: usize,
    entries: Vec<Entry>,
    clock: u64,
    /// Tells others the size.
    told: Arc<Meters>,
    /// How strongly adapters count for what is saved and looked for now.
    adapters: Arc<[f32]>,
}

impl Store {
    /// Of so many bytes at most; 0 keeps nothing. Its size can be seen in `told`.
    pub(crate) fn new(limit: usize, told: Arc<Meters>) -> Self {
        Self { limit, size: 0, entries: Vec::new(), clock: 0, told, adapters: Arc::from([]) }
    }

    /// From now on sequences are those for which adapters count like this.
    pub(crate) fn serve(&mut self, adapters: Arc<[f32]>) {
        self.adapters = adapters;
    }

    /// Whether saving a sequence with these tokens is worth it: it is long enough, and nothing that is here begins
    /// with it and goes back as far.
    pub(crate) fn wants(&self, tokens: &[u32], reach: &Reach) -> bool {
        let covers =
            |entry: &Entry| entry.saved.tokens.starts_with(tokens) && entry.saved.reach.covers(reach);
        self.limit > 0 && tokens.len() >= SHORTEST && !self.own().any(covers)
    }

    fn own(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.adapters == self.adapters)
    }

    /// Keeps a sequence in place of those that it begins with; of these one that goes back to where this does not stays, but
    /// is the first to go. One that alone is more than the limit is not kept, and nothing makes room for it.
    pub(crate) fn put(&mut self, saved: Arc<Saved>) {
        if saved.bytes() > self.limit {
            return;
        }
        self.entries.retain_mut(|kept| {
            let begins = kept.adapters == self.adapters && saved.tokens.starts_with(&kept.saved.tokens);
            if begins {
                kept.used = 0;
            }
            !begins || !saved.reach.covers(&kept.saved.reach)
        });
        self.clock += 1;
        self.entries.push(Entry { adapters: self.adapters.clone(), saved, used: self.clock });
        self.size = self.entries.iter().map(|entry| entry.saved.bytes()).sum();
        while self.size > self.limit {
            let oldest = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used);
            let Some((index, _)) = oldest else { break };
            self.size -= self.entries.swap_remove(index).saved.bytes();
        }
        self.told.stored_bytes.store(self.size as u64, Ordering::Relaxed);
    }

    /// The sequence that spares most of the prompt, if that is more than `least` tokens, and how many.
    pub(crate) fn find(&mut self, prompt: &[u32], least: usize) -> Option<(usize, Arc<Saved>)> {
        let own = self.entries.iter_mut().filter(|entry| entry.adapters == self.adapters);
        let spares = own.map(|entry| (spared(prompt, &entry.saved.tokens, &entry.saved.reach), entry));
        let (shared, best) = spares.max_by_key(|(spared, _)| *spared)?;
        if shared <= least.max(SHORTEST - 1) {
            return None;
        }
        self.clock += 1;
        best.used = self.clock;
        Some((shared, best.saved.clone()))
    }

    /// Forgets everything: what was saved cannot be trusted.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.size = 0;
        self.told.stored_bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(start: u32, count: u32) -> Vec<u32> {
        (start..start + count).collect()
    }

    fn saved(start: u32, count: u32, bytes: usize) -> Arc<Saved> {
        let parts = vec![vec![start as u8; bytes]];
        Arc::new(Saved { tokens: tokens(start, count), reach: Reach::default(), parts })
    }

    /// Of a model that can go back to these lengths only.
    fn states(count: u32, lengths: &[u32]) -> Arc<Saved> {
        let reach = Reach { from: u32::MAX, lengths: lengths.to_vec() };
        Arc::new(Saved { tokens: tokens(0, count), reach, parts: vec![vec![0; 100]] })
    }

    #[test]
    fn what_cannot_be_gone_back_to_does_not_count() {
        let mut store = Store::new(10_000, Arc::default());
        let wants = |store: &Store, saved: &Saved| store.wants(&saved.tokens, &saved.reach);
        let (first, second) = (states(60, &[40, 60]), states(100, &[60, 90, 100]));
        assert!(wants(&store, &first));
        store.put(first.clone());
        assert!(!wants(&store, &first));
        assert!(!wants(&store, &states(60, &[60])) && wants(&store, &states(60, &[50, 60])));
        store.put(second.clone());
        let spared =
            |store: &mut Store, prompt: &[u32], least| store.find(prompt, least).map(|found| found.0);
        // The longer one shares more with all of these, but only the shorter one goes back to 40.
        let cases = [(120, Some(100)), (100, Some(90)), (95, Some(90)), (70, Some(60)), (60, Some(40))];
        for (count, expected) in cases {
            assert_eq!(spared(&mut store, &tokens(0, count), 0), expected, "{count}");
        }
        assert_eq!(spared(&mut store, &tokens(0, 40), 0), None, "the last token's logits are needed");
        assert_eq!(spared(&mut store, &tokens(0, 60), 40), None);
        // One that goes back to all of these lengths stands for both.
        store.put(states(130, &[40, 60, 90, 100, 130]));
        assert_eq!(store.entries.len(), 1);
        // One that was only begun with goes first, however late it was used.
        let mut store = Store::new(1100, Arc::default());
        store.put(saved(500, 20, 100));
        store.put(first.clone());
        assert!(store.find(&first.tokens, 0).is_some());
        store.put(second);
        assert_eq!(store.size, 180 + (60 + 2) * 4 + 100 + (100 + 3) * 4 + 100);
        store.put(saved(700, 20, 100));
        assert_eq!(spared(&mut store, &tokens(0, 60), 0), None);
        assert_eq!(spared(&mut store, &tokens(500, 30), 0), Some(20));
    }

    #[test]
    fn bounded_and_without_doubles() {
        // 20 tokens and 20 bytes are 100.
        let told = Arc::<Meters>::default();
        let mut store = Store::new(300, told.clone());
        let put = |store: &mut Store, start| store.put(saved(start, 20, 20));
        assert!(!store.wants(&tokens(0, 15), &Reach::default()));
        assert!(store.wants(&tokens(0, 20), &Reach::default()));
        (0..3).for_each(|start| put(&mut store, start * 100));
        assert_eq!((store.size, store.entries.len()), (300, 3));
        assert!(!store.wants(&tokens(100, 18), &Reach::default()), "there already");
        assert!(store.wants(&tokens(100, 21), &Reach::default()));
        assert_eq!(store.find(&tokens(0, 30), 0), Some((20, saved(0, 20, 20))));
        put(&mut store, 300);
        assert_eq!(store.find(&tokens(100, 30), 0), None, "not used for longest");
        assert_eq!(store.find(&tokens(0, 30), 20), None, "the slot holds as much");
        assert!(store.find(&tokens(0, 30), 19).is_some());
        assert_eq!(store.find(&tokens(0, 15), 0), None, "too short to be worth it");
        // Longer versions replace their beginnings.
        // 140 instead of 100: another one has to go.
        store.put(saved(0, 30, 20));
        assert_eq!((store.size, store.entries.len()), (240, 2));
        store.put(saved(500, 20, 1000));
        assert_eq!((store.size, store.entries.len()), (240, 2), "what cannot be kept throws nothing out");
        assert_eq!(told.stored_bytes.load(Ordering::Relaxed), 240);
        // With other adapters nothing of that is there, and nothing is thrown out as covered.
        store.serve(Arc::from([0.5]));
        assert_eq!(store.find(&tokens(0, 30), 0), None);
        assert!(store.wants(&tokens(0, 20), &Reach::default()));
        store.put(saved(0, 12, 10));
        assert_eq!(store.entries.len(), 3);
        store.serve(Arc::from([]));
        assert!(store.find(&tokens(0, 30), 0).is_some());
        store.clear();
        assert_eq!((store.size, store.entries.len(), told.stored_bytes.load(Ordering::Relaxed)), (0, 0, 0));
        assert!(!Store::new(0, told).wants(&tokens(0, 20), &Reach::default()));
    }
}
