//! The tokens that may still be chosen.

use std::cmp::Ordering;

use crate::{SamplingError, math::exp};

/// One token that may be chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Token id.
    pub token: u32,
    /// Unnormalised log-probability; never NaN or plus infinity.
    pub logit: f32,
    /// Probability among the candidates; valid after [`Candidates::normalise`] until logits or the list change.
    pub probability: f32,
}

/// Better first; equal logits by the lower token, so that every order is total and reproducible.
fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The candidates of one row. They stay in the order of the vocabulary until a sampler needs the best ones
/// first, and then only as many are sorted as it needs.
#[derive(Clone, Default, Debug)]
pub struct Candidates {
    items: Vec<Candidate>,
    /// How many at the front are the best ones in order.
    sorted: usize,
    normalised: bool,
    /// Index equals token for every candidate.
    vocabulary_order: bool,
}

impl Candidates {
    /// The whole vocabulary with these logits.
    pub fn new(logits: &[f32]) -> Result<Self, SamplingError> {
        let mut candidates = Self::default();
        candidates.load(logits)?;
        Ok(candidates)
    }

    /// Starts over with another row; memory is kept. NaN or plus infinity anywhere is an error.
    pub fn load(&mut self, logits: &[f32]) -> Result<(), SamplingError> {
        check(logits)?;
        self.items.clear();
        self.items.extend((0u32..).zip(logits).map(|(token, logit)| Candidate {
            token,
            logit: *logit,
            probability: 0.0,
        }));
        self.sorted = 0;
        self.normalised = false;
        self.vocabulary_order = true;
        Ok(())
    }

