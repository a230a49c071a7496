//! Whether guesses pay: what rows of a step cost, and how often guesses are right.
//!
//! Where a guess has to be computed, a token of it has a least price that follows from sizes alone. So how many tokens are
//! guessed at most follows from what was right before, the same each time; measured times only make guesses shorter.

/// How fast old steps are forgotten.
const MEMORY: f64 = 0.98;
/// How fast old guesses are forgotten.
const TRUST_MEMORY: f64 = 0.9;
/// How fast guesses of earlier texts are forgotten.
const LESSON_MEMORY: f64 = 0.95;
/// Tokens that what earlier texts taught counts for in a new one, and which share of them was right before anything is known.
const BELIEF: (f64, f64) = (5.0, 0.8);
/// The least price of a computed token: the share of the model's bytes that are read for it, within these bounds. Below the
/// first, what is around a step costs more; above the second, sizes say little (of experts only some are read).
const LEAST_PRICE: (f64, f64) = (0.1, 0.5);
/// Guesses that are not made after one that did not pay; doubled each time it still does not.
const REST: (u32, u32) = (16, 1024);
/// Tokens of a guess that is made to see whether it would pay again.
const TRIAL: usize = 2;

/// How the time of a step depends on its rows: a straight line through the last steps, by least squares in which old
/// steps weigh less. Its slope is what a row costs.
#[derive(Default)]
pub(super) struct StepTimes {
    weight: f64,
    rows: f64,
    time: f64,
    rows_rows: f64,
    rows_time: f64,
    /// Seconds that one more row costs; 0 while steps do not differ enough to tell.
    row: f64,
    /// Seconds that a token of a guess costs before it is checked.
    guessing: f64,
}

impl StepTimes {
    /// A step of so many rows took so many seconds.
    pub(super) fn note(&mut self, rows: usize, seconds: f64) {
        let rows = rows as f64;
        let sums =
            [&mut self.weight, &mut self.rows, &mut self.time, &mut self.rows_rows, &mut self.rows_time];
        let new = [1.0, rows, seconds, rows * rows, rows * seconds];
        for (sum, new) in sums.into_iter().zip(new) {
            *sum = *sum * MEMORY + new;
        }
        let (rows_mean, time_mean) = (self.rows / self.weight, self.time / self.weight);
        let variance = self.rows_rows / self.weight - rows_mean * rows_mean;
        // Steps that hardly differ say nothing about what a row costs.
        let covariance = self.rows_time / self.weight - rows_mean * time_mean;
        self.row = match variance >= 1e-2 {
            true => (covariance / variance).clamp(0.0, time_mean / rows_mean),
            false => 0.0,
        };
    }

    /// A guess of so many tokens took so many seconds.
    pub(super) fn note_guess(&mut self, tokens: usize, seconds: f64) {
        if tokens > 0 {
            let each = seconds / tokens as f64;
            self.guessing = if self.guessing > 0.0 { 0.9 * self.guessing + 0.1 * each } else { each };
        }
    }

    /// Of a step of so many rows, the share of its time that one more row costs, times the rows: the probability that a
    /// guessed token must have of being right to pay. 0 while nothing is known. `computed` guesses cost time themselves.
    pub(super) fn price(&self, rows: usize, computed: bool) -> f64 {
        if self.weight < 2.0 {
            return 0.0;
        }
        let (rows_mean, time_mean) = (self.rows / self.weight, self.time / self.weight);
        let step = time_mean + self.row * (rows as f64 - rows_mean);
        let row = self.row + if computed { self.guessing } else { 0.0 };
        if step > 0.0 { row * rows as f64 / step } else { 0.0 }
    }
}

/// The least price of a token whose guess reads so many bytes of weights, in a model of so many.
pub(super) fn least_price(read: u64, model: u64) -> f64 {
    let share = if model > 0 { read as f64 / model as f64 } else { 0.0 };
    share.clamp(LEAST_PRICE.0, LEAST_PRICE.1)
}

/// What the guesses about all texts teach about the next one.
pub(super) struct Lesson {
    right: f64,
    wrong: f64,
}

impl Default for Lesson {
    fn default() -> Self {
        Self { right: BELIEF.0 * BELIEF.1, wrong: BELIEF.0 * (1.0 - BELIEF.1) }
    }
}

impl Lesson {
    /// So many tokens of a guess were right, and whether one was wrong.
    pub(super) fn judge(&mut self, right: usize, wrong: bool) {
        self.right = self.right * LESSON_MEMORY + right as f64;
        self.wrong = self.wrong * LESSON_MEMORY + f64::from(u8::from(wrong));
    }

    /// The trust that a new text begins with.
    pub(super) fn trust(&self) -> Trust {
        let share = self.right / (self.right + self.wrong);
        let share = if share.is_finite() { share } else { BELIEF.1 };
        Trust { right: BELIEF.0 * share, wrong: BELIEF.0 * (1.0 - share), resting: 0, rest: REST.0 }
    }
}

/// How far the guesses about one text can be trusted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust {
    right: f64,
    wrong: f64,
    /// Guesses that are not made before the next trial, and how many it will be then.
    resting: u32,
    rest: u32,
}

