//! Recurrences: what a layer carries from token to token.
//!
//! Heads and, within them, the columns or rows of a state do not depend on each other, so a chunk of work is a range
//! of these for all tokens of the step. Sums run over a state's other axis in ascending order, whatever the step's
//! other rows are.

mod convolution;
mod delta_rule;
mod linear_attention;
mod rwkv7;
mod scan;

pub use convolution::{Convolution, shift_rows};
pub use delta_rule::{DeltaInputs, DeltaRule};
pub use linear_attention::{LinearAttention, LinearInputs};
pub use rwkv7::{Rwkv7, Rwkv7Inputs};
pub use scan::{ScanInputs, SelectiveScan};

use std::ops::Range;

/// A sequence's share of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Its rows, at least one.
    pub rows: Range<usize>,
    /// The cell with the state that it starts from; none for zeros.
    pub from: Option<usize>,
    /// The cell that takes the state that it ends with.
    pub to: usize,
}

/// The cells of one state, `[cells, elements]`.
#[derive(Clone, Copy)]
pub struct Cells {
    pointer: *mut f32,
    cells: usize,
    elements: usize,
}

impl Cells {
    /// Cells of `elements` numbers.
    ///
    /// # Safety
    /// The memory is valid while the value is used, and whoever uses it keeps to parts of cells that nobody else
    /// touches.
    pub unsafe fn from_raw(pointer: *mut f32, cells: usize, elements: usize) -> Self {
        Self { pointer, cells, elements }
    }

    /// Numbers in a cell.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The cell that a run ends in, after `count` pieces of `length` numbers, `stride` apart from `first` on, have what
    /// the run starts from there. Panics if a piece lies outside of a cell.
    ///
    /// # Safety
    /// Nobody else uses these pieces.
    #[inline(always)]
    pub unsafe fn begin(
        &self,
        run: &Run,
        first: usize,
        length: usize,
        stride: usize,
        count: usize,
    ) -> *mut f32 {
        assert!(count == 0 || first + (count - 1) * stride + length <= self.elements, "outside of a state");
        assert!(run.to < self.cells && run.from.is_none_or(|from| from < self.cells), "{run:?}");
        // SAFETY: cells and pieces were checked; a piece of another cell does not overlap.
        unsafe {
            let to = self.pointer.add(run.to * self.elements);
            for piece in 0..count {
                let at = first + piece * stride;
                match run.from {
                    None => std::ptr::write_bytes(to.add(at), 0, length),
                    Some(from) if from != run.to => {
                        let source = self.pointer.add(from * self.elements + at);
                        std::ptr::copy_nonoverlapping(source, to.add(at), length);
                    }
                    Some(_) => {}
                }
            }
            to
        }
    }
}
