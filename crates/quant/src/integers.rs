//! The formats whose elements are small integers times scales: how wide the integers' codes are, what the codes stand for,
//! and how they are scaled. Back ends make their layouts of them.
//!
//! A lattice format (IQ1, IQ2, IQ3) has few distinct numbers per scale, so its points are expanded to codes of 2 to 4
//! bits: kernels then read 25 to 105 % more memory than the file has, but decode at the speed of the linear formats,
//! where looking points up takes several times as long as the memory needs.

use crate::{DType, E2M1_DOUBLED, IQ4_VALUES};

/// Rows that sizes are given for.
const GROUP: usize = 16;
/// Columns of one block.
const BLOCK: usize = 32;

/// How an integer format scales its codes. All vectors below hold one number for each of the 16 rows, but for pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scales {
    /// Per so many blocks: F16 scale. `w = d (value - offset)`.
    Single(usize),
    /// Per 32 columns: F16 scale, F16 minimum. `w = d value + m`.
    Affine,
    /// Per 32 columns: E8M0 scale, halved as the values are doubled. `w = d (value - offset)`.
    Exponent,
    /// Per 64 columns: for each of 4 half blocks an E4M3 scale without sign. `w = factor d (value - offset)`.
    Minifloat,
    /// Per 256 columns: F16 `d`, F16 `dmin`, then for each of 8 blocks u8 scales and u8 minima.
    /// `w = d sc value - dmin m`.
    SuperAffine,
    /// Per 256 columns: F16 `d`, F16 `dmin`, then for each of 8 blocks the pairs of bytes of both half blocks, one pair
    /// for each row, the scale in the low four bits and the minimum in the high ones. `w = d sc value - dmin m`.
    SuperNibbles,
    /// Per 256 columns: F16 `d`, then for each of 8 blocks i8 scales. `w = factor d sc (value - offset)`.
    SuperSingle,
    /// Per 256 columns: F16 `d`, then for each of 16 half blocks i8 scales. `w = factor d sc (value - offset)`.
    SuperHalf,
}

impl Scales {
    /// Bytes of one scale record (16 rows).
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Scales::Single(_) => 32,
            Scales::Affine | Scales::Minifloat => 64,
            Scales::Exponent => 16,
            Scales::SuperAffine | Scales::SuperNibbles => 64 + 8 * 32,
            Scales::SuperSingle => 32 + 8 * 16,
            Scales::SuperHalf => 32 + 16 * 16,
        }
    }

    /// Blocks that one scale record covers: those of one block of the file.
    #[inline]
    pub const fn blocks(self) -> usize {
        match self {
            Scales::Single(blocks) => blocks,
            Scales::Affine | Scales::Exponent => 1,
            Scales::Minifloat => 2,
            Scales::SuperAffine | Scales::SuperNibbles | Scales::SuperSingle | Scales::SuperHalf => 8,
        }
    }

    /// Whether the two halves of a block have scales of their own, so that kernels sum them apart.
    #[inline]
    pub const fn halves(self) -> bool {
        matches!(self, Scales::Minifloat | Scales::SuperNibbles | Scales::SuperHalf)
    }

    /// Whether the scales of both halves are numbers of four bits with minima beside them, so that kernels can add both in one step.
    #[inline]
    pub const fn nibbles(self) -> bool {
        matches!(self, Scales::SuperNibbles)
    }
}

/// One integer format in packed form.
#[derive(Clone, Copy, Debug)]
pub struct Integer {
    /// The format.
    pub dtype: DType,
    /// Bits of a code: 1 to 6, or 8.
    pub bits: usize,
    /// The unsigned value of each code; otherwise it is the code itself (of 1 bit: twice the code).
    pub table: Option<&'static [u8; 16]>,
    /// Subtracted from the value.
    pub offset: i32,
    /// How codes are scaled.
    pub scales: Scales,
    /// A power of two that the scales are multiplied by, which F16 could not always take in.
    pub factor: f32,
}

impl Integer {
    /// Bytes of the codes of one block (16 rows).
    #[inline]
    pub const fn code_bytes(&self) -> usize {
        GROUP * BLOCK * self.bits / 8
    }

    /// The largest unsigned value.
    #[inline]
    pub const fn largest(&self) -> usize {
        let Some(table) = self.table else {
            return if self.bits == 1 { 2 } else { (1 << self.bits) - 1 };
        };
        let (mut largest, mut index) = (0, 0);
        while index < 1 << self.bits {
            if table[index] as usize > largest {
                largest = table[index] as usize;
            }
            index += 1;
        }
        largest
    }
}

