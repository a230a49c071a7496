//! DeepSeek-V4: attention over a window and compressed blocks, on hyper-connections.

use puna_graph::ops::{
    Attention, BlockAttention, CompressBlocks, Concat, GateBound, MaskRule, MatMulHeads, RopeKind, RopePlace,
};
use puna_graph::{Graph, Operand, ValueId};

use crate::blocks::{
    Activation, Experts, HYPER_ATTENTION, HYPER_FEED_FORWARD, HeadShape, OUTPUT, RopeSettings,
    WindowDefaults, Windows,
};
use crate::{Architecture, Builder, ModelError};

/// The sparse selection of blocks picks all of a short context.
pub const ARCHITECTURE: Architecture = Architecture::new("deepseek4", build);

/// A layer's attention.
struct Layer {
    heads: u32,
    head_dim: u32,
    /// Positions in a compressed block; 0 without any.
    ratio: u32,
    rope: RopeSettings,
}

/// What the tensors say, too, or no known file does without.
const KEYS: &[&str] = &[
    "attention.compress_rope_freq_base",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_weights_norm",
    "expert_weights_scale",
    "hash_layer_count",
    "swiglu_clamp_exp",
];

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["attn_sinks.weight", "exp_probs_b.bias"]).needing(OUTPUT);
    b.require_keys(KEYS)?;
    b.indexer_keys(&["head_count", "key_length", "top_k"])?;
    let head_dim = b.key_dim()?;
    let compressed = b.rope_settings(RopeKind::Interleaved, head_dim, false)?;
    let mut compressed = b.of_last_elements(compressed, head_dim)?;
    let mut plain = compressed;
    plain.rope.position_scale = 1.0;
    plain.rope.yarn = None;
    plain.rope.magnitude = 1.0;
    compressed.rope.base = b.rope_base("attention.compress_rope_freq_base", compressed.rope.base)?;
    let windows = b.windows(WindowDefaults::every(0))?;
    let connections = b.hyper_settings(true)?;
    let x = b.embed()?;
    let streams = b.streams(x)?;
    let streams = b.each_layer(streams, |b, streams| {
        let heads = b.head_shape()?.heads;
        let ratios = b.layer_u32("attention.compress_ratios")?;
        let ratio = ratios.ok_or_else(|| b.missing_key("attention.compress_ratios"))?;
        if ratio > 1 << 16 {
            return Err(b.value_error("attention.compress_ratios", ratio, "at most 65536"));
        }
        let rope = if ratio > 0 { compressed } else { plain };
        let layer = Layer { heads, head_dim, ratio, rope };
        let streams = b.hyper_branch(streams, HYPER_ATTENTION, connections, |b, x| {
            let x = b.norm("attn_norm", x)?;
            attention(b, x, &layer, &windows)
        })?;
        b.hyper_branch(streams, HYPER_FEED_FORWARD, connections, |b, x| {
            let x = b.norm("ffn_norm", x)?;
            let limit = b.layer_f32("swiglu_clamp_exp")?;
            let activation = Activation::silu_bounded(limit, GateBound::BeforeSilu);
            let shared = Activation::silu_bounded(b.shared_bound()?, GateBound::BeforeSilu);
            let shared_activation = Some(shared);
            b.experts_and_shared(x, &Experts { activation, shared_activation, ..Experts::new(None, false) })
        })
    })?;
    let x = b.hyper_output(streams, connections.read)?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

