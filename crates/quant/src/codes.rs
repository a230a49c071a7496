//! From a block of the file to codes: four to a word, one for each element, as the rows of
//! [`INTEGERS`](crate::integers::INTEGERS) describe them.

use crate::{DType, grids};

/// Reads four bytes, little end first.
#[inline(always)]
pub fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes([bytes[index * 4], bytes[index * 4 + 1], bytes[index * 4 + 2], bytes[index * 4 + 3]])
}

/// Reads two bytes, little end first.
#[inline(always)]
pub fn half_word(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]])
}

const NIBBLES: u32 = 0x0f0f_0f0f;
const PAIRS: u32 = 0x0303_0303;
const ONES: u32 = 0x0101_0101;

/// Spreads bits 0..4 to the bottoms of the four bytes.
#[inline(always)]
fn spread(bits: u32) -> u32 {
    (bits & 15).wrapping_mul(0x0020_4081) & ONES
}

/// The unsigned codes of columns `32 part..` of a block of the file, four to a word. Inlined, so that where the format is
/// known only its own code is left.
#[inline(always)]
pub fn source_quads(dtype: DType, block: &[u8], part: usize) -> [u32; 8] {
    let halves = |bytes: &[u8]| -> [u32; 8] {
        std::array::from_fn(|quad| word(bytes, quad % 4) >> (quad / 4 * 4) & NIBBLES)
    };
    let fifth = |mut quads: [u32; 8], high: u32| {
        for (quad, code) in quads.iter_mut().enumerate() {
            *code |= spread(high >> (4 * quad)) << 4;
        }
        quads
    };
    match dtype {
        DType::Q4_0 | DType::IQ4_NL => halves(&block[2..]),
        DType::MXFP4 => halves(&block[1..]),
        DType::IQ4_XS => halves(&block[8 + 16 * part..]),
        DType::NVFP4 => {
            let bytes = &block[4 + 16 * part..];
            std::array::from_fn(|quad| word(bytes, quad / 4 * 2 + quad % 2) >> (quad / 2 % 2 * 4) & NIBBLES)
        }
        DType::Q4_1 => halves(&block[4..]),
        DType::Q5_0 => fifth(halves(&block[6..]), word(&block[2..], 0)),
        DType::Q5_1 => fifth(halves(&block[8..]), word(&block[4..], 0)),
        DType::Q8_0 => std::array::from_fn(|quad| word(&block[2..], quad) ^ 0x8080_8080),
        DType::Q4_K => {
            let bytes = &block[16 + part / 2 * 32..];
            std::array::from_fn(|quad| word(bytes, quad) >> (part % 2 * 4) & NIBBLES)
        }
        DType::Q5_K => {
            let (high, bytes) = (&block[16..48], &block[48 + part / 2 * 32..]);
            std::array::from_fn(|quad| {
                word(bytes, quad) >> (part % 2 * 4) & NIBBLES | (word(high, quad) >> part & ONES) << 4
            })
        }
        DType::Q6_K => {
            let (half, quarter) = (part / 4, part % 4);
            let low = &block[64 * half + quarter % 2 * 32..];
            let high = &block[128 + 32 * half..];
            std::array::from_fn(|quad| {
                word(low, quad) >> (quarter / 2 * 4) & NIBBLES
                    | (word(high, quad) >> (2 * quarter) & PAIRS) << 4
            })
        }
        DType::Q2_K => two_bits(&block[16..], part),
        DType::Q3_K => {
            let low = two_bits(&block[32..], part);
            std::array::from_fn(|quad| low[quad] | (word(block, quad) >> part & ONES) << 2)
        }
        DType::TQ2_0 => two_bits(block, part),
        DType::TQ1_0 => ternary_digits(block, part),
        DType::Q1_0 => {
            let bits = word(&block[2..], part);
            std::array::from_fn(|quad| spread(bits >> (4 * quad)))
        }
        DType::Q2_0 => std::array::from_fn(|quad| {
            let byte = u32::from(block[2 + 8 * part + quad]);
            (byte | byte << 6 | byte << 12 | byte << 18) & PAIRS
        }),
        DType::IQ2_XXS => {
            let (points, fields) = (&block[2 + 8 * part..], word(&block[6 + 8 * part..], 0));
            eights(|run| {
                let signs = grids::signs((fields >> (7 * run)) as u8);
                signed_point(IQ2_XXS[usize::from(points[run])], signs)
            })
        }
        DType::IQ2_XS => eights(|run| {
            let field = half_word(&block[2 + 8 * part..], run);
            signed_point(IQ2_XS[usize::from(field & 511)], grids::signs((field >> 9) as u8))
        }),
        DType::IQ2_S => eights(|run| {
            let high = usize::from(block[66 + part] >> (2 * run) & 3);
            let index = usize::from(block[2 + 4 * part + run]) | high << 8;
            signed_point(IQ2_S[index], block[34 + 4 * part + run])
        }),
        DType::IQ3_XXS => {
            let fields = word(&block[66..], part);
            std::array::from_fn(|quad| {
                let signs = grids::signs((fields >> (7 * (quad / 2))) as u8) >> (4 * (quad % 2));
                IQ3_XXS[usize::from(block[2 + 8 * part + quad])] | spread(u32::from(signs)) << 3
            })
        }
        DType::IQ3_S => std::array::from_fn(|quad| {
            let high = usize::from(block[66 + part] >> quad & 1);
            let index = usize::from(block[2 + 8 * part + quad]) | high << 8;
            let signs = block[74 + 4 * part + quad / 2] >> (4 * (quad % 2));
            IQ3_S[index] | spread(u32::from(signs)) << 3
        }),
        DType::IQ1_S => {
            let field = usize::from(half_word(&block[34..], part));
            let negative = field & 0x8000 != 0;
            eights(|run| {
                let index = usize::from(block[2 + 4 * part + run]) | (field >> (3 * run) & 7) << 8;
                // A negative scale takes the negated digits.
                IQ1[index].map(|digits| if negative { 0x0202_0202 - digits } else { digits })
            })
        }
        DType::IQ1_M => eights(|run| {
            let nibble = block[32 + 2 * part + run / 2] >> (4 * (run % 2));
            let index = usize::from(block[4 * part + run]) | usize::from(nibble & 7) << 8;
            IQ1[index].map(|digits| digits | (u32::from(nibble >> 3 & 1) * ONES) << 2)
        }),
        other => unreachable!("{other} has no integer layout"),
    }
}

