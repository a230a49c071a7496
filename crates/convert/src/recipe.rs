//! How a tensor of the result comes from those of the folder: a value that is made first and evaluated when the
//! bytes are wanted.

use std::borrow::Cow;

use half::{bf16, f16};
use puna_quant::DType;

use crate::safetensors::{Entry, Format};
use crate::{ConvertError, Source};

/// A tensor to be: format and shape are known, the bytes come with [`Recipe::evaluate`].
#[derive(Clone, Debug)]
pub struct Recipe {
    /// F32, F16 or BF16; MXFP4 for blocks that are only put in order, I32 for tables of whole numbers.
    pub dtype: DType,
    /// Extents, the last axis contiguous.
    pub shape: Vec<u64>,
    /// A tensor that it comes from, for messages.
    name: String,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    /// The tensor of this name as it is.
    Source,
    /// The tensor of this name in a format that files do not have, as F32.
    Widened,
    /// The tensor of this name, whole numbers of 64 bits, in 32.
    Narrowed,
    /// An 8-bit tensor times the scale of this name.
    Scaled {
        scale: String,
    },
    /// MXFP4 blocks and the tensor with their scales.
    Mxfp4 {
        scales: String,
    },
    Values(Vec<f32>),
    /// The same bytes in another shape.
    Same(Box<Recipe>),
    /// As `split` with its axes in another order.
    Reordered {
        of: Box<Recipe>,
        split: Vec<u64>,
        order: Vec<usize>,
    },
    /// Elements `start..start + count` of the middle of `[outer, middle, inner]`.
    Taken {
        of: Box<Recipe>,
        outer: u64,
        middle: u64,
        inner: u64,
        start: u64,
        count: u64,
    },
    /// One after another.
    Joined(Vec<Recipe>),
    /// Each element changed.
    Mapped {
        of: Box<Recipe>,
        function: fn(f32) -> f32,
    },
    /// Each row (of the first axis) times its number, or all times one.
    Multiplied {
        of: Box<Recipe>,
        factors: Vec<f32>,
    },
}

/// Refuses a tensor without elements: its other extents are bounded by nothing, and no weight is like that.
fn has_elements(entry: &Entry) -> Result<(), ConvertError> {
    match entry.shape.contains(&0) {
        false => Ok(()),
        true => Err(ConvertError::Shape {
            name: entry.name.clone(),
            shape: entry.shape.clone(),
            what: "a weight: it has no elements".into(),
        }),
    }
}

/// The elements of `order.len()` axes at most.
const MOST_AXES: usize = 6;

impl Recipe {
    /// A tensor of the folder.
    pub fn source(source: &Source, name: &str) -> Result<Self, ConvertError> {
        let entry = source.entry(name).ok_or_else(|| ConvertError::MissingKey { key: name.to_owned() })?;
        has_elements(entry)?;
        let make = |dtype, step| Ok(Self { dtype, shape: entry.shape.clone(), name: name.to_owned(), step });
        match entry.format {
            Format::F32 => make(DType::F32, Step::Source),
            Format::F16 => make(DType::F16, Step::Source),
            Format::Bf16 => make(DType::BF16, Step::Source),
            Format::F64 => make(DType::F32, Step::Widened),
            Format::I32 => make(DType::I32, Step::Source),
            Format::I64 => make(DType::I32, Step::Narrowed),
            Format::F8E4m3 | Format::F8E5m2 => {
                let scale = source.scale_of(name)?;
                check_scale(source, entry, &scale)?;
                make(DType::F32, Step::Scaled { scale })
            }
            other => Err(ConvertError::Format { name: name.to_owned(), format: format!("{other:?}") }),
        }
    }

