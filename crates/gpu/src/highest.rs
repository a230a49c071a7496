//! The highest logits of each row, as kernels leave them.

use puna_backend::BackendError;
use puna_graph::{Best, Graph, Step, Symbol, ValueId};

use crate::{Address, Device};

/// Where the highest logits of rows lie.
#[derive(Clone, Copy, Debug)]
pub struct Highest {
    /// The logits.
    pub value: ValueId,
    /// Whose rows they have.
    pub symbol: Symbol,
    /// Numbers of each row; if rows are shorter, those at the end mean nothing.
    pub count: u32,
    /// For each row the column and the bits of its first number that is NaN or plus infinity (or -1), then columns and bits of the
    /// highest in their order.
    pub place: Address,
}

impl Highest {
    /// Words of a row.
    pub fn words(count: u32) -> usize {
        2 + 2 * count as usize
    }

    /// So many of them (not more than are there) for each row of a step.
    pub fn read(
        &self,
        device: &mut dyn Device,
        graph: &Graph,
        step: &Step,
        wanted: u32,
    ) -> Result<Best, BackendError> {
        let words = Self::words(self.count);
        let mut bytes = vec![0; 4 * words * step.extent(self.symbol)];
        device.read(self.place, &mut bytes)?;
        let (numbers, _) = bytes.as_chunks::<4>();
        let numbers: Vec<u32> = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let width = graph.value_type(self.value).row_elements();
        let mut best = Best::new(width.min(wanted as usize));
        for row in numbers.chunks_exact(words) {
            let (pairs, _) = row.as_chunks::<2>();
            let mut pairs = pairs.iter().map(|[column, bits]| (*column, f32::from_bits(*bits)));
            let bad = pairs.next().filter(|(column, _)| *column != u32::MAX);
            best.push(pairs, bad);
        }
        Ok(best)
    }
}
