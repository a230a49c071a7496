//! What is asked of a model at once, what comes back, and how a batch is cut into micro-batches.

use std::ops::Range;

use puna_graph::{Best, BestRow, Floats};

/// Tokens for any number of sequences.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    /// In the order in which rows are computed and outputs come back. A sequence may appear more than once.
    pub work: Vec<Work>,
    /// Rows are computed as they would be one by one, where the backend can; see [`puna_graph::Step::deterministic`].
    pub deterministic: bool,
    /// Of each row of logits so many of the highest suffice; see [`puna_graph::Step::best`].
    pub best: Option<u32>,
}

impl Batch {
    /// These tokens, computed as is fastest, with all logits.
    pub fn of(work: Vec<Work>) -> Self {
        Self { work, ..Self::default() }
    }
}

/// Tokens that continue one sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// Which sequence, below [`ModelOptions::sequences`](crate::ModelOptions::sequences).
    pub sequence: u32,
    /// Token ids below the vocabulary's size. Their positions continue at the sequence's length.
    pub tokens: Vec<u32>,
    /// Which of them are asked for.
    pub outputs: OutputRows,
}

/// Which rows leave the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputRows {
    /// None: the tokens only fill the caches.
    None,
    /// The first token's.
    First,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// Rows of logits, or of embeddings, in the order of the batch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outputs {
    /// Numbers in a row: the size of the vocabulary, or the width of an embedding.
    pub width: usize,
    /// Whose rows these are.
    pub rows: Vec<OutputRow>,
    /// `[rows, width]`, unnormalised. They may hold NaN if the model's weights do.
    pub logits: Floats,
    /// Instead of all logits the highest of each row, where these suffice ([`Batch::best`]) and the back end gives them.
    pub best: Option<Best>,
    /// `[tokens of the batch, width]`: the states of
    /// [`ModelOptions::head_inputs`](crate::ModelOptions::head_inputs), side by side; empty without such.
    pub states: Vec<f32>,
}

/// Origin of one row of logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputRow {
    /// Sequence of the token.
    pub sequence: u32,
    /// Its position; the logits are about the token that follows.
    pub position: u32,
}

/// What came of a row of logits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Logits<'o> {
    /// All of them.
    All(&'o [f32]),
    /// The highest.
    Best(BestRow<'o>),
}

impl Outputs {
    /// What came of the rows of a sequence, in order.
    pub fn logits_of(&self, sequence: u32) -> impl Iterator<Item = Logits<'_>> {
        let rows = self.rows.iter().enumerate().filter(move |(_, row)| row.sequence == sequence);
        rows.filter_map(|(index, _)| match &self.best {
            Some(best) => best.row(index).map(Logits::Best),
            None => Some(Logits::All(self.row(index))),
        })
    }

    /// The logits of row `index`; empty for a row that does not exist.
    pub fn row(&self, index: usize) -> &[f32] {
        let start = index.saturating_mul(self.width);
        self.logits.get(start..start.saturating_add(self.width)).unwrap_or(&[])
    }

    /// The rows of a sequence, in order.
    pub fn of(&self, sequence: u32) -> impl Iterator<Item = &[f32]> {
        let rows = self.rows.iter().enumerate().filter(move |(_, row)| row.sequence == sequence);
        rows.map(|(index, _)| self.row(index))
    }

    /// The logits of the sequence's last row, if it has one.
    pub fn last(&self, sequence: u32) -> Option<&[f32]> {
        self.rows.iter().rposition(|row| row.sequence == sequence).map(|index| self.row(index))
    }
}

/// Rows of one step.
#[derive(PartialEq, Eq, Debug, Default)]
pub(crate) struct MicroBatch {
    /// Token ids of all rows.
    pub(crate) tokens: Vec<u32>,
    /// Which sequences take how many rows, in order.
    pub(crate) pieces: Vec<(u32, u32)>,
    /// Rows that leave the model, ascending.
    pub(crate) output_rows: Vec<u32>,
}

/// Cuts a batch into steps of at most `rows` rows and `outputs` output rows (both at least 1), in order. If `whole`,
/// no work is cut; then each must fit by itself.
pub(crate) fn split(batch: &Batch, rows: u32, outputs: u32, whole: bool) -> Vec<MicroBatch> {
    let (rows, outputs) = (rows.max(1) as usize, outputs.max(1) as usize);
    let mut steps = Vec::new();
    let mut step = MicroBatch::default();
    for work in &batch.work {
        let mut start = 0;
        while start < work.tokens.len() {
            let taken = start..fit(&step, work, start, rows, outputs);
            let cut = whole && taken.end < work.tokens.len() && !step.tokens.is_empty();
            if taken.is_empty() || cut {
                steps.push(std::mem::take(&mut step));
                continue;
            }
            start = taken.end;
            append(&mut step, work, taken);
        }
    }
    if !step.tokens.is_empty() {
        steps.push(step);
    }
    steps
}

/// End of the tokens from `start` that still fit into the step.
fn fit(step: &MicroBatch, work: &Work, start: usize, rows: usize, outputs: usize) -> usize {
    let all = work.tokens.len();
    let end = all.min(start + rows - step.tokens.len());
    let room = outputs - step.output_rows.len();
    match work.outputs {
        OutputRows::All => end.min(start + room),
        OutputRows::Last if end == all && room == 0 => end - 1,
        OutputRows::First if start == 0 && room == 0 => start,
        OutputRows::None | OutputRows::First | OutputRows::Last => end,
    }
}