    /// Blocks of MXFP4 `[.., blocks, 16]`, or with the blocks of a row side by side `[.., blocks · 16]`, with scales
    /// `[.., blocks]`, as a matrix `[.., blocks · 32]`.
    pub fn mxfp4(source: &Source, blocks: &str, scales: &str) -> Result<Self, ConvertError> {
        let found = |name: &str| {
            source.entry(name).ok_or_else(|| ConvertError::MissingScale {
                name: blocks.to_owned(),
                expected: name.to_owned(),
            })
        };
        let (first, second) = (found(blocks)?, found(scales)?);
        has_elements(first)?;
        let mut shape = second.shape.clone();
        let apart: Vec<u64> = shape.iter().copied().chain([16]).collect();
        let mut joined = shape.clone();
        for (joined, shape) in joined.last_mut().into_iter().zip(shape.last_mut()) {
            *joined = joined.saturating_mul(16);
            *shape = shape.saturating_mul(32);
        }
        let byte = |format| matches!(format, Format::U8 | Format::F8E8m0);
        if (first.shape != apart && first.shape != joined) || !byte(first.format) || !byte(second.format) {
            let what = "blocks of 16 bytes with a scale each".to_owned();
            return Err(ConvertError::Shape { name: blocks.to_owned(), shape: first.shape.clone(), what });
        }
        let step = Step::Mxfp4 { scales: scales.to_owned() };
        Ok(Self { dtype: DType::MXFP4, shape, name: blocks.to_owned(), step })
    }

    /// Numbers that are computed.
    pub fn values(name: &str, values: Vec<f32>) -> Self {
        let shape = vec![values.len() as u64];
        Self { dtype: DType::F32, shape, name: name.to_owned(), step: Step::Values(values) }
    }

    /// Name of a tensor that it comes from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Name of the tensor of the folder that this is, byte for byte.
    pub fn as_is(&self) -> Option<&str> {
        match &self.step {
            Step::Source => Some(&self.name),
            Step::Same(of) => of.as_is(),
            _ => None,
        }
    }

    fn wrong(&self, what: impl Into<String>) -> ConvertError {
        ConvertError::Shape { name: self.name.clone(), shape: self.shape.clone(), what: what.into() }
    }

    fn then(self, shape: Vec<u64>, step: impl FnOnce(Box<Recipe>) -> Step) -> Self {
        let (dtype, name) = (self.dtype, self.name.clone());
        Self { dtype, shape, name, step: step(Box::new(self)) }
    }

    /// The same elements in another shape.
    pub fn reshape(self, shape: &[u64]) -> Result<Self, ConvertError> {
        let elements = shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
        if elements != Some(self.elements()) {
            return Err(self.wrong(format!("given the shape {shape:?}")));
        }
        Ok(self.then(shape.to_vec(), Step::Same))
    }

    /// Without its axes of extent 1, of which real axes have none.
    pub fn squeeze(self) -> Result<Self, ConvertError> {
        let shape: Vec<u64> = self.shape.iter().copied().filter(|extent| *extent != 1).collect();
        self.reshape(&shape)
    }

    /// Seen as `split`, the axes in this order, then in the shape `shape`.
    pub fn reorder(self, split: &[u64], order: &[usize], shape: &[u64]) -> Result<Self, ConvertError> {
        let elements = |shape: &[u64]| shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
        let mut axes = order.to_vec();
        axes.sort_unstable();
        let fits = elements(split) == Some(self.elements()) && elements(shape) == Some(self.elements());
        let plain = self.dtype != DType::MXFP4;
        if !plain || !fits || axes != (0..split.len()).collect::<Vec<_>>() || split.len() > MOST_AXES {
            return Err(self.wrong(format!("split into {split:?}")));
        }
        let (split, order) = (split.to_vec(), order.to_vec());
        Ok(self.then(shape.to_vec(), |of| Step::Reordered { of, split, order }))
    }

    /// The last two axes exchanged.
    pub fn transpose(self) -> Result<Self, ConvertError> {
        let [outer @ .., rows, columns] = self.shape.as_slice() else { return Err(self.wrong("transposed")) };
        let (rows, columns, outer) = (*rows, *columns, outer.to_vec());
        let count: u64 = outer.iter().product();
        let shape: Vec<u64> = outer.into_iter().chain([columns, rows]).collect();
        self.reorder(&[count, rows, columns], &[0, 2, 1], &shape)
    }

