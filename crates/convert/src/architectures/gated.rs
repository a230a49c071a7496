//! Decoders with windows between full layers: Trinity, Laguna, EXAONE with experts, MiMo, Muse Glimmer.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::{KV_HEADS, Model};
use crate::rules::{Named, copy, map, plus_one, split, split_gate_up_suffixed};
use crate::{ConvertError, Recipe};

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
    Architecture {
        name: "mimo2",
        classes: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        keys: mimo,
        rules: &[&[
            copy("L.self_attn.sinks", "attn_sinks.weight"),
            copy("L.self_attn.attention_sink_bias", "attn_sinks.weight"),
            split("L.mlp.experts.gate_up_proj", |_, recipe| split_gate_up_suffixed(recipe)),
            copy("L.mlp.experts.down_proj", "ffn_down_exps.weight"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "muse-glimmer",
        classes: &["MuseGlimmerForConditionalGeneration"],
        keys: |keys| {
            keys.decoder()?;
            keys.window()?;
            keys.window_pattern();
            keys.optional_float("final_logit_softcapping", &["final_logit_softcapping"])?;
            keys.optional_float("logit_scale", &["output_multiplier"])?;
            Ok(())
        },
        rules: &[&[
            map("L.input_layernorm", "attn_norm", plus_one),
            map("L.post_attention_layernorm", "post_attention_norm", plus_one),
            map("L.pre_feedforward_layernorm", "ffn_norm", plus_one),
            map("L.post_feedforward_layernorm", "post_ffw_norm", plus_one),
            copy("L.self_attn.gate_proj", "attn_gate"),
            split("L.self_attn.q_proj", |model, recipe| {
                let factor = model.config.optional_f32(&["qk_scale_factor"])?.unwrap_or(1.0);
                with_norm(model, recipe.interleave(model.heads()?)?, ["attn_q", "attn_q_norm"], factor)
            }),
            split("L.self_attn.k_proj", |model, recipe| {
                with_norm(model, recipe.interleave(model.kv_heads()?)?, ["attn_k", "attn_k_norm"], 1.0)
            }),
        ]],
        ..PLAIN
    },
];

/// A projection, and the weights of the norm of its heads, which are all the same and not in the folder.
fn with_norm(
    model: &Model<'_>,
    recipe: Recipe,
    [name, norm]: [&'static str; 2],
    factor: f32,
) -> Result<Named> {
    let weights = Recipe::values(recipe.name(), vec![factor; model.head_dim()?.min(65536) as usize]);
    Ok(vec![(name, recipe), (norm, weights)])
}

fn mimo(keys: &mut Keys<'_>) -> Result<()> {
    sigmoid_experts(keys)?;
    keys.number("attention.value_length", &["v_head_dim"])?;
    keys.optional_float("attention.value_scale", &["attention_value_scale"])?;
    let model = keys.model;
    let config = model.config;
    // A length of its own name counts the positions before, the usual one the token itself, too.
    if let Some(before) = config.optional_u32(&["sliding_window_size"])? {
        keys.set("attention.sliding_window", before.saturating_add(1));
    }
    let base = config.rope_of("sliding_attention", "rope_theta");
    let base = base.map_or_else(|| config.optional_f32(&["swa_rope_theta"]), |base| Ok(Some(base)))?;
    keys.set("rope.freq_base_swa", base.unwrap_or(10_000.0));
    let named = config.text_list(&["layer_types"]);
    let windowed: Vec<bool> = match (named, config.u32_list(&["hybrid_layer_pattern"])) {
        (Some(kinds), _) => kinds.iter().map(|kind| *kind == "sliding_attention").collect(),
        (None, Some(pattern)) => pattern.iter().map(|kind| *kind == 1).collect(),
        (None, None) => (1..=model.layers()?).map(|number| number != 1 && number % 6 != 0).collect(),
    };
    // Layers with a window have twice as many heads of keys and values.
    let full = config.u32(KV_HEADS)?;
    let window = config.optional_u32(&["swa_num_key_value_heads"])?.unwrap_or(full.saturating_mul(2));
    let heads = windowed.iter().map(|windowed| if *windowed { window } else { full });
    keys.set("attention.head_count_kv", heads.collect::<Vec<u32>>());
    keys.set("attention.sliding_window_pattern", windowed);
    Ok(())
}

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
