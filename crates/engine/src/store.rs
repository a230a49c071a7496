//! Saved sequences in memory, so that a prompt whose slot went to another request need not be computed again.

use std::sync::Arc;

use crate::worker::common_prefix;

/// Sequences with fewer tokens are computed again sooner than they are copied.
pub(crate) const SHORTEST: usize = 16;

struct Entry {
    tokens: Vec<u32>,
    bytes: Arc<Vec<u8>>,
    /// Counts uses, to find the one not used for longest.
    used: u64,
}

impl Entry {
    fn size(&self) -> usize {
        self.bytes.len() + self.tokens.len() * size_of::<u32>()
    }
}

/// A bounded store of saved sequences; those not used for longest go first.
pub(crate) struct Store {
    limit: usize,
    size: usize,
    entries: Vec<Entry>,
    clock: u64,
}

impl Store {
    /// Of so many bytes at most; 0 keeps nothing.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, size: 0, entries: Vec::new(), clock: 0 }
    }

    /// Whether saving a sequence with these tokens is worth it: it is long enough, and nothing that is here begins
    /// with it.
    pub(crate) fn wants(&self, tokens: &[u32]) -> bool {
        self.limit > 0
            && tokens.len() >= SHORTEST
            && !self.entries.iter().any(|entry| entry.tokens.starts_with(tokens))
    }

    /// Keeps a sequence in place of those that it begins with.
    pub(crate) fn put(&mut self, tokens: Vec<u32>, bytes: Arc<Vec<u8>>) {
        self.entries.retain(|entry| !tokens.starts_with(&entry.tokens));
        self.clock += 1;
        self.entries.push(Entry { tokens, bytes, used: self.clock });
        self.size = self.entries.iter().map(Entry::size).sum();
        while self.size > self.limit {
            let oldest = self.entries.iter().enumerate().min_by_key(|(_, entry)| entry.used);
            let Some((index, _)) = oldest else { return };
            self.size -= self.entries.swap_remove(index).size();
        }
    }

    /// The sequence that shares the longest beginning with the prompt, if that is longer than `least`: the number of its
    /// tokens, that of the shared ones, and its bytes.
    pub(crate) fn find(&mut self, prompt: &[u32], least: usize) -> Option<(usize, usize, Arc<Vec<u8>>)> {
        let common = |entry: &Entry| common_prefix(&entry.tokens, prompt);
        let best = self.entries.iter_mut().max_by_key(|entry| common(entry))?;
        let shared = common(best);
        if shared <= least.max(SHORTEST - 1) {
            return None;
        }
        self.clock += 1;
        best.used = self.clock;
        Some((best.tokens.len(), shared, best.bytes.clone()))
    }

    /// Forgets everything: what was saved cannot be trusted.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.size = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(start: u32, count: u32) -> Vec<u32> {
        (start..start + count).collect()
    }

    #[test]
    fn bounded_and_without_doubles() {
        // 20 tokens and 20 bytes are 100.
        let mut store = Store::new(300);
        let put = |store: &mut Store, start| store.put(tokens(start, 20), Arc::new(vec![start as u8; 20]));
        assert!(!store.wants(&tokens(0, 15)));
        assert!(store.wants(&tokens(0, 20)));
        (0..3).for_each(|start| put(&mut store, start * 100));
        assert_eq!((store.size, store.entries.len()), (300, 3));
        assert!(!store.wants(&tokens(100, 18)), "there already");
        assert!(store.wants(&tokens(100, 21)));
        assert_eq!(store.find(&tokens(0, 30), 0), Some((20, 20, Arc::new(vec![0; 20]))));
        put(&mut store, 300);
        assert_eq!(store.find(&tokens(100, 30), 0), None, "not used for longest");
        assert_eq!(store.find(&tokens(0, 30), 20), None, "the slot holds as much");
        assert!(store.find(&tokens(0, 30), 19).is_some());
        assert_eq!(store.find(&tokens(0, 15), 0), None, "too short to be worth it");
        // Longer versions replace their beginnings.
        // 140 instead of 100: another one has to go.
        store.put(tokens(0, 30), Arc::new(vec![9; 20]));
        assert_eq!((store.size, store.entries.len()), (240, 2));
        store.put(tokens(500, 20), Arc::new(vec![0; 1000]));
        assert!(store.size <= 300);
        store.clear();
        assert_eq!((store.size, store.entries.len()), (0, 0));
        assert!(!Store::new(0).wants(&tokens(0, 20)));
    }
}
