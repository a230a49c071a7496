//! Decoding and encoding with checked lengths and elements.

use crate::{DType, QuantError, validate_rows};

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

/// Encodes weights with a small error: `elements` are any number of rows, `out` is what they take.
///
/// `importance` says how much the error of each column matters, as many numbers as a row has; those that are negative
/// or NaN count as 0, and where all are 0 it is as without importance. The scales of the result are finite.
///
/// # Errors
/// [`QuantError::NoEncoder`], [`QuantError::PartialElements`], [`QuantError::ByteCount`] as in [`encode_row`];
/// [`QuantError::ImportanceCount`] if the rows are no whole number of `importance`s or that no whole number of blocks;
/// [`QuantError::Element`] for an infinite or NaN element, [`QuantError::NotFinite`] for one that the format cannot
/// hold.
pub fn quantize_rows(
    dtype: DType,
    elements: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    let quantize = dtype.format().quantize.ok_or(QuantError::NoEncoder { dtype })?;
    check_lengths(dtype, elements.len(), out.len())?;
    if let Some(columns) = importance.map(<[f32]>::len)
        && (columns == 0 || !elements.len().is_multiple_of(columns) || !columns.is_multiple_of(dtype.block()))
    {
        return Err(QuantError::ImportanceCount { dtype, elements: elements.len(), found: columns });
    }
    if let Some(index) = elements.iter().position(|x| !x.is_finite()) {
        return Err(QuantError::Element { index, value: elements[index] });
    }
    quantize(elements, importance, out);
    validate_rows(dtype, out)
}

fn check_lengths(dtype: DType, elements: usize, found: usize) -> Result<(), QuantError> {
    let expected = dtype.bytes_for(elements as u64).ok_or(QuantError::PartialElements { dtype, elements })?;
    if expected != found as u64 {
        return Err(QuantError::ByteCount { dtype, elements, expected, found });
    }
    Ok(())
}
