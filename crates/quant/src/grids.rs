//! Lattices of the IQ formats: each point is the vector of magnitudes (or ternary digits) of a run of weights.

mod points;

/// Spreads packed points over one byte per element: element `i` of a point is `levels[bits i * width ..]`.
const fn expand<const ELEMENTS: usize, const POINTS: usize>(
    packed: &[u16; POINTS],
    width: u32,
    levels: &[i8],
) -> [[i8; ELEMENTS]; POINTS] {
    let mut grid = [[0; ELEMENTS]; POINTS];
    let mut point = 0;
    while point < POINTS {
        let mut element = 0;
        while element < ELEMENTS {
            let level = (packed[point] >> (width * element as u32)) & ((1 << width) - 1);
            grid[point][element] = levels[level as usize];
            element += 1;
        }
        point += 1;
    }
    grid
}

/// Magnitudes of the 2-bit lattices.
pub(crate) const LEVELS_2: [i8; 3] = [8, 25, 43];

/// Magnitudes of the 3-bit lattice of 256 points.
pub(crate) const LEVELS_3_XXS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];

/// Magnitudes of the 3-bit lattice of 512 points.
pub(crate) const LEVELS_3_S: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

/// Digits of the 1-bit lattice.
pub(crate) const LEVELS_1: [i8; 3] = [-1, 0, 1];

/// Points of [`IQ2_XXS`](crate::DType::IQ2_XXS), 8 magnitudes each.
pub static IQ2_XXS: [[i8; 8]; 256] = expand(&points::IQ2_XXS, 2, &LEVELS_2);

/// Points of [`IQ2_XS`](crate::DType::IQ2_XS), 8 magnitudes each.
pub static IQ2_XS: [[i8; 8]; 512] = expand(&points::IQ2_XS, 2, &LEVELS_2);

/// Points of [`IQ2_S`](crate::DType::IQ2_S), 8 magnitudes each.
pub static IQ2_S: [[i8; 8]; 1024] = expand(&points::IQ2_S, 2, &LEVELS_2);

/// Points of [`IQ3_XXS`](crate::DType::IQ3_XXS), 4 magnitudes each.
pub static IQ3_XXS: [[i8; 4]; 256] = expand(&points::IQ3_XXS, 3, &LEVELS_3_XXS);

/// Points of [`IQ3_S`](crate::DType::IQ3_S), 4 magnitudes each.
pub static IQ3_S: [[i8; 4]; 512] = expand(&points::IQ3_S, 3, &LEVELS_3_S);

/// Points of [`IQ1_S`](crate::DType::IQ1_S) and [`IQ1_M`](crate::DType::IQ1_M), 8 ternary digits each.
pub static IQ1: [[i8; 8]; 2048] = expand(&points::IQ1_S, 2, &LEVELS_1);

/// The eight signs behind a 7-bit sign index (bit `j` set: element `j` is negative). The eighth is not stored:
/// it makes the number of negative elements even. The top bit of `index` is ignored.
pub const fn signs(index: u8) -> u8 {
    let stored = index & 0x7f;
    stored | (((stored.count_ones() & 1) as u8) << 7)
}
