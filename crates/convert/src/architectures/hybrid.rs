//! Attention in some layers or beside a recurrence.

use super::mamba::by_group;
use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{Rule, copy, interleave_keys, interleave_queries, map, rows, split, squeeze};
use crate::{Config, ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture { name: "lfm2", classes: &["Lfm2ForCausalLM"], keys: lfm2, rules: &[LFM2], ..PLAIN },
    Architecture {
        name: "lfm2moe",
        classes: &["Lfm2MoeForCausalLM"],
        keys: |keys| {
            lfm2(keys)?;
            keys.number("leading_dense_block_count", &["num_dense_layers"])?;
            keys.optional_float("expert_weights_scale", &["routed_scaling_factor"])?;
            keys.set("expert_gating_func", 2u32);
            Ok(())
        },
        rules: &[
            LFM2,
            &[
                copy("L.feed_forward.gate", "ffn_gate_inp"),
                copy("L.feed_forward.expert_bias", "exp_probs_b.bias"),
                copy("L.feed_forward.experts.#.w1", "ffn_gate_exps"),
                copy("L.feed_forward.experts.#.w2", "ffn_down_exps"),
                copy("L.feed_forward.experts.#.w3", "ffn_up_exps"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "jamba",
        classes: &["JambaForCausalLM"],
        keys: jamba,
        rules: &[&[
            copy("L.mamba.dt_layernorm", "ssm_dt_norm"),
            copy("L.mamba.b_layernorm", "ssm_b_norm"),
            copy("L.mamba.c_layernorm", "ssm_c_norm"),
            copy("L.feed_forward.router", "ffn_gate_inp"),
            copy("L.feed_forward.experts.#.gate_proj", "ffn_gate_exps"),
            copy("L.feed_forward.experts.#.up_proj", "ffn_up_exps"),
            copy("L.feed_forward.experts.#.down_proj", "ffn_down_exps"),
            copy("L.pre_moe_layernorm", "ffn_norm"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "falcon-h1",
        classes: &["FalconH1ForCausalLM"],
        keys: falcon_h1,
        rules: &[&[
            map("embed_tokens", "token_embd", |m, r| scaled(m, r, &["embedding_multiplier"])),
            map("lm_head", "output", |m, r| scaled(m, r, &["lm_head_multiplier"])),
            map("L.self_attn.q_proj", "attn_q", |m, r| scaled(m, r, &["attention_in_multiplier"])),
            map("L.self_attn.k_proj", "attn_k", |m, r| {
                scaled(m, r, &["attention_in_multiplier", "key_multiplier"])
            }),
            map("L.self_attn.v_proj", "attn_v", |m, r| scaled(m, r, &["attention_in_multiplier"])),
            map("L.self_attn.o_proj", "attn_output", |m, r| scaled(m, r, &["attention_out_multiplier"])),
            map("L.mamba.in_proj.weight", "ssm_in.weight", scaled_parts),
            map("L.mamba.out_proj", "ssm_out", |m, r| scaled(m, r, &["ssm_out_multiplier"])),
            map("L.mamba.norm", "ssm_norm", by_group),
            map("L.feed_forward.gate_proj", "ffn_gate", |m, r| scaled_by_list(m, r, 0)),
            map("L.feed_forward.down_proj", "ffn_down", |m, r| scaled_by_list(m, r, 1)),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "granitehybrid",
        classes: &["GraniteMoeHybridForCausalLM", "BambaForCausalLM"],
        keys: granite,
        rules: &[
            super::granite::EXPERTS,
            &[
                rows("L.self_attn.q_proj", "attn_q", interleave_queries),
                rows("L.self_attn.k_proj", "attn_k", interleave_keys),
                map("L.mamba.norm", "ssm_norm", by_group),
                split("L.shared_mlp.input_linear", |model, recipe| {
                    let names = match model.config.optional_u32(&["num_local_experts"])?.unwrap_or(0) {
                        0 => ["ffn_gate", "ffn_up"],
                        _ => ["ffn_gate_shexp", "ffn_up_shexp"],
                    };
                    let half = recipe.shape.first().copied().unwrap_or(0) / 2;
                    let gate = recipe.clone().take(0, 0, half)?;
                    Ok(vec![(names[0], gate), (names[1], recipe.take(0, half, half)?)])
                }),
                split("L.shared_mlp.output_linear", |model, recipe| {
                    let dense = model.config.optional_u32(&["num_local_experts"])?.unwrap_or(0) == 0;
                    Ok(vec![(if dense { "ffn_down" } else { "ffn_down_shexp" }, recipe)])
                }),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "nemotron_h_moe",
        classes: &["NemotronHForCausalLM"],
        applies: |config| nemotron_kinds(config).contains(&"moe"),
        keys: |keys| {
            nemotron_h(keys)?;
            keys.grouped_experts()?;
            keys.gating(2);
            keys.number("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"])?;
            keys.optional_number("moe_latent_size", &["moe_latent_size"])?;
            Ok(())
        },
        rules: &[
            NEMOTRON,
            &[
                copy("L.mixer.gate", "ffn_gate_inp"),
                copy("L.mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
                copy("L.mixer.experts.#.up_proj", "ffn_up_exps"),
                copy("L.mixer.experts.#.down_proj", "ffn_down_exps"),
                copy("L.mixer.shared_experts.up_proj", "ffn_up_shexp"),
                copy("L.mixer.shared_experts.down_proj", "ffn_down_shexp"),
                copy("L.mixer.fc1_latent_proj", "ffn_latent_down"),
                copy("L.mixer.fc2_latent_proj", "ffn_latent_up"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "nemotron_h",
        classes: &["NemotronHForCausalLM"],
        keys: nemotron_h,
        rules: &[NEMOTRON],
        ..PLAIN
    },
];

const NEMOTRON: &[Rule] = &[
    copy("L.norm", "attn_norm"),
    map("L.mixer.norm", "ssm_norm", by_group),
    copy("L.mixer.q_proj", "attn_q"),
    copy("L.mixer.k_proj", "attn_k"),
    copy("L.mixer.v_proj", "attn_v"),
    copy("L.mixer.o_proj", "attn_output"),
    copy("L.mixer.up_proj", "ffn_up"),
    copy("L.mixer.down_proj", "ffn_down"),
];

// ------------------------------------------------------------------ LFM2

const LFM2: &[Rule] = &[
    // The final norm has a historic name in the files.
    copy("embedding_norm", "token_embd_norm"),
    copy("L.operator_norm", "attn_norm"),
    map("L.conv.conv", "shortconv.conv", squeeze),
    copy("L.conv.in_proj", "shortconv.in_proj"),
    copy("L.conv.out_proj", "shortconv.out_proj"),
];

fn lfm2(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let config = keys.model.config;
    keys.float("attention.layer_norm_rms_epsilon", &["norm_eps", "block_norm_eps"])?;
    keys.number("shortconv.l_cache", &["conv_L_cache"])?;
    let kv = keys.model.kv_heads()? as u32;
    let attends: Vec<bool> = match (config.text_list(&["layer_types"]), config.u32_list(&["full_attn_idxs"]))
    {
        (Some(kinds), _) => kinds.iter().map(|kind| *kind == "full_attention").collect(),
        (None, Some(list)) => (0..keys.model.layers()? as u32).map(|layer| list.contains(&layer)).collect(),
        (None, None) => vec![true; keys.model.layers()? as usize],
    };
    keys.set("attention.head_count_kv", heads_by_layer(&attends, kv));
    if config.bool_or(&["block_auto_adjust_ff_dim"], false) {
        let width = config.u32(&["block_ff_dim", "intermediate_size"])?;
        let factor = config.optional_f32(&["block_ffn_dim_multiplier"])?.unwrap_or(1.0);
        let multiple = config.optional_u32(&["block_multiple_of"])?.unwrap_or(256).max(1);
        let adjusted = (2 * u64::from(width) / 3) as f32 * factor;
        keys.set("feed_forward_length", (adjusted as u32).next_multiple_of(multiple));
    }
    Ok(())
}

/// Key heads of layers that attend, none of others.
fn heads_by_layer(attends: &[bool], heads: u32) -> Vec<i32> {
    attends.iter().map(|attends| if *attends { heads as i32 } else { 0 }).collect()
}

// ------------------------------------------------------------------ Jamba

fn jamba(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let model = keys.model;
    let width = model.width()? as u32;
    keys.number("ssm.conv_kernel", &["mamba_d_conv"])?;
    keys.number("ssm.state_size", &["mamba_d_state"])?;
    let expand = model.config.optional_u32(&["mamba_expand"])?.unwrap_or(2);
    keys.set("ssm.inner_size", width.saturating_mul(expand));
    let rank = model.config.optional_u32(&["mamba_dt_rank"])?;
    keys.set("ssm.time_step_rank", rank.unwrap_or(width.div_ceil(16)));
    let period = model.count(&["attn_layer_period"])?;
    let offset = u64::from(model.config.u32(&["attn_layer_offset"])?);
    let attends: Vec<bool> = (0..model.layers()?).map(|layer| layer % period == offset).collect();
    keys.set("attention.head_count_kv", heads_by_layer(&attends, model.kv_heads()? as u32));
    Ok(())
}

// ------------------------------------------------------------------ Falcon-H1

fn mamba2(keys: &mut Keys<'_>) -> Result<()> {
    keys.number("ssm.conv_kernel", &["mamba_d_conv", "conv_kernel"])?;
    keys.number("ssm.state_size", &["mamba_d_state", "ssm_state_size"])?;
    let heads = keys.number("ssm.time_step_rank", &["mamba_n_heads", "mamba_num_heads"])?;
    keys.number("ssm.group_count", &["mamba_n_groups", "n_groups"])?;
    let dim = keys.model.config.optional_u32(&["mamba_d_head", "mamba_head_dim"])?;
    let inner = match keys.model.config.optional_u32(&["mamba_d_ssm"])? {
        Some(inner) => inner,
        None => heads.saturating_mul(dim.unwrap_or(64)),
    };
    keys.set("ssm.inner_size", inner);
    Ok(())
}

fn falcon_h1(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    mamba2(keys)
}

fn scaled(model: &Model<'_>, recipe: Recipe, names: &[&str]) -> Result<Recipe> {
    let mut factor = 1.0;
    for name in names {
        factor *= model.config.optional_f32(&[name])?.unwrap_or(1.0);
    }
    Ok(recipe.multiply(factor))
}

fn scaled_by_list(model: &Model<'_>, recipe: Recipe, index: usize) -> Result<Recipe> {
    let factors = model.config.f32_list(&["mlp_multipliers"]).unwrap_or_default();
    Ok(recipe.multiply(factors.get(index).copied().unwrap_or(1.0)))
}

/// The parts of the input projection have factors of their own: gate, input, B, C, time steps.
fn scaled_parts(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let config = model.config;
    let whole = config.optional_f32(&["ssm_in_multiplier"])?.unwrap_or(1.0);
    let inner = model.count(&["mamba_d_ssm"])? as usize;
    let side = (model.count(&["mamba_n_groups"])? * model.count(&["mamba_d_state"])?) as usize;
    let heads = model.count(&["mamba_n_heads"])? as usize;
    let factors = config.f32_list(&["ssm_multipliers"]).unwrap_or_else(|| vec![1.0; 5]);
    let widths = [inner, inner, side, side, heads];
    if widths.iter().sum::<usize>() as u64 != recipe.shape.first().copied().unwrap_or(0) {
        return recipe.multiply_rows(Vec::new());
    }
    let rows = widths.iter().zip(factors).flat_map(|(width, factor)| vec![factor * whole; *width]).collect();
    recipe.multiply_rows(rows)
}

// ------------------------------------------------------------------ Granite 4 and Nemotron-H

/// Names of layers that attend.
const ATTENTION: &[&str] = &["attention", "full_attention"];

fn granite(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    super::granite::scales(keys)?;
    mamba2(keys)?;
    keys.optional_number("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
    if keys.model.config.optional_u32(&["num_local_experts"])?.unwrap_or(0) == 0 {
        let width = keys.model.config.u32(&["shared_intermediate_size", "intermediate_size"])?;
        keys.set("feed_forward_length", width);
    }
    if let Some(kinds) = keys.model.config.text_list(&["layer_types", "layers_block_type"]) {
        let attends: Vec<bool> = kinds.iter().map(|kind| ATTENTION.contains(kind)).collect();
        keys.set("attention.head_count_kv", heads_by_layer(&attends, keys.model.kv_heads()? as u32));
    }
    let rotates = keys.model.config.text(&["position_embedding_type"]) == Some("rope");
    keys.set("rope.scaling.finetuned", rotates);
    Ok(())
}

fn nemotron_h(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    mamba2(keys)?;
    let config = keys.model.config;
    let epsilon = config.optional_f32(&["layer_norm_epsilon", "norm_eps", "rms_norm_eps"])?.unwrap_or(1e-5);
    // Its norms are RMS norms, but files have both names.
    keys.set("attention.layer_norm_rms_epsilon", epsilon);
    keys.set("attention.layer_norm_epsilon", epsilon);
    let kv = keys.model.kv_heads()? as i32;
    let width = config.u32(&["intermediate_size"])? as i32;
    let expert = config.optional_u32(&["moe_intermediate_size"])?.unwrap_or(0) as i32;
    let kinds = nemotron_kinds(config);
    let heads: Vec<i32> = kinds.iter().map(|kind| if ATTENTION.contains(kind) { kv } else { 0 }).collect();
    keys.set("attention.head_count_kv", heads);
    let widths = kinds.iter().map(|kind| match *kind {
        "mlp" => width,
        "moe" => expert,
        _ => 0,
    });
    keys.set("feed_forward_length", widths.collect::<Vec<i32>>());
    Ok(())
}

/// What each layer is; older files have a letter for each.
fn nemotron_kinds(config: &Config) -> Vec<&str> {
    if let Some(kinds) = config.text_list(&["layers_block_type"]) {
        return kinds;
    }
    let letters = config.text(&["hybrid_override_pattern"]).unwrap_or_default().chars();
    let kind = |letter| match letter {
        '*' => "attention",
        '-' => "mlp",
        'E' => "moe",
        _ => "mamba",
    };
    letters.map(kind).collect()
}
