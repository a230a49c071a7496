//! The check for broken tensors: no NaN and no infinity in elements or scales.

use crate::formats::iq1::iq1_m_scale;
use crate::{DType, FloatField, QuantError};
use half::{bf16, f16};

/// Checks that every floating-point number in the blocks is finite: elements of the float formats, scales and minima
/// of the others. Formats without such numbers (integers, and nvfp4, whose scales are always finite) only have
/// their length checked. Finite scales may still have products that overflow.
///
/// # Errors
/// [`QuantError::PartialBytes`] if `bytes` are no whole blocks, [`QuantError::NotFinite`] for the first number that
/// is infinite or NaN.
pub fn validate_rows(dtype: DType, bytes: &[u8]) -> Result<(), QuantError> {
    let format = dtype.format();
    if !bytes.len().is_multiple_of(format.bytes) {
        return Err(QuantError::PartialBytes { dtype, bytes: bytes.len() });
    }
    let first = format
        .floats
        .iter()
        .filter_map(|field| Some((field.first_not_finite(bytes, format.bytes)?, field)))
        .min_by_key(|&(block, _)| block);
    match first {
        None => Ok(()),
        Some((block, field)) => {
            let (offset, value) = field.read(&bytes[block * format.bytes..]);
            Err(QuantError::NotFinite { dtype, block, offset, value })
        }
    }
}

impl FloatField {
    /// Index of the first block of `size` bytes in which this number is infinite or NaN.
    fn first_not_finite(self, bytes: &[u8], size: usize) -> Option<usize> {
        match self {
            Self::F16(offset) => first_failing(bytes, size, offset, |b| f16::from_le_bytes(b).is_finite()),
            Self::BF16(offset) => first_failing(bytes, size, offset, |b| bf16::from_le_bytes(b).is_finite()),
            Self::F32(offset) => first_failing(bytes, size, offset, |b| f32::from_le_bytes(b).is_finite()),
            Self::F64(offset) => first_failing(bytes, size, offset, |b| f64::from_le_bytes(b).is_finite()),
            Self::E8M0(offset) => first_failing(bytes, size, offset, |[e]| e != E8M0_NAN),
            Self::SplitF16(offset) => {
                first_failing(bytes, size, offset, |scales: [u8; 8]| iq1_m_scale(&scales).is_finite())
            }
        }
    }

    /// Offset and value of the number in a block. A number that the block does not wholly contain reads as NaN.
    fn read(self, block: &[u8]) -> (usize, f64) {
        let (offset, value) = match self {
            Self::F16(offset) => (offset, bytes_at(block, offset).map(|b| f16::from_le_bytes(b).to_f64())),
            Self::BF16(offset) => (offset, bytes_at(block, offset).map(|b| bf16::from_le_bytes(b).to_f64())),
            Self::F32(offset) => (offset, bytes_at(block, offset).map(|b| f32::from_le_bytes(b).into())),
            Self::F64(offset) => (offset, bytes_at(block, offset).map(f64::from_le_bytes)),
            // Only ever read where it is NaN.
            Self::E8M0(offset) => (offset, None),
            Self::SplitF16(offset) => {
                (offset, bytes_at::<8>(block, offset).map(|scales| iq1_m_scale(&scales).to_f64()))
            }
        };
        (offset, value.unwrap_or(f64::NAN))
    }
}

const E8M0_NAN: u8 = 255;

/// Index of the first block whose `N` bytes at `offset` fail the test.
#[inline(always)]
fn first_failing<const N: usize>(
    bytes: &[u8],
    size: usize,
    offset: usize,
    passes: impl Fn([u8; N]) -> bool,
) -> Option<usize> {
    if size == N {
        // Elements rather than scales: there are many, so whole runs are tested before any is looked at alone.
        let (numbers, _) = bytes.as_chunks();
        let run = numbers.chunks(RUN).position(|run| !run.iter().fold(true, |all, &b| all & passes(b)))?;
        let within = numbers[run * RUN..].iter().position(|&b| !passes(b))?;
        return Some(run * RUN + within);
    }
    bytes.chunks_exact(size).position(|block| !bytes_at(block, offset).is_some_and(&passes))
}

/// Elements tested together.
const RUN: usize = 256;

fn bytes_at<const N: usize>(block: &[u8], offset: usize) -> Option<[u8; N]> {
    block.get(offset..)?.first_chunk().copied()
}