    /// Rows of heads from the order of halves to that of pairs, as interleaved RoPE wants them.
    pub fn interleave(self, heads: u64) -> Result<Self, ConvertError> {
        let rows = self.shape.first().copied().unwrap_or(0);
        if heads == 0 || !rows.is_multiple_of(heads * 2) {
            return Err(self.wrong(format!("split into {heads} heads of pairs")));
        }
        let inner: u64 = self.shape.iter().skip(1).product();
        let shape = self.shape.clone();
        self.reorder(&[heads, 2, rows / heads / 2, inner], &[0, 2, 1, 3], &shape)
    }

    /// Elements `start..start + count` of one axis.
    pub fn take(self, axis: usize, start: u64, count: u64) -> Result<Self, ConvertError> {
        let middle = self.shape.get(axis).copied().unwrap_or(0);
        if start.checked_add(count).is_none_or(|end| end > middle) || count == 0 {
            return Err(self.wrong(format!("cut to {count} from {start} on axis {axis}")));
        }
        if self.dtype == DType::MXFP4 && axis + 1 >= self.shape.len() {
            return Err(self.wrong("cut within its blocks"));
        }
        let outer = self.shape.iter().take(axis).product();
        let inner = self.shape.iter().skip(axis + 1).product();
        let mut shape = self.shape.clone();
        if let Some(extent) = shape.get_mut(axis) {
            *extent = count;
        }
        Ok(self.then(shape, |of| Step::Taken { of, outer, middle, inner, start, count }))
    }

