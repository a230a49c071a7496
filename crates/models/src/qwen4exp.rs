//! Qwen 4 (experimental): gated delta nets and gated attention on residual streams of their own kind, with rows of
//! hashed n-grams added in some layers.

use puna_graph::ops::{
    Function, GatherRows, Gating, KeyHeads, NgramHead, NgramRows, RepeatHeads, RopeKind, ScaleRows,
    SumElements,
};
use puna_graph::{Graph, Input, Operand, ValueId};

use crate::blocks::{AttentionBlock, Experts};
use crate::qwen_next::{gated_attention, recurrent_layers, with_shared_gate};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("qwen4exp", build);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = with_shared_gate(b);
    b.require_keys(&["rope.dimension_sections"])?;
    b.indexer_keys(&["head_count", "key_length", "top_k"])?;
    let head_dim = b.key_dim()?;
    let rope = Some(b.rope_settings(RopeKind::Split, head_dim, false)?);
    let block = AttentionBlock { rope, ignores_input_biases: true, ..AttentionBlock::default() };
    let recurrent = recurrent_layers(&b, 4)?;
    let experts = Experts::new(Gating::Softmax, true);
    let x = b.embed()?;
    let streams = b.streams(x)?;
    let (mut grams, mut with_grams) = (None, Vec::new());
    if b.has_key("ple.layers") || b.has_global("per_layer_token_embd.weight") {
        with_grams = b.layer_list("ple.layers")?;
        grams = Some(hashed_rows(&mut b)?);
    }
    let streams = b.each_layer(streams, |b, streams| {
        let mut streams = streams;
        if let Some(grams) = grams.filter(|_| with_grams.contains(&b.layer())) {
            streams = add_grams(b, streams, grams)?;
        }
        let streams = branch(b, streams, ATTENTION, |b, x| match recurrent[b.layer() as usize] {
            true => b.gated_delta_net(x, KeyHeads::Cyclic, Function::Sigmoid),
            false => gated_attention(b, x, &block),
        })?;
        branch(b, streams, FEED_FORWARD, |b, x| b.dense_or_experts(x, Function::Silu, &experts))
    })?;
    let (x, _) = mix(&mut b, streams, OUTPUT)?;
    b.logits(x)
}

