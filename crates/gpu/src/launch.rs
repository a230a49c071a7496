//! What a device is asked to run: kernels with their grids and arguments.

use std::ops::Range;
use std::sync::Arc;

use puna_graph::Symbol;

/// Memory of a device, by the number that it gave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufferId(pub usize);

/// A byte in a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// The memory.
    pub buffer: BufferId,
    /// Bytes from its start.
    pub offset: u64,
}

impl Address {
    /// So many bytes further on.
    pub fn plus(self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Argument {
    /// Device memory.
    Address(Address),
    /// No memory.
    Null,
    /// A 32-bit integer.
    Int(i32),
    /// A 64-bit integer.
    Long(i64),
    /// A 32-bit float.
    Float(f32),
    /// Rows of a symbol in the step, times a factor, as a 32-bit integer.
    Rows(Symbol, u32),
}

/// How many blocks one axis of a grid has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Always so many.
    Fixed(u32),
    /// So many for each `per` rows of a symbol, the last ones rounded up.
    Rows {
        /// Whose rows.
        symbol: Symbol,
        /// Rows of one block.
        per: u32,
        /// Factor on the result.
        times: u32,
        /// The largest result; kernels walk over what is left.
        most: u32,
    },
    /// One for each `per` token rows of each span, the last of each rounded up; perhaps some more.
    SpanTiles {
        /// Token rows of one block.
        per: u32,
    },
}

/// The numbers that a step gives to symbols.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extents {
    /// Token rows.
    pub tokens: u32,
    /// Rows that leave the model.
    pub outputs: u32,
    /// Sequences.
    pub spans: u32,
}

impl Extents {
    /// Rows of a symbol.
    pub fn rows(&self, symbol: Symbol) -> u32 {
        match symbol {
            Symbol::Tokens => self.tokens,
            Symbol::Outputs => self.outputs,
            // No node with this axis is taken.
            Symbol::EncoderTokens => 0,
        }
    }

    /// Blocks of an axis.
    pub fn blocks(&self, extent: Extent) -> u32 {
        match extent {
            Extent::Fixed(blocks) => blocks,
            Extent::Rows { symbol, per, times, most } => {
                (self.rows(symbol) as u64 * times as u64).div_ceil(per as u64).clamp(1, most as u64) as u32
            }
            Extent::SpanTiles { per } => self.tokens.div_ceil(per) + self.spans,
        }
    }
}

/// One kernel to run.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// Name in the device's table of kernels.
    pub kernel: String,
    /// Blocks.
    pub grid: [Extent; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that the launch adds to those of the kernel.
    pub shared: u32,
    /// In the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
    /// How many of them are parameters of their own; those that follow are one parameter together, eight bytes each.
    pub single: usize,
    /// What the members of a divided device give each other when it has run.
    pub exchanged: Vec<Blocks>,
}

/// A value of which each member of a divided device has made some columns. They lie in a block for each member, the same on all
/// members but for the address; an exchange fills the blocks of the others.
#[derive(Clone, PartialEq, Debug)]
pub struct Blocks {
    /// Where the first block begins.
    pub address: Address,
    /// Rows that there is room for in each block.
    pub room: u32,
    /// Whose rows, and how many for each of these.
    pub rows: (Symbol, u32),
    /// The first column of each member, and the end of the last one's.
    pub firsts: Arc<[u32]>,
}

impl Blocks {
    /// Members, each with a block.
    pub fn count(&self) -> usize {
        self.firsts.len() - 1
    }

    /// Bytes of a member's block, counted from the first block.
    pub fn range(&self, member: usize, extents: Extents) -> Range<u64> {
        let (symbol, times) = self.rows;
        let [first, end] = [self.firsts[member], self.firsts[member + 1]].map(u64::from);
        let start = 4 * u64::from(self.room) * first;
        start..start + 4 * u64::from(extents.rows(symbol)) * u64::from(times) * (end - first)
    }
}
