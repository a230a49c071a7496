//! Cutting a step into runs of the model.
//!
//! A model of fixed extents takes so many rows at once. A recurrence takes spans of one length that do not start from
//! each other's states. Otherwise a step is one run.

use std::ops::Range;

use puna_graph::{GroupStep, Step};

/// One run: consecutive rows of the step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Its rows.
    pub(crate) rows: Range<usize>,
    /// Cell with the recurrent state that each of its equally long spans starts from; none for zeros.
    pub(crate) starts: Vec<Option<u32>>,
    /// Cell that takes the state that each span ends with.
    pub(crate) ends: Vec<u32>,
}

/// What limits a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Most rows.
    pub(crate) rows: usize,
    /// Runs of fewer rows have one row each: the state after padding would be wrong.
    pub(crate) full_or_single: bool,
    /// Most spans of a recurrence.
    pub(crate) spans: usize,
    /// Spans of one run may not see what others of it write.
    pub(crate) paged: bool,
    /// Spans of at least so many rows do not run together with shorter ones.
    pub(crate) long: Option<usize>,
}

/// First rows of spans that see cells which an earlier span of the step writes: the same sequence, named twice.
fn dependent_spans(step: &Step) -> Vec<usize> {
    let mut all: Vec<usize> = Vec::new();
    for group in &step.groups {
        let mut writers = std::collections::HashMap::new();
        for (row, cell) in group.write_cells.iter().enumerate() {
            writers.entry(*cell).or_insert(row);
        }
        for span in &group.spans {
            let first = span.tokens.start as usize;
            let sees = |cell: u32| writers.get(&cell).is_some_and(|row| *row < first);
            if !span.tokens.is_empty() && span.cells.iter().cloned().flatten().any(sees) {
                all.push(first);
            }
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// First rows of spans that are long where the span before is not, or the other way round.
fn changes_of_length(step: &Step, long: usize) -> Vec<usize> {
    let spans = step.groups.first().map_or(&[][..], |group| &group.spans);
    let is_long = |span: &puna_graph::Span| span.tokens.len() >= long;
    let pairs = spans.windows(2).filter(|pair| is_long(&pair[0]) != is_long(&pair[1]));
    pairs.map(|pair| pair[1].tokens.start as usize).collect()
}

/// Cuts a step; `recurrent` is the group of recurrent states, if there is one.
pub(crate) fn cut(step: &Step, recurrent: Option<&GroupStep>, limits: Limits) -> Vec<Piece> {
    let rows = step.tokens.len();
    let mut breaks = if limits.paged { dependent_spans(step) } else { Vec::new() };
    if let Some(long) = limits.long {
        breaks.extend(changes_of_length(step, long));
        breaks.sort_unstable();
        breaks.dedup();
    }
    let Some(group) = recurrent else {
        let bounds: Vec<usize> = std::iter::once(0).chain(breaks).chain([rows]).collect();
        let parts = bounds.windows(2).flat_map(|part| {
            (part[0]..part[1])
                .step_by(limits.rows.max(1))
                .map(|start| start..part[1].min(start.saturating_add(limits.rows)))
        });
        return parts.map(|rows| Piece { rows, starts: Vec::new(), ends: Vec::new() }).collect();
    };
    let mut pieces: Vec<Piece> = Vec::new();
    for span in &group.spans {
        let mut start = span.cells.first().map(|cells| cells.start);
        let mut rows = span.tokens.start as usize..span.tokens.end as usize;
        while !rows.is_empty() {
            let mut length = rows.len().min(limits.rows);
            if limits.full_or_single && length < limits.rows {
                length = 1;
            }
            let end = group.write_cells[rows.start];
            let joins = |piece: &&mut Piece| {
                piece.starts.len() < limits.spans
                    && piece.rows.end == rows.start
                    && piece.rows.len() == length * piece.starts.len()
                    && piece.rows.len() + length <= limits.rows
                    && start.is_none_or(|cell| !piece.ends.contains(&cell))
                    && !breaks.contains(&rows.start)
                    && !piece.ends.contains(&end)
            };
            match pieces.last_mut().filter(joins) {
                Some(piece) => {
                    piece.rows.end += length;
                    piece.starts.push(start);
                    piece.ends.push(end);
                }
                None => pieces.push(Piece {
                    rows: rows.start..rows.start + length,
                    starts: vec![start],
                    ends: vec![end],
                }),
            }
            rows.start += length;
            start = Some(end);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use puna_graph::Span;

    use super::*;

    const FREE: Limits =
        Limits { rows: usize::MAX, full_or_single: false, spans: usize::MAX, paged: false, long: None };

    fn step(lengths: &[u32], starts: &[Option<u32>], ends: &[u32]) -> (Step, GroupStep) {
        let mut group = GroupStep::default();
        let mut row = 0;
        for ((length, start), end) in lengths.iter().zip(starts).zip(ends) {
            let cells = start.map(|cell| cell..cell + 1).into_iter().collect();
            group.spans.push(Span { tokens: row..row + length, cells });
            group.write_cells.extend(std::iter::repeat_n(*end, *length as usize));
            row += length;
        }
        (Step { tokens: vec![0; row as usize], ..Step::default() }, group)
    }

    fn rows(pieces: &[Piece]) -> Vec<Range<usize>> {
        pieces.iter().map(|piece| piece.rows.clone()).collect()
    }

    #[test]
    fn without_recurrence_only_rows_count() {
        let (step, _) = step(&[5, 2], &[None, None], &[0, 1]);
        assert_eq!(rows(&cut(&step, None, FREE)), std::slice::from_ref(&(0..7)));
        assert_eq!(rows(&cut(&step, None, Limits { rows: 3, ..FREE })), [0..3, 3..6, 6..7]);
    }

    #[test]
    fn a_sequence_named_twice_is_cut_for_pages() {
        let group = GroupStep {
            write_cells: vec![0, 1, 2],
            cell_positions: vec![0, 1, 2],
            spans: vec![
                Span { tokens: 0..2, cells: std::iter::once(0..2).collect() },
                Span { tokens: 2..3, cells: std::iter::once(0..3).collect() },
            ],
        };
        let step = Step { tokens: vec![0; 3], groups: vec![group], ..Step::default() };
        assert_eq!(rows(&cut(&step, None, Limits { paged: true, ..FREE })), [0..2, 2..3]);
    }

    #[test]
    fn prompts_run_apart_from_single_rows() {
        let (mut step, group) = step(&[1, 40, 50, 1, 1], &[None; 5], &[0, 1, 2, 3, 4]);
        step.groups = vec![group];
        assert_eq!(rows(&cut(&step, None, Limits { long: Some(32), ..FREE })), [0..1, 1..91, 91..93]);
        assert_eq!(
            rows(&cut(&step, None, Limits { long: Some(64), ..FREE })),
            std::slice::from_ref(&(0..93))
        );
    }

    #[test]
    fn spans_of_one_length_run_together() {
        let (step, group) =
            step(&[1, 1, 3, 3, 2], &[Some(4), None, None, Some(7), Some(8)], &[0, 1, 2, 3, 9]);
        let pieces = cut(&step, Some(&group), FREE);
        assert_eq!(rows(&pieces), [0..2, 2..8, 8..10]);
        assert_eq!(pieces[0].starts, [Some(4), None]);
        assert_eq!(pieces[1].ends, [2, 3]);
    }

    #[test]
    fn a_span_waits_for_the_one_that_it_goes_on_from() {
        let (step, group) = step(&[1, 1], &[None, Some(5)], &[5, 6]);
        assert_eq!(rows(&cut(&step, Some(&group), FREE)), [0..1, 1..2]);
    }

    #[test]
    fn a_fixed_model_of_a_recurrence_takes_full_runs_or_single_rows() {
        let (step, group) = step(&[6], &[Some(3)], &[4]);
        let pieces = cut(&step, Some(&group), Limits { rows: 4, full_or_single: true, spans: 1, ..FREE });
        assert_eq!(rows(&pieces), [0..4, 4..5, 5..6]);
        assert_eq!(pieces[0].starts, [Some(3)]);
        assert_eq!(pieces[1].starts, [Some(4)]);
    }
}