/// Names of a mixture's tensors: norm, first and second matrix of the gate, shares of the result.
type Mixture = [&'static str; 4];
const ATTENTION: Mixture = ["hc_attn_norm", "hc_attn_down", "hc_attn_up", "hc_attn_inject"];
const FEED_FORWARD: Mixture = ["hc_ffn_norm", "hc_ffn_down", "hc_ffn_up", "hc_ffn_inject"];
const OUTPUT: Mixture = ["output_hc_norm", "output_hc_down", "output_hc_up", ""];

/// The mean of the gated streams, and the streams' normalised elements in a row.
fn mix(b: &mut Builder<'_>, streams: ValueId, names: Mixture) -> Result<(ValueId, ValueId), ModelError> {
    let (count, width) = (b.heads_of(streams), b.width(streams));
    let normed = b.norm(names[0], streams)?;
    let flat = b.join_heads(normed)?;
    let rank = b.extent("hyper_connection.low_rank")?;
    let gate = b.linear(names[1], flat, rank)?;
    let gate = b.scale(gate, 1.0 / count.max(1) as f32, names[1])?;
    let gate = b.unary(Function::Silu, gate, names[1])?;
    let gate = b.linear(names[2], gate, count * width)?;
    let gated = b.glu(Function::Sigmoid, gate, flat)?;
    let gated = b.split_heads(gated, width)?;
    Ok((b.mean_of_streams(gated)?, flat))
}

/// Each stream plus its share of the branch's result.
fn branch(
    b: &mut Builder<'_>,
    streams: ValueId,
    names: Mixture,
    run: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, ModelError>,
) -> Result<ValueId, ModelError> {
    let count = b.heads_of(streams);
    let (x, flat) = mix(b, streams, names)?;
    let y = run(b, x)?;
    let shares = b.linear(names[3], flat, count)?;
    let shares = b.scale(shares, 1.0 / count.max(1) as f32, names[3])?;
    let shares = b.unary(Function::Sigmoid, shares, names[3])?;
    let shares = b.scale(shares, 2.0, names[3])?;
    let spread = spread(b, y, shares)?;
    b.add(streams, spread)
}

/// A value times a share for each stream: `[Tokens, streams, width]`.
fn spread(b: &mut Builder<'_>, x: ValueId, shares: ValueId) -> Result<ValueId, ModelError> {
    let (times, width) = (b.width(shares), b.width(x));
    let single = b.split_heads(x, width)?;
    let copies = b.push(RepeatHeads { times }, vec![single.into()], "streams")?;
    b.push(ScaleRows, vec![copies.into(), shares.into()], "streams")
}

/// Most rows of the table of n-grams.
const MOST_ROWS: u32 = 1 << 31;

/// Rows of the table of n-grams for each token, side by side.
fn hashed_rows(b: &mut Builder<'_>) -> Result<ValueId, ModelError> {
    let longest = b.count("ple.ngram_size", 64)?;
    let per_gram = b.count("ple.heads_per_ngram", 1024)?;
    let count = (longest.saturating_sub(1) * per_gram) as usize;
    let multipliers = b.u64_array("ple.layer_multipliers", longest as usize)?;
    let first = b.u64_array("ple.head_offsets", count)?;
    let rows = b.u64_array("ple.head_vocab_sizes", count)?;
    let total = first.iter().zip(&rows).map(|(first, rows)| first.saturating_add(*rows)).max();
    let total = total.and_then(|total| u32::try_from(total).ok()).filter(|total| *total <= MOST_ROWS);
    let rule = "small enough for a table of 2^31 rows";
    let total = total.ok_or_else(|| b.value_error("ple.head_offsets", format!("{first:?}"), rule))?;
    let mut heads = Vec::new();
    for (index, (first, rows)) in first.iter().zip(&rows).enumerate() {
        if *rows == 0 {
            return Err(b.value_error("ple.head_vocab_sizes", 0, "above 0 for each head"));
        }
        let tokens = 2 + index as u32 / per_gram;
        heads.push(NgramHead { tokens, first: *first as u32, rows: *rows as u32 });
    }
    let width = b.extent("embedding_length_per_layer_input")?;
    let state = b.recurrent_state(&[longest - 1])?;
    b.require_keys(&["ple.eos_token_id"])?;
    let op = NgramRows { state, multipliers, heads, end: b.u32_or("ple.eos_token_id", 0)? };
    let rows = b.push(op, vec![Operand::Input(Input::Tokens)], "ple_rows")?;
    let table = b.global_weight("per_layer_token_embd.weight", &[total, width])?;
    let rows = b.push(GatherRows, vec![table, rows.into()], "ple_embed")?;
    b.join_heads(rows)
}

/// Streams plus their gated n-gram values, and these convolved.
fn add_grams(b: &mut Builder<'_>, streams: ValueId, grams: ValueId) -> Result<ValueId, ModelError> {
    let (count, width) = (b.heads_of(streams), b.width(streams));
    let keys = b.linear("ple_key", grams, count * width)?;
    let keys = b.split_heads(keys, width)?;
    let keys = b.norm("ple_norm_key", keys)?;
    let queries = b.norm("ple_norm_query", streams)?;
    let products = b.mul(keys, queries, "ple_score")?;
    let scores = b.push(SumElements, vec![products.into()], "ple_score")?;
    let scores = b.scale(scores, 1.0 / (width as f32).sqrt(), "ple_score")?;
    let scores = b.unary(Function::SignedRoot, scores, "ple_score")?;
    let shares = b.unary(Function::Sigmoid, scores, "ple_score")?;
    let values = b.linear("ple_value", grams, width)?;
    let values = spread(b, values, shares)?;

    let normed = b.norm("ple_norm_conv", values)?;
    let flat = b.join_heads(normed)?;
    let dilation = b.count("ple.ngram_size", 64)?;
    let taps = b.extent("ple.conv_kernel")?;
    let convolved = b.dilated_convolution("ple_conv1d", flat, taps, dilation)?;
    let convolved = b.unary(Function::Silu, convolved, "ple_conv1d")?;
    let convolved = b.split_heads(convolved, width)?;
    let streams = b.add(streams, values)?;
    b.add(streams, convolved)
}
