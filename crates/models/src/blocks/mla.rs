//! Multi-head latent attention: keys and values of all heads from one small vector (DeepSeek-V2,
//! arXiv 2405.04434).

use puna_graph::ops::{
    Attention, Concat, Function, MaskRule, MatMulHeads, PositionScale, RepeatHeads, RopeKind, ScaleRows,
};
use puna_graph::{Input, Operand, StateDecl, ValueId};

use super::RopeSettings;
use crate::{Builder, ModelError};

/// What varies between architectures and layers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatentAttention {
    /// Rotation of the rotary part; without it that part is not rotated.
    pub rope: Option<RopeSettings>,
    /// Factor on query · key.
    pub scale: f32,
    /// Visible positions.
    pub mask: MaskRule,
    /// Temperature of queries by position.
    pub temperature: Option<PositionScale>,
    /// Function of `attn_gate · x`, by which the result is multiplied, per head or per element.
    pub gate: Option<Function>,
    /// Whether the rotary part of keys is normalised (`attn_k_norm`).
    pub key_norm: bool,
    /// Whether widths come from the keys of window layers (`…_swa`).
    pub windowed: bool,
}

impl LatentAttention {
    /// Without rotation.
    pub fn unrotated(scale: f32, mask: MaskRule) -> Self {
        Self { rope: None, scale, mask, temperature: None, gate: None, key_norm: false, windowed: false }
    }
}

/// Widths of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Widths {
    heads: u32,
    /// Elements of queries and keys without position.
    plain: u32,
    /// Elements that are rotated.
    rotary: u32,
    /// Elements of the latent vector.
    latent: u32,
    value: u32,
}

