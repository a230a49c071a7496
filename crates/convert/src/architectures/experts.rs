//! Mixtures of experts with names or parts of their own: Arctic, Grok, GroveMoE, SmallThinker, Maple, Ling 1.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::rules::{INTERLEAVED, copy, skip, split};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "arctic",
        classes: &["ArcticForCausalLM"],
        rules: &[
            INTERLEAVED,
            &[
                copy("L.residual_layernorm", "ffn_norm"),
                copy("L.post_attention_layernorm", "ffn_norm_exps"),
                copy("L.residual_mlp.w1", "ffn_gate"),
                copy("L.residual_mlp.w2", "ffn_down"),
                copy("L.residual_mlp.w3", "ffn_up"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "grok",
        classes: &["Grok1ForCausalLM", "GrokForCausalLM"],
        keys: grok,
        rules: &[&[
            copy("L.pre_attn_norm", "attn_norm"),
            copy("L.post_attn_norm", "attn_output_norm"),
            copy("L.pre_moe_norm", "ffn_norm"),
            copy("L.post_moe_norm", "layer_output_norm"),
            // Those of Grok 1.
            copy("in_out_embed", "token_embd"),
            copy("rms_norm", "output_norm"),
            copy("L.rms_norm", "attn_norm"),
            copy("L.rms_norm_1", "attn_output_norm"),
            copy("L.rms_norm_2", "ffn_norm"),
            copy("L.rms_norm_3", "layer_output_norm"),
            copy("L.multi_head_attention.query", "attn_q"),
            copy("L.multi_head_attention.key", "attn_k"),
            copy("L.multi_head_attention.value", "attn_v"),
            copy("L.multi_head_attention.linear", "attn_output"),
            copy("L.router", "ffn_gate_inp"),
            copy("L.moe.#.linear", "ffn_gate_exps"),
            copy("L.moe.#.linear_1", "ffn_down_exps"),
            copy("L.moe.#.linear_v", "ffn_up_exps"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "grovemoe",
        classes: &["GroveMoeForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            let dim = keys.model.head_dim()? as u32;
            keys.set("expert_chunk_feed_forward_length", dim);
            // No setting names these.
            keys.set("experts_per_group", 2u32);
            keys.set("expert_group_scale", 0.05f32);
            Ok(())
        },
        rules: &[&[
            copy("L.mlp.chunk_experts.#.gate_proj", "ffn_gate_chexps"),
            copy("L.mlp.chunk_experts.#.up_proj", "ffn_up_chexps"),
            copy("L.mlp.chunk_experts.#.down_proj", "ffn_down_chexps"),
            // Which the model does not use.
            skip("L.mlp.expert_bias"),
            skip("L.mlp.gate.expert_bias"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "smallthinker",
        classes: &["SmallThinkerForCausalLM"],
        keys: smallthinker,
        rules: &[&[
            copy("L.block_sparse_moe.primary_router", "ffn_gate_inp"),
            copy("L.block_sparse_moe.experts.#.gate", "ffn_gate_exps"),
            copy("L.block_sparse_moe.experts.#.up", "ffn_up_exps"),
            copy("L.block_sparse_moe.experts.#.down", "ffn_down_exps"),
        ]],
        ..PLAIN
    },
    Architecture { name: "maple", classes: &["MapleForCausalLM"], keys: maple, ..PLAIN },
    Architecture {
        name: "bailingmoe",
        classes: &["BailingMoeForCausalLM"],
        keys: bailing,
        rules: &[&[split("L.attention.query_key_value", |model, recipe| {
            let (heads, kv, dim) = (model.heads()?, model.kv_heads()?, model.head_dim()?);
            let mut parts = recipe.split_rows(&[heads * dim, kv * dim, kv * dim])?.into_iter();
            let (Some(q), Some(k), Some(v)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(ConvertError::MissingKey { key: "query_key_value".into() });
            };
            let named: [(&str, Recipe); 3] =
                [("attn_q", q.interleave(heads)?), ("attn_k", k.interleave(kv)?), ("attn_v", v)];
            Ok(named.into())
        })]],
        ..PLAIN
    },
];

fn bailing(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    keys.grouped_experts()?;
    keys.set("expert_weights_scale", 1.0f32);
    match keys.model.config.bool_or(&["norm_head"], false) {
        false => Ok(()),
        true => Err(ConvertError::KeyValue {
            key: "norm_head".into(),
            found: "true".into(),
            expected: "false: rows of the output matrix are not normalised",
        }),
    }
}

fn grok(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let config = keys.model.config;
    for (key, default) in [("attn_logit_softcapping", 30.0), ("router_logit_softcapping", 30.0)] {
        keys.set(key, config.optional_f32(&[key])?.unwrap_or(default));
    }
    keys.optional_float("final_logit_softcapping", &["final_logit_softcapping"])?;
    let root = (keys.model.head_dim()? as f32).sqrt();
    let output_scale = config.optional_f32(&["attn_output_multiplier"])?.unwrap_or(1.0 / root);
    keys.set("attention.output_scale", output_scale);
    keys.float("embedding_scale", &["embedding_multiplier_scale"])?;
    keys.float("logit_scale", &["output_multiplier_scale"])?;
    keys.optional_number("attention.temperature_length", &["attn_temperature_len"])?;
    // Positions are stretched as YaRN does under either name.
    if matches!(config.text(&["rope_type"]), Some("yarn" | "original")) {
        keys.set("rope.scaling.type", "yarn");
        keys.float("rope.scaling.factor", &["scaling_factor"])?;
        keys.number("rope.scaling.original_context_length", &["original_max_position_embeddings"])?;
        keys.optional_float("rope.scaling.yarn_ext_factor", &["extrapolation_factor"])?;
        keys.optional_float("rope.scaling.yarn_attn_factor", &["attn_factor"])?;
        keys.optional_float("rope.scaling.yarn_beta_fast", &["beta_fast"])?;
        keys.optional_float("rope.scaling.yarn_beta_slow", &["beta_slow"])?;
    }
    Ok(())
}

fn smallthinker(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let config = keys.model.config;
    keys.number("expert_count", &["moe_num_primary_experts", "num_experts"])?;
    keys.number("expert_used_count", &["moe_num_active_primary_experts", "num_experts_per_tok"])?;
    let width = keys.number("expert_feed_forward_length", &["moe_ffn_hidden_size"])?;
    keys.set("feed_forward_length", width);
    let softmax = config.bool_or(&["moe_primary_router_apply_softmax"], false);
    keys.set("expert_gating_func", if softmax { 1u32 } else { 2 });
    let windowed = config.u32_list(&["sliding_window_layout"]).unwrap_or_default();
    if windowed.iter().any(|windowed| *windowed != 0) {
        keys.optional_number("attention.sliding_window", &["sliding_window_size"])?;
    }
    Ok(())
}

/// Only window layers rotate.
fn maple(keys: &mut Keys<'_>) -> Result<()> {
    /// Of gates and values, in the model's code.
    const BOUND: f32 = 7.0;
    keys.decoder()?;
    keys.window()?;
    keys.window_pattern();
    keys.set("swiglu_clamp_exp", vec![BOUND; keys.model.layers()? as usize]);
    Ok(())
}
