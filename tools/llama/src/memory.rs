//! Memory that a model will need, from its header alone.

use puna_flags::Context;
use puna_gguf::{Metadata, Tensors};
use puna_quant::DType;

/// Layers beyond this are no model.
const MOST_LAYERS: u32 = 4096;

/// An estimate in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// Tokens in the context.
    pub context: u64,
    /// All tensors.
    pub weights: u64,
    /// Keys and values of every layer over the full context: an upper bound where layers have a window or a state
    /// of fixed size.
    pub cache: u64,
    /// Intermediate values of one micro-batch, roughly.
    pub compute: u64,
}

impl Estimate {
    /// Everything together.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.compute)
    }
}

/// The estimate for a model, or why there is none.
pub fn estimate(metadata: &Metadata, tensors: &Tensors, context: &Context) -> Result<Estimate, String> {
    let text = |error: puna_gguf::Error| error.to_string();
    let architecture = metadata.str("general.architecture").map_err(text)?;
    let key = |name: &str| format!("{architecture}.{name}");
    let layers = metadata.u32(&key("block_count")).map_err(text)?;
    let width = u64::from(metadata.u32(&key("embedding_length")).map_err(text)?);
    if layers > MOST_LAYERS {
        return Err(format!("{} is {layers}", key("block_count")));
    }
    let per_layer = |name: &str| metadata.u32_per_layer(&key(name), layers as usize).map_err(text);
    let heads = per_layer("attention.head_count")?.unwrap_or_else(|| vec![0; layers as usize]);
    let groups = per_layer("attention.head_count_kv")?.unwrap_or_else(|| heads.clone());
    let most_heads = heads.iter().copied().max().unwrap_or(0).max(1);
    let usual = (width / u64::from(most_heads)) as u32;
    let length = |name: &str| metadata.u32_or(&key(name), usual).map_err(text);
    let (keys, values) = (length("attention.key_length")?, length("attention.value_length")?);
    let trained = u64::from(metadata.u32_or(&key("context_length"), 0).map_err(text)?);
    let tokens = if context.size == 0 { trained } else { u64::from(context.size) };

    let row = |name: &'static str, elements: u64| {
        let format = DType::from_name(name).ok_or_else(|| format!("{name} is no number format"))?;
        let whole = elements.next_multiple_of(format.block() as u64);
        format.bytes_for(whole).ok_or_else(|| "the cache is too large".to_owned())
    };
    let mut cache = 0u64;
    for heads in groups {
        let key_row = row(context.type_k, u64::from(heads).saturating_mul(keys.into()))?;
        let value_row = row(context.type_v, u64::from(heads).saturating_mul(values.into()))?;
        cache = cache.saturating_add(tokens.saturating_mul(key_row.saturating_add(value_row)));
    }
    let inner = per_layer("feed_forward_length")?.unwrap_or_default().into_iter().max().unwrap_or(0);
    let vocabulary =
        tensors.get("token_embd.weight").and_then(|tensor| tensor.shape.first().copied()).unwrap_or(0);
    let batch = u64::from(context.micro_batch).min(tokens.max(1));
    // Residual, its norm, query, output and two feed-forward rows per token; one row of logits.
    let values = batch.saturating_mul(width.saturating_mul(4).saturating_add(2 * u64::from(inner)));
    let compute = values.saturating_add(vocabulary).saturating_mul(4);
    let weights = tensors.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.byte_len()));
    Ok(Estimate { context: tokens, weights, cache, compute })
}
