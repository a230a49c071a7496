//! Gemma 3n and 4 (Google DeepMind, 2025): embeddings per layer, and layers that read the cache of an earlier
//! one.

use puna_graph::ops::{
    Function, GatherRows, Gating, GaussianCut, MatMul, MatchNorm, RopeKind, Unary, WeightedSum,
};
use puna_graph::{Graph, Input, Operand, StateId, ValueId};

use crate::blocks::{AttentionBlock, Experts, HeadShape, RopeSettings, WindowDefaults, WindowRope, Windows};
use crate::{Architecture, Builder, Head, ModelError};

/// Gemma 4, text: heads differ between window and full layers, some sizes have experts beside a dense network.
pub const GEMMA4: Architecture = Architecture { name: "gemma4", build: gemma4 };
/// Gemma 3n, text: four streams of which one runs through the layers (AltUp, arXiv 2301.13310), a low-rank
/// branch beside attention (LAuReL, arXiv 2411.07501).
pub const GEMMA3N: Architecture = Architecture { name: "gemma3n", build: gemma3n };

/// What window layers and full layers share with later ones of their kind.
#[derive(Clone, Copy)]
struct Shared {
    state: StateId,
    keys: ValueId,
    values: ValueId,
}

/// Attention of both models: keys, values and their cache may come from the last layer of the same kind that
/// had its own.
struct SharedAttention {
    windows: Windows,
    full_rope: RopeSettings,
    window_rope: RopeSettings,
    /// Layers from this one on have no keys and values of their own.
    own_layers: u32,
    last: [Option<Shared>; 2],
}

impl SharedAttention {
    fn new(b: &mut Builder<'_>, pattern: u32, factors: bool, own_layers: u32) -> Result<Self, ModelError> {
        let windows = b.windows(WindowDefaults { length: 0, pattern, full_first: false })?;
        let full_rope = b.rope_settings(RopeKind::Split, b.key_dim()?, factors)?;
        let mut window_rope = b.window_rope(&full_rope, WindowRope::PlainWithBase(10000.0))?;
        window_rope.factors = None;
        Ok(Self { windows, full_rope, window_rope, own_layers, last: [None; 2] })
    }

    fn run(&mut self, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
        let (layer, windowed) = (b.layer(), self.windows.contains(b.layer()));
        let mut shape = b.head_shape()?;
        if windowed {
            shape.key_dim = b.width_or("attention.key_length_swa", shape.key_dim)?;
            shape.value_dim = b.width_or("attention.value_length_swa", shape.value_dim)?;
        }
        let rope = if windowed { self.window_rope } else { self.full_rope };
        let block = AttentionBlock { scale: Some(1.0), mask: self.windows.mask(layer), ..Default::default() };
        let q = b.linear("attn_q", x, shape.heads * shape.key_dim)?;
        let q = b.split_heads(q, shape.key_dim)?;
        let q = b.norm("attn_q_norm", q)?;
        let q = b.rope(q, &rope)?;
        let last = &mut self.last[usize::from(windowed)];
        let shared = match *last {
            Some(shared) if layer >= self.own_layers => shared,
            _ => *last.insert(own(b, x, shape, &rope, &block)?),
        };
        let h = b.attend(shared.state, q, shared.keys, shared.values, &block)?;
        b.attention_output(h, b.width(x), true)
    }
}

/// Keys and values of a layer; without `attn_v` the unrotated keys are the values.
fn own(
    b: &mut Builder<'_>,
    x: ValueId,
    shape: HeadShape,
    rope: &RopeSettings,
    block: &AttentionBlock,
) -> Result<Shared, ModelError> {
    let k = b.linear("attn_k", x, shape.kv_heads * shape.key_dim)?;
    let v = match b.has("attn_v.weight") {
        true => b.linear("attn_v", x, shape.kv_heads * shape.value_dim)?,
        false => k,
    };
    let (k, v) = (b.split_heads(k, shape.key_dim)?, b.split_heads(v, shape.value_dim)?);
    let k = b.norm("attn_k_norm", k)?;
    let (keys, values) = (b.rope(k, rope)?, b.norm_unweighted(v, "attn_v_norm")?);
    Ok(Shared { state: b.key_value_state(shape, block.mask), keys, values })
}

/// Embeddings of all layers, `[Tokens, layers · width]`: a table's rows plus a projection of the embedding.
fn per_layer_embeddings(b: &mut Builder<'_>, x: ValueId, width: u32) -> Result<ValueId, ModelError> {
    let layers = b.layers();
    let all = layers.checked_mul(width).filter(|all| *all <= 1 << 24).ok_or_else(|| {
        b.value_error("embedding_length_per_layer_input", width, "smaller with so many layers")
    })?;
    let embedding = b.width(x);
    let projection = b.global_weight("per_layer_model_proj.weight", &[all, embedding])?;
    let projected = b.push(MatMul, vec![projection, x.into()], "per_layer_model_proj")?;
    let projected = b.scale(projected, 1.0 / (embedding as f32).sqrt(), "per_layer_scale")?;
    let projected = b.split_heads(projected, width)?;
    let projected = b.norm("per_layer_proj_norm", projected)?;
    let projected = b.join_heads(projected)?;
    let table = b.global_weight("per_layer_token_embd.weight", &[b.vocabulary()?, all])?;
    let rows = b.push(GatherRows, vec![table, Operand::Input(Input::Tokens)], "per_layer_embed")?;
    let rows = b.scale(rows, (width as f32).sqrt(), "per_layer_scale")?;
    let sum = b.add(projected, rows)?;
    b.scale(sum, std::f32::consts::FRAC_1_SQRT_2, "per_layer_mean")
}

