//! Embeddings per layer, and layers that read keys and values of an earlier one, as in Gemma 3n and 4.

use puna_graph::ops::{Function, GatherRows, MatMul, RopeKind};
use puna_graph::{Input, Operand, StateId, ValueId};

use super::{AttentionBlock, HeadShape, RopeSettings, WindowDefaults, WindowRope, Windows};
use crate::{Builder, ModelError};

/// What window layers and full layers share with later ones of their kind.
#[derive(Clone, Copy)]
struct Shared {
    state: StateId,
    keys: ValueId,
    values: ValueId,
}

/// Attention without a scale whose keys, values and their cache may come from the last layer of the same kind that
/// had its own.
pub struct SharedAttention {
    windows: Windows,
    full_rope: RopeSettings,
    window_rope: RopeSettings,
    /// Layers from this one on have no keys and values of their own.
    own_layers: u32,
    last: [Option<Shared>; 2],
}

impl SharedAttention {
    /// Reads windows and rotations; `windows` is what the file need not say about these, `factors` whether full layers
    /// apply frequency factors.
    pub fn new(
        b: &mut Builder<'_>,
        windows: WindowDefaults,
        factors: bool,
        own_layers: u32,
    ) -> Result<Self, ModelError> {
        let windows = b.windows(windows)?;
        let full_rope = b.rope_settings(RopeKind::Split, b.key_dim()?, factors)?;
        let mut window_rope = b.window_rope(&full_rope, WindowRope::PlainWithBase(10000.0))?;
        (window_rope.factors, window_rope.long_factors) = (None, None);
        Ok(Self { windows, full_rope, window_rope, own_layers, last: [None; 2] })
    }

    /// The current layer's attention of `x`.
    pub fn run(&mut self, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
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
    let has_values = b.has("attn_v.weight");
    if !has_values && shape.value_dim != shape.key_dim {
        let rule = "attention.key_length in a layer without attn_v";
        return Err(b.value_error("attention.value_length", shape.value_dim, rule));
    }
    let v = match has_values {
        true => b.linear("attn_v", x, shape.kv_heads * shape.value_dim)?,
        false => k,
    };
    let (k, v) = (b.split_heads(k, shape.key_dim)?, b.split_heads(v, shape.value_dim)?);
    let k = b.norm("attn_k_norm", k)?;
    let (keys, values) = (b.rope(k, rope)?, b.norm_unweighted(v, "attn_v_norm")?);
    Ok(Shared { state: b.key_value_state(shape, block.mask), keys, values })
}

/// Embeddings of all layers, `[Tokens, layers · width]`: a table's rows plus a projection of the embedding.
pub fn per_layer_embeddings(b: &mut Builder<'_>, x: ValueId, width: u32) -> Result<ValueId, ModelError> {
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
pub fn per_layer_branch(
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

/// Rows of the embedding table times the root of their width.
pub fn scaled_embedding(b: &mut Builder<'_>) -> Result<ValueId, ModelError> {
    let x = b.embed()?;
    b.scale(x, (b.width(x) as f32).sqrt(), "embed_scale")
}
