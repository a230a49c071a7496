//! DFlash (arXiv 2602.06036): a draft model that fills a block of masks at once, over states of the model that it drafts for.

use puna_graph::ops::{Function, MaskRule, PreferFeatured, RopeKind};
use puna_graph::{Graph, Output, ValueId};

use crate::blocks::{AttentionBlock, FeedForward, RopeSettings};
use crate::eagle3::draft_logits;
use crate::{Architecture, Builder, ModelError};

/// DFlash. Rows with features (states of some layers of the other model, side by side) are what a block is drafted
/// over; rows without are the block, each of which sees all.
pub const ARCHITECTURE: Architecture = Architecture::new("dflash", build);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = if b.has("d2t") { b.with_other_outputs() } else { b };
    refuse_variants(&b)?;
    let rope = b.rope_settings(RopeKind::Split, b.key_dim()?, true)?;
    let width = b.width_or("embedding_length", 0)?;
    let layers = b.array_length("target_layers")?;
    if !(1..=b.layers().max(64)).contains(&layers) {
        return Err(b.value_error("target_layers", format!("{layers} layers"), "some layers"));
    }
    let features = b.features(layers.saturating_mul(width))?;
    let fused = b.linear("fc", features, width)?;
    let fused = b.norm("enc.output_norm", fused)?;
    let network = match b.str_or("hidden_activation", "silu")? {
        "silu" => FeedForward::gated(Function::Silu),
        "gelu" | "gelu_pytorch_tanh" => FeedForward::gated(Function::Gelu),
        other => {
            let value = other.chars().take(64).collect::<String>();
            return Err(b.value_error("hidden_activation", value, "silu, gelu or gelu_pytorch_tanh"));
        }
    };
    let mut x = b.embed()?;
    if let Some(factor) = b.applied_f32("embedding_scale")? {
        x = b.scale(x, factor, "embed_scale")?;
    }
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = b.push(PreferFeatured, vec![h.into(), fused.into()], "states")?;
        let h = attention(b, h, rope)?;
        let h = optional_norm(b, "post_attention_norm", h)?;
        let x = b.add(x, h)?;
        let h = b.norm("ffn_norm", x)?;
        let h = b.feed_forward(h, network)?;
        let h = optional_norm(b, "post_ffw_norm", h)?;
        let x = b.add(x, h)?;
        match b.optional_weight("layer_output_scale.weight", &[1])? {
            Some(factor) => b.mul(x, factor, "layer_scale"),
            None => Ok(x),
        }
    })?;
    let rows = b.output_rows(x)?;
    let h = b.norm("output_norm", rows)?;
    let logits = draft_logits(&mut b, h)?;
    Ok(b.finish(vec![(Output::Logits, logits)]))
}

/// What later kinds of DFlash add is not there yet.
fn refuse_variants(b: &Builder<'_>) -> Result<(), ModelError> {
    let variants = [
        (b.has("markov_w1.weight"), "a Markov head (DSpark)"),
        (b.has("selector_hidden.weight"), "a selector (DFlash 2)"),
        (b.has_key("hyper_connection.count"), "hyper-connections (DSpark for DeepSeek-V4)"),
        (b.u32_or("attention.sliding_window", 0)? > 0, "a sliding window"),
    ];
    match variants.iter().find(|(there, _)| *there) {
        Some((_, what)) => Err(ModelError::Unsuitable { architecture: b.architecture().to_string(), what }),
        None => Ok(()),
    }
}

/// Attention of all rows to all; without `attn_v` values are the keys before their norm, normalised without weights.
fn attention(b: &mut Builder<'_>, x: ValueId, rope: RopeSettings) -> Result<ValueId, ModelError> {
    let shape = b.head_shape()?;
    if shape.value_dim != shape.key_dim {
        return Err(b.value_error("attention.value_length", shape.value_dim, "as attention.key_length"));
    }
    let split = |b: &mut Builder<'_>, name, heads: u32| {
        let part = b.linear(name, x, heads * shape.key_dim)?;
        b.split_heads(part, shape.key_dim)
    };
    let (q, k) = (split(b, "attn_q", shape.heads)?, split(b, "attn_k", shape.kv_heads)?);
    let v = match b.has("attn_v.weight") {
        true => split(b, "attn_v", shape.kv_heads)?,
        false => b.norm_unweighted(k, "attn_v")?,
    };
    let (q, k) = (b.norm("attn_q_norm", q)?, b.norm("attn_k_norm", k)?);
    let (q, k) = (b.rope(q, &rope)?, b.rope(k, &rope)?);
    let mask = MaskRule::Bidirectional;
    let state = b.key_value_state(shape, mask);
    let h = b.attend(state, q, k, v, &AttentionBlock { mask, ..Default::default() })?;
    let h = b.attention_output(h, b.width(x), true)?;
    match b.applied_f32("attention.value_scale")? {
        Some(factor) => b.scale(h, factor, "attn_scaled"),
        None => Ok(h),
    }
}

fn optional_norm(b: &mut Builder<'_>, name: &'static str, x: ValueId) -> Result<ValueId, ModelError> {
    if b.has(&format!("{name}.weight")) { b.norm(name, x) } else { Ok(x) }
}