/// `norm(proj · (gelu(inp_gate · x) ⊙ this layer's embedding))`.
fn per_layer_branch(
    b: &mut Builder<'_>,
    x: ValueId,
    embeddings: ValueId,
    width: u32,
) -> Result<ValueId, ModelError> {
    let own = b.slice(embeddings, b.layer() * width, width)?;
    let gate = b.linear("inp_gate", x, width)?;
    let h = b.glu(Function::Gelu, gate, own)?;
    let h = b.linear("proj", h, b.width(x))?;
    b.norm("post_norm", h)
}

fn scaled_embedding(b: &mut Builder<'_>) -> Result<ValueId, ModelError> {
    let x = b.embed()?;
    b.scale(x, (b.width(x) as f32).sqrt(), "embed_scale")
}

fn gemma4(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let own_layers = b.layers().saturating_sub(b.u32_or("attention.shared_kv_layers", 0)?);
    let mut attention = SharedAttention::new(&mut b, 1, true, own_layers)?;
    let width = b.u32_or("embedding_length_per_layer_input", 0)?;
    let soft_cap = b.applied_f32("final_logit_softcapping")?;
    let x = scaled_embedding(&mut b)?;
    let embeddings = match width {
        0 => None,
        width => Some(per_layer_embeddings(&mut b, x, width)?),
    };
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = attention.run(b, h)?;
        let h = b.norm("post_attention_norm", h)?;
        let x = b.add(x, h)?;

        let h = b.norm("ffn_norm", x)?;
        let mut h = b.feed_forward(h, Function::Gelu)?;
        if b.has("ffn_gate_inp.weight") {
            let dense = b.norm("post_ffw_norm_1", h)?;
            let sparse = gemma4_experts(b, x)?;
            h = b.add(dense, sparse)?;
        }
        let h = b.norm("post_ffw_norm", h)?;
        let mut x = b.add(x, h)?;
        if let Some(embeddings) = embeddings {
            let h = per_layer_branch(b, x, embeddings, width)?;
            x = b.add(x, h)?;
        }
        match b.optional_weight("layer_output_scale.weight", &[1])? {
            Some(factor) => b.mul(x, factor, "layer_output_scale"),
            None => Ok(x),
        }
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, Head { soft_cap, ..Head::default() })
}

/// Experts with norms of their own; the router reads the residual stream itself.
fn gemma4_experts(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let width = b.width(x);
    let router = b.norm_unweighted(x, "router_norm")?;
    let router = b.scale(router, 1.0 / (width as f32).sqrt(), "router_scale")?;
    let factors = b.weight("ffn_gate_inp.scale", &[width])?;
    let router = b.mul(router, factors, "router_scale")?;
    let h = b.norm("pre_ffw_norm_2", x)?;
    let activation = Function::Gelu.into();
    let experts = Experts { activation, router_input: Some(router), ..Experts::new(Gating::Softmax, true) };
    let h = b.experts(h, &experts)?;
    b.norm("post_ffw_norm_2", h)
}

/// Streams of Gemma 3n; the first is the active one.
const STREAMS: usize = 4;
/// Layers with keys and values of their own.
const OWN_LAYERS: u32 = 20;
/// Layers with sparse networks, and the deviations that leave the largest twentieth.
const SPARSE_LAYERS: u32 = 10;
const SPARSITY: GaussianCut = GaussianCut { deviations: 1.644_853_4 };

fn gemma3n(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut attention = SharedAttention::new(&mut b, 5, false, OWN_LAYERS)?;
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
            streams = gemma3n_layer(b, &streams, &mut attention, embeddings, width)?;
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

fn gemma3n_layer(
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
    let laurel = b.linear("laurel_l", h, b.rows_of("laurel_l.weight")?)?;
    let laurel = b.linear("laurel_r", laurel, b.width(h))?;
    let laurel = b.norm("laurel_post_norm", laurel)?;
    let laurel = b.add(h, laurel)?;
    let attended = attention.run(b, h)?;
    let attended = b.norm("post_attention_norm", attended)?;
    let x = b.add(active, attended)?;
    let x = b.add(x, laurel)?;
    let x = b.scale(x, std::f32::consts::FRAC_1_SQRT_2, "laurel_mean")?;

    let h = b.norm("ffn_norm", x)?;
    let hidden = b.layer_u32("feed_forward_length")?.unwrap_or(0);
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
