//! What rules know about the model they name tensors of.

use crate::architectures::Architecture;
use crate::{Config, ConvertError, Source};

pub(crate) const LAYERS: &[&str] =
    &["num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"];
pub(crate) const WIDTH: &[&str] = &["hidden_size", "n_embd", "d_model", "model_dim", "dim", "n_embed"];
pub(crate) const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads", "num_heads"];
pub(crate) const KV_HEADS: &[&str] =
    &["num_key_value_heads", "num_kv_heads", "n_head_kv", "attn_config.kv_n_heads", "multi_query_group_num"];
/// By the root of which scores are divided, where that is not the width of a head.
pub(crate) const QUERY_SCALAR: &str = "query_pre_attn_scalar";
pub(crate) const HEAD_DIM: &[&str] = &["head_dim", "kv_channels", "attention_head_dim"];

/// A folder's settings and weights, with the architecture that they were found to have.
pub(crate) struct Model<'a> {
    pub(crate) config: &'a Config,
    pub(crate) source: &'a Source,
    pub(crate) architecture: &'static Architecture,
    /// Layers that guess tokens further ahead and are kept.
    pub(crate) ahead: u32,
}

impl Model<'_> {
    /// A setting that must be at least 1.
    pub(crate) fn count(&self, names: &[&str]) -> Result<u64, ConvertError> {
        let found = self.config.u32(names)?;
        at_least_one(names, found)
    }

    pub(crate) fn layers(&self) -> Result<u64, ConvertError> {
        // Some configurations list the layers and do not count them.
        let listed = self.config.text_list(&["layers_block_type"]).map(|kinds| kinds.len() as u64);
        let mut layers = match (self.config.get(LAYERS), listed) {
            (None, Some(listed)) => listed,
            _ => self.count(LAYERS)?,
        };
        // Of two stacks that run several times every pass counts; older settings count the layers of one stack.
        if self.config.get(&["H_cycles"]).is_some() && self.config.get(&["num_layers_per_stack"]).is_none() {
            let passes = self.count(&["H_cycles"])?.saturating_mul(self.count(&["L_cycles"])? + 1);
            layers = layers.saturating_mul(passes);
        }
        match layers {
            1..=512 => Ok(layers),
            found => Err(ConvertError::KeyValue {
                key: "num_hidden_layers".into(),
                found: found.to_string(),
                expected: "at most 512",
            }),
        }
    }

    /// Layers of the first of two stacks; 0 where there is one.
    pub(crate) fn first_stack(&self) -> Result<u32, ConvertError> {
        match self.config.get(&["H_cycles"]) {
            None => Ok(0),
            Some(_) => self.config.u32(&["num_layers_per_stack", "num_hidden_layers"]),
        }
    }

    pub(crate) fn width(&self) -> Result<u64, ConvertError> {
        self.count(WIDTH)
    }

    pub(crate) fn heads(&self) -> Result<u64, ConvertError> {
        self.count(HEADS)
    }

    pub(crate) fn kv_heads(&self) -> Result<u64, ConvertError> {
        match self.config.optional_u32(KV_HEADS)? {
            Some(found) => at_least_one(KV_HEADS, found),
            None => self.heads(),
        }
    }

    /// Width of a head: given, or the width shared out.
    pub(crate) fn head_dim(&self) -> Result<u64, ConvertError> {
        match self.config.optional_u32(HEAD_DIM)? {
            Some(found) => at_least_one(HEAD_DIM, found),
            None => Ok((self.width()? / self.heads()?).max(1)),
        }
    }
}

fn at_least_one(names: &[&str], found: u32) -> Result<u64, ConvertError> {
    if found == 0 {
        let key = names.first().copied().unwrap_or_default().to_owned();
        return Err(ConvertError::KeyValue { key, found: "0".into(), expected: "at least 1" });
    }
    Ok(u64::from(found))
}
