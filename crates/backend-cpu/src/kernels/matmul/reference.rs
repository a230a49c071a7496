//! Scalar kernels: the specification of the others, and the path of processors without vector kernels.

use super::Operands;
use super::activation::Q8_BYTES;
use super::integers::INTEGERS;
use super::layout::{BLOCK, GROUP, Layout};
use super::pack::{decode_row, row_values};
use super::scales::row_scales;
use std::ops::Range;

/// Integer formats by [`super::ActivationFormat::Q8`] activations, for the groups `groups`.
pub(super) fn integer(operands: &Operands<'_>, groups: Range<usize>) {
    let geometry = &operands.geometry;
    let Layout::Integer(position) = geometry.layout else { return };
    let integer = &INTEGERS[position];
    let per_record = integer.scales.blocks();
    for group in groups {
        let bytes = operands.group(group);
        for row in 0..GROUP.min(geometry.rows - group * GROUP) {
            for token in 0..operands.tokens {
                let activation = operands.activation_row(token);
                let mut sum = 0.0f32;
                for (block, x) in activation.chunks_exact(Q8_BYTES).enumerate() {
                    let plane = &bytes[block * integer.code_bytes()..][..integer.code_bytes()];
                    let record = &bytes
                        [geometry.scale_offset + block / per_record * integer.scales.bytes()..]
                        [..integer.scales.bytes()];
                    let values = row_values(integer, plane, row);
                    let mut dots = [0i32; 2];
                    let mut sums = [0i32; 2];
                    for column in 0..BLOCK {
                        dots[column / 16] += values[column] * i32::from(x[column] as i8);
                        sums[column / 16] += i32::from(x[column] as i8);
                    }
                    let float = |at: usize| f32::from_le_bytes([x[at], x[at + 1], x[at + 2], x[at + 3]]);
                    let scales = row_scales(integer, record, block % per_record, row);
                    let product = scales[0].0 * dots[0] as f32 + scales[1].0 * dots[1] as f32;
                    let minimum = scales[0].1 * sums[0] as f32 + scales[1].1 * sums[1] as f32;
                    sum += (product + minimum) * float(32);
                }
                operands.store(token, group * GROUP + row, sum);
            }
        }
    }
}

/// Every layout by f32 activations, for the groups `groups`. `line` holds one row of the matrix.
pub(super) fn float(operands: &Operands<'_>, groups: Range<usize>, line: &mut [f32]) {
    let geometry = &operands.geometry;
    let line = &mut line[..geometry.columns];
    for group in groups {
        for row in 0..GROUP.min(geometry.rows - group * GROUP) {
            decode_row(geometry, operands.group(group), row, line);
            for token in 0..operands.tokens {
                let x = operands.activation_floats(token);
                let mut sums = [0.0f32; 8];
                for (column, weight) in line.iter().enumerate() {
                    sums[column % 8] += weight * x[column];
                }
                operands.store(token, group * GROUP + row, sums.iter().sum());
            }
        }
    }
}
