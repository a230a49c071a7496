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
        ahead: true,
        keys: sigmoid_experts,
        rules: &[&[copy("L.mlp.e_score_correction_bias", "exp_probs_b.bias")]],
        ..PLAIN
    },
    Architecture {
        name: "mimo2",
        classes: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        ahead: true,
        windows_ahead: true,
        keys: mimo,
        rules: &[&[
            copy("L.pre_mlp_layernorm", "ffn_norm"),
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
    Architecture {
        name: "spark2_5",
        classes: &["Spark2_5ForCausalLM"],
        keys: spark,
        rules: &[&[
            split("L.self_attn.q_k_v_proj", |model, recipe| {
                let (heads, kv, dim) = (model.heads()?, model.kv_heads()?, model.head_dim()?);
                let parts = recipe.split_rows(&[heads * dim, kv * dim, kv * dim])?;
                Ok(["attn_q", "attn_k", "attn_v"].into_iter().zip(parts).collect())
            }),
            copy("L.self_attn.g_proj", "attn_gate"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "step35",
        classes: &["Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"],
        ahead: true,
        keys: step,
        rules: &[&[
            map("norm", "output_norm", plus_one),
            map("L.input_layernorm", "attn_norm", plus_one),
            map("L.post_attention_layernorm", "ffn_norm", plus_one),
            map("L.self_attn.q_norm", "attn_q_norm", plus_one),
            map("L.self_attn.k_norm", "attn_k_norm", plus_one),
            map("L.enorm", "nextn.enorm", plus_one),
            map("L.hnorm", "nextn.hnorm", plus_one),
            map("L.transformer.shared_head.norm", "nextn.shared_head_norm", plus_one),
            copy("L.transformer.shared_head.output", "nextn.shared_head_head"),
            copy("L.self_attn.g_proj", "attn_gate"),
            copy("L.moe.gate", "ffn_gate_inp"),
            copy("L.moe.router_bias", "exp_probs_b.bias"),
            copy("L.moe.gate_proj", "ffn_gate_exps"),
            copy("L.moe.up_proj", "ffn_up_exps"),
            copy("L.moe.down_proj", "ffn_down_exps"),
            copy("L.share_expert.gate_proj", "ffn_gate_shexp"),
            copy("L.share_expert.up_proj", "ffn_up_shexp"),
            copy("L.share_expert.down_proj", "ffn_down_shexp"),
        ]],
        ..PLAIN
    },
];

/// Full and window layers have a rotation each.
fn spark(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    keys.window()?;
    keys.window_pattern();
    window_rotation(keys)
}

/// Base and share of what window layers rotate, where they have their own.
fn window_rotation(keys: &mut Keys<'_>) -> Result<()> {
    let config = keys.model.config;
    if let Some(base) = config.rope_of("sliding_attention", "rope_theta") {
        keys.set("rope.freq_base_swa", base);
        let share = config.rope_of("sliding_attention", "partial_rotary_factor").unwrap_or(1.0);
        let dimensions = keys.model.head_dim()? as f32 * share;
        keys.set("rope.dimension_count_swa", dimensions.clamp(0.0, 65536.0) as u32);
    }
    Ok(())
}

/// Step 3.5: heads, bases and bounds by layer; full layers rotate half of what the file's key says.
fn step(keys: &mut Keys<'_>) -> Result<()> {
    let model = keys.model;
    let config = model.config;
    let layers = model.layers()? as usize;
    keys.sizes()?;
    keys.number("feed_forward_length", &["intermediate_size"])?;
    keys.optional_number("leading_dense_block_count", &["first_k_dense_replace"])?;
    keys.leading_dense();
    if let Some(first) = config.text(&["moe_layers_enum"]).and_then(|list| list.split(',').next()) {
        keys.set("leading_dense_block_count", first.trim().parse::<u32>().unwrap_or(0));
    }
    let dim = keys.number("attention.key_length", &["head_dim"])?;
    keys.set("attention.value_length", dim);
    keys.set("rope.dimension_count", dim);
    let mut kinds = config.text_list(&["layer_types"]).unwrap_or_default();
    kinds.truncate(layers + model.ahead as usize);
    let of_windows =
        |names: &[&str], full: u32| Ok::<_, ConvertError>(config.optional_u32(names)?.unwrap_or(full));
    let heads = config.u32(crate::model::HEADS)?;
    let window_heads =
        of_windows(&["attention_other_setting.num_attention_heads", "num_sliding_attention_heads"], heads)?;
    let kv = config.u32(&["num_attention_groups", "num_key_value_heads"])?;
    let window_kv = of_windows(&["attention_other_setting.num_attention_groups"], kv)?;
    let by_kind = |full: u32, window: u32| -> Vec<u32> {
        kinds.iter().map(|kind| if *kind == "sliding_attention" { window } else { full }).collect()
    };
    keys.set("attention.head_count", by_kind(heads, window_heads));
    keys.set("attention.head_count_kv", by_kind(kv, window_kv));
    keys.window()?;
    let windowed: Vec<bool> = kinds.iter().map(|kind| *kind == "sliding_attention").collect();
    let bases = config.f32_list(&["rope_theta"]);
    let base_of = |windows: bool, name: &str| {
        let first = windowed.iter().position(|windowed| *windowed == windows);
        let listed = bases.as_ref().and_then(|bases| bases.get(first?).copied());
        let kind = if windows { "sliding_attention" } else { "full_attention" };
        listed.or_else(|| config.rope_of(kind, name))
    };
    let full = match base_of(false, "rope_theta") {
        Some(base) => Some(base),
        None => config.optional_f32(&["rope_theta"])?,
    };
    keys.set("rope.freq_base", full.unwrap_or(10_000.0));
    keys.set("rope.freq_base_swa", base_of(true, "rope_theta").unwrap_or(10_000.0));
    keys.set("attention.sliding_window_pattern", windowed);
    keys.number("expert_count", &["moe_num_experts", "n_routed_experts"])?;
    keys.number("expert_used_count", &["moe_top_k", "num_experts_per_tok"])?;
    keys.number("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.number("expert_shared_feed_forward_length", &["share_expert_dim", "share_expert_dims"])?;
    keys.optional_float("expert_weights_scale", &["moe_router_scaling_factor"])?;
    keys.set("expert_weights_norm", config.bool_or(&["norm_expert_weight"], true));
    keys.set("expert_gating_func", 2u32);
    for (key, name) in [("swiglu_clamp_exp", "swiglu_limits"), ("swiglu_clamp_shexp", "swiglu_limits_shared")]
    {
        let listed = config.get(&[name]).and_then(serde_json::Value::as_array);
        if let Some(limits) = listed {
            let limits = limits.iter().map(|limit| limit.as_f64().unwrap_or(0.0) as f32);
            keys.set(key, limits.take(layers).collect::<Vec<f32>>());
        }
    }
    Ok(())
}

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
    keys.leading_dense();
    keys.optional_float("expert_weights_scale", &["moe_routed_scaling_factor"])?;
    keys.set("expert_weights_norm", true);
    window_rotation(keys)
}
