//! Self-attention.

use puna_graph::ops::{Attention, Clamp, Function, MaskRule, MatMul, PositionScale, RelativeBias, ScaleRows};
use puna_graph::{CacheGroup, Input, Operand, StateDecl, StateId, ValueId};

use super::RopeSettings;
use crate::{Builder, ModelError, Norm};

/// Norms of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeadNorms {
    /// None.
    #[default]
    None,
    /// Of each head (`attn_q_norm`, `attn_k_norm`), with one weight for all heads or one per head.
    PerHead,
    /// Over the full width of all heads.
    FullWidth,
    /// Of each head, without weights.
    Unweighted,
}

/// What varies between architectures and layers. The default is causal attention without rotation.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AttentionBlock {
    /// Rotation of queries and keys.
    pub rope: Option<RopeSettings>,
    /// Factor on query · key, by default [`Builder::attention_scale`].
    pub scale: Option<f32>,
    /// Visible positions.
    pub mask: MaskRule,
    /// Norms of queries and keys.
    pub norms: HeadNorms,
    /// Kind of these norms, if not the model's.
    pub head_norm_kind: Option<Norm>,
    /// Whether the norms come after the rotation instead of before.
    pub norms_after_rope: bool,
    /// Smooth limit of scores.
    pub soft_cap: Option<f32>,
    /// Largest bias of ALiBi.
    pub alibi_max_bias: Option<f32>,
    /// Temperature of queries by position.
    pub temperature: Option<PositionScale>,
    /// Function of `attn_gate · x`, by which the result is multiplied: per element or per head, as wide as the
    /// tensor is.
    pub gate: Option<Function>,
    /// Whether biases of the three input projections are left out though the file has them.
    pub ignores_input_biases: bool,
    /// Whether the bias of `attn_output` is left out though the file has it.
    pub ignores_output_bias: bool,
}

/// Numbers of heads and their widths in one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadShape {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads, a divisor of `heads`.
    pub kv_heads: u32,
    /// Width of a query or key.
    pub key_dim: u32,
    /// Width of a value.
    pub value_dim: u32,
}

/// Whose rows attend to whose, in models that are more than a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attending {
    /// An encoder's rows to all of their text, where there is no decoder.
    Encoder,
    /// The same beside a decoder, whose rows are the step's tokens.
    EncoderOfDecoder,
    /// A decoder's rows to earlier ones.
    Decoder,
    /// A decoder's rows to all that the encoder made.
    Across,
}

impl Attending {
    fn group_and_mask(self) -> (CacheGroup, MaskRule) {
        match self {
            Attending::Encoder => (CacheGroup::Step, MaskRule::Bidirectional),
            Attending::EncoderOfDecoder => (CacheGroup::EncoderStep, MaskRule::Bidirectional),
            Attending::Decoder => (CacheGroup::Full, MaskRule::Causal),
            Attending::Across => (CacheGroup::Encoder, MaskRule::Bidirectional),
        }
    }
}

