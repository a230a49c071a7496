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

/// The highest logits of a row, in order: of equal ones (zeros are equal) the lower token comes first.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BestLogits<'r> {
    /// Their tokens.
    pub tokens: &'r [u32],
    /// The logits.
    pub logits: &'r [f32],
    /// The first logit of the whole row that is NaN or plus infinity, with its token.
    pub not_finite: Option<(u32, f32)>,
}

/// Better first; equal logits by the lower token, so that every order is total and reproducible. Zeros are equal, and no logit is NaN.
fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Logits looked at together: a whole block is skipped if its largest is too small.
const BLOCK: usize = 32;

/// The candidates of one row. While all of the vocabulary are candidates there is only their row of logits;
/// the list is made when a sampler needs it, usually from the few best. They stay in the order of the
/// vocabulary until a sampler needs the best ones first, and then only as many are sorted as it needs.
#[derive(Clone, Default, Debug)]
pub struct Candidates {
    /// Logits of the whole vocabulary; empty once there is a list.
    row: Vec<f32>,
    whole: bool,
    items: Vec<Candidate>,
    /// How many at the front are the best ones in order.
    sorted: usize,
    normalised: bool,
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
        self.row.clear();
        self.row.extend_from_slice(logits);
        self.whole = true;
        self.items.clear();
        self.sorted = 0;
        self.normalised = false;
        Ok(())
    }

    /// Starts over with the highest logits of a row; all others are ruled out.
    pub fn load_best(&mut self, best: &BestLogits<'_>) -> Result<(), SamplingError> {
        best.check()?;
        self.row.clear();
        self.whole = false;
        self.items.clear();
        let items = best.tokens.iter().zip(best.logits);
        self.items.extend(items.map(|(token, logit)| Candidate {
            token: *token,
            logit: *logit,
            probability: 0.0,
        }));
        self.sorted = self.items.len();
        self.normalised = false;
        Ok(())
    }

    /// Rules out every token whose bit is not set. Tokens beyond the last word are ruled out, too. Only
    /// before any other change of the list; that is, of a row just loaded.
    pub fn restrict(&mut self, allowed: &[u32]) {
        self.normalised = false;
        self.sorted = 0;
        if !self.whole {
            let set = |token: u32| {
                allowed.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
            };
            for item in self.items.iter_mut().filter(|item| !set(item.token)) {
                item.logit = f32::NEG_INFINITY;
            }
            return;
        }
        let mut words = allowed.iter();
        for chunk in self.row.chunks_mut(32) {
            match words.next().copied().unwrap_or(0) {
                u32::MAX => {}
                0 => chunk.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in chunk.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }

    /// Makes the list, if there is only the row.
    fn list(&mut self) -> &mut Vec<Candidate> {
        if self.whole {
            self.whole = false;
            let candidate =
                |(token, logit): (u32, &f32)| Candidate { token, logit: *logit, probability: 0.0 };
            self.items.clear();
            self.items.extend((0u32..).zip(&self.row).map(candidate));
        }
        &mut self.items
    }

    /// The candidates in their present order.
    pub fn items(&mut self) -> &[Candidate] {
        self.list()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        if self.whole { self.row.len() } else { self.items.len() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Logits of all candidates in their present order.
    pub fn logits(&self) -> impl Iterator<Item = f32> + '_ {
        let (row, items): (&[f32], &[Candidate]) =
            if self.whole { (&self.row, &[]) } else { (&[], &self.items) };
        row.iter().copied().chain(items.iter().map(|item| item.logit))
    }

    /// The candidate with the highest logit; of equal ones that with the lowest token.
    pub fn best(&self) -> Option<Candidate> {
        if self.whole {
            let (token, logit) = best(&self.row)?;
            return Some(Candidate { token, logit, probability: 0.0 });
        }
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
        let count = count.min(self.len());
        if count <= self.sorted {
            return;
        }
        let sorted = self.sorted;
        let rest = &mut self.list()[sorted..];
        let wanted = count - sorted;
        if wanted < rest.len() {
            rest.select_nth_unstable_by(wanted - 1, better_first);
        }
        rest[..wanted].sort_unstable_by(better_first);
        self.sorted = count;
    }

    /// Keeps the best `count` candidates (at least one), sorted.
    pub fn keep_best(&mut self, count: usize) {
        let count = count.max(1);
        if count >= self.len() {
            return;
        }
        if self.whole {
            self.gather_best(count);
        } else if count > self.sorted && count < self.items.len() {
            self.items.select_nth_unstable_by(count - 1, better_first);
            self.sorted = 0;
            self.normalised = false;
            self.items.truncate(count);
        }
        self.sort_best(count);
        self.truncate(count);
    }

    /// Makes a list of the best `count` of the row and at most as many again. One pass that compares blocks
    /// with the worst of the best so far: most of a large vocabulary costs one comparison of its block.
    fn gather_best(&mut self, count: usize) {
        let room = (2 * count).max(64);
        self.items.clear();
        self.sorted = 0;
        self.normalised = false;
        self.whole = false;
        let mut threshold = f32::NEG_INFINITY;
        let mut full = false;
        for (block, logits) in self.row.chunks(BLOCK).enumerate() {
            // Equal ones come later, so they have higher tokens and lose.
            if full && !logits.iter().fold(false, |any, logit| any | (*logit > threshold)) {
                continue;
            }
            for (index, logit) in logits.iter().enumerate() {
                if full && *logit <= threshold {
                    continue;
                }
                let token = (block * BLOCK + index) as u32;
                self.items.push(Candidate { token, logit: *logit, probability: 0.0 });
                if self.items.len() >= room {
                    self.items.select_nth_unstable_by(count - 1, better_first);
                    self.items.truncate(count);
                    threshold = self.items[count - 1].logit;
                    full = true;
                }
            }
        }
    }

    /// Keeps the first `count` in their present order (at least one).
    pub fn truncate(&mut self, count: usize) {
        let count = count.max(1);
        if count < self.len() {
            self.list().truncate(count);
            self.sorted = self.sorted.min(count);
            self.normalised = false;
        }
    }

    /// Drops the first `count` in their present order; at least one stays.
    pub fn drop_first(&mut self, count: usize) {
        let count = count.min(self.len().saturating_sub(1));
        if count > 0 {
            self.list().drain(..count);
            self.sorted = self.sorted.saturating_sub(count);
            self.normalised = false;
        }
    }

    /// Keeps the candidates for which `keep` is true, in their present order.
    pub fn retain(&mut self, mut keep: impl FnMut(&Candidate) -> bool) {
        let before = self.len();
        let (mut index, mut still_sorted) = (0, 0);
        let sorted = self.sorted;
        self.list().retain(|item| {
            let kept = keep(item);
            still_sorted += usize::from(kept && index < sorted);
            index += 1;
            kept
        });
        self.sorted = still_sorted;
        if self.items.len() != before {
            self.normalised = false;
        }
    }

    /// Keeps the candidates with a logit of at least `threshold`, in their present order.
    pub fn retain_from(&mut self, threshold: f32) {
        if !self.whole {
            return self.retain(|item| item.logit >= threshold);
        }
        self.items.clear();
        self.whole = false;
        self.normalised = false;
        for (block, logits) in self.row.chunks(BLOCK).enumerate() {
            if logits.iter().fold(false, |any, logit| any | (*logit >= threshold)) {
                let all = (0u32..).zip(logits).filter(|(_, logit)| **logit >= threshold);
                let first = (block * BLOCK) as u32;
                self.items.extend(all.map(|(index, logit)| Candidate {
                    token: first + index,
                    logit: *logit,
                    probability: 0.0,
                }));
            }
        }
    }

    /// Replaces all candidates by this one.
    pub fn set_only(&mut self, token: u32) {
        self.whole = false;
        self.items.clear();
        self.items.push(Candidate { token, logit: 0.0, probability: 1.0 });
        (self.sorted, self.normalised) = (1, true);
    }

    /// Sorts all candidates by a key of their own, smallest first; equal keys by the lower token.
    pub fn sort_by_key(&mut self, mut key: impl FnMut(&Candidate) -> f64) {
        let mut keyed: Vec<(f64, Candidate)> = self.list().iter().map(|item| (key(item), *item)).collect();
        keyed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.token.cmp(&b.1.token)));
        self.items.clear();
        self.items.extend(keyed.into_iter().map(|(_, item)| item));
        self.sorted = 0;
    }

    /// Replaces the logit of every candidate; results above the largest finite number become that number.
    pub fn map(&mut self, mut change: impl FnMut(&Candidate) -> f32) {
        for item in self.list() {
            item.logit = bounded(change(item));
        }
        self.sorted = 0;
        self.normalised = false;
    }

    /// Moves and scales all logits, which keeps their order: `(logit - origin) / divisor`, `divisor > 0`.
    pub fn scale(&mut self, origin: f32, divisor: f32) {
        let change = |logit: &mut f32| *logit = bounded((*logit - origin) / divisor);
        if self.whole {
            self.row.iter_mut().for_each(change);
        } else {
            self.items.iter_mut().for_each(|item| change(&mut item.logit));
        }
        self.normalised = false;
    }

    /// Replaces the logits of the candidates among `tokens`, given as pairs of token and whatever `change`
    /// needs to know. Costs as many steps as there are tokens while the vocabulary is whole.
    pub fn change<T>(&mut self, tokens: &[(u32, T)], change: impl Fn(f32, &T) -> f32) {
        if tokens.is_empty() {
            return;
        }
        if self.whole {
            for (token, value) in tokens {
                if let Some(logit) = self.row.get_mut(*token as usize) {
                    *logit = bounded(change(*logit, value));
                }
            }
        } else {
            let places: std::collections::HashMap<u32, usize> =
                self.items.iter().enumerate().map(|(place, item)| (item.token, place)).collect();
            // In their order, as often as they are named, as above.
            for (token, value) in tokens {
                if let Some(place) = places.get(token) {
                    let item = &mut self.items[*place];
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
        let best = self.best().filter(|best| best.logit > f32::NEG_INFINITY);
        let items = self.list();
        let Some(best) = best else {
            items.iter_mut().for_each(|item| item.probability = 0.0);
            return;
        };
        for item in items.iter_mut() {
            item.probability = exp(f64::from(item.logit) - f64::from(best.logit)) as f32;
        }
        let sum: f64 = items.iter().map(|item| f64::from(item.probability)).sum();
        for item in items.iter_mut() {
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

/// The first of the highest logits of a row without NaN.
pub(crate) fn best(row: &[f32]) -> Option<(u32, f32)> {
    let mut best = row.first().map(|first| (0usize, *first))?;
    for (block, logits) in row.chunks(BLOCK).enumerate() {
        if logits.iter().fold(false, |any, logit| any | (*logit > best.1)) {
            for (index, logit) in logits.iter().enumerate() {
                if *logit > best.1 {
                    best = (block * BLOCK + index, *logit);
                }
            }
        }
    }
    Some((best.0 as u32, best.1))
}

impl BestLogits<'_> {
    /// Refuses what [`check`] refuses of the whole row.
    pub(crate) fn check(&self) -> Result<(), SamplingError> {
        match self.not_finite {
            Some((token, value)) => Err(SamplingError::NotFinite { token, value }),
            None if self.tokens.is_empty() => Err(SamplingError::Empty),
            None => Ok(()),
        }
    }
}

/// Refuses an empty row, NaN and plus infinity.
pub(crate) fn check(logits: &[f32]) -> Result<(), SamplingError> {
    if logits.is_empty() {
        return Err(SamplingError::Empty);
    }
    let bad = |logit: &f32| logit.is_nan() | (*logit == f32::INFINITY);
    // In blocks without a way out, which become vector code.
    let block = logits.chunks(256).position(|block| block.iter().fold(false, |any, logit| any | bad(logit)));
    let found =
        block.and_then(|block| logits.iter().skip(block * 256).position(bad).map(|at| block * 256 + at));
    match found {
        Some(token) => Err(SamplingError::NotFinite { token: token as u32, value: logits[token] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn tokens(candidates: &mut Candidates) -> Vec<u32> {
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
        assert_eq!(tokens(&mut candidates)[..4], [1, 2, 4, 3]);
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
                assert_eq!(tokens(&mut kept), tokens(&mut full)[..expected], "best {count} of {size}");
                let mut grown = Candidates::new(&logits).unwrap();
                grown.sort_best(3);
                grown.sort_best(count);
                assert_eq!(tokens(&mut grown)[..expected], tokens(&mut full)[..expected]);
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
        assert_eq!(tokens(&mut candidates), [3, 2, 0]);
    }

    #[test]
    fn restricting_rules_out() {
        let logits: Vec<f32> = (0..100).map(|token| token as f32).collect();
        let mut candidates = Candidates::new(&logits).unwrap();
        candidates.restrict(&[u32::MAX, 0, 1 << 3]); // 0..32 and 67; nothing after the last word
        assert_eq!(candidates.best().unwrap().token, 67);
        candidates.keep_best(3);
        assert_eq!(tokens(&mut candidates), [67, 31, 30]);
        candidates.restrict(&[1 << 30]);
        assert_eq!(candidates.best().unwrap().token, 30);
    }

    #[test]
    fn thresholds_and_best_of_long_rows() {
        let mut logits = vec![0.0; 1000];
        (logits[700], logits[701], logits[33]) = (2.0, 2.0, 1.0);
        assert_eq!(best(&logits), Some((700, 2.0)));
        let mut candidates = Candidates::new(&logits).unwrap();
        candidates.retain_from(1.0);
        assert_eq!(tokens(&mut candidates), [33, 700, 701]);
        logits[999] = f32::NAN;
        assert!(matches!(check(&logits), Err(SamplingError::NotFinite { token: 999, .. })));
    }
}
