//! Gemma 3n, text (Google DeepMind, 2025): four streams of which one runs through the layers (AltUp, arXiv 2301.13310), a
//! low-rank branch beside attention (LAuReL, arXiv 2411.07501), embeddings per layer, layers that share keys and values.

use puna_graph::ops::{Function, GaussianCut, MatMul, MatchNorm, Unary, WeightedSum};
use puna_graph::{Graph, Operand, ValueId};

use crate::blocks::WindowDefaults;
use crate::blocks::per_layer::{SharedAttention, per_layer_branch, per_layer_embeddings, scaled_embedding};
use crate::{Architecture, Builder, Head, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("gemma3n", build);

/// Streams of Gemma 3n; the first is the active one.
const STREAMS: usize = 4;
/// Layers with keys and values of their own.
const OWN_LAYERS: u32 = 20;
/// Layers with sparse networks, and the deviations that leave the largest twentieth.
const SPARSE_LAYERS: u32 = 10;
const SPARSITY: GaussianCut = GaussianCut { deviations: 1.644_853_4 };

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["attn_v.weight"]);
    let mut attention = SharedAttention::new(&mut b, WindowDefaults::every(5), false, OWN_LAYERS)?;
    let width = b.width_or("embedding_length_per_layer_input", 256)?;
    let soft_cap = Some(b.f32_or("final_logit_softcapping", 30.0)?).filter(|cap| *cap != 0.0);
    let x = scaled_embedding(&mut b)?;
    let embedding = b.width(x);
    let embeddings = per_layer_embeddings(&mut b, x, width)?;

    let projections = b.stacked_weight("altup_proj.weight", [STREAMS as u32 - 1, embedding, embedding])?;
    let projected = b.push(MatMul, vec![projections, x.into()], "altup_proj")?;
    let mut streams = vec![x];
    for stream in 0..STREAMS as u32 - 1 {
        let part = b.slice(projected, stream * embedding, embedding)?;
        streams.push(b.push(MatchNorm, vec![part.into(), x.into()], "altup_proj")?);
    }
    for layer in 0..b.layers() {
        // The closure's result must be one value; the streams leave it by reference.
        b.at_layer(layer, |b| {
            streams = run_layer(b, &streams, &mut attention, embeddings, width)?;
            Ok(streams[0])
        })?;
    }

    let back = b.stacked_weight("altup_unembd_proj.weight", [STREAMS as u32 - 1, embedding, embedding])?;
    let mut x = streams[0];
    for (stream, value) in (0..).zip(&streams[1..]) {
        let projected = b.push(MatMul, vec![back, (*value).into()], "altup_unembd_proj")?;
        let part = b.slice(projected, stream * embedding, embedding)?;
        let part = b.push(MatchNorm, vec![part.into(), streams[0].into()], "altup_unembd_proj")?;
        x = b.add(x, part)?;
    }
    let x = b.scale(x, 1.0 / STREAMS as f32, "altup_mean")?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, Head { soft_cap, ..Head::default() })
}

fn run_layer(
    b: &mut Builder<'_>,
    streams: &[ValueId],
    attention: &mut SharedAttention,
    embeddings: ValueId,
    width: u32,
) -> Result<Vec<ValueId>, ModelError> {
    let count = STREAMS as u32;
    let modalities = altup_router(b, streams[0])?;
    let coefficients = b.linear("altup_predict_coef", modalities, count * count)?;
    let mut predicted = Vec::new();
    for (stream, value) in (0..).zip(streams) {
        let weights = b.slice(coefficients, stream * count, count)?;
        let inputs = std::iter::once(weights).chain(streams.iter().copied()).map(Operand::from).collect();
        let change = b.push(WeightedSum, inputs, "altup_predict")?;
        predicted.push(b.add(*value, change)?);
    }
    let active = predicted[0];

    let h = b.norm("attn_norm", active)?;
    let rank = b.agreed(None, [b.said_by("laurel_l.weight", 1), b.said_by("laurel_r.weight", 0)])?;
    let laurel = b.linear("laurel_l", h, rank)?;
    let laurel = b.linear("laurel_r", laurel, b.width(h))?;
    let laurel = b.norm("laurel_post_norm", laurel)?;
    let laurel = b.add(h, laurel)?;
    let attended = attention.run(b, h)?;
    let attended = b.norm("post_attention_norm", attended)?;
    let x = b.add(active, attended)?;
    let x = b.add(x, laurel)?;
    let x = b.scale(x, std::f32::consts::FRAC_1_SQRT_2, "laurel_mean")?;

    let h = b.norm("ffn_norm", x)?;
    let hidden = b.hidden_width()?;
    let mut gate = b.linear("ffn_gate", h, hidden)?;
    if b.layer() < SPARSE_LAYERS {
        gate = b.push(SPARSITY, vec![gate.into()], "ffn_sparsity")?;
    }
    let up = b.linear("ffn_up", h, hidden)?;
    let h = b.glu(Function::Gelu, gate, up)?;
    let h = b.linear("ffn_down", h, b.width(x))?;
    let h = b.norm("post_ffw_norm", h)?;
    let x = b.add(x, h)?;

    let modalities = altup_router(b, x)?;
    let coefficients = b.linear("altup_correct_coef", modalities, count)?;
    let negative = b.scale(active, -1.0, "altup_innovation")?;
    let innovation = b.add(x, negative)?;
    let mut corrected = Vec::new();
    for (stream, value) in (0..).zip(&predicted) {
        let weight = b.slice(coefficients, stream, 1)?;
        let change = b.push(WeightedSum, vec![weight.into(), innovation.into()], "altup_correct")?;
        let value = b.add(*value, innovation)?;
        corrected.push(b.add(value, change)?);
    }
    let scale = b.weight("altup_correct_scale.weight", &[b.width(x)])?;
    let first = b.mul(corrected[0], scale, "altup_correct_scale")?;
    let first = per_layer_branch(b, first, embeddings, width)?;
    for value in &mut corrected[1..] {
        *value = b.add(*value, first)?;
    }
    Ok(corrected)
}

/// `tanh(altup_router · norm(x) / width)`.
fn altup_router(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let h = b.norm("altup_router_norm", x)?;
    let h = b.scale(h, 1.0 / b.width(x) as f32, "altup_router_scale")?;
    let h = b.linear("altup_router", h, STREAMS as u32)?;
    b.push(Unary { function: Function::Tanh }, vec![h.into()], "altup_router")
}