    /// The candidates in their present order.
    pub fn items(&self) -> &[Candidate] {
        &self.items
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The candidate with the highest logit; of equal ones that with the lowest token.
    pub fn best(&self) -> Option<Candidate> {
        if self.sorted > 0 {
            return self.items.first().copied();
        }
        self.items.iter().copied().reduce(|best, item| match better_first(&item, &best) {
            Ordering::Less => item,
            _ => best,
        })
    }

    /// Brings the best `count` candidates to the front, in order.
    pub fn sort_best(&mut self, count: usize) {
        let count = count.min(self.items.len());
        if count <= self.sorted {
            return;
        }
        let rest = &mut self.items[self.sorted..];
        let wanted = count - self.sorted;
        if wanted < rest.len() {
            rest.select_nth_unstable_by(wanted - 1, better_first);
        }
        rest[..wanted].sort_unstable_by(better_first);
        self.sorted = count;
        self.vocabulary_order = false;
    }

    /// Keeps the best `count` candidates (at least one), sorted.
    pub fn keep_best(&mut self, count: usize) {
        let count = count.max(1);
        if count >= self.items.len() {
            return;
        }
        if count > self.sorted {
            self.gather_best(count);
        }
        self.sort_best(count);
        self.truncate(count);
    }

    /// Moves the best `count` and at most as many again to the front and drops the others. One pass that
    /// compares each logit with the worst of the best so far: most of a large vocabulary costs one comparison.
    fn gather_best(&mut self, count: usize) {
        let room = (2 * count).max(64);
        let mut kept = 0;
        let mut threshold = f32::NEG_INFINITY;
        for index in 0..self.items.len() {
            let item = self.items[index];
            if item.logit < threshold {
                continue;
            }
            self.items[kept] = item;
            kept += 1;
            if kept >= room {
                self.items[..kept].select_nth_unstable_by(count - 1, better_first);
                threshold = self.items[count - 1].logit;
                kept = count;
            }
        }
        self.truncate(kept);
        self.sorted = 0;
        self.vocabulary_order = false;
    }

    /// Keeps the first `count` in their present order (at least one).
    pub fn truncate(&mut self, count: usize) {
        let count = count.max(1);
        if count < self.items.len() {
            self.items.truncate(count);
            self.sorted = self.sorted.min(count);
            self.normalised = false;
        }
    }

    /// Keeps the candidates for which `keep` is true, in their present order.
    pub fn retain(&mut self, mut keep: impl FnMut(&Candidate) -> bool) {
        let before = self.items.len();
        let (mut index, mut still_sorted) = (0, 0);
        let sorted = self.sorted;
        self.items.retain(|item| {
            let kept = keep(item);
            still_sorted += usize::from(kept && index < sorted);
            index += 1;
            kept
        });
        self.sorted = still_sorted;
        if self.items.len() != before {
            self.normalised = false;
            self.vocabulary_order = false;
        }
    }

    /// Sorts all candidates by a key of their own, smallest first; equal keys by the lower token.
    pub fn sort_by_key(&mut self, mut key: impl FnMut(&Candidate) -> f64) {
        let mut keyed: Vec<(f64, Candidate)> = self.items.iter().map(|item| (key(item), *item)).collect();
        keyed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.token.cmp(&b.1.token)));
        self.items.clear();
        self.items.extend(keyed.into_iter().map(|(_, item)| item));
        self.sorted = 0;
        self.vocabulary_order = false;
    }

    /// Replaces the logit of every candidate; results above the largest finite number become that number.
    pub fn map(&mut self, mut change: impl FnMut(&Candidate) -> f32) {
        for item in &mut self.items {
            item.logit = bounded(change(item));
        }
        self.sorted = 0;
        self.normalised = false;
    }

    /// Replaces the logits of the candidates among `tokens`, given as pairs of token and whatever `change`
    /// needs to know. Costs as many steps as there are tokens while the vocabulary is whole.
    pub fn change<T>(&mut self, tokens: &[(u32, T)], change: impl Fn(f32, &T) -> f32) {
        if tokens.is_empty() {
            return;
        }
        if self.vocabulary_order {
            for (token, value) in tokens {
                if let Some(item) = self.items.get_mut(*token as usize) {
                    item.logit = bounded(change(item.logit, value));
                }
            }
        } else {
            let values: std::collections::HashMap<u32, &T> =
                tokens.iter().map(|(token, value)| (*token, value)).collect();
            for item in &mut self.items {
                if let Some(value) = values.get(&item.token) {
                    item.logit = bounded(change(item.logit, value));
                }
            }
        }
        self.sorted = 0;
        self.normalised = false;
    }

    /// Computes the probabilities: softmax of the logits over the candidates. All zero if every logit is minus
    /// infinity.
    pub fn normalise(&mut self) {
        if self.normalised {
            return;
        }
        let Some(best) = self.best().filter(|best| best.logit > f32::NEG_INFINITY) else {
            self.items.iter_mut().for_each(|item| item.probability = 0.0);
            return;
        };
        let mut sum = 0.0;
        for item in &mut self.items {
            let weight = exp(f64::from(item.logit) - f64::from(best.logit));
            item.probability = weight as f32;
            sum += weight;
        }
        for item in &mut self.items {
            item.probability = (f64::from(item.probability) / sum) as f32;
        }
        self.normalised = true;
    }

    /// The candidate at the point `draw` (`0.0..1.0`) of the cumulative distribution.
    pub fn draw(&mut self, draw: f64) -> Result<Candidate, SamplingError> {
        self.normalise();
        let total: f64 = self.items.iter().map(|item| f64::from(item.probability)).sum();
        let mut left = draw * total;
        let mut last = None;
        for item in self.items.iter().filter(|item| item.probability > 0.0) {
            left -= f64::from(item.probability);
            last = Some(*item);
            if left < 0.0 {
                break;
            }
        }
        last.ok_or(SamplingError::NoCandidate)
    }
}

/// The largest finite number instead of plus infinity; NaN (from a change of minus infinity) rules out.
fn bounded(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) }
}

