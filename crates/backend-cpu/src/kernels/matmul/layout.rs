//! Where the numbers of a packed matrix lie.
//!
//! Every layout but [`Layout::Rows`] interleaves 16 rows (a *group*), so that a vector lane is a row and no kernel
//! sums across lanes. Integer formats are kept as unsigned *codes* in bit planes plus their scales; a *block* is
//! 16 rows by 32 columns, and within a block four neighbouring columns (a *quad*) of the 16 rows make up 64 bytes,
//! the unit of the byte dot-product instructions. Scales and codes take turns ([`Pieces`]).

use super::integers::{INTEGERS, Integer};
use puna_quant::DType;

/// Rows interleaved in one group.
pub(super) const GROUP: usize = 16;
/// Columns of one block, and of one activation scale.
pub(super) const BLOCK: usize = 32;

/// The arrangement of a packed matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Codes and scale records in [`Pieces`]; the number is a position in [`INTEGERS`].
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

/// Bytes of a cache line.
const LINE: usize = 64;

/// How a group of an integer format follows in memory: in *pieces*, each the scale records of some blocks, padded to whole
/// cache lines, and then the codes of these blocks. So a group is one stream, which processors that look ahead themselves
/// follow best, and no vector of codes lies in two lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    /// Blocks of a piece. The last one of a group may have fewer.
    blocks: usize,
    /// Bytes before the codes.
    head: usize,
    code_bytes: usize,
    record_blocks: usize,
    record_bytes: usize,
}

impl Pieces {
    pub(super) const fn of(integer: &Integer) -> Self {
        let (record_blocks, record_bytes) = (integer.scales.blocks(), integer.scales.bytes());
        let records = if record_bytes < LINE { LINE / record_bytes } else { 1 };
        Self {
            blocks: records * record_blocks,
            head: (records * record_bytes).next_multiple_of(LINE),
            code_bytes: integer.code_bytes(),
            record_blocks,
            record_bytes,
        }
    }

    /// Bytes of a group of so many blocks.
    const fn group_bytes(self, blocks: usize) -> Option<usize> {
        let Some(codes) = blocks.checked_mul(self.code_bytes) else { return None };
        codes.checked_add(blocks.div_ceil(self.blocks) * self.head)
    }

    /// Where the piece of a block begins in the group, with its records.
    #[inline(always)]
    const fn piece(self, block: usize) -> usize {
        block / self.blocks * (self.head + self.blocks * self.code_bytes)
    }

    /// Where the codes of a block begin in the group.
    #[inline(always)]
    pub(super) const fn codes(self, block: usize) -> usize {
        (block / self.blocks + 1) * self.head + block * self.code_bytes
    }

    /// Where the scale record of a block begins in the group.
    #[inline(always)]
    pub(super) const fn record(self, block: usize) -> usize {
        self.piece(block) + block % self.blocks / self.record_blocks * self.record_bytes
    }

    /// The bytes of all records of the piece that a block is the first of.
    #[inline(always)]
    pub(super) const fn head(self, block: usize) -> Option<(usize, usize)> {
        if block.is_multiple_of(self.blocks) { Some((self.piece(block), self.head)) } else { None }
    }
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
}

impl Geometry {
    pub(super) fn new(dtype: DType, rows: usize, columns: usize) -> Option<Self> {
        if columns == 0 {
            return None;
        }
        let row_bytes = usize::try_from(dtype.bytes_for(columns as u64)?).ok()?;
        let padded = columns.checked_next_multiple_of(BLOCK)?;
        let integer = INTEGERS.iter().position(|integer| integer.dtype == dtype);
        let (layout, group_bytes) = match (integer, dtype) {
            (Some(position), _) => {
                let bytes = Pieces::of(&INTEGERS[position]).group_bytes(columns / BLOCK)?;
                (Layout::Integer(position), bytes)
            }
            (None, DType::F32) => (Layout::Single, padded.checked_mul(4 * GROUP)?),
            (None, DType::F16) => (Layout::Half, padded.checked_mul(2 * GROUP)?),
            (None, DType::BF16) => (Layout::Brain, padded.checked_mul(2 * GROUP)?),
            (None, _) => (Layout::Rows, row_bytes.checked_mul(GROUP)?),
        };
        rows.div_ceil(GROUP).checked_mul(group_bytes)?;
        Some(Self { layout, dtype, rows, columns, group_bytes })
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
