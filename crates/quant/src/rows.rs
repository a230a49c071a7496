//! Decoding and encoding with checked lengths.

use crate::{DType, QuantError};

/// Decodes whole blocks: `bytes` must be exactly what `out.len()` elements of `dtype` take, block after block. The
/// elements may belong to any number of rows.
///
/// # Errors
/// [`QuantError::PartialElements`] or [`QuantError::ByteCount`] if the lengths do not fit; `out` is then untouched.
pub fn decode_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_lengths(dtype, out.len(), bytes.len())?;
    (dtype.format().decode)(bytes, out);
    Ok(())
}

/// Encodes whole blocks without importance: `out` must be exactly what `elements.len()` elements of `dtype` take.
///
/// # Errors
/// [`QuantError::NoEncoder`] if the format has none, [`QuantError::PartialElements`] or [`QuantError::ByteCount`]
/// if the lengths do not fit; `out` is then untouched.
pub fn encode_row(dtype: DType, elements: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let encode = dtype.format().encode.ok_or(QuantError::NoEncoder { dtype })?;
    check_lengths(dtype, elements.len(), out.len())?;
    encode(elements, out);
    Ok(())
}

fn check_lengths(dtype: DType, elements: usize, found: usize) -> Result<(), QuantError> {
    let expected = dtype.bytes_for(elements as u64).ok_or(QuantError::PartialElements { dtype, elements })?;
    if expected != found as u64 {
        return Err(QuantError::ByteCount { dtype, elements, expected, found });
    }
    Ok(())
}