impl Trust {
    /// So many tokens of a guess were right, and whether one was wrong.
    pub(super) fn judge(&mut self, right: usize, wrong: bool) {
        self.right = self.right * TRUST_MEMORY + right as f64;
        self.wrong = self.wrong * TRUST_MEMORY + f64::from(u8::from(wrong));
    }

    /// Tokens whose guess pays at a price: the last of them is right often enough, together with all before it. Where
    /// nothing pays, a short guess now and then shows whether that has changed.
    pub(super) fn worth(&mut self, price: f64, most: usize) -> usize {
        let probability = self.right / (self.right + self.wrong);
        let length = if price <= 0.0 || probability >= 1.0 {
            most
        } else if price >= 1.0 || probability <= 0.0 {
            0
        } else {
            ((price.ln() / probability.ln()).floor() as usize).min(most)
        };
        if length > 0 {
            self.rest = REST.0;
            self.resting = 0;
            return length;
        }
        if self.resting > 0 {
            self.resting -= 1;
            return 0;
        }
        self.resting = self.rest;
        self.rest = (self.rest * 2).min(REST.1);
        if price < 1.0 { TRIAL.min(most) } else { most.min(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(base: f64, row: f64) -> StepTimes {
        let mut times = StepTimes::default();
        for step in 0..100 {
            let rows = if step % 3 == 0 { 9 } else { 1 };
            times.note(rows, base + row * rows as f64);
        }
        times
    }

    #[test]
    fn prices_are_shares_of_a_step() {
        // 8 ms for a step, 2 ms for a row: one more row costs a fifth of a step with one, and half of what four give.
        let mut times = times(0.008, 0.002);
        assert!((times.price(1, false) - 0.2).abs() < 1e-6);
        assert!((times.price(4, false) - 0.5).abs() < 1e-6);
        // 3 ms more for each guessed token.
        times.note_guess(4, 0.012);
        assert!((times.price(1, true) - 0.5).abs() < 1e-6);
        assert!((times.price(1, false) - 0.2).abs() < 1e-6);
        assert!((self::times(0.0, 0.002).price(3, false) - 1.0).abs() < 1e-6, "rows are all that costs");
        assert!(self::times(0.01, 0.0).price(3, false) < 1e-6, "rows cost nothing");
        assert!(self::times(0.01, -0.001).price(3, false) < 1e-6, "noise");
    }

    #[test]
    fn what_is_not_known_costs_nothing() {
        let mut times = StepTimes::default();
        for _ in 0..50 {
            assert!(times.price(1, true) <= 0.0);
            times.note(1, 0.01);
        }
    }

    #[test]
    fn right_guesses_grow_and_wrong_ones_end() {
        let mut trust = Lesson::default().trust();
        let first = trust.worth(0.3, 48);
        assert!((3..48).contains(&first), "{first}");
        (0..20).for_each(|_| trust.judge(8, false));
        assert_eq!(trust.worth(0.3, 48), 48);
        (0..60).for_each(|_| trust.judge(0, true));
        let made: Vec<usize> = (0..200).map(|_| trust.worth(0.3, 48)).filter(|length| *length > 0).collect();
        assert!(made.len() <= 4 && made.iter().all(|length| *length == TRIAL), "{made:?}");
        (0..20).for_each(|_| trust.judge(2, false));
        assert!(trust.worth(0.3, 48) > 8, "it pays again");
        let made: usize = (0..200).map(|_| trust.worth(1.0, 48)).sum();
        assert!((1..=4).contains(&made), "where only rows cost nothing pays: {made}");
    }

    #[test]
    fn what_a_guess_costs_is_known_where_nothing_is_known_of_rows() {
        let mut times = times(0.008, 0.002);
        times.note_guess(1, 0.006);
        assert!((times.price(1, true) - 0.8).abs() < 1e-6);
        (0..2000).for_each(|_| times.note(1, 0.010));
        assert!(times.price(1, false) <= 0.0);
        assert!((times.price(1, true) - 0.6).abs() < 1e-6);
    }

    #[test]
    fn bad_guesses_get_fewer_by_what_was_right_alone() {
        let price = least_price(1, 1000);
        assert_eq!(
            (price, least_price(300, 1000), least_price(999, 1000), least_price(0, 0)),
            (0.1, 0.3, 0.5, 0.1)
        );
        let mut lesson = Lesson::default();
        let text = |lesson: &mut Lesson, right: usize| {
            let (mut trust, mut guessed) = (lesson.trust(), Vec::new());
            for _ in 0..400 {
                let length = trust.worth(price, 5);
                if length > 0 {
                    trust.judge(right.min(length), right < length);
                    lesson.judge(right.min(length), right < length);
                    guessed.push(length);
                }
            }
            guessed
        };
        let first = text(&mut lesson, 0);
        assert_eq!(first[..4], [5, 5, 3, 2], "{first:?}");
        assert!(first.iter().sum::<usize>() < 50, "{first:?}");
        let second = text(&mut lesson, 0);
        assert!(second.iter().all(|length| *length == TRIAL) && second.len() <= 6, "{second:?}");
        // A text of another kind is guessed at again, and the next one from its start.
        let right = text(&mut lesson, 5);
        assert!(right.len() > 200 && right.ends_with(&[5, 5, 5]), "{right:?}");
        assert_eq!(text(&mut lesson, 5)[..2], [5, 5]);
    }
}