    /// Rows (of the first axis) of these counts, all of them.
    pub fn split_rows(self, counts: &[u64]) -> Result<Vec<Self>, ConvertError> {
        if self.shape.first().copied() != counts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n)) {
            return Err(self.wrong(format!("cut into rows {counts:?}")));
        }
        let mut start = 0;
        let mut parts = Vec::new();
        for count in counts {
            parts.push(self.clone().take(0, start, *count)?);
            start += count;
        }
        Ok(parts)
    }

    /// Joined along the first axis.
    pub fn join(parts: Vec<Self>) -> Result<Self, ConvertError> {
        let Some(first) = parts.first().cloned() else {
            return Err(ConvertError::MissingKey { key: "tensors to join".into() });
        };
        if let Some(part) = parts.iter().find(|part| part.shape.get(1..) != first.shape.get(1..)) {
            return Err(part.wrong(format!("joined with {:?}", first.shape)));
        }
        let rows = parts.iter().map(|part| part.shape.first().copied().unwrap_or(0)).sum();
        let mut shape = first.shape.clone();
        if let Some(extent) = shape.first_mut() {
            *extent = rows;
        }
        let same = parts.iter().all(|part| part.dtype == first.dtype);
        let dtype = if same { first.dtype } else { DType::F32 };
        Ok(Self { dtype, shape, name: first.name, step: Step::Joined(parts) })
    }

    /// One above the other, with an axis for them in front.
    pub fn stack(parts: Vec<Self>) -> Result<Self, ConvertError> {
        let parts = parts.into_iter().map(|part| {
            let shape: Vec<u64> = std::iter::once(1).chain(part.shape.iter().copied()).collect();
            part.reshape(&shape)
        });
        Self::join(parts.collect::<Result<_, _>>()?)
    }

    /// Each element changed, in F32.
    pub fn map(self, function: fn(f32) -> f32) -> Self {
        let shape = self.shape.clone();
        Self { dtype: DType::F32, ..self.then(shape, |of| Step::Mapped { of, function }) }
    }

    /// All times a factor, in F32; a factor of 1 changes nothing.
    pub fn multiply(self, factor: f32) -> Self {
        if factor == 1.0 {
            return self;
        }
        let shape = self.shape.clone();
        Self { dtype: DType::F32, ..self.then(shape, |of| Step::Multiplied { of, factors: vec![factor] }) }
    }

    /// Each row times its number, in F32.
    pub fn multiply_rows(self, factors: Vec<f32>) -> Result<Self, ConvertError> {
        if self.shape.first().copied() != Some(factors.len() as u64) {
            return Err(self.wrong(format!("multiplied by {} numbers", factors.len())));
        }
        let shape = self.shape.clone();
        Ok(Self { dtype: DType::F32, ..self.then(shape, |of| Step::Multiplied { of, factors }) })
    }

    /// The bytes.
    pub fn evaluate<'s>(&self, source: &'s Source) -> Result<Cow<'s, [u8]>, ConvertError> {
        Ok(match &self.step {
            Step::Source => Cow::Borrowed(source.bytes(&self.name)),
            Step::Widened => {
                let numbers = source.bytes(&self.name).as_chunks::<8>().0.iter();
                Cow::Owned(to_bytes(numbers.map(|bytes| f64::from_le_bytes(*bytes) as f32)))
            }
            Step::Narrowed => {
                let numbers = source.bytes(&self.name).as_chunks::<8>().0.iter();
                let narrow = |number: i64| number.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
                let bytes = numbers.flat_map(|bytes| narrow(i64::from_le_bytes(*bytes)).to_le_bytes());
                Cow::Owned(bytes.collect())
            }
            Step::Scaled { scale } => Cow::Owned(self.scaled(source, scale)?),
            Step::Mxfp4 { scales } => Cow::Owned(mxfp4(source.bytes(&self.name), source.bytes(scales))),
            Step::Values(values) => Cow::Owned(to_bytes(values.iter().copied())),
            Step::Same(of) => of.evaluate(source)?,
            Step::Reordered { of, split, order } => {
                Cow::Owned(reordered(&of.evaluate(source)?, split, order, self.unit()))
            }
            Step::Taken { of, outer, middle, inner, start, count } => {
                let bytes = of.evaluate(source)?;
                // Blocks of elements are never cut: the inner axes hold whole rows of them.
                let bytes_of = |elements: u64| self.dtype.bytes_for(elements).unwrap_or(0) as usize;
                let length = bytes_of(count * inner);
                let mut taken = Vec::with_capacity(*outer as usize * length);
                for block in 0..*outer {
                    let first = bytes_of((block * middle + start) * inner);
                    taken.extend_from_slice(bytes.get(first..first + length).unwrap_or(&[]));
                }
                Cow::Owned(taken)
            }
            Step::Joined(parts) => {
                let mut joined = Vec::new();
                for part in parts {
                    let bytes = part.evaluate(source)?;
                    match part.dtype == self.dtype {
                        true => joined.extend_from_slice(&bytes),
                        false => joined.extend(to_bytes(floats(part.dtype, &bytes).into_iter())),
                    }
                }
                Cow::Owned(joined)
            }
            Step::Mapped { of, function } => {
                Cow::Owned(to_bytes(of.floats(source)?.into_iter().map(function)))
            }
            Step::Multiplied { of, factors } => {
                let mut numbers = of.floats(source)?;
                let row = numbers.len().div_ceil(factors.len().max(1)).max(1);
                for (row, factor) in numbers.chunks_mut(row).zip(factors) {
                    row.iter_mut().for_each(|number| *number *= factor);
                }
                Cow::Owned(to_bytes(numbers.into_iter()))
            }
        })
    }

    /// The numbers.
    pub fn floats(&self, source: &Source) -> Result<Vec<f32>, ConvertError> {
        Ok(floats(self.dtype, &self.evaluate(source)?))
    }

    /// Bytes of one element.
    fn unit(&self) -> usize {
        if matches!(self.dtype, DType::F32 | DType::I32) { 4 } else { 2 }
    }

    /// An 8-bit weight times the scales of its blocks: one for all, one per row, or one for each tile of a grid.
    fn scaled(&self, source: &Source, scale: &str) -> Result<Vec<u8>, ConvertError> {
        let format = source.entry(&self.name).map(|entry| entry.format);
        let columns = self.shape.last().copied().unwrap_or(1).max(1) as usize;
        let rows = self.shape.iter().rev().skip(1).product::<u64>() as usize;
        let factors = Recipe::source(source, scale)?;
        let (grid_rows, grid_columns) = grid(&factors.shape);
        let factors = factors.floats(source)?;
        let (tile_rows, tile_columns) =
            (rows.div_ceil(grid_rows).max(1), columns.div_ceil(grid_columns).max(1));
        // Grids of real files have tiles of 128 or of whole axes; the last tile may be cut off.
        let (tile_rows, tile_columns) = (tile(tile_rows, grid_rows), tile(tile_columns, grid_columns));
        let decode: fn(u8) -> f32 = match format {
            Some(Format::F8E5m2) => |byte| f16::from_bits(u16::from(byte) << 8).to_f32(),
            _ => e4m3,
        };
        let table: Vec<f32> = (0..=255).map(decode).collect();
        let mut out = Vec::with_capacity(rows * columns * 4);
        for (row, bytes) in source.bytes(&self.name).chunks(columns).enumerate() {
            for (column, byte) in bytes.iter().enumerate() {
                let place = row / tile_rows * grid_columns + column / tile_columns;
                let factor = factors.get(place).copied().unwrap_or(1.0);
                let number = table.get(usize::from(*byte)).copied().unwrap_or(0.0) * factor;
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Ok(out)
    }
}

/// Rows and columns of a scale's grid.
fn grid(shape: &[u64]) -> (usize, usize) {
    match *shape {
        [.., rows, columns] => (rows as usize, columns as usize),
        [rows] => (rows as usize, 1),
        [] => (1, 1),
    }
}

/// Extent of a tile: the customary one where a grid has several.
fn tile(least: usize, count: usize) -> usize {
    if count > 1 { least.next_power_of_two() } else { least }
}

fn check_scale(source: &Source, entry: &Entry, scale: &str) -> Result<(), ConvertError> {
    let wrong =
        |what: String| ConvertError::Shape { name: scale.to_owned(), shape: entry.shape.clone(), what };
    let shape = source.entry(scale).map(|scale| scale.shape.clone()).unwrap_or_default();
    let (rows, columns) = match *entry.shape.as_slice() {
        [rows, columns] => (rows as usize, columns as usize),
        _ => return Err(wrong("scaled: it is no matrix".into())),
    };
    let (grid_rows, grid_columns) = grid(&shape);
    let fits = |extent: usize, count: usize| {
        let size = tile(extent.div_ceil(count.max(1)).max(1), count);
        count == 1 || count == extent || (count > 0 && extent.div_ceil(size) == count)
    };
    if shape.len() > 2 || !fits(rows, grid_rows) || !fits(columns, grid_columns) {
        return Err(wrong(format!("scaled by a grid {shape:?}")));
    }
    Ok(())
}

/// A number of four exponent and three mantissa bits.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Blocks with adjacent elements in the halves of a byte, as blocks with the first 16 elements in the low halves.
fn mxfp4(blocks: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(scales.len() * 17);
    for (block, scale) in blocks.as_chunks::<16>().0.iter().zip(scales) {
        out.push(*scale);
        let element = |index: usize| block.get(index / 2).map_or(0, |byte| byte >> (index % 2 * 4) & 15);
        out.extend((0..16).map(|index| element(index) | element(index + 16) << 4));
    }
    out
}

/// Elements of any float format.
pub(crate) fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        DType::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        DType::I32 => bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as f32).collect(),
        _ => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

