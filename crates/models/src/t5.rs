//! T5 and Flan-T5 (arXiv 1910.10683, 2210.11416): an encoder, and a decoder that also attends to what it made; scores
//! have a learned bias by distance instead of a scale and of positions.

use puna_graph::ops::{Attention, Function, MaskRule, RelativeBias};
use puna_graph::{CacheGroup, Graph, Input, Operand, StateDecl, ValueId};

use crate::blocks::FeedForward;
use crate::{Architecture, Builder, ModelError, Purpose};

/// T5. Its embeddings are those of the encoder alone.
pub const T5: Architecture = Architecture { name: "t5", build: t5 };
/// The encoder of a T5.
pub const T5_ENCODER: Architecture = Architecture {
    name: "t5encoder",
    build: |mut b| {
        let x = encoder(&mut b, Input::Tokens, CacheGroup::Step)?;
        b.encoded(x)
    },
};

/// Layers' tensors of the encoder and of the decoder.
const ENCODER: &str = "enc.blk";
const DECODER: &str = "dec.blk";

fn t5(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    if b.purpose() != Purpose::Generate {
        let x = encoder(&mut b, Input::Tokens, CacheGroup::Step)?;
        return b.encoded(x);
    }
    let encoded = encoder(&mut b, Input::EncoderTokens, CacheGroup::EncoderStep)?;
    let x = b.embed()?;
    let layers = b.layers_or("decoder_block_count")?;
    let x = b.each_layer_of(DECODER, layers, x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let own = Attending { names: SELF, group: CacheGroup::Full, bias: Some(false) };
        let h = attention(b, h, h, own)?;
        let x = b.add(x, h)?;
        let h = b.norm("cross_attn_norm", x)?;
        let h = attention(b, h, encoded, Attending { names: CROSS, group: CacheGroup::Encoder, bias: None })?;
        let x = b.add(x, h)?;
        feed_forward(b, x)
    })?;
    let x = b.norm("dec.output_norm", x)?;
    b.logits(x)
}

fn encoder(b: &mut Builder<'_>, tokens: Input, group: CacheGroup) -> Result<ValueId, ModelError> {
    let x = b.embed_input(tokens, "embedding_length")?;
    let x = b.each_layer_of(ENCODER, b.layers(), x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = attention(b, h, h, Attending { names: SELF, group, bias: Some(true) })?;
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

struct Attending {
    names: [&'static str; 4],
    group: CacheGroup,
    /// Whether there is a bias by distance, and whether later keys have one of their own.
    bias: Option<bool>,
}

/// Queries from `x` attend to keys and values from `memory`.
fn attention(
    b: &mut Builder<'_>,
    x: ValueId,
    memory: ValueId,
    Attending { names: [query, key, value, output], group, bias }: Attending,
) -> Result<ValueId, ModelError> {
    let shape = b.head_shape()?;
    let q = b.linear(query, x, shape.heads * shape.key_dim)?;
    let k = b.linear(key, memory, shape.kv_heads * shape.key_dim)?;
    let v = b.linear(value, memory, shape.kv_heads * shape.value_dim)?;
    let (q, k) = (b.split_heads(q, shape.key_dim)?, b.split_heads(k, shape.key_dim)?);
    let v = b.split_heads(v, shape.value_dim)?;
    let mut inputs: Vec<Operand> = vec![q.into(), k.into(), v.into()];
    let relative = match bias {
        Some(both_directions) => {
            const KEY: &str = "attention.relative_buckets_count";
            let buckets = b.u32_or(KEY, 32)?;
            if !(4..=256).contains(&buckets) || !buckets.is_multiple_of(4) {
                return Err(b.value_error(KEY, buckets, "a multiple of 4 up to 256"));
            }
            inputs.push(bias_table(b, buckets, shape.heads)?);
            Some(RelativeBias { buckets, both_directions })
        }
        None => None,
    };
    let (kv_heads, key_dim, value_dim) = (shape.kv_heads, shape.key_dim, shape.value_dim);
    let state = b.state(StateDecl::KeyValue { layer: b.layer(), kv_heads, key_dim, value_dim, group });
    let mask = if group == CacheGroup::Full { MaskRule::Causal } else { MaskRule::Bidirectional };
    let attention = Attention { state, scale: 1.0, mask, soft_cap: None, alibi_max_bias: None, relative };
    let h = b.push(attention, inputs, "attention")?;
    b.linear(output, h, b.width(x))
}

/// The layer's table of biases; usually only the first layer has one, which serves all.
fn bias_table(b: &mut Builder<'_>, buckets: u32, heads: u32) -> Result<Operand, ModelError> {
    const NAME: &str = "attn_rel_b.weight";
    match b.has(NAME) {
        true => b.weight(NAME, &[buckets, heads]),
        false => b.weight_of_layer(0, NAME, &[buckets, heads]),
    }
}
