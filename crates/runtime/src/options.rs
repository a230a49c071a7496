//! What a model is loaded with.

use puna_gguf::Metadata;
use puna_graph::{CacheGroup, Graph};
use puna_models::{BuildOptions, Purpose};
use puna_quant::DType;

use crate::{ModelInformation, RuntimeError};

/// Sizes and formats that are fixed when a model is loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelOptions {
    /// Cells of the full caches, shared by all sequences; no sequence is longer. 0 stands for the context that
    /// the model was trained with. Default: 4096.
    pub context: u32,
    /// Sequences that may exist at once. Default: 1.
    pub sequences: u32,
    /// Tokens computed in one step. Default: 512.
    pub micro_batch: u32,
    /// Most rows of logits in one step, for which memory is set aside; steps are cut shorter where more are
    /// asked for. 0 stands for as many as there are tokens in a step. Default: 0.
    pub outputs: u32,
    /// Number format of cached keys. Default: F16.
    pub keys: DType,
    /// Number format of cached values. Default: F16.
    pub values: DType,
    /// Give windowed caches as many cells as full ones, so that sequences can be truncated to any length.
    /// Default: false.
    pub full_window_cache: bool,
    /// Whether every text counts as long where that makes a difference (LongRoPE), whatever its length; else its length decides.
    /// Default: false.
    pub only_long_texts: bool,
    /// What it is for. Default: generating text.
    pub purpose: Purpose,
    /// Whether rows see later ones of their text in the same step (false) or not (true); `None` for what the file
    /// says. Default: `None`.
    pub causal: Option<bool>,
    /// States that every run hands out for all its tokens: what a draft head reads. Default: none.
    pub head_inputs: HeadInputs,
}

/// States of a model that a draft head reads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum HeadInputs {
    /// None.
    #[default]
    None,
    /// The inputs of these layers, side by side.
    Layers(Vec<u32>),
    /// The state after the last layer, as layers that guess tokens further ahead read it.
    LastState,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            context: 4096,
            sequences: 1,
            micro_batch: 512,
            outputs: 0,
            keys: DType::F16,
            values: DType::F16,
            full_window_cache: false,
            only_long_texts: false,
            purpose: Purpose::Generate,
            causal: None,
            head_inputs: HeadInputs::None,
        }
    }
}

impl ModelOptions {
    /// The same options for the model of a file: with its own context put in for 0, steps no longer than the context, and
    /// numbers that make no sense refused.
    pub(crate) fn resolved_for(
        &self,
        metadata: &Metadata,
        information: &ModelInformation,
    ) -> Result<Self, RuntimeError> {
        if self.context == 0 {
            // That it is missing is the reason, not the 0 that it would stand for.
            metadata.u32(&format!("{}.context_length", information.architecture))?;
        }
        self.resolved(information.context_train)
    }

    /// The same for a model that was trained with this context.
    pub(crate) fn resolved(&self, context_train: u32) -> Result<Self, RuntimeError> {
        let context = if self.context == 0 { context_train } else { self.context };
        let rules = [
            ("context", context, 1..=MOST_CELLS),
            ("sequences", self.sequences, 1..=MOST_SEQUENCES),
            ("micro_batch", self.micro_batch, 1..=u32::MAX),
        ];
        for (option, value, allowed) in rules {
            if !allowed.contains(&value) {
                let (least, most) = (*allowed.start(), *allowed.end());
                return Err(RuntimeError::Option { option, value, least, most });
            }
        }
        let micro_batch = self.micro_batch.min(context);
        let outputs = if self.outputs == 0 { micro_batch } else { self.outputs.min(micro_batch) };
        Ok(Self { context, micro_batch, outputs, ..self.clone() })
    }

    /// The same with another context, resolved again.
    pub(crate) fn with_context(&self, context: u32) -> Result<Self, RuntimeError> {
        Self { context, ..self.clone() }.resolved(context)
    }

    /// What the graph depends on. The options are resolved ones.
    pub(crate) fn build(&self) -> BuildOptions {
        BuildOptions {
            context: self.context,
            only_long_texts: self.only_long_texts,
            purpose: self.purpose,
            causal: self.causal,
            last_state: self.head_inputs == HeadInputs::LastState,
        }
    }

    /// Cells of each cache group of the graph, in the order of `Graph::groups`. The options are resolved ones.
    pub(crate) fn cells(&self, graph: &Graph) -> Vec<u32> {
        let cells = |group| match group {
            CacheGroup::Full | CacheGroup::Encoder => self.context,
            CacheGroup::Step | CacheGroup::EncoderStep => self.micro_batch,
            CacheGroup::Window(_) if self.full_window_cache => self.context,
            // What queries see, the rows being computed, and half a window by which a sequence can be truncated.
            CacheGroup::Window(length) => self
                .sequences
                .saturating_mul(length)
                .saturating_add(self.micro_batch)
                .saturating_add(length / 2)
                .min(self.context),
            CacheGroup::Recurrent => self.sequences.saturating_mul(RECURRENT_CELLS),
        };
        graph.groups().into_iter().map(cells).collect()
    }
}

/// Positions are 32-bit signed integers; this leaves room for sums of two.
const MOST_CELLS: u32 = 1 << 30;
/// Recurrent states kept for each sequence: the one that a step reads, the one that it writes, and two anchors.
const RECURRENT_CELLS: u32 = 4;
const MOST_SEQUENCES: u32 = 1 << 16;
