//! Number formats of cache rows.

use puna_quant::DType;

use crate::isa::Features;
use crate::kernels::vector::{Kernel, Vector, dispatch};

type Encoder = fn(&[f32], &mut [u8]);

/// How a row of `dim` numbers is stored.
#[derive(Clone, Copy)]
pub struct RowFormat {
    dtype: DType,
    dim: usize,
    bytes: usize,
    decode: fn(&[u8], &mut [f32]),
    encode: Option<Encoder>,
}

/// The formats that a cache may have.
pub const CACHE_FORMATS: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::IQ4_NL,
];

const Q8_BLOCK: usize = 32;
const Q8_BYTES: usize = 34;

impl RowFormat {
    /// Rows of `dim` numbers in `dtype`; `None` if a cache cannot have this format or a row is no whole number of
    /// its blocks.
    pub fn new(dtype: DType, dim: usize) -> Option<Self> {
        if !CACHE_FORMATS.contains(&dtype) {
            return None;
        }
        let bytes = usize::try_from(dtype.bytes_for(dim as u64)?).ok()?;
        let format = dtype.format();
        let has_own_encoder = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0);
        if format.encode.is_none() && !has_own_encoder {
            return None;
        }
        Some(Self { dtype, dim, bytes, decode: format.decode, encode: format.encode })
    }

    /// The number format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes in a row.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Decodes a row.
    ///
    /// # Safety
    /// `row` is valid for [`RowFormat::bytes`] bytes, `output` for [`RowFormat::dim`] numbers to write, and they do
    /// not overlap.
    #[inline]
    pub unsafe fn decode(&self, features: Features, row: *const u8, output: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe {
            match self.dtype {
                DType::F32 => std::ptr::copy_nonoverlapping(row.cast(), output, self.dim),
                DType::F16 | DType::BF16 | DType::Q8_0 => {
                    dispatch(features, Decode { format: *self, row, output });
                }
                _ => (self.decode)(
                    std::slice::from_raw_parts(row, self.bytes),
                    std::slice::from_raw_parts_mut(output, self.dim),
                ),
            }
        }
    }

    /// Decodes a row inside a kernel; as [`RowFormat::decode`].
    ///
    /// # Safety
    /// As [`RowFormat::decode`].
    #[inline(always)]
    pub(crate) unsafe fn decode_with<V: Vector>(&self, row: *const u8, output: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe {
            match self.dtype {
                DType::F32 => std::ptr::copy_nonoverlapping(row.cast(), output, self.dim),
                DType::F16 => decode_f16::<V>(row.cast(), output, self.dim),
                DType::BF16 => decode_bf16::<V>(row.cast(), output, self.dim),
                DType::Q8_0 => decode_q8_0::<V>(row, output, self.dim),
                _ => (self.decode)(
                    std::slice::from_raw_parts(row, self.bytes),
                    std::slice::from_raw_parts_mut(output, self.dim),
                ),
            }
        }
    }

    /// Encodes a row.
    ///
    /// # Safety
    /// `input` is valid for [`RowFormat::dim`] numbers, `row` for [`RowFormat::bytes`] bytes to write, and they do
    /// not overlap.
    #[inline]
    pub unsafe fn encode(&self, features: Features, input: *const f32, row: *mut u8) {
        // SAFETY: promised by the caller.
        unsafe {
            match (self.dtype, self.encode) {
                (DType::F32, _) => std::ptr::copy_nonoverlapping(input.cast(), row, self.bytes),
                (DType::F16 | DType::BF16 | DType::Q8_0, _) => {
                    dispatch(features, Encode { format: *self, input, row });
                }
                (_, Some(encode)) => encode(
                    std::slice::from_raw_parts(input, self.dim),
                    std::slice::from_raw_parts_mut(row, self.bytes),
                ),
                (_, None) => unreachable!("refused at construction"),
            }
        }
    }
}

struct Decode {
    format: RowFormat,
    row: *const u8,
    output: *mut f32,
}

impl Kernel for Decode {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        // SAFETY: promised to `RowFormat::decode`.
        unsafe { self.format.decode_with::<V>(self.row, self.output) }
    }
}

struct Encode {
    format: RowFormat,
    input: *const f32,
    row: *mut u8,
}

