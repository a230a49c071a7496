//! Where the numbers of a packed matrix lie.
//!
//! Every layout but [`Layout::Rows`] interleaves 16 rows (a *group*), so that a vector lane is a row and no kernel
//! sums across lanes. Integer formats are kept as unsigned *codes* in bit planes plus their scales; a *block* is
//! 16 rows by 32 columns, and within a block four neighbouring columns (a *quad*) of the 16 rows make up 64 bytes,
//! the unit of the byte dot-product instructions.

use puna_quant::{DType, IQ4_VALUES};

/// Rows interleaved in one group.
pub(super) const GROUP: usize = 16;
/// Columns of one block, and of one activation scale.
pub(super) const BLOCK: usize = 32;

/// How an integer format scales its codes. All vectors below hold one number for each of the 16 rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scales {
    /// Per 32 columns: F16 scale. `w = d (code - offset)`.
    Single,
    /// Per 32 columns: F16 scale, F16 minimum. `w = d code + m`.
    Affine,
    /// Per 256 columns: F16 `d`, F16 `dmin`, then for each of 8 blocks u8 scales and u8 minima.
    /// `w = d sc code - dmin m`.
    SuperAffine,
    /// Per 256 columns: F16 `d`, then for each of 16 half blocks i8 scales. `w = d sc (code - offset)`.
    SuperHalf,
}

impl Scales {
    /// Bytes of one scale record (16 rows).
    pub(super) const fn bytes(self) -> usize {
        match self {
            Scales::Single => 32,
            Scales::Affine => 64,
            Scales::SuperAffine => 64 + 8 * 32,
            Scales::SuperHalf => 32 + 16 * 16,
        }
    }

    /// Blocks that one scale record covers.
    pub(super) const fn blocks(self) -> usize {
        match self {
            Scales::Single | Scales::Affine => 1,
            Scales::SuperAffine | Scales::SuperHalf => 8,
        }
    }
}

/// One integer format in packed form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Integer {
    pub(super) dtype: DType,
    /// Bits of a code: 4, 5, 6 or 8.
    pub(super) bits: usize,
    /// Whether codes are positions in [`NONLINEAR`] rather than numbers.
    pub(super) table: bool,
    /// Subtracted from the code (or from the table entry).
    pub(super) offset: i32,
    pub(super) scales: Scales,
}

impl Integer {
    /// Bytes of the codes of one block: a plane of 4 bits and planes for the rest, or one byte each.
    pub(super) const fn code_bytes(&self) -> usize {
        GROUP * BLOCK * self.bits / 8
    }
}

/// Formats with integer kernels; kernels are instantiated by the position in this table.
pub(super) const INTEGERS: [Integer; 9] = [
    Integer { dtype: DType::Q4_0, bits: 4, table: false, offset: 8, scales: Scales::Single },
    Integer { dtype: DType::Q4_1, bits: 4, table: false, offset: 0, scales: Scales::Affine },
    Integer { dtype: DType::Q5_0, bits: 5, table: false, offset: 16, scales: Scales::Single },
    Integer { dtype: DType::Q5_1, bits: 5, table: false, offset: 0, scales: Scales::Affine },
    Integer { dtype: DType::Q8_0, bits: 8, table: false, offset: 128, scales: Scales::Single },
    Integer { dtype: DType::IQ4_NL, bits: 4, table: true, offset: 128, scales: Scales::Single },
    Integer { dtype: DType::Q4_K, bits: 4, table: false, offset: 0, scales: Scales::SuperAffine },
    Integer { dtype: DType::Q5_K, bits: 5, table: false, offset: 0, scales: Scales::SuperAffine },
    Integer { dtype: DType::Q6_K, bits: 6, table: false, offset: 32, scales: Scales::SuperHalf },
];

/// Calls `$function::<F>($arguments)` for the constant `F` equal to the position `$format` in [`INTEGERS`].
macro_rules! with_format {
    ($format:expr, $function:ident ( $($argument:expr),* )) => {
        match $format {
            0 => $function::<0>($($argument),*),
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            3 => $function::<3>($($argument),*),
            4 => $function::<4>($($argument),*),
            5 => $function::<5>($($argument),*),
            6 => $function::<6>($($argument),*),
            7 => $function::<7>($($argument),*),
            8 => $function::<8>($($argument),*),
            other => unreachable!("no integer format {other}"),
        }
    };
}
pub(super) use with_format;

/// The values of IQ4_NL plus 128, so that they are unsigned.
pub(super) const NONLINEAR: [u8; 16] = {
    let mut values = [0; 16];
    let mut index = 0;
    while index < 16 {
        values[index] = (IQ4_VALUES[index] as i16 + 128) as u8;
        index += 1;
    }
    values
};

/// The arrangement of a packed matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Codes of all blocks of a group, then its scale records; the number is a position in [`INTEGERS`].
    Integer(usize),
    /// For each column, 16 rows of f32.
    Single,
    /// For each column, 16 rows of F16.
    Half,
    /// For each pair of columns, 16 rows of two BF16 (the operand layout of the BF16 dot instructions).
    Brain,
    /// Rows as in the file; kernels decode them on the fly.
    Rows,
}

/// Sizes of a packed matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) layout: Layout,
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Bytes from one group (for [`Layout::Rows`]: 16 rows of the file) to the next.
    pub(super) group_bytes: usize,
    /// Bytes before the scale records of a group.
    pub(super) scale_offset: usize,
}

impl Geometry {
    pub(super) fn new(dtype: DType, rows: usize, columns: usize) -> Option<Self> {
        if columns == 0 {
            return None;
        }
        let row_bytes = usize::try_from(dtype.bytes_for(columns as u64)?).ok()?;
        let padded = columns.checked_next_multiple_of(BLOCK)?;
        let integer = INTEGERS.iter().position(|integer| integer.dtype == dtype);
        let (layout, group_bytes, scale_offset) = match (integer, dtype) {
            (Some(position), _) => {
                let integer = &INTEGERS[position];
                let blocks = columns / BLOCK;
                let codes = blocks.checked_mul(integer.code_bytes())?;
                let scales = blocks / integer.scales.blocks() * integer.scales.bytes();
                (Layout::Integer(position), codes.checked_add(scales)?.checked_next_multiple_of(64)?, codes)
            }
            (None, DType::F32) => (Layout::Single, padded.checked_mul(4 * GROUP)?, 0),
            (None, DType::F16) => (Layout::Half, padded.checked_mul(2 * GROUP)?, 0),
            (None, DType::BF16) => (Layout::Brain, padded.checked_mul(2 * GROUP)?, 0),
            (None, _) => (Layout::Rows, row_bytes.checked_mul(GROUP)?, 0),
        };
        rows.div_ceil(GROUP).checked_mul(group_bytes)?;
        Some(Self { layout, dtype, rows, columns, group_bytes, scale_offset })
    }

    pub(super) fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    /// Columns with the padding of zeros that the floating-point layouts have.
    pub(super) fn padded_columns(&self) -> usize {
        self.columns.next_multiple_of(BLOCK)
    }

    /// Blocks across the columns.
    pub(super) fn blocks(&self) -> usize {
        self.columns.div_ceil(BLOCK)
    }

    /// Bytes of one row in the file.
    pub(super) fn row_bytes(&self) -> usize {
        let format = self.dtype.format();
        self.columns / format.block * format.bytes
    }
}
