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
    if format.floats.is_empty() {
        return Ok(());
    }
    for (index, block) in bytes.chunks_exact(format.bytes).enumerate() {
        for field in format.floats {
            let (offset, value) = field.read(block);
            if !value.is_finite() {
                return Err(QuantError::NotFinite { dtype, block: index, offset, value });
            }
        }
    }
    Ok(())
}

impl FloatField {
    /// Offset and value of the number in a block. A number that the block does not wholly contain reads as NaN.
    fn read(self, block: &[u8]) -> (usize, f64) {
        let (offset, value) = match self {
            Self::F16(offset) => (offset, bytes_at(block, offset).map(|b| f16::from_le_bytes(b).to_f64())),
            Self::BF16(offset) => (offset, bytes_at(block, offset).map(|b| bf16::from_le_bytes(b).to_f64())),
            Self::F32(offset) => (offset, bytes_at(block, offset).map(|b| f32::from_le_bytes(b).into())),
            Self::F64(offset) => (offset, bytes_at(block, offset).map(f64::from_le_bytes)),
            Self::E8M0(offset) => (
                offset,
                bytes_at(block, offset).filter(|&[e]| e != 255).map(|[e]| (f64::from(e) - 127.0).exp2()),
            ),
            Self::SplitF16(offset) => {
                (offset, bytes_at::<8>(block, offset).map(|scales| iq1_m_scale(&scales).to_f64()))
            }
        };
        (offset, value.unwrap_or(f64::NAN))
    }
}

fn bytes_at<const N: usize>(block: &[u8], offset: usize) -> Option<[u8; N]> {
    block.get(offset..)?.first_chunk().copied()
}
