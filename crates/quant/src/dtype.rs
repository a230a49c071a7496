//! The table of number formats.

use crate::formats::{
    binary, float, float4, integer, iq_encode, iq1, iq2, iq3, iq4, iq4_search, k_encode, k_quants, q8, round,
    round_search, small_search, ternary,
};
use FloatField::{BF16, E8M0, F16, F32, F64, SplitF16};

/// Number format of a tensor's elements. The discriminant is the GGUF type id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // each variant is the format of that name; FORMATS describes them
#[allow(non_camel_case_types)]
pub enum DType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

/// One number format: names, block geometry and reference code.
#[derive(Clone, Copy)]
pub struct Format {
    /// The type this row describes.
    pub dtype: DType,
    /// Name as printed by tools, for example `q4_K`.
    pub name: &'static str,
    /// Elements in a block.
    pub block: usize,
    /// Bytes in a block.
    pub bytes: usize,
    /// Exact decoder: `input.len() == n * bytes`, `output.len() == n * block`. Of slices that do not fit, the
    /// whole blocks both have are decoded; [`decode_row`](crate::decode_row) reports such slices instead.
    pub decode: fn(&[u8], &mut [f32]),
    /// Fast encoder, for the formats that caches and activations have: `input.len() == n * block`,
    /// `output.len() == n * bytes`, otherwise as `decode`.
    pub encode: Option<Encode>,
    /// Careful encoder, for the formats that weights may have; see [`quantize_rows`](crate::quantize_rows).
    pub quantize: Option<Quantize>,
    /// The floating-point numbers in a block, all of which are finite in a sound tensor.
    pub floats: &'static [FloatField],
}

/// Writes the blocks that stand for a run of elements.
pub type Encode = fn(&[f32], &mut [u8]);

/// Writes the blocks that stand for a run of elements with a small error, weighted with the importance of each
/// column if there is one.
pub type Quantize = fn(&[f32], Option<&[f32]>, &mut [u8]);

/// A floating-point number in a block, with the offset of its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FloatField {
    /// Half precision.
    F16(usize),
    /// bfloat16.
    BF16(usize),
    /// Single precision.
    F32(usize),
    /// Double precision.
    F64(usize),
    /// A power of two in one byte, of which 255 is NaN.
    E8M0(usize),
    /// Half precision, four bits in the top of each of four u16.
    SplitF16(usize),
}

const fn row(
    dtype: DType,
    name: &'static str,
    block: usize,
    bytes: usize,
    decode: fn(&[u8], &mut [f32]),
    encode: Option<Encode>,
    quantize: Option<Quantize>,
    floats: &'static [FloatField],
) -> Format {
    Format { dtype, name, block, bytes, decode, encode, quantize, floats }
}