fn to_bytes(numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// The axes of `split` in another order; `unit` bytes are an element.
fn reordered(bytes: &[u8], split: &[u64], order: &[usize], unit: usize) -> Vec<u8> {
    let mut strides = vec![1u64; split.len()];
    for axis in (0..split.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * split[axis + 1];
    }
    let extents: Vec<u64> = order.iter().map(|axis| split[*axis]).collect();
    let strides: Vec<u64> = order.iter().map(|axis| strides[*axis]).collect();
    let mut out = Vec::with_capacity(bytes.len());
    // Where the last axis keeps its place, whole rows are copied.
    let (run, outer) = match (extents.last(), strides.last()) {
        (Some(extent), Some(1)) => (*extent as usize * unit, extents.len() - 1),
        _ => (unit, extents.len()),
    };
    let count: u64 = extents[..outer].iter().product();
    let mut index = vec![0u64; outer];
    let mut place = 0u64;
    for _ in 0..count {
        let start = place as usize * unit;
        out.extend_from_slice(bytes.get(start..start + run).unwrap_or(&[]));
        for axis in (0..outer).rev() {
            index[axis] += 1;
            place += strides[axis];
            if index[axis] < extents[axis] {
                break;
            }
            place -= index[axis] * strides[axis];
            index[axis] = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Source {
        with_header("{}")
    }

    /// A file without data.
    fn with_header(header: &str) -> Source {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.safetensors");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        std::fs::write(&path, bytes).expect("the file is written");
        Source::from_files(&[path]).expect("the file is sound")
    }

    fn numbers(count: u64, shape: &[u64]) -> Recipe {
        Recipe::values("x", (0..count).map(|n| n as f32).collect()).reshape(shape).expect("it fits")
    }

    #[test]
    fn elements_move_as_they_should() {
        let source = empty();
        let found = |recipe: Recipe| recipe.floats(&source).expect("it evaluates");
        let matrix = numbers(6, &[2, 3]);
        assert_eq!(found(matrix.clone().transpose().unwrap()), [0., 3., 1., 4., 2., 5.]);
        assert_eq!(found(numbers(8, &[8, 1]).interleave(2).unwrap()), [0., 2., 1., 3., 4., 6., 5., 7.]);
        assert_eq!(found(matrix.clone().take(1, 1, 2).unwrap()), [1., 2., 4., 5.]);
        assert_eq!(found(matrix.clone().map(|x| -x.exp())).len(), 6);
        assert_eq!(found(matrix.clone().multiply_rows(vec![1.0, 2.0]).unwrap()), [0., 1., 2., 6., 8., 10.]);
        let parts = matrix.clone().split_rows(&[1, 1]).unwrap();
        assert_eq!(found(Recipe::join(parts.into_iter().rev().collect()).unwrap()), [3., 4., 5., 0., 1., 2.]);
        let stacked = Recipe::stack(vec![matrix.clone(), matrix.clone()]).unwrap();
        assert_eq!(stacked.shape, [2, 2, 3]);
        assert_eq!(found(stacked).len(), 12);
    }

    #[test]
    fn weights_without_elements_are_refused() {
        // Nothing in the file bounds the other extents, whose product would overflow.
        let entry = r#"{"dtype": "F32", "shape": [0, 9223372036854775808, 9223372036854775808], "data_offsets": [0, 0]}"#;
        let source = with_header(&format!("{{\"a\": {entry}}}"));
        let error = Recipe::source(&source, "a").expect_err("it has no elements").to_string();
        assert!(error.contains("\"a\"") && error.ends_with("it has no elements"), "{error}");
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let matrix = numbers(6, &[2, 3]);
        assert!(matrix.clone().reshape(&[u64::MAX, 2]).is_err());
        assert!(matrix.clone().take(0, 1, 2).is_err() && matrix.clone().take(0, u64::MAX, 2).is_err());
        assert!(matrix.clone().take(5, 0, 1).is_err() && matrix.clone().interleave(0).is_err());
        assert!(matrix.clone().interleave(3).is_err() && matrix.clone().split_rows(&[1]).is_err());
        assert!(Recipe::join(vec![matrix.clone(), numbers(4, &[2, 2])]).is_err());
        assert!(numbers(3, &[3]).transpose().is_err() && Recipe::join(vec![]).is_err());
        assert!(matrix.reorder(&[2, 3], &[0, 0], &[2, 3]).is_err());
    }

    #[test]
    fn eight_bit_numbers() {
        for (byte, number) in [(0x38, 1.0), (0x7e, 448.0), (0x01, 2f32.powi(-9)), (0xb8, -1.0), (0, 0.0)] {
            assert_eq!(e4m3(byte), number);
        }
        assert!(e4m3(0x7f).is_nan());
    }

    #[test]
    fn blocks_of_four_bits_change_their_order() {
        let block: Vec<u8> = (0..16).map(|byte| (2 * byte % 16) | ((2 * byte + 1) % 16) << 4).collect();
        let out = mxfp4(&block, &[7]);
        assert_eq!(out[0], 7);
        // Elements 0 and 16 are both 0, 1 and 17 both 1, and so on.
        assert_eq!(out[1..4], [0x00, 0x11, 0x22]);
    }
}
