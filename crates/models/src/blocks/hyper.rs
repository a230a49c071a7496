//! Hyper-connections: several residual streams, mixed before and after each branch.

use puna_graph::ValueId;
use puna_graph::ops::{HyperRead, HyperWrite, RepeatHeads};

use crate::{Builder, ModelError};

/// What varies between architectures.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HyperConnections {
    /// How branches are read; [`Builder::hyper_settings`] makes it.
    pub read: HyperRead,
    /// How results are written back.
    pub write: HyperWrite,
}

/// Names of a branch's mixing tensors: matrix, scales, bases.
pub const HYPER_ATTENTION: [&str; 3] = ["hc_attn_fn", "hc_attn_scale", "hc_attn_base"];
/// The same of the second branch.
pub const HYPER_FEED_FORWARD: [&str; 3] = ["hc_ffn_fn", "hc_ffn_scale", "hc_ffn_base"];
/// The same of the output.
const OUTPUT: [&str; 3] = ["output_hc_fn", "output_hc_scale", "output_hc_base"];

impl<'m> Builder<'m> {
    /// Number of streams.
    pub fn stream_count(&self) -> Result<u32, ModelError> {
        self.count("hyper_connection.count", 64)
    }

    /// Settings with `hyper_connection.epsilon`; streams are mixed if `hyper_connection.sinkhorn_iterations` is asked for.
    pub fn hyper_settings(&self, mixes_streams: bool) -> Result<HyperConnections, ModelError> {
        let epsilon = self.positive_f32("hyper_connection.epsilon")?;
        let rounds = match mixes_streams {
            true => Some(self.count("hyper_connection.sinkhorn_iterations", 1000)?),
            false => None,
        };
        let write = HyperWrite { magnitude: 2.0, offset: 0.0, epsilon, rounds };
        Ok(HyperConnections { read: HyperRead { epsilon }, write })
    }

    /// Streams that all start as `x`: `[Tokens, streams, width]`.
    pub fn streams(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let (times, width) = (self.stream_count()?, self.width(x));
        let single = self.split_heads(x, width)?;
        self.push(RepeatHeads { times }, vec![single.into()], "streams")
    }

    /// Streams with the result of `branch` on their mixture added.
    pub fn hyper_branch(
        &mut self,
        streams: ValueId,
        names: [&'static str; 3],
        settings: HyperConnections,
        branch: impl FnOnce(&mut Self, ValueId) -> Result<ValueId, ModelError>,
    ) -> Result<ValueId, ModelError> {
        let count = self.heads_of(streams);
        let (logits, parts) = match settings.write.rounds {
            Some(_) => (2 * count + count * count, 3),
            None => (2 * count, 2),
        };
        let mixing = self.hyper_mixing(streams, names, logits, parts)?;
        let [logits, scales, bases] = mixing;
        let x = self.push(settings.read, vec![streams.into(), logits, scales, bases], names[0])?;
        let y = branch(self, x)?;
        self.push(settings.write, vec![streams.into(), y.into(), logits, scales, bases], names[0])
    }

    /// The streams as one value, by the output's mixing tensors.
    pub fn hyper_output(&mut self, streams: ValueId, read: HyperRead) -> Result<ValueId, ModelError> {
        let count = self.heads_of(streams);
        let [logits, scales, bases] = self.hyper_mixing(streams, OUTPUT, count, 1)?;
        self.push(read, vec![streams.into(), logits, scales, bases], OUTPUT[0])
    }

    /// Mixing logits of the normalised streams, with their scales and bases.
    fn hyper_mixing(
        &mut self,
        streams: ValueId,
        [matrix, scales, bases]: [&'static str; 3],
        logits: u32,
        parts: u32,
    ) -> Result<[puna_graph::Operand; 3], ModelError> {
        let flat = self.join_heads(streams)?;
        let normed = self.norm_unweighted(flat, matrix)?;
        let mixed = self.linear(matrix, normed, logits)?;
        let scales = self.weight(&format!("{scales}.weight"), &[parts])?;
        let bases = self.weight(&format!("{bases}.weight"), &[logits])?;
        Ok([mixed.into(), scales, bases])
    }

    /// The mean of the streams.
    pub fn mean_of_streams(&mut self, streams: ValueId) -> Result<ValueId, ModelError> {
        let factor = 1.0 / self.heads_of(streams).max(1) as f32;
        let sum = self.push(puna_graph::ops::SumExperts, vec![streams.into()], "streams_sum")?;
        self.scale(sum, factor, "streams_mean")
    }
}