/// The 6-bit scale and minimum of sub-block `index` of a Q4_K or Q5_K block.
#[inline(always)]
pub fn six_bit_pair(packed: &[u8], index: usize) -> (u8, u8) {
    if index < 4 {
        (packed[index] & 63, packed[index + 4] & 63)
    } else {
        (
            packed[index + 4] & 15 | packed[index - 4] >> 6 << 4,
            packed[index + 4] >> 4 | packed[index] >> 6 << 4,
        )
    }
}

/// The integer scale of sub-block `index` of a block.
#[inline(always)]
pub fn sub_scale(dtype: DType, block: &[u8], index: usize) -> i8 {
    let nibble = |at: usize, index: usize| block[at + index / 2] >> (4 * (index % 2)) & 15;
    // Of formats that add one half to a scale.
    let odd = |scale: u8| (2 * scale + 1) as i8;
    match dtype {
        DType::Q6_K => block[192 + index] as i8,
        DType::Q3_K => {
            let low = block[96 + index % 8] >> (index / 8 * 4) & 15;
            let high = block[104 + index % 4] >> (index / 4 * 2) & 3;
            (low | high << 4) as i8 - 32
        }
        DType::IQ4_XS => {
            let high = (half_word(&block[2..], 0) >> (2 * index) & 3) as u8;
            (nibble(4, index) | high << 4) as i8 - 32
        }
        DType::IQ2_XXS => odd((word(&block[6 + 8 * index..], 0) >> 28) as u8),
        DType::IQ2_XS => odd(nibble(66, index)),
        DType::IQ2_S => odd(nibble(74, index)),
        DType::IQ3_XXS => odd((word(&block[66..], index) >> 28) as u8),
        DType::IQ3_S => odd(nibble(106, index)),
        DType::IQ1_S => {
            let field = half_word(&block[34..], index);
            let scale = odd((field >> 12 & 7) as u8);
            // A shift downwards is a shift upwards of the negated digits.
            if field & 0x8000 != 0 { -scale } else { scale }
        }
        DType::IQ1_M => odd((half_word(&block[48..], index / 4) >> (3 * (index % 4)) & 7) as u8),
        other => unreachable!("{other} has no integer scales"),
    }
}

