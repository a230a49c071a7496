//! Decoders with windows between full layers: Trinity, Laguna, EXAONE with experts.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::rules::copy;

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "afmoe",
        classes: &["AfmoeForCausalLM"],
        keys: |keys| {
            sigmoid_experts(keys)?;
            keys.optional_number("leading_dense_block_count", &["num_dense_layers"])?;
            keys.optional_float("expert_weights_scale", &["route_scale"])?;
            keys.set("expert_weights_norm", true);
            Ok(())
        },
        rules: &[&[
            copy("L.self_attn.gate_proj", "attn_gate"),
            copy("L.post_attention_layernorm", "post_attention_norm"),
            copy("L.pre_mlp_layernorm", "ffn_norm"),
            copy("L.post_mlp_layernorm", "post_ffw_norm"),
            copy("L.mlp.router.gate", "ffn_gate_inp"),
            copy("L.mlp.expert_bias", "exp_probs_b.bias"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "laguna",
        classes: &["LagunaForCausalLM"],
        keys: laguna,
        rules: &[&[
            copy("L.self_attn.g_proj", "attn_gate"),
            copy("L.mlp.experts.e_score_correction_bias", "exp_probs_b.bias"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "exaone-moe",
        classes: &["ExaoneMoeForCausalLM"],
        keys: sigmoid_experts,
        rules: &[&[copy("L.mlp.e_score_correction_bias", "exp_probs_b.bias")]],
        ..PLAIN
    },
];

/// Windows in some layers and a router of sigmoids.
fn sigmoid_experts(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    keys.grouped_experts()?;
    keys.gating(2);
    keys.window()?;
    keys.window_pattern();
    Ok(())
}

fn laguna(keys: &mut Keys<'_>) -> Result<()> {
    sigmoid_experts(keys)?;
    let config = keys.model.config;
    if let Some(heads) = config.u32_list(&["num_attention_heads_per_layer"]) {
        keys.set("attention.head_count", heads);
    }
    let kinds = config.text_list(&["mlp_layer_types"]).unwrap_or_default();
    let dense = kinds.iter().take_while(|kind| **kind == "dense").count();
    keys.set("leading_dense_block_count", dense as u32);
    keys.optional_float("expert_weights_scale", &["moe_routed_scaling_factor"])?;
    keys.set("expert_weights_norm", true);
    // Window layers have a rotation of their own.
    if let Some(base) = config.rope_of("sliding_attention", "rope_theta") {
        keys.set("rope.freq_base_swa", base);
        let share = config.rope_of("sliding_attention", "partial_rotary_factor").unwrap_or(1.0);
        let dimensions = keys.model.head_dim()? as f32 * share;
        keys.set("rope.dimension_count_swa", dimensions.clamp(0.0, 65536.0) as u32);
    }
    Ok(())
}
