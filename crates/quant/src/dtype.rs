//! The table of number formats.

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
    /// Exact decoder: `input.len() == n * bytes`, `output.len() == n * block`.
    pub decode: fn(&[u8], &mut [f32]),
    /// Encoder without importance, for the formats that caches may have: `input.len() == n * block`,
    /// `output.len() == n * bytes`.
    pub encode: Option<fn(&[f32], &mut [u8])>,
}

const fn row(dtype: DType, name: &'static str, block: usize, bytes: usize) -> Format {
    Format { dtype, name, block, bytes, decode: |_, _| unimplemented!(), encode: None }
}

/// All formats, in the order of their GGUF ids.
pub const FORMATS: &[Format] = &[
    row(DType::F32, "f32", 1, 4),
    row(DType::F16, "f16", 1, 2),
    row(DType::Q4_0, "q4_0", 32, 18),
    row(DType::Q4_1, "q4_1", 32, 20),
    row(DType::Q5_0, "q5_0", 32, 22),
    row(DType::Q5_1, "q5_1", 32, 24),
    row(DType::Q8_0, "q8_0", 32, 34),
    row(DType::Q8_1, "q8_1", 32, 36),
    row(DType::Q2_K, "q2_K", 256, 84),
    row(DType::Q3_K, "q3_K", 256, 110),
    row(DType::Q4_K, "q4_K", 256, 144),
    row(DType::Q5_K, "q5_K", 256, 176),
    row(DType::Q6_K, "q6_K", 256, 210),
    row(DType::Q8_K, "q8_K", 256, 292),
    row(DType::IQ2_XXS, "iq2_xxs", 256, 66),
    row(DType::IQ2_XS, "iq2_xs", 256, 74),
    row(DType::IQ3_XXS, "iq3_xxs", 256, 98),
    row(DType::IQ1_S, "iq1_s", 256, 50),
    row(DType::IQ4_NL, "iq4_nl", 32, 18),
    row(DType::IQ3_S, "iq3_s", 256, 110),
    row(DType::IQ2_S, "iq2_s", 256, 82),
    row(DType::IQ4_XS, "iq4_xs", 256, 136),
    row(DType::I8, "i8", 1, 1),
    row(DType::I16, "i16", 1, 2),
    row(DType::I32, "i32", 1, 4),
    row(DType::I64, "i64", 1, 8),
    row(DType::F64, "f64", 1, 8),
    row(DType::IQ1_M, "iq1_m", 256, 56),
    row(DType::BF16, "bf16", 1, 2),
    row(DType::TQ1_0, "tq1_0", 256, 54),
    row(DType::TQ2_0, "tq2_0", 256, 66),
    row(DType::MXFP4, "mxfp4", 32, 17),
    row(DType::NVFP4, "nvfp4", 64, 36),
    row(DType::Q1_0, "q1_0", 128, 18),
    row(DType::Q2_0, "q2_0", 64, 18),
];

impl DType {
    /// The format with this GGUF type id, or `None` for unknown and removed ids.
    pub fn from_id(id: u32) -> Option<Self> {
        FORMATS.iter().find(|format| format.dtype as u32 == id).map(|format| format.dtype)
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
        FORMATS.iter().find(|format| format.dtype == self).expect("every DType has a row")
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
        if elements % format.block as u64 != 0 {
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
