//! The integer formats, and how a function for one of them is called.

pub(super) use puna_quant::integers::{INTEGERS, Integer, Scales};

/// Where the codes and the scales of an integer format lie in a packed group. A unit has the codes of some blocks, then
/// their scale records, so that a group is read in one stream; it is as many records as fill whole cache lines.
#[derive(Clone, Copy)]
pub(super) struct Units {
    code_bytes: usize,
    /// Blocks that share a record, and the bytes of one.
    per_record: usize,
    record_bytes: usize,
    /// Blocks of a unit.
    blocks: usize,
    /// Bytes of a unit.
    pub(super) bytes: usize,
}

impl Units {
    pub(super) const fn new(integer: &Integer) -> Self {
        let (code_bytes, per_record) = (integer.code_bytes(), integer.scales.blocks());
        let record_bytes = integer.scales.bytes();
        let mut records = 1;
        while !(records * record_bytes).is_multiple_of(64) {
            records *= 2;
        }
        let bytes = records * (per_record * code_bytes + record_bytes);
        Self { code_bytes, per_record, record_bytes, blocks: records * per_record, bytes }
    }

    /// Units that hold so many blocks.
    pub(super) const fn count(self, blocks: usize) -> usize {
        blocks.div_ceil(self.blocks)
    }

    /// First byte of the codes of a block.
    #[inline(always)]
    pub(super) const fn codes(self, block: usize) -> usize {
        block / self.blocks * self.bytes + block % self.blocks * self.code_bytes
    }

    /// First byte of a scale record.
    #[inline(always)]
    pub(super) const fn record(self, record: usize) -> usize {
        let in_unit = self.blocks / self.per_record;
        record / in_unit * self.bytes + self.blocks * self.code_bytes + record % in_unit * self.record_bytes
    }

    /// If a unit starts with the block: how many bytes after the block's codes its records lie, and their bytes.
    #[inline(always)]
    pub(super) const fn records_after(self, block: usize) -> Option<(usize, usize)> {
        let codes = self.blocks * self.code_bytes;
        if block.is_multiple_of(self.blocks) { Some((codes, self.bytes - codes)) } else { None }
    }
}

/// Calls `$function::<F>($arguments)` for the constant `F` equal to the position `$format` in [`INTEGERS`].
macro_rules! with_format {
    ($format:expr, $function:ident $arguments:tt) => {
        with_format!(
            $format, $function $arguments,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24
        )
    };
    ($format:expr, $function:ident $arguments:tt, $($position:literal)*) => {
        match $format {
            $($position => $function::<$position> $arguments,)*
            other => unreachable!("no integer format {other}"),
        }
    };
}
pub(super) use with_format;
