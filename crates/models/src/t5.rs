//! T5 and Flan-T5 (arXiv 1910.10683, 2210.11416): an encoder, and a decoder that also attends to what it made; scores
//! have a learned bias by distance instead of a scale and of positions.

use puna_graph::ops::{Function, RelativeBias};
use puna_graph::{Graph, Input, Operand, ValueId};

use crate::blocks::{Attending, FeedForward};
use crate::{Architecture, Builder, ModelError, Purpose};

/// T5. Its embeddings are those of the encoder alone.
pub const T5: Architecture = Architecture::new("t5", t5);
/// The encoder of a T5.
pub const T5_ENCODER: Architecture = Architecture::new("t5encoder", |mut b| {
    let x = encoder(&mut b, Input::Tokens, Attending::Encoder)?;
    b.encoded(x)
});

/// Layers' tensors of the encoder and of the decoder.
const ENCODER: &str = "enc.blk";
const DECODER: &str = "dec.blk";

fn t5(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    if b.purpose() != Purpose::Generate {
        let x = encoder(&mut b, Input::Tokens, Attending::Encoder)?;
        return b.encoded(x);
    }
    let encoded = encoder(&mut b, Input::EncoderTokens, Attending::EncoderOfDecoder)?;
    let x = b.embed()?;
    let layers = b.layers_or("decoder_block_count")?;
    let x = b.each_layer_of(DECODER, layers, x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = attention(b, h, h, &SELF, Attending::Decoder)?;
        let x = b.add(x, h)?;
        let h = b.norm("cross_attn_norm", x)?;
        let h = attention(b, h, encoded, &CROSS, Attending::Across)?;
        let x = b.add(x, h)?;
        feed_forward(b, x)
    })?;
    let x = b.norm("dec.output_norm", x)?;
    b.logits(x)
}

fn encoder(b: &mut Builder<'_>, tokens: Input, attending: Attending) -> Result<ValueId, ModelError> {
    let x = b.embed_input(tokens, "embedding_length")?;
    let x = b.each_layer_of(ENCODER, b.layers(), x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = attention(b, h, h, &SELF, attending)?;
        let x = b.add(x, h)?;
        feed_forward(b, x)
    })?;
    b.norm("enc.output_norm", x)
}

fn feed_forward(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let network = match b.has("ffn_gate.weight") {
        true => FeedForward::gated(Function::Gelu),
        false => FeedForward::plain(Function::Relu),
    };
    let h = b.norm("ffn_norm", x)?;
    let h = b.feed_forward(h, network)?;
    b.add(x, h)
}

/// Names of the projections of queries, keys, values and results.
const SELF: [&str; 4] = ["attn_q", "attn_k", "attn_v", "attn_o"];
const CROSS: [&str; 4] = ["cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_o"];

/// Queries from `x` attend to keys and values from `memory`; among rows of one kind there is a bias by distance.
fn attention(
    b: &mut Builder<'_>,
    x: ValueId,
    memory: ValueId,
    [query, key, value, output]: &[&'static str; 4],
    attending: Attending,
) -> Result<ValueId, ModelError> {
    let shape = b.head_shape()?;
    let q = b.linear(query, x, shape.heads * shape.key_dim)?;
    let k = b.linear(key, memory, shape.kv_heads * shape.key_dim)?;
    let v = b.linear(value, memory, shape.kv_heads * shape.value_dim)?;
    let (q, k) = (b.split_heads(q, shape.key_dim)?, b.split_heads(k, shape.key_dim)?);
    let v = b.split_heads(v, shape.value_dim)?;
    let relative = match attending {
        Attending::Across => None,
        Attending::Encoder | Attending::EncoderOfDecoder => Some(relative_bias(b, true, shape.heads)?),
        Attending::Decoder => Some(relative_bias(b, false, shape.heads)?),
    };
    let h = b.attend_as(attending, [q, k, v], 1.0, relative)?;
    b.linear(output, h, b.width(x))
}

/// The layer's bias by distance with its table.
fn relative_bias(
    b: &mut Builder<'_>,
    both_directions: bool,
    heads: u32,
) -> Result<(RelativeBias, Operand), ModelError> {
    const KEY: &str = "attention.relative_buckets_count";
    b.require_keys(&[KEY])?;
    let buckets = b.u32_or(KEY, 32)?;
    if !(4..=256).contains(&buckets) || !buckets.is_multiple_of(4) {
        return Err(b.value_error(KEY, buckets, "a multiple of 4 up to 256"));
    }
    Ok((RelativeBias { buckets, both_directions }, bias_table(b, buckets, heads)?))
}

/// The layer's table of biases; usually only the first layer has one, which serves all.
fn bias_table(b: &mut Builder<'_>, buckets: u32, heads: u32) -> Result<Operand, ModelError> {
    const NAME: &str = "attn_rel_b.weight";
    match b.has(NAME) {
        true => b.weight(NAME, &[buckets, heads]),
        false => b.weight_of_layer(0, NAME, &[buckets, heads]),
    }
}