impl Kernel for Encode {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        // SAFETY: promised to `RowFormat::encode`.
        unsafe {
            match self.format.dtype {
                DType::F16 => encode_f16::<V>(self.input, self.row.cast(), self.format.dim),
                DType::BF16 => encode_bf16(self.input, self.row.cast(), self.format.dim),
                _ => encode_q8_0::<V>(self.input, self.row, self.format.dim),
            }
        }
    }
}

/// # Safety
/// `row` and `output` have `dim` elements.
#[inline(always)]
unsafe fn decode_f16<V: Vector>(row: *const u16, output: *mut f32, dim: usize) {
    let whole = dim / V::LANES * V::LANES;
    // SAFETY: all indices are below `dim`.
    unsafe {
        for i in (0..whole).step_by(V::LANES) {
            V::load_f16(row.add(i)).store(output.add(i));
        }
        for i in whole..dim {
            *output.add(i) = V::f16_value(row.add(i).read_unaligned());
        }
    }
}

/// # Safety
/// `row` and `output` have `dim` elements.
#[inline(always)]
unsafe fn decode_bf16<V: Vector>(row: *const u16, output: *mut f32, dim: usize) {
    let whole = dim / V::LANES * V::LANES;
    // SAFETY: all indices are below `dim`.
    unsafe {
        for i in (0..whole).step_by(V::LANES) {
            V::load_bf16(row.add(i)).store(output.add(i));
        }
        for i in whole..dim {
            *output.add(i) = f32::from_bits(u32::from(row.add(i).read_unaligned()) << 16);
        }
    }
}

/// # Safety
/// `row` has `dim / 32` blocks, `output` `dim` numbers.
#[inline(always)]
unsafe fn decode_q8_0<V: Vector>(row: *const u8, output: *mut f32, dim: usize) {
    // SAFETY: block and element numbers stay below those of the row; 32 is a multiple of all lane counts.
    unsafe {
        for block in 0..dim / Q8_BLOCK {
            let source = row.add(block * Q8_BYTES);
            let scale = V::splat_f16(source.cast());
            for i in (0..Q8_BLOCK).step_by(V::LANES) {
                let value = V::load_i8(source.add(2 + i).cast()).mul(scale);
                value.store(output.add(block * Q8_BLOCK + i));
            }
        }
    }
}

/// # Safety
/// `input` and `row` have `dim` elements.
#[inline(always)]
unsafe fn encode_f16<V: Vector>(input: *const f32, row: *mut u16, dim: usize) {
    let whole = dim / V::LANES * V::LANES;
    // SAFETY: all indices are below `dim`.
    unsafe {
        for i in (0..whole).step_by(V::LANES) {
            V::load(input.add(i)).store_f16(row.add(i));
        }
        for i in whole..dim {
            row.add(i).write_unaligned(half::f16::from_f32(*input.add(i)).to_bits());
        }
    }
}

/// # Safety
/// `input` and `row` have `dim` elements.
#[inline(always)]
unsafe fn encode_bf16(input: *const f32, row: *mut u16, dim: usize) {
    for i in 0..dim {
        // SAFETY: `i` is below `dim`.
        unsafe {
            let value = *input.add(i);
            let bits = value.to_bits();
            // To nearest even; a number that is none keeps a set bit that survives the cut.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            let kept = if value.is_nan() { bits >> 16 | 0x40 } else { rounded };
            row.add(i).write_unaligned(kept as u16);
        }
    }
}

/// # Safety
/// `input` has `dim` numbers, `row` `dim / 32` blocks.
#[inline(always)]
unsafe fn encode_q8_0<V: Vector>(input: *const f32, row: *mut u8, dim: usize) {
    // SAFETY: as for `decode_q8_0`.
    unsafe {
        for block in 0..dim / Q8_BLOCK {
            let source = input.add(block * Q8_BLOCK);
            let target = row.add(block * Q8_BYTES);
            let mut largest = V::splat(0.0);
            for i in (0..Q8_BLOCK).step_by(V::LANES) {
                largest = largest.max(V::load(source.add(i)).abs());
            }
            let scale = largest.largest() / 127.0;
            let inverse = V::splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
            target.cast::<u16>().write_unaligned(half::f16::from_f32(scale).to_bits());
            for i in (0..Q8_BLOCK).step_by(V::LANES) {
                V::load(source.add(i)).mul(inverse).store_i8(target.add(2 + i).cast());
            }
        }
    }
}

// A block is a whole number of vectors of every width.
const _: () = assert!(Q8_BLOCK.is_multiple_of(16));
