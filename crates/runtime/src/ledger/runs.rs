//! A set of cells as ascending ranges.

use std::ops::Range;

/// Disjoint, ascending, never adjacent ranges of cells.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Runs(Vec<Range<u32>>);

impl Runs {
    /// The ranges.
    pub(super) fn ranges(&self) -> &[Range<u32>] {
        &self.0
    }

    /// All cells in ascending order.
    pub(super) fn cells(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// Adds cells that are not in the set yet.
    pub(super) fn insert(&mut self, cells: Range<u32>) {
        if cells.is_empty() {
            return;
        }
        let at = self.0.partition_point(|run| run.start < cells.start);
        let joins_next = self.0.get(at).is_some_and(|next| next.start == cells.end);
        let joins_previous = at > 0 && self.0.get(at - 1).is_some_and(|previous| previous.end == cells.start);
        match (joins_previous, joins_next) {
            (true, true) => {
                let next = self.0.remove(at);
                self.0[at - 1].end = next.end;
            }
            (true, false) => self.0[at - 1].end = cells.end,
            (false, true) => self.0[at].start = cells.start,
            (false, false) => self.0.insert(at, cells),
        }
    }

    /// The cells that pass a test, which is called for each in ascending order.
    pub(super) fn filtered(&self, mut keep: impl FnMut(u32) -> bool) -> Runs {
        let mut kept = Runs::default();
        for cell in self.cells() {
            if keep(cell) {
                kept.push(cell);
            }
        }
        kept
    }

    /// Adds a cell above all others.
    fn push(&mut self, cell: u32) {
        match self.0.last_mut() {
            Some(last) if last.end == cell => last.end += 1,
            _ => self.0.push(cell..cell + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Runs;

    #[test]
    fn ranges_join_whatever_the_order() {
        let mut runs = Runs::default();
        for cells in [4..6, 0..2, 8..9, 2..3, 6..8, 3..4, 5..5] {
            runs.insert(cells);
        }
        assert_eq!(runs.ranges(), std::slice::from_ref(&(0..9)));
        let kept = runs.filtered(|cell| cell % 4 != 0);
        assert_eq!(kept.ranges(), [1..4, 5..8]);
        assert_eq!(kept.cells().collect::<Vec<_>>(), [1, 2, 3, 5, 6, 7]);
    }
}
