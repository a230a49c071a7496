//! The data of one step: which tokens, at which positions, seeing which cache cells.

use std::ops::Range;

use crate::{Symbol, graph::Input};

/// One sequence's share of a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Its token rows in the step.
    pub tokens: Range<u32>,
    /// The cache cells that belong to it, in ascending order, this step's own rows included. Which of them a
    /// row sees is decided by the mask rule from the positions.
    ///
    /// In a recurrent group: the one cell with the state that the span starts from, or none if it starts from
    /// zeros because its first row is at position 0.
    pub cells: Vec<Range<u32>>,
}

/// What a step does with the caches of one [`crate::CacheGroup`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupStep {
    /// For each row of [`crate::CacheGroup::writers`] the cell that takes its key and value. In a recurrent group
    /// the cell of a span's last row takes the state that the span ends with.
    pub write_cells: Vec<u32>,
    /// Position of every cell from 0 up to the last one named in `spans`. Empty in a recurrent group.
    pub cell_positions: Vec<i32>,
    /// One entry per sequence in the step; together they cover all rows of [`crate::CacheGroup::readers`]. In a recurrent group they run
    /// one after the other, since a later one may start from the state of an earlier one.
    pub spans: Vec<Span>,
}

/// The data of one step. Extents of the graph's symbols are the lengths of these lists.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Step {
    /// Token ids, one per row.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<i32>,
    /// Rows whose results leave the model, ascending.
    pub output_rows: Vec<u32>,
    /// Rows of each sequence in the step, in order; together they are all token rows.
    pub sequences: Vec<Range<u32>>,
    /// For each of `sequences` whether its text counts as long; those without an entry do not.
    pub long_texts: Vec<bool>,
    /// Rows that bring numbers beside their token, ascending; for draft heads.
    pub featured_rows: Vec<u32>,
    /// Their numbers, row after row.
    pub features: Vec<f32>,
    /// Token ids of the encoder's input, one per row of it.
    pub encoder_tokens: Vec<u32>,
    /// Position of each of these rows in its sequence.
    pub encoder_positions: Vec<i32>,
    /// One entry per cache group of the graph, in the order of `Graph::groups`.
    pub groups: Vec<GroupStep>,
    /// How strongly each adapter counts, where adapters can be switched.
    pub adapters: Vec<f32>,
    /// A row's result may not depend on how many rows share the step, as far as the backend can promise that.
    pub deterministic: bool,
    /// Of each row of logits so many of the highest suffice: a back end may give these ([`crate::Best`]) instead of all.
    pub best: Option<u32>,
}

impl GroupStep {
    /// The step of a group whose cells are the rows themselves, from the positions of the rows and the rows of
    /// each sequence.
    pub fn of_rows(positions: &[i32], sequences: &[Range<u32>]) -> Self {
        let span = |rows: &Range<u32>| Span { tokens: rows.clone(), cells: vec![rows.clone()] };
        Self {
            write_cells: (0..positions.len() as u32).collect(),
            cell_positions: positions.to_vec(),
            spans: sequences.iter().map(span).collect(),
        }
    }
}

impl Step {
    /// The number a symbol stands for in this step.
    pub fn extent(&self, symbol: Symbol) -> usize {
        match symbol {
            Symbol::Tokens => self.tokens.len(),
            Symbol::Outputs => self.output_rows.len(),
            Symbol::EncoderTokens => self.encoder_tokens.len(),
        }
    }

    /// Positions of the rows of an axis; rows that leave the model have none.
    pub fn positions_of(&self, symbol: Symbol) -> &[i32] {
        match symbol {
            Symbol::Tokens => &self.positions,
            Symbol::EncoderTokens => &self.encoder_positions,
            Symbol::Outputs => &[],
        }
    }

    /// For each token row whether its text is long.
    pub fn long_rows(&self) -> Vec<bool> {
        let mut rows = vec![false; self.tokens.len()];
        for (sequence, long) in self.sequences.iter().zip(&self.long_texts) {
            if let Some(rows) = rows.get_mut(sequence.start as usize..sequence.end as usize) {
                rows.fill(*long);
            }
        }
        rows
    }

    /// An integer input as `i32` values.
    pub fn input(&self, input: Input) -> Vec<i32> {
        match input {
            Input::Tokens => self.tokens.iter().map(|token| *token as i32).collect(),
            Input::Positions => self.positions.clone(),
            Input::OutputRows => self.output_rows.iter().map(|row| *row as i32).collect(),
            Input::EncoderTokens => self.encoder_tokens.iter().map(|token| *token as i32).collect(),
        }
    }
}
