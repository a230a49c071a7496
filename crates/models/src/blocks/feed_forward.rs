//! Gated feed-forward network.

use puna_graph::ValueId;
use puna_graph::ops::Function;

use crate::{Builder, ModelError};

impl Builder<'_> {
    /// `ffn_down · (function(ffn_gate · x) ⊙ ffn_up · x)`, of the layer's `feed_forward_length`.
    pub fn feed_forward(&mut self, x: ValueId, function: Function) -> Result<ValueId, ModelError> {
        let hidden = self.layer_u32("feed_forward_length")?.unwrap_or(0);
        if hidden == 0 {
            return Err(self.value_error("feed_forward_length", hidden, "at least 1"));
        }
        let gate = self.linear("ffn_gate", x, hidden)?;
        let up = self.linear("ffn_up", x, hidden)?;
        let h = self.glu(function, gate, up)?;
        let width = self.width(x);
        self.linear("ffn_down", h, width)
    }
}
