//! Scalar kernels: the specification of the others, and the path of processors without vector kernels.

use super::Operands;
use super::activation::{Q8_BYTES, SPLIT_BITS, SPLIT_BYTES};
use super::integers::{EIGHT_BITS, INTEGERS};
use super::layout::{BLOCK, GROUP, Layout};
use super::pack::{block_bytes, decode_row, row_values};
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
                    let (plane, record) = block_bytes(integer, bytes, block);
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

/// Weights of 8 bits by [`super::ActivationFormat::Q8Split`] activations, for the groups `groups`.
pub(super) fn split(operands: &Operands<'_>, groups: Range<usize>) {
    let geometry = &operands.geometry;
    let integer = &INTEGERS[EIGHT_BITS];
    for group in groups {
        let bytes = operands.group(group);
        for row in 0..GROUP.min(geometry.rows - group * GROUP) {
            for token in 0..operands.tokens {
                let mut sum = 0.0f32;
                for (block, x) in operands.activation_row(token).chunks_exact(SPLIT_BYTES).enumerate() {
                    let (plane, record) = block_bytes(integer, bytes, block);
                    let values = row_values(integer, plane, row);
                    let byte = |at: usize| i32::from(x[at] as i8);
                    let number = |column: usize| (byte(column) << SPLIT_BITS) + byte(BLOCK + column);
                    let dot: i32 = (0..BLOCK).map(|column| values[column] * number(column)).sum();
                    let factor = f32::from_le_bytes([x[64], x[65], x[66], x[67]]);
                    sum += dot as f32 * factor * row_scales(integer, record, 0, row)[0].0;
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