fn attention(
    b: &mut Builder<'_>,
    x: ValueId,
    layer: &Layer,
    windows: &Windows,
) -> Result<ValueId, ModelError> {
    let Layer { heads, head_dim, ratio, rope } = *layer;
    let rank = b.extent("attention.q_lora_rank")?;
    let q = b.linear("attn_q_a", x, rank)?;
    let q = b.norm("attn_q_a_norm", q)?;
    let q = b.linear("attn_q_b", q, heads * head_dim)?;
    let q = b.split_heads(q, head_dim)?;
    let q = b.norm_unweighted(q, "attn_q_norm")?;
    let q = rotated(b, q, rope, RopePlace::Own)?;
    let k = b.linear("attn_kv", x, head_dim)?;
    let k = b.norm("attn_kv_a_norm", k)?;
    let k = b.split_heads(k, head_dim)?;
    let k = rotated(b, k, rope, RopePlace::Own)?;
    let sinks = b.optional_weight("attn_sinks.weight", &[heads])?;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mask = windows.mask(b.layer());
    let shape = HeadShape { heads, kv_heads: 1, key_dim: head_dim, value_dim: head_dim };
    let h = if ratio == 0 {
        let state = b.key_value_state(shape, mask);
        let op = Attention { state, scale, mask, soft_cap: None, alibi_max_bias: None, relative: None };
        let inputs = [q.into(), k.into(), k.into()].into_iter().chain(sinks).collect();
        b.push(op, inputs, "attention")?
    } else {
        let blocks = compressed_blocks(b, x, layer)?;
        let state = b.key_value_state(shape, MaskRule::Causal);
        let window = if windows.length > 0 { windows.length } else { u32::MAX };
        let inputs: Vec<Operand> = [q.into(), k.into(), blocks.into()].into_iter().chain(sinks).collect();
        b.push(BlockAttention { state, scale, window, ratio }, inputs, "attention")?
    };
    let h = b.split_heads(h, head_dim)?;
    let h = rotated(b, h, rope, RopePlace::Reversed)?;
    let h = b.join_heads(h)?;

    let (groups, rank) = (b.extent("attention.output_group_count")?, b.extent("attention.output_lora_rank")?);
    let width = b.width(h);
    if !width.is_multiple_of(groups) || rank.checked_mul(groups).is_none() {
        return Err(b.value_error("attention.output_group_count", groups, "a divisor of all heads' width"));
    }
    let h = b.split_heads(h, width / groups)?;
    let first = b.joinable_weight("attn_output_a.weight", &[groups, rank, width / groups])?;
    let h = b.push(MatMulHeads, vec![first, h.into()], "attn_output_a")?;
    let h = b.join_heads(h)?;
    let width = b.width(x);
    b.linear("attn_output_b", h, width)
}

/// One row for each block, `[Tokens, 1, head_dim]`, rotated by the block's first position.
fn compressed_blocks(b: &mut Builder<'_>, x: ValueId, layer: &Layer) -> Result<ValueId, ModelError> {
    /// Blocks of so many positions cover their predecessors, too.
    const OVERLAPPING: u32 = 4;
    let Layer { head_dim, ratio, rope, .. } = *layer;
    let overlap = ratio == OVERLAPPING;
    let channels = if overlap { 2 * head_dim } else { head_dim };
    let values = b.linear("attn_compressor_kv", x, channels)?;
    let gates = b.linear("attn_compressor_gate", x, channels)?;
    let biases = b.weight("attn_compressor_ape.weight", &[ratio, channels])?;
    let kept = if overlap { 2 * ratio } else { ratio };
    let state = b.recurrent_state(&[kept, 2, channels])?;
    let op = CompressBlocks { state, ratio, overlap };
    let blocks = b.push(op, vec![values.into(), gates.into(), biases], "attn_compressor")?;
    let blocks = b.norm("attn_compressor_norm", blocks)?;
    let blocks = b.split_heads(blocks, head_dim)?;
    rotated(b, blocks, rope, RopePlace::BlockStart(ratio))
}

/// Heads whose last elements are rotated.
fn rotated(
    b: &mut Builder<'_>,
    x: ValueId,
    mut settings: RopeSettings,
    place: RopePlace,
) -> Result<ValueId, ModelError> {
    settings.rope.place = place;
    let (width, rotary) = (b.width(x), settings.rope.dimensions);
    if rotary == width {
        return b.rope(x, &settings);
    }
    let plain = b.slice(x, 0, width - rotary)?;
    let last = b.slice(x, width - rotary, rotary)?;
    let last = b.rope(last, &settings)?;
    b.push(Concat, vec![plain.into(), last.into()], "rope")
}

impl Builder<'_> {
    /// The rotation of as many of a head's last elements as `rope.dimension_count_swa` says.
    fn of_last_elements(
        &self,
        mut settings: RopeSettings,
        head_dim: u32,
    ) -> Result<RopeSettings, ModelError> {
        const KEY: &str = "rope.dimension_count_swa";
        let rotary = self.width_or(KEY, settings.rope.dimensions)?;
        if rotary > head_dim || !rotary.is_multiple_of(2) {
            return Err(self.value_error(KEY, rotary, "even and at most the width of a head"));
        }
        settings.rope.dimensions = rotary;
        Ok(settings)
    }
}
