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
    /// Bytes of scratch memory before the kernel's own: a copy of the activation and the results, for `tokens` rows of an
    /// activation by `count` of a matrix.
    pub fn apart_bytes(format: ActivationFormat, tokens: usize, columns: usize, count: usize) -> usize {
        format.bytes(tokens, columns).next_multiple_of(64) + (4 * tokens * count).next_multiple_of(64)
    }

    /// Computes the results and writes them to their place.
    ///
    /// # Safety
    /// The activation and the matrix may be read and the results be written, and nobody else does that.
    pub unsafe fn compute_in_place(&self, scratch: &mut [u8]) {
        // SAFETY: promised by the caller.
        unsafe {
            let activation = std::slice::from_raw_parts(self.activation, self.activation_bytes());
            self.multiply(activation, OutputView { pointer: self.out, stride: self.stride }, scratch)
        }
    }

    fn activation_bytes(&self) -> usize {
        self.format.bytes(self.tokens, self.columns)
    }

    /// # Safety
    /// The matrix may be read, and the view written.
    unsafe fn multiply(&self, bytes: &[u8], view: OutputView, scratch: &mut [u8]) {
        let Self { tokens, columns, format, first, count, .. } = *self;
        let activation = Activation { format, tokens, columns, bytes };
        // SAFETY: promised by the caller.
        unsafe {
            (*self.matrix).multiply(
                self.features,
                &activation,
                first..first + count,
                view,
                self.next,
                scratch,
            );
        }
    }
}

// SAFETY: the activation is copied, and the partition settles the pool before it frees the matrices.
unsafe impl Apart for Product {
    fn input(&self) -> usize {
        self.activation.addr()
    }

    unsafe fn prepare(&self, scratch: &mut [u8]) {
        let bytes = self.activation_bytes();
        // SAFETY: promised by the caller: the activation is ready, and nobody writes to it.
        scratch[..bytes].copy_from_slice(unsafe { std::slice::from_raw_parts(self.activation, bytes) });
    }

    unsafe fn compute(&self, scratch: &mut [u8]) {
        let bytes = self.activation_bytes();
        let (activation, scratch) = scratch.split_at_mut(bytes.next_multiple_of(64));
        let (results, scratch) = scratch.split_at_mut((4 * self.tokens * self.count).next_multiple_of(64));
        // Kernels write row `first` of the matrix `first` places after the pointer.
        let pointer = results.as_mut_ptr().cast::<f32>().wrapping_sub(self.first);
        let view = OutputView { pointer, stride: self.count };
        // SAFETY: there is room for `count` results of each token; the rest is promised by the caller.
        unsafe { self.multiply(&activation[..bytes], view, scratch) }
    }

    unsafe fn store(&self, scratch: &[u8]) {
        let results = scratch[self.activation_bytes().next_multiple_of(64)..].as_ptr().cast::<f32>();
        for token in 0..self.tokens {
            // SAFETY: promised by the caller; `compute` left `count` results of each token.
            unsafe {
                let place = self.out.add(token * self.stride + self.first);
                std::ptr::copy_nonoverlapping(results.add(token * self.count), place, self.count);
            }
        }
    }
}
