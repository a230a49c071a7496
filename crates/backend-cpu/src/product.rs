//! A chunk of a product with a matrix.

use crate::apart::Apart;
use crate::isa::Features;
use crate::kernels::matmul::{Activation, ActivationFormat, OutputView, PackedMatrix};

/// Some rows of a matrix times all rows of an activation, as addresses.
#[derive(Clone, Copy)]
pub struct Product {
    /// Instruction sets.
    pub features: Features,
    /// The matrix.
    pub matrix: *const PackedMatrix,
    /// Form of the activation.
    pub format: ActivationFormat,
    /// Rows of the activation.
    pub tokens: usize,
    /// Numbers in each.
    pub columns: usize,
    /// The activation.
    pub activation: *const u8,
    /// First row of the matrix.
    pub first: usize,
    /// Rows of the matrix.
    pub count: usize,
    /// Result 0 of token 0.
    pub out: *mut f32,
    /// Results of a token.
    pub stride: usize,
    /// What is read after this, or null.
    pub next: *const u8,
}

impl Product {
    /// Scratch memory for the results of `tokens` rows of an activation by `count` of a matrix.
    pub fn result_bytes(tokens: usize, count: usize) -> usize {
        (4 * tokens * count).next_multiple_of(64)
    }

    /// Computes the results and writes them to their place.
    ///
    /// # Safety
    /// The activation and the matrix may be read and the results be written, and nobody else does that.
    pub unsafe fn compute_in_place(&self, scratch: &mut [u8]) {
        // SAFETY: promised by the caller.
        unsafe { self.multiply(OutputView { pointer: self.out, stride: self.stride }, scratch) }
    }

    /// # Safety
    /// The activation and the matrix may be read, and the view written.
    unsafe fn multiply(&self, view: OutputView, scratch: &mut [u8]) {
        let Self { tokens, columns, format, first, count, .. } = *self;
        // SAFETY: promised by the caller.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.activation, format.bytes(tokens, columns));
            let activation = Activation { format, tokens, columns, bytes };
            let rows = first..first + count;
            (*self.matrix).multiply(self.features, &activation, rows, view, self.next, scratch);
        }
    }
}

// SAFETY: kernels compute with what the activation says, but neither addresses nor lengths from it; the partition
// settles the pool before it frees weights and work memory.
unsafe impl Apart for Product {
    unsafe fn compute(&self, scratch: &mut [u8]) {
        let (results, scratch) = scratch.split_at_mut(Self::result_bytes(self.tokens, self.count));
        // Kernels write row `first` of the matrix `first` places after the pointer.
        let pointer = results.as_mut_ptr().cast::<f32>().wrapping_sub(self.first);
        // SAFETY: promised by the caller; there is room for `count` results of each token.
        unsafe { self.multiply(OutputView { pointer, stride: self.count }, scratch) }
    }

    unsafe fn store(&self, scratch: &[u8]) {
        for token in 0..self.tokens {
            // SAFETY: promised by the caller; as above.
            unsafe {
                let results = scratch.as_ptr().cast::<f32>().add(token * self.count);
                let place = self.out.add(token * self.stride + self.first);
                std::ptr::copy_nonoverlapping(results, place, self.count);
            }
        }
    }
}