impl Builder<'_> {
    /// Width of a head's keys: `attention.key_length_mla`, else `attention.key_length`, else that of plain attention.
    pub fn latent_key_dim(&self) -> Result<u32, ModelError> {
        match self.optional_u32("attention.key_length_mla")? {
            Some(_) => self.extent("attention.key_length_mla"),
            None => self.key_dim(),
        }
    }

    /// `1 / sqrt(key_dim)`, with the temperature that YaRN adds for a log multiplier.
    pub fn latent_scale(&self, rope: &RopeSettings, log_multiplier: f32) -> Result<f32, ModelError> {
        let stretch = -rope.rope.position_scale.ln();
        let temperature = rope.rope.magnitude * (1.0 + 0.1 * log_multiplier * stretch);
        Ok(temperature * temperature / (self.latent_key_dim()? as f32).sqrt())
    }

    /// Causal latent attention with the file's rotation of `rope.dimension_count` elements.
    pub fn latent_block(&mut self, kind: RopeKind) -> Result<LatentAttention, ModelError> {
        let key_dim = self.latent_key_dim()?;
        let rope = self.rope_settings(kind, key_dim, true)?;
        let multiplier = self.f32_or("rope.scaling.yarn_log_multiplier", 0.0)?;
        let scale = self.latent_scale(&rope, multiplier)?;
        Ok(LatentAttention { rope: Some(rope), ..LatentAttention::unrotated(scale, MaskRule::Causal) })
    }

    /// The name of a key, or of its counterpart for window layers.
    fn latent_key(key: &str, windowed: bool) -> String {
        if windowed { format!("{key}_swa") } else { key.to_string() }
    }

    fn latent_widths(&self, windowed: bool) -> Result<Widths, ModelError> {
        let heads = self.layer_u32("attention.head_count")?;
        let heads = heads.ok_or_else(|| self.missing_key("attention.head_count"))?;
        if !(1..=1 << 12).contains(&heads) {
            return Err(self.value_error("attention.head_count", heads, "between 1 and 4096"));
        }
        let key = match Self::latent_key("attention.key_length_mla", windowed) {
            name if windowed || self.has_key(&name) => self.extent(&name)?,
            _ => self.key_dim()?,
        };
        let rotary = self.u32_or("rope.dimension_count", key)?;
        if rotary > key {
            return Err(self.value_error("rope.dimension_count", rotary, "at most the width of a key"));
        }
        let latent = self.extent(&Self::latent_key("attention.kv_lora_rank", windowed))?;
        let value = match Self::latent_key("attention.value_length_mla", windowed) {
            name if windowed || self.has_key(&name) => self.extent(&name)?,
            _ => self.width_or("attention.value_length", key)?,
        };
        if key.max(value) > 1 << 16 {
            return Err(self.value_error("attention.key_length", key, "at most 65536"));
        }
        Ok(Widths { heads, plain: key - rotary, rotary, latent, value })
    }

    /// Projects, attends over the layer's cache and projects back: `[rows, width]` to the same. Where the file has
    /// the key and value projections apart (`attn_k_b`, `attn_v_b`), they are applied to queries and results, so the
    /// cache holds latent vectors; with `attn_kv_b` keys and values of every head are cached.
    pub fn latent_attention(&mut self, x: ValueId, block: &LatentAttention) -> Result<ValueId, ModelError> {
        let widths = self.latent_widths(block.windowed)?;
        let Widths { heads, plain, rotary, latent, value } = widths;
        let (q_plain, q_rotary) = self.latent_queries(x, block, widths)?;
        let both = self.linear("attn_kv_a_mqa", x, latent + rotary)?;
        let compressed = self.slice(both, 0, latent)?;
        let compressed = self.norm("attn_kv_a_norm", compressed)?;
        let k_rotary = match rotary {
            0 => None,
            _ => Some(self.rotary_keys(both, block, widths)?),
        };
        let absorbed = self.has_any(&["attn_k_b", "attn_v_b"]);
        let h = if !absorbed && self.either("attn_kv_b.weight", "attn_k_b.weight")? {
            let both = self.linear("attn_kv_b", compressed, heads * (plain + value))?;
            let both = self.split_heads(both, plain + value)?;
            let v = self.slice(both, plain, value)?;
            let times = RepeatHeads { times: heads };
            let k_rotary = k_rotary.map(|k| self.push(times, vec![k.into()], "key_rotary")).transpose()?;
            let k_plain = if plain > 0 { Some(self.slice(both, 0, plain)?) } else { None };
            let (q, k) = (self.concat(q_plain, q_rotary)?, self.concat(k_plain, k_rotary)?);
            let h = self.attend_latent([q, k, v], block, heads)?;
            self.split_heads(h, value)?
        } else {
            let keys = self.weight("attn_k_b.weight", &[heads, latent, plain])?;
            let values = self.weight("attn_v_b.weight", &[heads, value, latent])?;
            let compressed = self.split_heads(compressed, latent)?;
            let q_plain = q_plain.ok_or_else(|| {
                self.value_error("rope.dimension_count", rotary, "less than the width of a key")
            })?;
            let q_plain = self.push(MatMulHeads, vec![keys, q_plain.into()], "attn_k_b")?;
            let q = self.concat(Some(q_plain), q_rotary)?;
            let k = self.concat(Some(compressed), k_rotary)?;
            let h = self.attend_latent([q, k, compressed], block, 1)?;
            let h = self.split_heads(h, latent)?;
            self.push(MatMulHeads, vec![values, h.into()], "attn_v_b")?
        };
        let h = match block.gate {
            Some(function) => self.gate_latent(x, h, function)?,
            None => self.join_heads(h)?,
        };
        let width = self.width(x);
        self.linear("attn_output", h, width)
    }

    /// The plain part of queries, if they have one, and the rotary part.
    fn latent_queries(
        &mut self,
        x: ValueId,
        block: &LatentAttention,
        widths: Widths,
    ) -> Result<(Option<ValueId>, Option<ValueId>), ModelError> {
        let Widths { heads, plain, rotary, .. } = widths;
        let is_low_rank = self.has_any(&["attn_q_a", "attn_q_a_norm", "attn_q_b"]);
        let q = if is_low_rank {
            let rank = self.extent("attention.q_lora_rank")?;
            let q = self.linear("attn_q_a", x, rank)?;
            let q = self.norm("attn_q_a_norm", q)?;
            self.linear("attn_q_b", q, heads * (plain + rotary))?
        } else {
            self.linear("attn_q", x, heads * (plain + rotary))?
        };
        let mut q = self.split_heads(q, plain + rotary)?;
        if let Some(temperature) = block.temperature {
            q = self.push(temperature, vec![q.into(), Operand::Input(Input::Positions)], "temperature")?;
        }
        let mut q_rotary = if rotary > 0 { Some(self.slice(q, plain, rotary)?) } else { None };
        if let (Some(q), Some(rope)) = (q_rotary, &block.rope) {
            q_rotary = Some(self.rope(q, rope)?);
        }
        let q_plain = if plain > 0 { Some(self.slice(q, 0, plain)?) } else { None };
        Ok((q_plain, q_rotary))
    }

    /// The rotary part of keys, one head for all.
    fn rotary_keys(
        &mut self,
        both: ValueId,
        block: &LatentAttention,
        widths: Widths,
    ) -> Result<ValueId, ModelError> {
        let k = self.slice(both, widths.latent, widths.rotary)?;
        let mut k = self.split_heads(k, widths.rotary)?;
        if block.key_norm {
            k = self.norm("attn_k_norm", k)?;
        }
        match &block.rope {
            Some(rope) => self.rope(k, rope),
            None => Ok(k),
        }
    }

    /// The parts of a key or query that are there, side by side.
    fn concat(&mut self, a: Option<ValueId>, b: Option<ValueId>) -> Result<ValueId, ModelError> {
        match (a, b) {
            (Some(a), Some(b)) => self.push(Concat, vec![a.into(), b.into()], "latent_and_rotary"),
            (Some(part), None) | (None, Some(part)) => Ok(part),
            (None, None) => Err(self.value_error("attention.key_length", 0, "at least 1")),
        }
    }

    fn attend_latent(
        &mut self,
        [q, k, v]: [ValueId; 3],
        block: &LatentAttention,
        kv_heads: u32,
    ) -> Result<ValueId, ModelError> {
        let group = self.cache_group(block.mask);
        let (key_dim, value_dim) = (self.width(k), self.width(v));
        let state =
            self.state(StateDecl::KeyValue { layer: self.layer(), kv_heads, key_dim, value_dim, group });
        let attention = Attention {
            state,
            scale: block.scale,
            mask: self.directed(block.mask),
            soft_cap: None,
            alibi_max_bias: None,
            relative: None,
        };
        let heads = self.heads_of(q);
        let mut inputs = vec![q.into(), k.into(), v.into()];
        inputs.extend(self.optional_weight("attn_sinks.weight", &[heads])?);
        self.push(attention, inputs, "attention")
    }

    /// Multiplies heads `[rows, heads, value]` by the gate and joins them.
    fn gate_latent(&mut self, x: ValueId, h: ValueId, function: Function) -> Result<ValueId, ModelError> {
        let heads = self.heads_of(h);
        let per_head = self.has_rows("attn_gate.weight", heads);
        let width = if per_head { heads } else { heads * self.width(h) };
        let gate = self.linear("attn_gate", x, width)?;
        if !per_head {
            let h = self.join_heads(h)?;
            return self.glu(function, gate, h);
        }
        let gate = self.unary(function, gate, "attn_gate")?;
        let gated = self.push(ScaleRows, vec![h.into(), gate.into()], "attn_gated")?;
        self.join_heads(gated)
    }
}
