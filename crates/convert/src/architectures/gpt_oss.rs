//! gpt-oss: experts in one tensor each, in MXFP4 or as floats.

use super::{Architecture, PLAIN};
use crate::model::Model;
use crate::rules::{copy, map, split};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[Architecture {
    name: "gpt-oss",
    classes: &["GptOssForCausalLM"],
    keys: |keys| {
        keys.decoder()?;
        keys.window()?;
        keys.number("expert_feed_forward_length", &["intermediate_size"])?;
        Ok(())
    },
    rules: &[&[
        copy("L.post_attention_layernorm", "post_attention_norm"),
        copy("L.self_attn.sinks", "attn_sinks.weight"),
        copy("L.mlp.router", "ffn_gate_inp"),
        split("L.mlp.experts.gate_up_proj", |_, recipe| {
            interleaved(recipe.transpose()?, ["ffn_gate_exps.weight", "ffn_up_exps.weight"])
        }),
        split("L.mlp.experts.gate_up_proj_blocks", |_, recipe| {
            interleaved(recipe, ["ffn_gate_exps.weight", "ffn_up_exps.weight"])
        }),
        split("L.mlp.experts.gate_up_proj_bias", |_, recipe| {
            interleaved(recipe, ["ffn_gate_exps.bias", "ffn_up_exps.bias"])
        }),
        map("L.mlp.experts.down_proj", "ffn_down_exps.weight", |_: &Model<'_>, recipe| recipe.transpose()),
        copy("L.mlp.experts.down_proj_blocks", "ffn_down_exps.weight"),
        copy("L.mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    ]],
    ..PLAIN
}];

/// Rows of gate and up take turns.
fn interleaved(recipe: Recipe, names: [&'static str; 2]) -> Result<Vec<(&'static str, Recipe)>> {
    let experts = recipe.shape.first().copied().unwrap_or(0);
    let rows = recipe.shape.get(1).copied().unwrap_or(0) / 2;
    let inner: u64 = recipe.shape.iter().skip(2).product();
    let shape: Vec<u64> = [experts, rows].into_iter().chain(recipe.shape.iter().skip(2).copied()).collect();
    let pairs = recipe.reshape(&[experts, rows, 2, inner])?;
    let part = |start| pairs.clone().take(2, start, 1)?.reshape(&shape);
    let [gate, up] = names;
    Ok(vec![(gate, part(0)?), (up, part(1)?)])
}