impl Builder<'_> {
    /// Plain attention of queries to keys and values, split into heads, that are kept as `attending` says: `[rows, heads, dim]`
    /// each to `[rows, heads · value_dim]`. A relative bias brings its table.
    pub fn attend_as(
        &mut self,
        attending: Attending,
        [q, k, v]: [ValueId; 3],
        scale: f32,
        relative: Option<(RelativeBias, Operand)>,
    ) -> Result<ValueId, ModelError> {
        let (group, mask) = attending.group_and_mask();
        let (layer, kv_heads) = (self.layer(), self.heads_of(k));
        let (key_dim, value_dim) = (self.width(k), self.width(v));
        let state = self.state(StateDecl::KeyValue { layer, kv_heads, key_dim, value_dim, group });
        let (relative, table) = relative.unzip();
        let mut inputs = vec![q.into(), k.into(), v.into()];
        inputs.extend(table);
        let attention = Attention { state, scale, mask, soft_cap: None, alibi_max_bias: None, relative };
        self.push(attention, inputs, "attention")
    }

    /// Width of keys: `attention.key_length`, by default `embedding_length / head_count`.
    pub fn key_dim(&self) -> Result<u32, ModelError> {
        self.head_dim("attention.key_length")
    }

    fn head_dim(&self, key: &str) -> Result<u32, ModelError> {
        let default = match self.any_heads()? {
            None | Some(0) if self.has_key(key) => 0,
            _ => self.width_or("embedding_length", 0)? / self.most_heads()?,
        };
        if default == 0 && !self.has_key(key) {
            return Err(self.value_error(
                "attention.head_count",
                self.most_heads()?,
                "at most embedding_length",
            ));
        }
        self.width_or(key, default)
    }

    /// The shape of the current layer's heads.
    pub fn head_shape(&self) -> Result<HeadShape, ModelError> {
        const MOST_HEADS: u32 = 1 << 16;
        let heads = self.layer_u32("attention.head_count")?;
        let heads = heads.ok_or_else(|| self.missing_key("attention.head_count"))?;
        if !(1..=MOST_HEADS).contains(&heads) {
            return Err(self.value_error("attention.head_count", heads, "between 1 and 65536"));
        }
        let kv_heads = self.layer_u32("attention.head_count_kv")?.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let rule = "a divisor of attention.head_count";
            return Err(self.value_error("attention.head_count_kv", kv_heads, rule));
        }
        let (key_dim, value_dim) = (self.key_dim()?, self.head_dim("attention.value_length")?);
        if heads.checked_mul(key_dim.max(value_dim)).is_none_or(|width| width > 1 << 28) {
            let rule = "smaller with so many heads";
            return Err(self.value_error("attention.key_length", key_dim.max(value_dim), rule));
        }
        Ok(HeadShape { heads, kv_heads, key_dim, value_dim })
    }

    /// `attention.scale`, by default `1 / sqrt(key_dim)`.
    pub fn attention_scale(&self) -> Result<f32, ModelError> {
        let default = 1.0 / (self.key_dim()? as f32).sqrt();
        Ok(self.applied_f32("attention.scale")?.unwrap_or(default))
    }

    /// Projects, rotates, attends over the layer's cache and projects back: `[rows, width]` to the same.
    pub fn self_attention(&mut self, x: ValueId, block: &AttentionBlock) -> Result<ValueId, ModelError> {
        let shape = self.head_shape()?;
        let h = self.attention_heads(x, block, shape)?;
        let width = self.width(x);
        self.attention_output(h, width, !block.ignores_output_bias)
    }

    /// [`Builder::self_attention`] up to the projection back: `[rows, heads · value_dim]`.
    pub fn attention_heads(
        &mut self,
        x: ValueId,
        block: &AttentionBlock,
        shape: HeadShape,
    ) -> Result<ValueId, ModelError> {
        let (mut q, mut k, v) = self.queries_keys_values(x, shape, !block.ignores_input_biases)?;
        if !block.norms_after_rope {
            (q, k) = self.head_norms(q, k, block)?;
        }
        if let Some(rope) = &block.rope {
            (q, k) = (self.rope(q, rope)?, self.rope(k, rope)?);
        }
        if block.norms_after_rope {
            (q, k) = self.head_norms(q, k, block)?;
        }
        let state = self.key_value_state(shape, block.mask);
        let h = self.attend(state, q, k, v, block)?;
        match block.gate {
            Some(function) => self.gate_heads(x, h, function, shape),
            None => Ok(h),
        }
    }

    /// `attn_output` of attended heads; an `attn_sub_norm` comes first if the file has one.
    pub fn attention_output(&mut self, h: ValueId, width: u32, bias: bool) -> Result<ValueId, ModelError> {
        let h = if self.has("attn_sub_norm.weight") { self.norm("attn_sub_norm", h)? } else { h };
        self.linear_with("attn_output", h, width, bias)
    }

    /// Queries, keys and values split into heads, from separate projections or from `attn_qkv`, whose rows are
    /// queries, keys and values in this order. `attention.clamp_kqv` bounds them.
    pub fn queries_keys_values(
        &mut self,
        x: ValueId,
        shape: HeadShape,
        biases: bool,
    ) -> Result<(ValueId, ValueId, ValueId), ModelError> {
        let HeadShape { heads, kv_heads, key_dim, value_dim } = shape;
        let (query, key, value) = (heads * key_dim, kv_heads * key_dim, kv_heads * value_dim);
        let (mut q, mut k, mut v) = if self.either("attn_qkv.weight", "attn_q.weight")? {
            let width = query + key + value;
            let weight = self.weight("attn_qkv.weight", &[width, self.width(x)])?;
            let mut inputs = vec![weight, x.into()];
            if biases {
                inputs.extend(self.optional_weight("attn_qkv.bias", &[width])?);
            }
            let separate_biases = biases && inputs.len() == 2;
            let qkv = self.push(MatMul, inputs, "attn_qkv")?;
            let part = |b: &mut Self, start, width, bias: &'static str| {
                let part = b.slice(qkv, start, width)?;
                match b.optional_weight(bias, &[width])? {
                    Some(bias) if separate_biases => b.add(part, bias),
                    _ => Ok(part),
                }
            };
            (
                part(self, 0, query, "attn_q.bias")?,
                part(self, query, key, "attn_k.bias")?,
                part(self, query + key, value, "attn_v.bias")?,
            )
        } else {
            (
                self.linear_with("attn_q", x, query, biases)?,
                self.linear_with("attn_k", x, key, biases)?,
                self.linear_with("attn_v", x, value, biases)?,
            )
        };
        if let Some(limit) = self.applied_f32("attention.clamp_kqv")? {
            let clamp = |b: &mut Self, x: ValueId| {
                b.push(Clamp { low: -limit, high: limit }, vec![x.into()], "clamp")
            };
            (q, k, v) = (clamp(self, q)?, clamp(self, k)?, clamp(self, v)?);
        }
        Ok((self.split_heads(q, key_dim)?, self.split_heads(k, key_dim)?, self.split_heads(v, value_dim)?))
    }

    fn head_norms(
        &mut self,
        q: ValueId,
        k: ValueId,
        block: &AttentionBlock,
    ) -> Result<(ValueId, ValueId), ModelError> {
        if block.norms == HeadNorms::None {
            return Ok((q, k));
        }
        let outer = self.norm_kind()?;
        self.set_norm_kind(block.head_norm_kind.unwrap_or(outer));
        let q = self.head_norm("attn_q_norm", q, block)?;
        let k = self.head_norm("attn_k_norm", k, block)?;
        self.set_norm_kind(outer);
        Ok((q, k))
    }

    fn head_norm(
        &mut self,
        name: &'static str,
        x: ValueId,
        block: &AttentionBlock,
    ) -> Result<ValueId, ModelError> {
        match block.norms {
            HeadNorms::None => Ok(x),
            HeadNorms::PerHead => self.norm(name, x),
            HeadNorms::Unweighted => self.norm_unweighted(x, name),
            HeadNorms::FullWidth => {
                let dim = self.width(x);
                let joined = self.join_heads(x)?;
                let normed = self.norm(name, joined)?;
                self.split_heads(normed, dim)
            }
        }
    }

    /// Where a layer's keys and values are kept.
    pub fn cache_group(&self, mask: MaskRule) -> CacheGroup {
        match mask {
            MaskRule::Bidirectional => CacheGroup::Full,
            _ if self.is_bidirectional() => CacheGroup::Step,
            MaskRule::SymmetricWindow(_) => CacheGroup::Step,
            MaskRule::Window(window) | MaskRule::Chunked(window) => CacheGroup::Window(window),
            MaskRule::Causal => CacheGroup::Full,
        }
    }

    /// What a layer's mask becomes where rows see later ones.
    pub fn directed(&self, mask: MaskRule) -> MaskRule {
        match mask {
            MaskRule::Causal | MaskRule::Window(_) | MaskRule::Chunked(_) if self.is_bidirectional() => {
                MaskRule::Bidirectional
            }
            other => other,
        }
    }

    /// Declares the current layer's cache.
    pub fn key_value_state(&mut self, shape: HeadShape, mask: MaskRule) -> StateId {
        let group = self.cache_group(mask);
        let HeadShape { kv_heads, key_dim, value_dim, .. } = shape;
        self.state(StateDecl::KeyValue { layer: self.layer(), kv_heads, key_dim, value_dim, group })
    }

    /// Stores keys and values and attends, with the layer's `attn_sinks` if the file has them. Rotation, norms
    /// and gate of the block do not matter here.
    pub fn attend(
        &mut self,
        state: StateId,
        mut q: ValueId,
        k: ValueId,
        v: ValueId,
        block: &AttentionBlock,
    ) -> Result<ValueId, ModelError> {
        if let Some(temperature) = block.temperature {
            q = self.push(temperature, vec![q.into(), Operand::Input(Input::Positions)], "temperature")?;
        }
        let scale = match block.scale {
            Some(scale) => scale,
            None => self.attention_scale()?,
        };
        let mut inputs = vec![q.into(), k.into(), v.into()];
        let heads = self.heads_of(q);
        inputs.extend(self.optional_weight("attn_sinks.weight", &[heads])?);
        let attention = Attention {
            state,
            scale,
            mask: self.directed(block.mask),
            soft_cap: block.soft_cap,
            alibi_max_bias: block.alibi_max_bias,
            relative: None,
        };
        self.push(attention, inputs, "attention")
    }

    fn gate_heads(
        &mut self,
        x: ValueId,
        h: ValueId,
        function: Function,
        shape: HeadShape,
    ) -> Result<ValueId, ModelError> {
        let per_head = self.has_rows("attn_gate.weight", shape.heads);
        let width = if per_head { shape.heads } else { self.width(h) };
        let gate = self.linear("attn_gate", x, width)?;
        let gate = self.unary(function, gate, "attn_gate")?;
        if !per_head {
            return self.mul(h, gate, "attn_gated");
        }
        let split = self.split_heads(h, shape.value_dim)?;
        let gated = self.push(ScaleRows, vec![split.into(), gate.into()], "attn_gated")?;
        self.join_heads(gated)
    }
}