/// All formats, in the order of their GGUF ids.
#[rustfmt::skip] // one row a line
pub const FORMATS: &[Format] = &[
    row(DType::F32, "f32", 1, 4, float::decode_f32, Some(float::encode_f32), Some(|x, _, out| float::encode_f32(x, out)), &[F32(0)]),
    row(DType::F16, "f16", 1, 2, float::decode_f16, Some(float::encode_f16), Some(|x, _, out| float::encode_f16(x, out)), &[F16(0)]),
    row(DType::Q4_0, "q4_0", 32, 18, round::decode_q4_0, Some(round::encode_q4_0), Some(round_search::quantize_q4_0), &[F16(0)]),
    row(DType::Q4_1, "q4_1", 32, 20, round::decode_q4_1, Some(round::encode_q4_1), Some(round_search::quantize_q4_1), &[F16(0), F16(2)]),
    row(DType::Q5_0, "q5_0", 32, 22, round::decode_q5_0, Some(round::encode_q5_0), Some(round_search::quantize_q5_0), &[F16(0)]),
    row(DType::Q5_1, "q5_1", 32, 24, round::decode_q5_1, Some(round::encode_q5_1), Some(round_search::quantize_q5_1), &[F16(0), F16(2)]),
    row(DType::Q8_0, "q8_0", 32, 34, q8::decode_q8_0, Some(q8::encode_q8_0), Some(|x, _, out| q8::encode_q8_0(x, out)), &[F16(0)]),
    row(DType::Q8_1, "q8_1", 32, 36, q8::decode_q8_1, Some(q8::encode_q8_1), None, &[F16(0), F16(2)]),
    row(DType::Q2_K, "q2_K", 256, 84, k_quants::decode_q2_k, None, Some(k_encode::quantize_q2_k), &[F16(80), F16(82)]),
    row(DType::Q3_K, "q3_K", 256, 110, k_quants::decode_q3_k, None, Some(k_encode::quantize_q3_k), &[F16(108)]),
    row(DType::Q4_K, "q4_K", 256, 144, k_quants::decode_q4_k, None, Some(k_encode::quantize_q4_k), &[F16(0), F16(2)]),
    row(DType::Q5_K, "q5_K", 256, 176, k_quants::decode_q5_k, None, Some(k_encode::quantize_q5_k), &[F16(0), F16(2)]),
    row(DType::Q6_K, "q6_K", 256, 210, k_quants::decode_q6_k, None, Some(k_encode::quantize_q6_k), &[F16(208)]),
    row(DType::Q8_K, "q8_K", 256, 292, q8::decode_q8_k, Some(q8::encode_q8_k), None, &[F32(0)]),
    row(DType::IQ2_XXS, "iq2_xxs", 256, 66, iq2::decode_iq2_xxs, None, Some(iq_encode::quantize_iq2_xxs), &[F16(0)]),
    row(DType::IQ2_XS, "iq2_xs", 256, 74, iq2::decode_iq2_xs, None, Some(iq_encode::quantize_iq2_xs), &[F16(0)]),
    row(DType::IQ3_XXS, "iq3_xxs", 256, 98, iq3::decode_iq3_xxs, None, Some(iq_encode::quantize_iq3_xxs), &[F16(0)]),
    row(DType::IQ1_S, "iq1_s", 256, 50, iq1::decode_iq1_s, None, Some(iq_encode::quantize_iq1_s), &[F16(0)]),
    row(DType::IQ4_NL, "iq4_nl", 32, 18, iq4::decode_iq4_nl, Some(iq4::encode_iq4_nl), Some(iq4_search::quantize_iq4_nl), &[F16(0)]),
    row(DType::IQ3_S, "iq3_s", 256, 110, iq3::decode_iq3_s, None, Some(iq_encode::quantize_iq3_s), &[F16(0)]),
    row(DType::IQ2_S, "iq2_s", 256, 82, iq2::decode_iq2_s, None, Some(iq_encode::quantize_iq2_s), &[F16(0)]),
    row(DType::IQ4_XS, "iq4_xs", 256, 136, iq4::decode_iq4_xs, None, Some(iq4_search::quantize_iq4_xs), &[F16(0)]),
    row(DType::I8, "i8", 1, 1, integer::decode_i8, None, None, &[]),
    row(DType::I16, "i16", 1, 2, integer::decode_i16, None, None, &[]),
    row(DType::I32, "i32", 1, 4, integer::decode_i32, None, None, &[]),
    row(DType::I64, "i64", 1, 8, integer::decode_i64, None, None, &[]),
    row(DType::F64, "f64", 1, 8, float::decode_f64, None, None, &[F64(0)]),
    row(DType::IQ1_M, "iq1_m", 256, 56, iq1::decode_iq1_m, None, Some(iq_encode::quantize_iq1_m), &[SplitF16(48)]),
    row(DType::BF16, "bf16", 1, 2, float::decode_bf16, Some(float::encode_bf16), Some(|x, _, out| float::encode_bf16(x, out)), &[BF16(0)]),
    row(DType::TQ1_0, "tq1_0", 256, 54, ternary::decode_tq1_0, None, Some(small_search::quantize_tq1_0), &[F16(52)]),
    row(DType::TQ2_0, "tq2_0", 256, 66, ternary::decode_tq2_0, None, Some(small_search::quantize_tq2_0), &[F16(64)]),
    row(DType::MXFP4, "mxfp4", 32, 17, float4::decode_mxfp4, None, Some(small_search::quantize_mxfp4), &[E8M0(0)]),
    row(DType::NVFP4, "nvfp4", 64, 36, float4::decode_nvfp4, None, Some(small_search::quantize_nvfp4), &[]),
    row(DType::Q1_0, "q1_0", 128, 18, binary::decode_q1_0, None, Some(small_search::quantize_q1_0), &[F16(0)]),
    row(DType::Q2_0, "q2_0", 64, 18, binary::decode_q2_0, None, Some(small_search::quantize_q2_0), &[F16(0)]),
];

/// Row of each id in [`FORMATS`], or `NO_ROW`.
const ROW_OF_ID: [u8; 43] = {
    let mut rows = [NO_ROW; 43];
    let mut row = 0;
    while row < FORMATS.len() {
        rows[FORMATS[row].dtype as usize] = row as u8;
        row += 1;
    }
    rows
};

const NO_ROW: u8 = u8::MAX;

impl DType {
    /// The format with this GGUF type id, or `None` for unknown and removed ids.
    pub fn from_id(id: u32) -> Option<Self> {
        let row = *ROW_OF_ID.get(usize::try_from(id).ok()?)?;
        FORMATS.get(usize::from(row)).map(|format| format.dtype)
    }

    /// The format with this printed name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        FORMATS.iter().find(|format| format.name.eq_ignore_ascii_case(name)).map(|format| format.dtype)
    }

    /// The GGUF type id.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The table row of this format.
    pub fn format(self) -> &'static Format {
        // Both indices are in range because every variant has a row.
        &FORMATS[usize::from(ROW_OF_ID[self as usize])]
    }

    /// Printed name, for example `q4_K`.
    pub fn name(self) -> &'static str {
        self.format().name
    }

    /// Elements in a block.
    pub fn block(self) -> usize {
        self.format().block
    }

    /// Bytes that `elements` elements occupy, or `None` if they are no whole number of blocks or the size
    /// overflows.
    pub fn bytes_for(self, elements: u64) -> Option<u64> {
        let format = self.format();
        if !elements.is_multiple_of(format.block as u64) {
            return None;
        }
        (elements / format.block as u64).checked_mul(format.bytes as u64)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
