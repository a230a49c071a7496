//! What a draft head can know of each text: the states of its tokens in the model.

use std::ops::Range;

use puna_runtime::DraftHead;

use super::Evaluated;
use super::room::Room;
use crate::EngineError;
use crate::worker::{common_prefix, guarded};

/// Rows whose states are kept although the head has read them: so far a text may go back without the head starting over.
const KEPT: usize = 128;
/// Rows that wait before the head reads them without being asked for a guess.
const WAITING: usize = 256;

/// One text.
#[derive(Clone, Debug, Default)]
pub(super) struct Learned {
    /// Place in the text at which the head's sequence begins. What is before was computed without being heard of, as when
    /// a saved prompt was restored; a head only sees less of the text then.
    start: usize,
    /// Tokens from there on whose states are known.
    tokens: Vec<u32>,
    /// Rows that the head has read.
    read: usize,
    /// Rows whose states are no longer kept.
    gone: usize,
    /// `[tokens - gone, width]`.
    states: Vec<f32>,
}

impl Learned {
    /// Takes in what was computed. `lag` is the number of tokens after a row that the head reads with it.
    fn add(&mut self, evaluated: &Evaluated<'_>, lag: usize) {
        let first = evaluated.tokens.len().saturating_sub(evaluated.rows);
        let agreed =
            self.start + common_prefix(&self.tokens, evaluated.tokens.get(self.start..).unwrap_or(&[]));
        if first < self.start || agreed < first || !self.cut(first - self.start, lag) {
            *self = Self { start: first, ..Self::default() };
        }
        self.tokens.extend_from_slice(&evaluated.tokens[first..]);
        self.states.extend_from_slice(evaluated.states);
    }

    /// Forgets all but the first rows. False, and nothing is left, if the head would need states that are gone.
    fn cut(&mut self, rows: usize, lag: usize) -> bool {
        if rows < self.tokens.len() {
            let width = self.width();
            self.tokens.truncate(rows);
            self.read = self.read.min(rows.saturating_sub(lag));
            if self.read < self.gone {
                *self = Self::default();
                return false;
            }
            self.states.truncate((rows - self.gone) * width);
        }
        true
    }

    fn width(&self) -> usize {
        self.states.len() / (self.tokens.len() - self.gone).max(1)
    }

    /// States of rows.
    fn states(&self, rows: Range<usize>) -> &[f32] {
        let width = self.width();
        let place = |row: usize| row.saturating_sub(self.gone) * width;
        self.states.get(place(rows.start)..place(rows.end)).unwrap_or(&[])
    }

    /// The head has read rows up to this one; states of long ago are given up.
    fn note_read(&mut self, read: usize) {
        self.read = read;
        let old = read.saturating_sub(self.gone);
        // In large pieces, because what is kept moves.
        if old >= 2 * KEPT {
            let width = self.width();
            self.states.drain(..(old - KEPT) * width);
            self.gone += old - KEPT;
        }
    }
}

/// Rows that a head shall read next: tokens and features.
pub(super) struct Rows {
    pub(super) tokens: Vec<u32>,
    pub(super) features: Vec<f32>,
}

/// A head with what it knows of each text.
pub(super) struct Reader {
    pub(super) head: DraftHead,
    texts: Vec<Learned>,
    /// Tokens after a row that the head reads with it: 0 or 1.
    lag: usize,
}

impl Reader {
    pub(super) fn new(mut head: DraftHead, lag: usize) -> Self {
        let sequences = head.model().options().sequences as usize;
        Self { head, texts: vec![Learned::default(); sequences], lag }
    }

    /// Takes in what was computed. Returns whether so much waits that the head should read it.
    pub(super) fn learn(&mut self, evaluated: &Evaluated<'_>) -> bool {
        let fits = evaluated.states.len() == evaluated.rows * self.head.state_width();
        let Some(learned) = self.texts.get_mut(evaluated.sequence).filter(|_| fits) else { return false };
        learned.add(evaluated, self.lag);
        learned.tokens.len() - learned.read > WAITING
    }

    /// Whether the states of all tokens of a text but the last are known, and its sequence has room for so many guesses.
    /// Returns how many guesses there is room for; 0 where not.
    pub(super) fn room(&mut self, sequence: usize, tokens: &[u32]) -> usize {
        let context = self.head.model().options().context as usize;
        let Some(learned) = self.texts.get_mut(sequence) else { return 0 };
        let known = common_prefix(&learned.tokens, tokens.get(learned.start..).unwrap_or(&[]));
        let complete = learned.cut(known, self.lag) && known > 0 && learned.start + known + 1 == tokens.len();
        if complete { context.saturating_sub(known + 1) } else { 0 }
    }

