//! The data of a step as integers in device memory. Places depend on the bucket of rows alone, so that recorded launches
//! find them; only what a step uses is written.

use std::ops::Range;

use puna_backend::BackendError;
use puna_graph::{CacheGroup, Graph, Step};

use crate::backend::is_served;
use crate::{Address, BufferId, Device, Extents};

/// Integers that describe a span to kernels: first row, end row, first range, ranges, cells, whether cells ascend by
/// position (recurrent: start cell or -1), and the cell that takes a recurrent state.
const SPAN: usize = 7;

/// Step data in device memory, and what of it is there already.
pub struct StepData {
    buffer: BufferId,
    capacity: usize,
    ranges_capacity: usize,
    /// Positions of cells by group, as the device has them.
    positions: Vec<(BufferId, Vec<i32>)>,
    staged: Vec<i32>,
    /// What was written last: the segments of a model have the same step.
    written: Vec<u8>,
}

/// Where the parts of a step are for one bucket.
#[derive(Clone, Debug)]
pub struct Places {
    buffer: BufferId,
    tokens: usize,
    outputs: usize,
    cell_positions: Vec<Address>,
}

impl Places {
    fn at(&self, index: usize) -> Address {
        Address { buffer: self.buffer, offset: 4 * index as u64 }
    }

    fn group(&self, group: usize) -> usize {
        4 * self.tokens + self.outputs + group * (4 + 2 * self.tokens + SPAN * self.tokens)
    }

    fn ranges_index(&self) -> usize {
        self.group(self.cell_positions.len())
    }

    /// Token ids.
    pub fn tokens(&self) -> Address {
        self.at(0)
    }

    /// Positions of rows.
    pub fn positions(&self) -> Address {
        self.at(self.tokens)
    }

    /// Positions of rows whose text is long (or not), 0 for other rows.
    pub fn positions_of_texts(&self, long: bool) -> Address {
        self.at((2 + usize::from(long)) * self.tokens)
    }

    /// Rows that leave the model.
    pub fn output_rows(&self) -> Address {
        self.at(4 * self.tokens)
    }

    /// Number of spans of a group.
    pub fn span_count(&self, group: usize) -> Address {
        self.at(self.group(group))
    }

    /// The cell of each row, or -1.
    pub fn write_cells(&self, group: usize) -> Address {
        self.at(self.group(group) + 4)
    }

    /// The span of each row, or -1.
    pub fn row_spans(&self, group: usize) -> Address {
        self.at(self.group(group) + 4 + self.tokens)
    }

    /// Spans of a group.
    pub fn spans(&self, group: usize) -> Address {
        self.at(self.group(group) + 4 + 2 * self.tokens)
    }

    /// Ranges of cells of all groups.
    pub fn ranges(&self) -> Address {
        self.at(self.ranges_index())
    }

    /// Positions of a group's cells.
    pub fn cell_positions(&self, group: usize) -> Address {
        self.cell_positions[group]
    }
}

impl StepData {
    /// Room for steps of so many rows over caches of so many cells each.
    pub fn new(
        device: &mut dyn Device,
        cells: &[u32],
        tokens: usize,
        outputs: usize,
    ) -> Result<Self, BackendError> {
        let total: usize = cells.iter().map(|cells| *cells as usize).sum();
        let ranges_capacity = 2 * (total + tokens * cells.len().max(1));
        let groups = cells.len() * (4 + (2 + SPAN) * tokens);
        let capacity = 4 * tokens + outputs + groups + ranges_capacity;
        let buffer = device.allocate(4 * capacity as u64, "data of steps")?;
        let mut positions = Vec::new();
        for cells in cells {
            let bytes = 4 * (*cells).max(1) as u64;
            let buffer = device.allocate(bytes, "positions of cells")?;
            device.clear(Address { buffer, offset: 0 }, bytes)?;
            positions.push((buffer, vec![0; *cells as usize]));
        }
        Ok(Self { buffer, capacity, ranges_capacity, positions, staged: Vec::new(), written: Vec::new() })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        4 * (self.capacity + self.positions.iter().map(|(_, cells)| cells.len()).sum::<usize>()) as u64
    }

    /// Places for a bucket of rows.
    pub fn places(&self, bucket: Extents) -> Places {
        let cell_positions =
            self.positions.iter().map(|(buffer, _)| Address { buffer: *buffer, offset: 0 }).collect();
        Places {
            buffer: self.buffer,
            tokens: bucket.tokens as usize,
            outputs: bucket.outputs as usize,
            cell_positions,
        }
    }

