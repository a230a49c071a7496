//! Self-attention with separate query, key and value projections.

use puna_graph::ops::{Attention, MaskRule};
use puna_graph::{CacheGroup, StateDecl, ValueId};

use super::RopeSettings;
use crate::{Builder, ModelError};

/// What varies between architectures and layers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionBlock<'a> {
    /// Rotation of queries and keys.
    pub rope: Option<&'a RopeSettings>,
    /// Factor on query · key.
    pub scale: f32,
    /// Visible positions.
    pub mask: MaskRule,
    /// Whether queries and keys are normalised per head (`attn_q_norm`, `attn_k_norm`) before rotation.
    pub head_norms: bool,
}

impl Builder<'_> {
    /// Width of keys: `attention.key_length`, by default `embedding_length / head_count`.
    pub fn key_dim(&self) -> Result<u32, ModelError> {
        self.head_dim("attention.key_length")
    }

    fn head_dim(&self, key: &str) -> Result<u32, ModelError> {
        let default = match self.layer_u32("attention.head_count")? {
            Some(heads) if heads > 0 => self.width_or("embedding_length", 0)? / heads,
            _ => 0,
        };
        self.width_or(key, default)
    }

    /// Query heads and key-value heads of the current layer.
    pub fn head_counts(&self) -> Result<(u32, u32), ModelError> {
        const MOST_HEADS: u32 = 1 << 16;
        let heads = self.layer_u32("attention.head_count")?.unwrap_or(0);
        if !(1..=MOST_HEADS).contains(&heads) {
            return Err(self.value_error("attention.head_count", heads, "between 1 and 65536"));
        }
        let kv_heads = self.layer_u32("attention.head_count_kv")?.unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let rule = "a divisor of attention.head_count";
            return Err(self.value_error("attention.head_count_kv", kv_heads, rule));
        }
        Ok((heads, kv_heads))
    }

    /// `attention.scale`, by default `1 / sqrt(key_dim)`.
    pub fn attention_scale(&self) -> Result<f32, ModelError> {
        let default = 1.0 / (self.key_dim()? as f32).sqrt();
        Ok(self.applied_f32("attention.scale")?.unwrap_or(default))
    }

    /// Projects, rotates, attends over the layer's cache and projects back: `[rows, width]` to the same.
    pub fn self_attention(&mut self, x: ValueId, block: &AttentionBlock<'_>) -> Result<ValueId, ModelError> {
        let (heads, kv_heads) = self.head_counts()?;
        let (key_dim, value_dim) = (self.key_dim()?, self.head_dim("attention.value_length")?);
        let too_wide =
            |width: u32| self.value_error("attention.key_length", width, "smaller with so many heads");
        let query_width = heads.checked_mul(key_dim).ok_or_else(|| too_wide(key_dim))?;
        let value_width = kv_heads.checked_mul(value_dim).ok_or_else(|| too_wide(value_dim))?;
        let q = self.linear("attn_q", x, query_width)?;
        let k = self.linear("attn_k", x, kv_heads * key_dim)?;
        let v = self.linear("attn_v", x, value_width)?;
        let (mut q, mut k) = (self.split_heads(q, key_dim)?, self.split_heads(k, key_dim)?);
        let v = self.split_heads(v, value_dim)?;
        if block.head_norms {
            (q, k) = (self.rms_norm("attn_q_norm", q)?, self.rms_norm("attn_k_norm", k)?);
        }
        if let Some(rope) = block.rope {
            (q, k) = (self.rope(q, rope)?, self.rope(k, rope)?);
        }
        let group = match block.mask {
            MaskRule::Window(window) => CacheGroup::Window(window),
            _ => CacheGroup::Full,
        };
        let state =
            self.state(StateDecl::KeyValue { layer: self.layer(), kv_heads, key_dim, value_dim, group });
        let attention =
            Attention { state, scale: block.scale, mask: block.mask, soft_cap: None, alibi_max_bias: None };
        let h = self.push(attention, vec![q.into(), k.into(), v.into()], "attention")?;
        let width = self.width(x);
        self.linear("attn_output", h, width)
    }
}
