//! The data of a run, in the form that the model's parameters have.

use std::collections::HashMap;

use puna_graph::ops::MaskRule;
use puna_graph::{GroupStep, Step};

use crate::pieces::Piece;
use crate::translate::RopeTable;

/// Added to the score of a cell that a row does not see.
const UNSEEN: f32 = -1e30;

/// Where cells and rows of a run are among the columns of scores.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub(crate) step: &'a Step,
    pub(crate) group: &'a GroupStep,
    pub(crate) piece: &'a Piece,
    /// Columns that come before the rows of this run.
    pub(crate) cells: usize,
    /// Where cells are among these, if not in their own places.
    pub(crate) places: Option<&'a HashMap<u32, usize>>,
    /// Rows of the run with padding.
    pub(crate) rows: usize,
}

impl Columns<'_> {
    fn width(&self) -> usize {
        self.cells + self.rows
    }

    /// For each cell the row of the step that writes it, if one does.
    fn writers(&self) -> Vec<Option<u32>> {
        let most = self.group.cell_positions.len();
        let mut writers = vec![None; most];
        for (row, cell) in self.group.write_cells.iter().enumerate() {
            if let Some(writer) = writers.get_mut(*cell as usize) {
                *writer = Some(row as u32);
            }
        }
        writers
    }

    /// Calls `each` with row of the run, column and cell for all cells of the row's sequence that are written.
    fn each(&self, mut each: impl FnMut(usize, usize, usize)) {
        let writers = self.writers();
        let rows = &self.piece.rows;
        for span in &self.group.spans {
            let first = rows.start.max(span.tokens.start as usize);
            let end = rows.end.min(span.tokens.end as usize);
            if first >= end {
                continue;
            }
            let mut columns = Vec::new();
            for cell in span.cells.iter().cloned().flatten().map(|cell| cell as usize) {
                match writers[cell] {
                    Some(row) if (row as usize) >= rows.end => {} // a later run writes it
                    Some(row) if (row as usize) >= rows.start => {
                        columns.push((self.cells + row as usize - rows.start, cell));
                    }
                    _ => match self.places {
                        None => columns.push((cell, cell)),
                        Some(places) => {
                            columns.extend(places.get(&(cell as u32)).map(|column| (*column, cell)));
                        }
                    },
                }
            }
            for row in first..end {
                columns.iter().for_each(|(column, cell)| each(row - rows.start, *column, *cell));
            }
        }
    }

    /// `[rows, cells + rows]`: 0 where a row sees a cell.
    pub(crate) fn mask(&self, rule: MaskRule) -> Vec<f32> {
        let width = self.width();
        let mut mask = vec![UNSEEN; self.rows * width];
        let positions = &self.step.positions[self.piece.rows.clone()];
        self.each(|row, column, cell| {
            if rule.sees(positions[row], self.group.cell_positions[cell]) {
                mask[row * width + column] = 0.0;
            }
        });
        mask
    }

    /// `[rows, cells + rows]`: minus the distance in positions.
    pub(crate) fn distances(&self) -> Vec<f32> {
        let width = self.width();
        let mut distances = vec![0.0; self.rows * width];
        let positions = &self.step.positions[self.piece.rows.clone()];
        self.each(|row, column, cell| {
            let distance = positions[row] as f32 - self.group.cell_positions[cell] as f32;
            distances[row * width + column] = -distance.abs();
        });
        distances
    }
}

/// Cosines and sines of rows at these positions, `[rows, 2 · pairs]` each, every number in both halves; padded with zeros.
pub(crate) fn rotations(table: &RopeTable, positions: &[i32], long: &[bool], rows: usize) -> [Vec<f32>; 2] {
    let pairs = table.frequencies.len();
    let mut all = [vec![0.0; 2 * rows * pairs], vec![0.0; 2 * rows * pairs]];
    for (row, position) in positions.iter().enumerate() {
        let position = table.place.at(*position, long.get(row).copied().unwrap_or(false));
        for (pair, frequency) in table.frequencies.iter().enumerate() {
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            for place in [2 * row * pairs + pair, (2 * row + 1) * pairs + pair] {
                all[0][place] = (cosine * table.magnitude as f64) as f32;
                all[1][place] = (sine * table.magnitude as f64) as f32;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use puna_graph::Span;

    use super::*;

    /// Two sequences: one goes on after two cells, one starts; the second run of the step.
    #[test]
    fn rows_see_their_own_sequence_up_to_themselves() {
        let step = Step { tokens: vec![0; 4], positions: vec![2, 3, 4, 0], ..Step::default() };
        let group = GroupStep {
            write_cells: vec![2, 3, 5, 4],
            cell_positions: vec![0, 1, 2, 3, 0, 4],
            spans: vec![
                Span { tokens: 0..3, cells: vec![0..4, 5..6] },
                Span { tokens: 3..4, cells: std::iter::once(4..5).collect() },
            ],
        };
        let piece = Piece { rows: 1..4, starts: Vec::new(), ends: Vec::new() };
        let columns = Columns { step: &step, group: &group, piece: &piece, cells: 8, places: None, rows: 4 };
        let shown = |mask: Vec<f32>| -> Vec<String> {
            mask.chunks(12)
                .map(|row| row.iter().map(|x| if *x == 0.0 { 'x' } else { '.' }).collect())
                .collect()
        };
        assert_eq!(
            shown(columns.mask(MaskRule::Causal)),
            ["xxx.....x...", "xxx.....xx..", "..........x.", "............"]
        );
        assert_eq!(
            shown(columns.mask(MaskRule::Window(2))),
            ["..x.....x...", "........xx..", "..........x.", "............"]
        );
        assert_eq!(columns.distances()[..4], [-3.0, -2.0, -1.0, 0.0]);
    }
}