/// The words of four runs of eight elements.
#[inline(always)]
fn eights(run: impl Fn(usize) -> [u32; 2]) -> [u32; 8] {
    let runs: [[u32; 2]; 4] = std::array::from_fn(run);
    std::array::from_fn(|quad| runs[quad / 2][quad % 2])
}

/// A point of a 2-bit lattice with signs in the third bits.
fn signed_point(point: [u32; 2], signs: u8) -> [u32; 2] {
    [point[0] | spread(u32::from(signs)) << 2, point[1] | spread(u32::from(signs >> 4)) << 2]
}

/// Two-bit elements of which each 32 bytes hold four runs of 32, one above the other.
#[inline(always)]
fn two_bits(bytes: &[u8], part: usize) -> [u32; 8] {
    let bytes = &bytes[part / 4 * 32..];
    std::array::from_fn(|quad| word(bytes, quad) >> (2 * (part % 4)) & PAIRS)
}

/// The digits of 32 elements of TQ1_0. A byte holds five base-3 digits as fraction digits of byte / 256; digits of
/// equal rank in 32 bytes (then in 16, then in 4) are neighbours.
fn ternary_digits(block: &[u8], part: usize) -> [u32; 8] {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    std::array::from_fn(|quad| {
        let (rank, first) = match part * 8 + quad {
            index @ 0..40 => (index / 8, index % 8 * 4),
            index @ 40..60 => ((index - 40) / 4, 32 + index % 4 * 4),
            index => (index - 60, 48),
        };
        u32::from_le_bytes(std::array::from_fn(|i| {
            ((u16::from(block[first + i].wrapping_mul(POWERS[rank])) * 3) >> 8) as u8
        }))
    })
}

/// The points of a lattice with a code for each element instead of its number: the position in `levels`. `N` is the
/// number of elements, `W` that of words.
const fn point_codes<const N: usize, const W: usize, const POINTS: usize>(
    points: &[[i8; N]; POINTS],
    levels: &[i8],
) -> [[u32; W]; POINTS] {
    let mut words = [[0; W]; POINTS];
    let mut index = 0;
    while index < POINTS {
        let mut element = 0;
        while element < N {
            let mut code = 0;
            while levels[code] != points[index][element] {
                code += 1;
            }
            words[index][element / 4] |= (code as u32) << (element % 4 * 8);
            element += 1;
        }
        index += 1;
    }
    words
}

/// [`point_codes`] for points of one word.
const fn short_point_codes<const POINTS: usize>(points: &[[i8; 4]; POINTS], levels: &[i8]) -> [u32; POINTS] {
    let words: [[u32; 1]; POINTS] = point_codes(points, levels);
    let mut single = [0; POINTS];
    let mut index = 0;
    while index < POINTS {
        single[index] = words[index][0];
        index += 1;
    }
    single
}

static IQ2_XXS: [[u32; 2]; 256] = point_codes(&grids::IQ2_XXS, &[8, 25, 43]);
static IQ2_XS: [[u32; 2]; 512] = point_codes(&grids::IQ2_XS, &[8, 25, 43]);
static IQ2_S: [[u32; 2]; 1024] = point_codes(&grids::IQ2_S, &[8, 25, 43]);
static IQ3_XXS: [u32; 256] = short_point_codes(&grids::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [u32; 512] = short_point_codes(&grids::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
static IQ1: [[u32; 2]; 2048] = point_codes(&grids::IQ1, &[-1, 0, 1]);