/// A format whose codes are numbers.
const fn linear(dtype: DType, bits: usize, offset: i32, scales: Scales) -> Integer {
    Integer { dtype, bits, table: None, offset, scales, factor: 1.0 }
}

/// A format whose codes are positions in a table of values, which are `offset` too large.
const fn table(
    dtype: DType,
    bits: usize,
    table: &'static [u8; 16],
    offset: i32,
    scales: Scales,
    factor: f32,
) -> Integer {
    Integer { dtype, bits, table: Some(table), offset, scales, factor }
}

/// All of them; kernels are instantiated by the position in this table.
#[rustfmt::skip] // one row a line
pub const INTEGERS: [Integer; 25] = [
    linear(DType::Q4_0, 4, 8, Scales::Single(1)),
    linear(DType::Q4_1, 4, 0, Scales::Affine),
    linear(DType::Q5_0, 5, 16, Scales::Single(1)),
    linear(DType::Q5_1, 5, 0, Scales::Affine),
    linear(DType::Q8_0, 8, 128, Scales::Single(1)),
    table(DType::IQ4_NL, 4, &NONLINEAR, 128, Scales::Single(1), 1.0),
    linear(DType::Q4_K, 4, 0, Scales::SuperAffine),
    linear(DType::Q5_K, 5, 0, Scales::SuperAffine),
    linear(DType::Q6_K, 6, 32, Scales::SuperHalf),
    linear(DType::Q2_K, 2, 0, Scales::SuperNibbles),
    linear(DType::Q3_K, 3, 4, Scales::SuperHalf),
    table(DType::IQ4_XS, 4, &NONLINEAR, 128, Scales::SuperSingle, 1.0),
    table(DType::MXFP4, 4, &E2M1, 12, Scales::Exponent, 1.0),
    // The doubled values halve the scale, and E4M3 read as F16 is 2^8 too small.
    table(DType::NVFP4, 4, &E2M1, 12, Scales::Minifloat, 128.0),
    linear(DType::TQ1_0, 2, 1, Scales::Single(8)),
    linear(DType::TQ2_0, 2, 1, Scales::Single(8)),
    linear(DType::Q1_0, 1, 1, Scales::Single(4)),
    linear(DType::Q2_0, 2, 1, Scales::Single(2)),
    // The scales of these are (s + 1/2) / 4 or the like, kept as 2 s + 1.
    table(DType::IQ2_XXS, 3, &IQ2, 43, Scales::SuperSingle, 0.125),
    table(DType::IQ2_XS, 3, &IQ2, 43, Scales::SuperHalf, 0.125),
    table(DType::IQ2_S, 3, &IQ2, 43, Scales::SuperHalf, 0.125),
    table(DType::IQ3_XXS, 4, &IQ3_XXS, 62, Scales::SuperSingle, 0.25),
    table(DType::IQ3_S, 4, &IQ3_S, 15, Scales::SuperSingle, 1.0),
    table(DType::IQ1_S, 2, &IQ1_S, 7, Scales::SuperSingle, 0.125),
    table(DType::IQ1_M, 3, &IQ1_M, 9, Scales::SuperHalf, 0.125),
];

/// Values plus `offset`, so that they are unsigned.
const fn unsigned<const N: usize>(values: [i8; N], offset: i16) -> [u8; 16] {
    let mut table = [0; 16];
    let mut index = 0;
    while index < N {
        table[index] = (values[index] as i16 + offset) as u8;
        index += 1;
    }
    table
}

/// IQ4_NL and IQ4_XS, plus 128.
const NONLINEAR: [u8; 16] = unsigned(IQ4_VALUES, 128);
/// Doubled E2M1, plus 12.
const E2M1: [u8; 16] = unsigned(E2M1_DOUBLED, 12);
/// Magnitudes of the 2-bit lattices, then (from code 4 on) their negatives, plus 43.
const IQ2: [u8; 16] = unsigned([8, 25, 43, 0, -8, -25, -43, 0], 43);
/// Magnitudes of IQ3_XXS, then (from code 8 on) their negatives, plus 62.
const IQ3_XXS: [u8; 16] =
    unsigned([4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62], 62);
/// Magnitudes of IQ3_S, then (from code 8 on) their negatives, plus 15.
const IQ3_S: [u8; 16] = unsigned([1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15], 15);
/// Eight times a ternary digit shifted up by an eighth, plus 7. (A shift down is a negative scale of the negated digits.)
const IQ1_S: [u8; 16] = unsigned([-7, 1, 9], 7);
/// Eight times a ternary digit shifted up by an eighth, from code 4 on down, plus 9.
const IQ1_M: [u8; 16] = unsigned([-7, 1, 9, 0, -9, -1, 7, 0], 9);
