//! Latent attention on several residual streams, and DeepSeek-V4; dots 3 Note, whose window layers have widths of their own.

use super::deepseek::{INDEXER, LATENT, indexer, latent_widths, sparse, split_heads};
use super::linear::{DELTA, delta_attention};
use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::{HEADS, Model};
use crate::rules::{Named, Rule, copy, interleave_last, map, rows, split, split_gate_up_suffixed};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "hy_v4",
        classes: &["HYV4ForCausalLM", "HYV4VLForConditionalGeneration"],
        keys: |keys| {
            sparse(keys)?;
            keys.leading_dense();
            keys.indexer_types();
            streams(keys)?;
            keys.float("hyper_connection.magnitude", &["hc_magnitude"])?;
            Ok(())
        },
        rules: &[HUNYUAN, LATENT, INDEXER],
        ..PLAIN
    },
    Architecture {
        name: "glm5-next",
        classes: &["Glm5NextForConditionalGeneration", "Glm5NextForCausalLM"],
        keys: glm5_next,
        rules: &[
            HYPER,
            DELTA,
            LATENT,
            INDEXER,
            &[
                copy("L.self_attn.indexer.index_kpool_compress_ape", "indexer_compressor_ape.weight"),
                copy("L.self_attn.indexer.index_kpool_compress_gate", "indexer_compressor_gate.weight"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "deepseek4",
        classes: &["DeepseekV4ForCausalLM"],
        keys: deepseek4,
        rules: &[HYPER, DEEPSEEK4],
        ..PLAIN
    },
    Architecture {
        name: "dots3note",
        classes: &["Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration"],
        keys: dots3note,
        rules: &[
            &[
                map("L.self_attn.q_a_layernorm", "attn_q_a_norm", scaled_latent),
                map("L.self_attn.kv_a_layernorm", "attn_kv_a_norm", scaled_latent),
                copy("L.self_attn.k_rope_only_layernorm", "attn_k_norm"),
                copy("L.self_attn.g_proj", "attn_gate"),
                split("L.self_attn.kv_b_proj", split_by_kind),
            ],
            LATENT,
            INDEXER,
        ],
        ..PLAIN
    },
];

/// Mixing tensors of the streams.
const HYPER: &[Rule] = &[
    copy("L.hc_attn_fn", "hc_attn_fn.weight"),
    copy("L.hc_attn_base", "hc_attn_base.weight"),
    copy("L.hc_attn_scale", "hc_attn_scale.weight"),
    copy("L.hc_ffn_fn", "hc_ffn_fn.weight"),
    copy("L.hc_ffn_base", "hc_ffn_base.weight"),
    copy("L.hc_ffn_scale", "hc_ffn_scale.weight"),
    copy("hc_head_fn", "output_hc_fn.weight"),
    copy("hc_head_base", "output_hc_base.weight"),
    copy("hc_head_scale", "output_hc_scale.weight"),
    copy("hc_head.hc_fn", "output_hc_fn.weight"),
    copy("hc_head.hc_base", "output_hc_base.weight"),
    copy("hc_head.hc_scale", "output_hc_scale.weight"),
];

/// Names of Hunyuan 4; what is rotated lies in halves, where the file has pairs.
const HUNYUAN: &[Rule] = &[
    copy("L.hc_pre.hc_attn_layer.hc_fn", "hc_attn_fn.weight"),
    copy("L.hc_pre.hc_attn_layer.hc_base", "hc_attn_base.weight"),
    copy("L.hc_pre.hc_attn_layer.hc_scale", "hc_attn_scale.weight"),
    copy("L.hc_pre.hc_mlp_layer.hc_fn", "hc_ffn_fn.weight"),
    copy("L.hc_pre.hc_mlp_layer.hc_base", "hc_ffn_base.weight"),
    copy("L.hc_pre.hc_mlp_layer.hc_scale", "hc_ffn_scale.weight"),
    copy("hc_pre.hc_head.hc_head_fn", "output_hc_fn.weight"),
    copy("hc_pre.hc_head.hc_head_base", "output_hc_base.weight"),
    copy("hc_pre.hc_head.hc_head_scale", "output_hc_scale.weight"),
    rows("L.self_attn.q_b_proj", "attn_q_b", |m, r| interleave_last(r, m.heads()?, rotary(m)?)),
    rows("L.self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", |m, r| interleave_last(r, 1, rotary(m)?)),
    rows("L.self_attn.indexer.wq_b", "indexer.attn_q_b", |m, r| {
        interleave_last(r, m.count(&["index_n_heads"])?, rotary(m)?)
    }),
    rows("L.self_attn.indexer.wk", "indexer.attn_k", |m, r| interleave_last(r, 1, rotary(m)?)),
    rows("L.self_attn.indexer.k_norm", "indexer.k_norm", |m, r| interleave_last(r, 1, rotary(m)?)),
    copy("L.self_attn.learnable_sink_param", "attn_sinks.weight"),
    copy("L.self_attn.linear_gate", "attn_gate"),
    copy("L.mlp.linear_gate", "ffn_gate"),
    copy("L.mlp.shared_experts.linear_gate", "ffn_gate_shexp"),
    split("L.mlp.experts.gate_up_proj", |_, recipe| split_gate_up_suffixed(recipe)),
    copy("L.mlp.experts.down_proj", "ffn_down_exps.weight"),
];

const DEEPSEEK4: &[Rule] = &[
    copy("embed", "token_embd"),
    copy("head", "output"),
    copy("L.attn_norm", "attn_norm"),
    copy("L.attn.attn_sink", "attn_sinks.weight"),
    copy("L.attn.wq_a", "attn_q_a"),
    copy("L.attn.q_norm", "attn_q_a_norm"),
    copy("L.attn.wq_b", "attn_q_b"),
    copy("L.attn.wkv", "attn_kv"),
    copy("L.attn.kv_norm", "attn_kv_a_norm"),
    copy("L.attn.norm", "attn_kv_a_norm"),
    map("L.attn.wo_a", "attn_output_a", |model, recipe| {
        let groups = model.count(&["o_groups"])?;
        let rows = recipe.shape.first().copied().unwrap_or(0);
        let inner = recipe.shape.get(1).copied().unwrap_or(0);
        recipe.reshape(&[groups, rows / groups, inner])
    }),
    copy("L.attn.wo_b", "attn_output_b"),
    copy("L.attn.compressor.wkv", "attn_compressor_kv"),
    copy("L.attn.compressor.wgate", "attn_compressor_gate"),
    copy("L.attn.compressor.ape", "attn_compressor_ape.weight"),
    copy("L.attn.compressor.norm", "attn_compressor_norm"),
    copy("L.attn.indexer.wq_b", "indexer.attn_q_b"),
    copy("L.attn.indexer.weights_proj", "indexer.proj"),
    copy("L.attn.indexer.compressor.wkv", "indexer_compressor_kv"),
    copy("L.attn.indexer.compressor.wgate", "indexer_compressor_gate"),
    copy("L.attn.indexer.compressor.ape", "indexer_compressor_ape.weight"),
    copy("L.attn.indexer.compressor.norm", "indexer_compressor_norm"),
    copy("L.ffn.gate", "ffn_gate_inp"),
    copy("L.ffn.gate.bias", "exp_probs_b.bias"),
    copy("L.ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"),
    copy("L.ffn.experts.#.w1", "ffn_gate_exps"),
    copy("L.ffn.experts.#.w2", "ffn_down_exps"),
    copy("L.ffn.experts.#.w3", "ffn_up_exps"),
    copy("L.ffn.shared_experts.w1", "ffn_gate_shexp"),
    copy("L.ffn.shared_experts.w2", "ffn_down_shexp"),
    copy("L.ffn.shared_experts.w3", "ffn_up_shexp"),
];

fn rotary(model: &Model<'_>) -> Result<u64> {
    Ok(u64::from(model.config.u32(&["qk_rope_head_dim"])?))
}

/// Numbers of the streams, and the bound of the experts' networks.
fn streams(keys: &mut Keys<'_>) -> Result<()> {
    keys.number("hyper_connection.count", &["hc_mult"])?;
    keys.float("hyper_connection.epsilon", &["hc_eps"])?;
    let limit = keys.model.config.optional_f32(&["swiglu_limit"])?.unwrap_or(0.0);
    keys.set("swiglu_clamp_exp", vec![limit; keys.model.layers()? as usize]);
    Ok(())
}

/// Attention has no positions, so no head has a rotated part.
fn glm5_next(keys: &mut Keys<'_>) -> Result<()> {
    keys.sizes()?;
    keys.number("feed_forward_length", &["intermediate_size"])?;
    keys.number("attention.head_count", HEADS)?;
    keys.experts()?;
    latent_widths(keys)?;
    indexer(keys)?;
    keys.number("attention.indexer.kpool", &["index_kpool"])?;
    keys.leading_dense();
    streams(keys)?;
    keys.number("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
    delta_attention(keys)
}

fn deepseek4(keys: &mut Keys<'_>) -> Result<()> {
    keys.sizes()?;
    let model = keys.model;
    let config = model.config;
    keys.number("attention.head_count", HEADS)?;
    keys.set("attention.head_count_kv", 1u32);
    let head_dim = keys.number("attention.key_length", &["head_dim"])?;
    keys.set("attention.value_length", head_dim);
    keys.number("attention.q_lora_rank", &["q_lora_rank"])?;
    keys.number("attention.sliding_window", &["sliding_window"])?;
    keys.number("attention.output_group_count", &["o_groups"])?;
    keys.number("attention.output_lora_rank", &["o_lora_rank"])?;
    indexer(keys)?;
    keys.experts()?;
    keys.grouped_experts()?;
    keys.set("expert_gating_func", if config.text(&["scoring_func"]) == Some("sigmoid") { 2u32 } else { 4 });
    keys.set("expert_weights_norm", config.bool_or(&["norm_topk_prob"], true));
    streams(keys)?;
    keys.number("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"])?;
    let hashed = match config.text_list(&["mlp_layer_types"]) {
        Some(kinds) => kinds.iter().take_while(|kind| **kind == "hash_moe").count() as u32,
        None => config.u32(&["num_hash_layers"])?,
    };
    keys.set("hash_layer_count", hashed);
    keys.set("attention.compress_ratios", compress_ratios(model)?);
    deepseek4_rope(keys, head_dim)
}

/// Positions in a compressed block, by layer; 0 in layers that have a window alone.
fn compress_ratios(model: &Model<'_>) -> Result<Vec<u32>> {
    let config = model.config;
    if let Some(mut ratios) = config.u32_list(&["compress_ratios"]) {
        ratios.truncate(model.layers()? as usize);
        return Ok(ratios);
    }
    let kinds = config.text_list(&["layer_types"]);
    let kinds =
        kinds.ok_or_else(|| ConvertError::MissingKey { key: "layer_types or compress_ratios".into() })?;
    let ratio = |kind: &&str| match *kind {
        "sliding_attention" => Ok(0),
        kind => config.u32(&[&format!("compress_rates.{kind}")]),
    };
    kinds.iter().map(ratio).collect()
}

/// Window layers rotate plainly; only the others have another base, and YaRN without its temperature.
fn deepseek4_rope(keys: &mut Keys<'_>, head_dim: u32) -> Result<()> {
    let config = keys.model.config;
    let rotary = match config.optional_u32(&["qk_rope_head_dim"])? {
        Some(rotary) => rotary,
        None => {
            let names = ["partial_rotary_factor", "rope_parameters.main.partial_rotary_factor"];
            (head_dim as f32 * config.f32(&names)?).clamp(0.0, 65536.0) as u32
        }
    };
    keys.set("rope.dimension_count_swa", rotary);
    keys.set("rope.dimension_count", rotary);
    keys.float("rope.freq_base", &["rope_parameters.main.rope_theta", "rope_theta"])?;
    let names = ["rope_parameters.compress.rope_theta", "compress_rope_theta"];
    keys.float("attention.compress_rope_freq_base", &names)?;
    let places =
        |name: &str| ["rope_parameters.compress", "rope_scaling"].map(|place| format!("{place}.{name}"));
    let named = |name: &str| places(name).iter().find_map(|path| config.text(&[path]).map(str::to_owned));
    if named("rope_type").or_else(|| named("type")).as_deref() != Some("yarn") {
        return Ok(());
    }
    let number = |name: &str| -> Result<Option<f32>> {
        let [first, second] = places(name);
        config.optional_f32(&[&first, &second])
    };
    let factor = number("factor")?.unwrap_or(1.0);
    keys.set("rope.scaling.type", "yarn");
    keys.set("rope.scaling.factor", factor);
    keys.set("rope.scaling.attn_factor", 1.0 / (1.0 + 0.1 * factor.max(1.0).ln()));
    for (key, name) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
        if let Some(found) = number(name)? {
            keys.set(&format!("rope.scaling.{key}"), found);
        }
    }
    if let Some(original) = number("original_max_position_embeddings")? {
        keys.set("rope.scaling.original_context_length", original.clamp(0.0, 4e9) as u32);
    }
    Ok(())
}

// ------------------------------------------------------------------ dots 3 Note

/// A setting of window layers.
fn of_windows(model: &Model<'_>, name: &str) -> Result<u32> {
    let kinds = model.config.text_list(&["layer_types"]).unwrap_or_default();
    let first = kinds.iter().position(|kind| *kind == "sliding_attention").unwrap_or(0);
    let own = format!("swa_{name}");
    let by_kind = format!("per_layer_config.sliding_attention.{name}");
    let by_layer = format!("per_layer_config.{first}.{name}");
    model.config.u32(&[&own, &by_kind, &by_layer, name])
}

fn dots3note(keys: &mut Keys<'_>) -> Result<()> {
    sparse(keys)?;
    keys.leading_dense();
    let model = keys.model;
    let config = model.config;
    let windowed: Vec<bool> = match config.text_list(&["layer_types"]) {
        Some(kinds) => kinds.iter().map(|kind| *kind == "sliding_attention").collect(),
        None => (0..model.layers()?).map(|layer| layer >= 2 && layer % 4 != 1).collect(),
    };
    keys.number("attention.sliding_window", &["sliding_window", "sliding_window_size"])?;
    for name in ["q_lora_rank", "qk_rope_head_dim"] {
        let (full, window) = (config.u32(&[name])?, of_windows(model, name)?);
        if full != window {
            let (key, found) = (format!("swa_{name}"), window.to_string());
            return Err(ConvertError::KeyValue { key, found, expected: "that of full layers" });
        }
    }
    let heads = [config.u32(HEADS)?, of_windows(model, "num_attention_heads")?];
    let by_layer = windowed.iter().map(|windowed| heads[usize::from(*windowed)]);
    keys.set("attention.head_count", by_layer.collect::<Vec<u32>>());
    let (plain, rotary) = (of_windows(model, "qk_nope_head_dim")?, of_windows(model, "qk_rope_head_dim")?);
    keys.set("attention.key_length_mla_swa", plain.saturating_add(rotary));
    keys.set("attention.value_length_mla_swa", of_windows(model, "v_head_dim")?);
    keys.set("attention.kv_lora_rank_swa", of_windows(model, "kv_lora_rank")?);
    keys.optional_float("rope.freq_base", &["rope_parameters.indexed_attention.rope_theta"])?;
    let window_base = ["rope_parameters.sliding_attention.rope_theta", "swa_rope_theta"];
    keys.set("rope.freq_base_swa", config.optional_f32(&window_base)?.unwrap_or(50_000.0));
    keys.set("attention.indexer.types", windowed.iter().map(|w| u32::from(!w)).collect::<Vec<u32>>());
    keys.set("attention.sliding_window_pattern", windowed);
    Ok(())
}

/// Latent vectors are multiplied by the root of what they are narrower than the width; the norm before holds that factor.
fn scaled_latent(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let factor = (model.width()? as f32 / recipe.elements().max(1) as f32).sqrt();
    Ok(recipe.multiply(factor))
}

/// Projections of keys and values by head, of which window layers may have others.
fn split_by_kind(model: &Model<'_>, recipe: Recipe) -> Result<Named> {
    let of_full = |name: &str| model.config.u32(&[name]);
    let window: [u32; 4] = [
        of_windows(model, "num_attention_heads")?,
        of_windows(model, "qk_nope_head_dim")?,
        of_windows(model, "v_head_dim")?,
        of_windows(model, "kv_lora_rank")?,
    ];
    let full = [
        model.heads()? as u32,
        of_full("qk_nope_head_dim")?,
        of_full("v_head_dim")?,
        of_full("kv_lora_rank")?,
    ];
    let fits = |[heads, plain, value, rank]: [u32; 4]| {
        recipe.shape == [u64::from(heads) * (u64::from(plain) + u64::from(value)), u64::from(rank)]
    };
    let [heads, plain, value, rank] = if fits(full) { full } else { window }.map(u64::from);
    split_heads(recipe, heads.max(1), [plain, value, rank])
}
