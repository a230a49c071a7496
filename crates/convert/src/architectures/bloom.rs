//! Models with ALiBi.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::rules::{copy, map, rows, transposed, ungroup_heads};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "bloom",
        classes: &["BloomForCausalLM", "BloomModel"],
        rules: &[&[
            rows("L.self_attention.query_key_value", "attn_qkv", ungroup_heads),
            copy("word_embeddings_layernorm", "token_embd_norm"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "mpt",
        classes: &["MPTForCausalLM", "MptForCausalLM"],
        defaults: &[("layer_norm_epsilon", 1e-5)],
        keys: mpt,
        rules: &[&[
            copy("L.attn.q_ln", "attn_q_norm"),
            copy("L.attn.k_ln", "attn_k_norm"),
            copy("L.ffn.act.scales", "ffn.act.scales"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "jais",
        classes: &["JAISLMHeadModel"],
        keys: jais,
        rules: &[&[
            transposed("L.attn.c_attn", "attn_qkv"),
            transposed("L.attn.c_proj", "attn_output"),
            transposed("L.mlp.c_fc", "ffn_gate"),
            transposed("L.mlp.c_fc2", "ffn_up"),
            transposed("L.mlp.c_proj", "ffn_down"),
            map("wte", "token_embd", |model, recipe| {
                let factor = model.config.optional_f32(&["embeddings_scale", "mup_embeddings_scale"])?;
                Ok(recipe.multiply(factor.unwrap_or(1.0)))
            }),
            crate::rules::skip("relative_pe.slopes"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "refact",
        classes: &["GPTRefactForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.set("attention.head_count_kv", 1u32);
            let epsilon = keys.model.config.optional_f32(&["layer_norm_epsilon"])?.unwrap_or(1e-5);
            keys.set("attention.layer_norm_rms_epsilon", epsilon);
            let width = keys.model.width()? as u32;
            // Two thirds of four times the width, to a multiple of 256.
            keys.set("feed_forward_length", (8 * width / 3).next_multiple_of(256));
            Ok(())
        },
        rules: &[&[
            crate::rules::split("L.mlp.gate_up_proj", |_, recipe| {
                let half = recipe.shape.first().copied().unwrap_or(0) / 2;
                let gate = recipe.clone().take(0, 0, half)?;
                Ok(vec![("ffn_gate", gate), ("ffn_up", recipe.take(0, half, half)?)])
            }),
            crate::rules::split("L.attn.kv", |model, recipe| {
                let dim = model.head_dim()?;
                let key = recipe.clone().take(0, 0, dim)?;
                Ok(vec![("attn_k", key), ("attn_v", recipe.take(0, dim, dim)?)])
            }),
            copy("L.attn.q", "attn_q"),
        ]],
        ..PLAIN
    },
];

fn mpt(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    let config = keys.model.config;
    if config.bool_or(&["attn_config.alibi", "alibi"], false) {
        let most = config.optional_f32(&["attn_config.alibi_bias_max", "alibi_bias_max"])?.unwrap_or(8.0);
        keys.set("attention.max_alibi_bias", most);
    }
    keys.optional_float("attention.clamp_kqv", &["attn_config.clip_qkv"])?;
    Ok(())
}

fn jais(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    keys.set("attention.max_alibi_bias", 8.0f32);
    Ok(())
}
