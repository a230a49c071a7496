//! The order in which a sequence's cells are read.

use std::borrow::Cow;
use std::ops::Range;

use puna_graph::Span;

/// Spans whose cells are in the order of their positions. Sums go in the order of a span, and which cells a text got depends on
/// what else was in the cache, most of all where a window gave cells back: its results must not.
pub fn in_order<'a>(spans: &'a [Span], positions: &[i32]) -> Cow<'a, [Span]> {
    let of = |range: &Range<u32>| positions.get(range.start as usize..range.end as usize);
    // Cells that are not there are for the plan to refuse.
    let exist = spans.iter().flat_map(|span| &span.cells).all(|range| of(range).is_some());
    let ascends = |span: &Span| {
        let mut last = i32::MIN;
        span.cells.iter().filter_map(of).filter(|run| !run.is_empty()).all(|run| {
            let after = last <= run[0];
            last = run[run.len() - 1];
            after && run.is_sorted()
        })
    };
    if !exist || spans.iter().all(ascends) {
        return Cow::Borrowed(spans);
    }
    let position = |cell: u32| positions[cell as usize];
    let ordered = |span: &Span| {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for cell in span.cells.iter().cloned().flatten() {
            match runs.last_mut() {
                Some(run) if run.end == cell && position(cell - 1).checked_add(1) == Some(position(cell)) => {
                    run.end += 1;
                }
                _ => runs.push(cell..cell + 1),
            }
        }
        runs.sort_by_key(|run| position(run.start));
        Span { tokens: span.tokens.clone(), cells: runs }
    };
    Cow::Owned(spans.iter().map(ordered).collect())
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // cells are a list of ranges, often of one
mod tests {
    use super::*;

    fn span(cells: &[Range<u32>]) -> Span {
        Span { tokens: 0..1, cells: cells.to_vec() }
    }

    #[test]
    fn cells_come_by_position() {
        // The first text lies as it was written; the second began in the middle and went on where its window gave cells back.
        let positions = [0, 1, 2, 15, 16, 11, 12, 13, 14, 3];
        let (first, second) = (span(&[0..3, 9..10]), span(&[3..9]));
        let spans = [first.clone()];
        assert!(matches!(in_order(&spans, &positions), Cow::Borrowed(_)));
        let found = in_order(&[first.clone(), second], &positions).into_owned();
        let cells: Vec<&[Range<u32>]> = found.iter().map(|span| &span.cells[..]).collect();
        assert_eq!(cells, [&[0..3, 9..10][..], &[5..9, 3..5]]);
        let beyond = [span(&[8..9, 3..4, 20..21])];
        assert!(matches!(in_order(&beyond, &positions), Cow::Borrowed(_)), "for the plan to refuse");
    }
}