    /// Rows of a sequence that the head has not read, after making the head forget what is not of the text. `last` is the
    /// token after those whose states are known, where it is known itself.
    pub(super) fn unread(&mut self, sequence: usize, last: Option<u32>) -> Result<Rows, EngineError> {
        let number = u32::try_from(sequence).unwrap_or(u32::MAX);
        let Some(learned) = self.texts.get_mut(sequence) else {
            return Ok(Rows { tokens: Vec::new(), features: Vec::new() });
        };
        let model = self.head.model();
        if (model.length(number) as usize) < learned.read {
            // The head lost it. What is still kept begins a new sequence of its own.
            let gone = learned.gone;
            learned.tokens.drain(..gone);
            (learned.start, learned.read, learned.gone) = (learned.start + gone, 0, 0);
        }
        let read = u32::try_from(learned.read).unwrap_or(u32::MAX);
        guarded(|| model.truncate(number, read))?;
        let tokens: Vec<u32> = learned
            .tokens
            .iter()
            .skip(learned.read + self.lag)
            .copied()
            .chain(last.filter(|_| self.lag > 0))
            .collect();
        let features = self.head.features(learned.states(learned.read..learned.read + tokens.len()))?;
        Ok(Rows { tokens, features })
    }

    /// The head has read all rows of a sequence whose tokens and states are those of the text.
    pub(super) fn note_read(&mut self, sequence: usize) {
        if let Some(learned) = self.texts.get_mut(sequence) {
            let read = learned.tokens.len().saturating_sub(self.lag);
            learned.note_read(read);
        }
    }

    /// Forgets everything: what a failed step left cannot be relied on.
    pub(super) fn forget_all(&mut self) {
        (0..self.texts.len()).for_each(|sequence| self.forget(sequence));
    }
}

impl Room for Reader {
    fn sequences(&self) -> usize {
        self.texts.len()
    }

    fn free(&mut self) -> usize {
        self.head.model().free_cells() as usize
    }

    fn forget(&mut self, sequence: usize) {
        self.texts[sequence] = Learned::default();
        let _ = guarded(|| {
            self.head.model().clear(sequence as u32);
            Ok::<_, EngineError>(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated<'a>(tokens: &'a [u32], states: &'a [f32]) -> Evaluated<'a> {
        Evaluated { sequence: 0, tokens, rows: states.len(), states }
    }

    #[test]
    fn rows_follow_the_text_back_and_forth() {
        let mut learned = Learned::default();
        learned.add(&evaluated(&[1, 2, 3], &[0.1, 0.2, 0.3]), 1);
        learned.note_read(2);
        learned.add(&evaluated(&[1, 2, 3, 4, 5], &[0.4, 0.5]), 1);
        assert_eq!(learned.states(2..5), [0.3, 0.4, 0.5]);
        // The guess 5 was wrong: the row of 4 is computed again, with what follows it.
        learned.add(&evaluated(&[1, 2, 3, 4, 9], &[0.9]), 1);
        assert_eq!((&learned.tokens[..], learned.read), (&[1, 2, 3, 4, 9][..], 2));
        assert_eq!(learned.states(2..5), [0.3, 0.4, 0.9]);
        // Another end of the text: the row before it was read with its first token.
        learned.note_read(4);
        learned.add(&evaluated(&[1, 2, 8], &[0.8]), 1);
        assert_eq!(
            (&learned.tokens[..], learned.read, learned.states(1..3)),
            (&[1, 2, 8][..], 1, &[0.2, 0.8][..])
        );
        // With nothing read ahead the same row stays.
        let mut other = learned.clone();
        other.note_read(3);
        other.add(&evaluated(&[1, 2, 7], &[0.7]), 0);
        assert_eq!((other.read, other.states(2..3)), (2, &[0.7][..]));
        // Part of a text that was never heard of, and another text: it begins anew there.
        learned.add(&evaluated(&[1, 2, 8, 5, 6, 7], &[0.6, 0.7]), 1);
        assert_eq!((learned.start, &learned.tokens[..], learned.read), (4, &[6, 7][..], 0));
        learned.add(&evaluated(&[3, 2, 8, 5, 6, 7, 1], &[0.1]), 1);
        assert_eq!((learned.start, &learned.tokens[..]), (4, &[6, 7, 1][..]), "what is before is not known");
        learned.add(&evaluated(&[3, 2], &[0.1, 0.2]), 1);
        assert_eq!((learned.start, &learned.tokens[..]), (0, &[3, 2][..]));
    }

    #[test]
    fn old_states_are_given_up() {
        let mut learned = Learned::default();
        let tokens: Vec<u32> = (0..1000).collect();
        let states: Vec<f32> = (0..1000).map(|row| row as f32).collect();
        learned.add(&evaluated(&tokens, &states), 1);
        learned.note_read(999);
        assert!(learned.states.len() <= 2 * KEPT);
        assert_eq!(learned.states(998..1000), [998.0, 999.0]);
        // A little back is no loss, far back is.
        learned.add(&evaluated(&tokens[..950], &[7.0]), 1);
        assert_eq!((learned.start, learned.tokens.len(), learned.read), (0, 950, 948));
        assert_eq!(learned.states(948..950), [948.0, 7.0]);
        learned.add(&evaluated(&tokens[..100], &[5.0]), 1);
        assert_eq!((learned.start, learned.tokens.len(), learned.read), (99, 1, 0));
    }
}