fn append(step: &mut MicroBatch, work: &Work, taken: Range<usize>) {
    let row = step.tokens.len() as u32;
    let count = taken.len() as u32;
    match work.outputs {
        OutputRows::All => step.output_rows.extend(row..row + count),
        OutputRows::Last if taken.end == work.tokens.len() => step.output_rows.push(row + count - 1),
        OutputRows::First if taken.start == 0 => step.output_rows.push(row),
        OutputRows::None | OutputRows::First | OutputRows::Last => {}
    }
    step.pieces.push((work.sequence, count));
    step.tokens.extend(&work.tokens[taken]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(sequence: u32, tokens: Range<u32>, outputs: OutputRows) -> Work {
        Work { sequence, tokens: tokens.collect(), outputs }
    }

    #[test]
    fn steps_hold_several_sequences_and_outputs_of_the_last_part_only() {
        let batch = Batch::of(vec![
            work(3, 0..5, OutputRows::Last),
            work(1, 5..5, OutputRows::All),
            work(0, 5..7, OutputRows::All),
            work(2, 7..8, OutputRows::None),
        ]);
        let steps = split(&batch, 4, 4, false);
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[0].pieces, [(3, 4)]);
        assert!(steps[0].output_rows.is_empty());
        assert_eq!(steps[1].tokens, [4, 5, 6, 7]);
        assert_eq!(steps[1].pieces, [(3, 1), (0, 2), (2, 1)]);
        assert_eq!(steps[1].output_rows, [0, 1, 2]);
    }

    #[test]
    fn what_must_stay_whole_starts_a_new_step() {
        let batch = Batch::of(vec![
            work(0, 0..3, OutputRows::First),
            work(1, 3..6, OutputRows::First),
            work(2, 6..7, OutputRows::Last),
            work(3, 7..11, OutputRows::All),
        ]);
        let steps = split(&batch, 4, 4, true);
        let pieces: Vec<_> = steps.iter().map(|step| step.pieces.clone()).collect();
        assert_eq!(pieces, [vec![(0, 3)], vec![(1, 3), (2, 1)], vec![(3, 4)]]);
        let rows: Vec<_> = steps.iter().map(|step| step.output_rows.clone()).collect();
        assert_eq!(rows, [vec![0], vec![0, 3], vec![0, 1, 2, 3]]);
    }

    #[test]
    fn no_step_exceeds_its_bounds_and_no_row_is_missing() {
        for (rows, outputs) in [(1, 1), (2, 1), (3, 2), (7, 1), (7, 3), (100, 1), (100, 100)] {
            let batch = Batch::of(vec![
                work(0, 0..6, OutputRows::All),
                work(1, 6..9, OutputRows::Last),
                work(2, 9..10, OutputRows::Last),
                work(3, 10..20, OutputRows::None),
                work(0, 20..24, OutputRows::All),
            ]);
            let steps = split(&batch, rows, outputs, false);
            let tokens: Vec<u32> = steps.iter().flat_map(|step| step.tokens.clone()).collect();
            assert_eq!(tokens, (0..24).collect::<Vec<_>>());
            let output_tokens: Vec<u32> = steps
                .iter()
                .flat_map(|step| step.output_rows.iter().map(|row| step.tokens[*row as usize]))
                .collect();
            assert_eq!(output_tokens, [0, 1, 2, 3, 4, 5, 8, 9, 20, 21, 22, 23]);
            for step in steps {
                assert!(!step.tokens.is_empty() && step.tokens.len() <= rows as usize);
                assert!(step.output_rows.len() <= outputs as usize);
                assert_eq!(step.pieces.iter().map(|piece| piece.1).sum::<u32>() as usize, step.tokens.len());
            }
        }
    }

    #[test]
    fn rows_of_outputs_are_found() {
        let outputs = Outputs {
            width: 2,
            rows: vec![OutputRow { sequence: 4, position: 0 }, OutputRow { sequence: 4, position: 1 }],
            logits: vec![1.0, 2.0, 3.0, 4.0].into(),
            ..Outputs::default()
        };
        assert_eq!(outputs.row(0), [1.0, 2.0]);
        assert_eq!(outputs.last(4), Some(&[3.0, 4.0][..]));
        assert_eq!(outputs.last(0), None);
        assert_eq!(outputs.of(4).collect::<Vec<_>>(), [&[1.0, 2.0][..], &[3.0, 4.0]]);
        assert_eq!(outputs.of(3).count(), 0);
        assert!(outputs.row(2).is_empty() && outputs.row(usize::MAX).is_empty());
        let all =
            |outputs: &Outputs| outputs.logits_of(4).map(|logits| format!("{logits:?}")).collect::<Vec<_>>();
        assert_eq!(all(&outputs), ["All([1.0, 2.0])", "All([3.0, 4.0])"]);
        let best = Best::of(&outputs.logits, 2, 1);
        let rows = [best.row(0), best.row(1)].map(|row| format!("{:?}", Logits::Best(row.expect("a row"))));
        let outputs = Outputs { logits: Floats::default(), best: Some(best.clone()), ..outputs };
        assert_eq!(all(&outputs), rows);
    }
}