/// Refuses an empty row, NaN and plus infinity.
pub(crate) fn check(logits: &[f32]) -> Result<(), SamplingError> {
    if logits.is_empty() {
        return Err(SamplingError::Empty);
    }
    let bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    match logits.iter().position(bad) {
        Some(token) => Err(SamplingError::NotFinite { token: token as u32, value: logits[token] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn tokens(candidates: &Candidates) -> Vec<u32> {
        candidates.items().iter().map(|item| item.token).collect()
    }

    #[test]
    fn refuses_what_is_not_a_number() {
        assert_eq!(Candidates::new(&[]).unwrap_err(), SamplingError::Empty);
        assert!(matches!(
            Candidates::new(&[0.0, f32::NAN]).unwrap_err(),
            SamplingError::NotFinite { token: 1, value } if value.is_nan()
        ));
        let infinite = Candidates::new(&[f32::INFINITY]).unwrap_err();
        assert_eq!(infinite.to_string(), "the model gave inf as the logit of token 0");
    }

    #[test]
    fn a_row_without_any_candidate_is_an_error() {
        let mut candidates = Candidates::new(&[f32::NEG_INFINITY; 3]).unwrap();
        assert_eq!(candidates.draw(0.5).unwrap_err(), SamplingError::NoCandidate);
    }

    #[test]
    fn ties_go_to_the_lower_token() {
        let mut candidates = Candidates::new(&[1.0, 3.0, 3.0, 2.0, 3.0]).unwrap();
        assert_eq!(candidates.best().unwrap().token, 1);
        candidates.sort_best(4);
        assert_eq!(tokens(&candidates)[..4], [1, 2, 4, 3]);
        assert_eq!(candidates.best().unwrap().token, 1);
    }

    #[test]
    fn partial_selection_equals_a_full_sort() {
        let mut random = Random::new(7, 0);
        for size in [1usize, 2, 63, 64, 65, 1000, 5000] {
            // Few distinct values, so that ties straddle the cut.
            let logits: Vec<f32> = (0..size).map(|_| (random.next_u32() % 50) as f32).collect();
            let mut full = Candidates::new(&logits).unwrap();
            full.sort_best(size);
            for count in [1, 2, 40, 64, 100, 999, 4999, 6000] {
                let mut kept = Candidates::new(&logits).unwrap();
                kept.keep_best(count);
                let expected = count.min(size);
                assert_eq!(kept.len(), expected);
                kept.sort_best(expected);
                assert_eq!(tokens(&kept), tokens(&full)[..expected], "best {count} of {size}");
                let mut grown = Candidates::new(&logits).unwrap();
                grown.sort_best(3);
                grown.sort_best(count);
                assert_eq!(tokens(&grown)[..expected], tokens(&full)[..expected]);
            }
        }
    }

    #[test]
    fn probabilities_by_hand() {
        // e^0 : e^ln2 : e^ln5 = 1 : 2 : 5
        let mut candidates = Candidates::new(&[0.0, 2f32.ln(), 5f32.ln()]).unwrap();
        candidates.normalise();
        for (item, expected) in candidates.items().iter().zip([0.125, 0.25, 0.625]) {
            assert!((item.probability - expected).abs() < 1e-6);
        }
        let drawn = |draw| candidates.clone().draw(draw).unwrap().token;
        assert_eq!([0.0, 0.124, 0.126, 0.374, 0.376, 0.999_999].map(drawn), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let mut candidates = Candidates::new(&[3e38, -3e38, 3e38]).unwrap();
        candidates.normalise();
        assert_eq!(candidates.items()[0].probability, 0.5);
        assert_eq!(candidates.items()[1].probability, 0.0);
        candidates.change(&[(0, 3e38)], |logit, bias| logit + bias);
        assert_eq!(candidates.items()[0].logit, f32::MAX);
    }

    #[test]
    fn changes_reach_tokens_in_any_order() {
        let mut candidates = Candidates::new(&[0.0, 1.0, 2.0, 3.0]).unwrap();
        candidates.keep_best(3);
        candidates.change(&[(1, 10.0), (0, 99.0), (7, 1.0)], |logit, bias| logit + bias);
        assert_eq!(candidates.best().unwrap(), Candidate { token: 1, logit: 11.0, probability: 0.0 });
        assert_eq!(candidates.len(), 3);
    }

    #[test]
    fn retain_keeps_the_order_known() {
        let mut candidates = Candidates::new(&[0.0, 5.0, 2.0, 3.0]).unwrap();
        candidates.sort_best(2);
        candidates.retain(|item| item.token != 1);
        assert_eq!(candidates.best().unwrap().token, 3);
        candidates.sort_best(3);
        assert_eq!(tokens(&candidates), [3, 2, 0]);
    }
}