    /// Writes a checked step for the places of a bucket.
    pub fn write(
        &mut self,
        device: &mut dyn Device,
        graph: &Graph,
        places: &Places,
        step: &Step,
    ) -> Result<(), BackendError> {
        let fixed = places.ranges_index();
        let staged = &mut self.staged;
        staged.clear();
        staged.resize(fixed, 0);
        for (row, (token, long)) in step.tokens.iter().zip(step.long_rows()).enumerate() {
            staged[row] = *token as i32;
            staged[places.tokens + row] = step.positions[row];
            staged[(2 + usize::from(long)) * places.tokens + row] = step.positions[row];
        }
        for (index, row) in step.output_rows.iter().enumerate() {
            staged[4 * places.tokens + index] = *row as i32;
        }
        for (index, (group, kind)) in step.groups.iter().zip(graph.groups()).enumerate() {
            if !is_served(kind) {
                continue;
            }
            let start = places.group(index);
            let (cells_at, rows_at) = (start + 4, start + 4 + places.tokens);
            let spans_at = rows_at + places.tokens;
            staged[start] = group.spans.len() as i32;
            staged[cells_at..rows_at].fill(-1);
            staged[rows_at..spans_at].fill(-1);
            for (row, cell) in group.write_cells.iter().enumerate() {
                staged[cells_at + row] = *cell as i32;
            }
            for (number, span) in group.spans.iter().enumerate() {
                let rows = span.tokens.start as usize..span.tokens.end as usize;
                let first_range = (staged.len() - fixed) / 2;
                let cells: u32 = span.cells.iter().map(|range| range.end - range.start).sum();
                let (mut flag, mut end_cell) = (0, -1);
                if kind == CacheGroup::Recurrent {
                    flag = span.cells.first().map_or(-1, |range| range.start as i32);
                    end_cell = rows.end.checked_sub(1).map_or(-1, |row| group.write_cells[row] as i32);
                } else if rows.len() > 1 {
                    let visible = span.cells.iter().cloned().flatten();
                    let positions = visible.map(|cell| group.cell_positions[cell as usize]);
                    flag = positions.is_sorted() as i32;
                }
                staged[rows_at + rows.start..rows_at + rows.end].fill(number as i32);
                let record = [
                    rows.start as i32,
                    rows.end as i32,
                    first_range as i32,
                    span.cells.len() as i32,
                    cells as i32,
                    flag,
                    end_cell,
                ];
                staged[spans_at + number * SPAN..][..SPAN].copy_from_slice(&record);
                for range in &span.cells {
                    staged.extend([range.start as i32, range.end as i32]);
                }
            }
            let (buffer, known) = &mut self.positions[index];
            let changed = changed(known, &group.cell_positions);
            if !changed.is_empty() {
                let new = &group.cell_positions[changed.clone()];
                device
                    .write(Address { buffer: *buffer, offset: 4 * changed.start as u64 }, &bytes_of(new))?;
                known[changed].copy_from_slice(new);
            }
        }
        if staged.len() - fixed > self.ranges_capacity || staged.len() > self.capacity {
            return Err(BackendError::Device {
                device: device.name().to_string(),
                reason: "a step names more ranges of cells than there are cells".into(),
            });
        }
        let bytes = bytes_of(staged);
        if self.written != bytes {
            device.write(places.tokens(), &bytes)?;
            self.written = bytes;
        }
        Ok(())
    }
}

/// From the first to the last integer that differs, of as many as both have. There are tens of thousands, of which few differ in a step,
/// so pieces that are equal are passed over whole.
fn changed(old: &[i32], new: &[i32]) -> Range<usize> {
    const PIECE: usize = 256;
    let count = old.len().min(new.len());
    let (old, new) = (&old[..count], &new[..count]);
    let equal = |(old, new): &(&[i32], &[i32])| old == new;
    let pieces = || old.chunks(PIECE).zip(new.chunks(PIECE));
    let before = pieces().take_while(equal).count() * PIECE;
    if before >= count {
        return 0..0;
    }
    let after = pieces().rev().take_while(equal).count();
    let end = count.min((count.div_ceil(PIECE) - after) * PIECE);
    let differs = |index: &usize| old[*index] != new[*index];
    let first = (before..end).find(differs).unwrap_or(end);
    first..(first..end).rev().find(differs).map_or(first, |last| last + 1)
}

/// Little-endian bytes of integers.
pub fn bytes_of(integers: &[i32]) -> Vec<u8> {
    integers.iter().flat_map(|integer| integer.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_found_where_it_is() {
        let old: Vec<i32> = (0..1000).collect();
        let with = |places: &[usize]| {
            let mut new = old.clone();
            places.iter().for_each(|place| new[*place] = -1);
            new
        };
        assert!(changed(&old, &old).is_empty());
        assert_eq!(changed(&old, &with(&[999])), 999..1000);
        assert_eq!(changed(&old, &with(&[0, 511])), 0..512);
        assert_eq!(changed(&old, &with(&[255, 256, 700])), 255..701);
        // Of the longer one only as much as both have.
        assert_eq!(changed(&old[..600], &with(&[599, 700])), 599..600);
        assert!(changed(&old[..600], &with(&[700])).is_empty());
        assert!(changed(&[], &old).is_empty());
    }
}
