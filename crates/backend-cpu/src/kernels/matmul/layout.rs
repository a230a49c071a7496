//! Where the numbers of a packed matrix lie.
//!
//! Every layout but [`Layout::Rows`] interleaves 16 rows (a *group*), so that a vector lane is a row and no kernel
//! sums across lanes. Integer formats are kept as unsigned *codes* in bit planes plus their scales; a *block* is
//! 16 rows by 32 columns, and within a block four neighbouring columns (a *quad*) of the 16 rows make up 64 bytes,
//! the unit of the byte dot-product instructions.

use super::integers::INTEGERS;
use puna_quant::DType;

/// Rows interleaved in one group.
pub(super) const GROUP: usize = 16;
/// Columns of one block, and of one activation scale.
pub(super) const BLOCK: usize = 32;

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
