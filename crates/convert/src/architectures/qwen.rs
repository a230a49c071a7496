//! Qwen and models with its names: rotation in halves, as GGUF stores it for them.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{
    Rule, copy, equal_parts, map, negative_exponential, plus_one, rows, skip, split, squeeze,
};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

/// The norm before the feed-forward network has the name of one after attention.
pub(super) const POST_ATTENTION: &[Rule] = &[copy("L.post_attention_layernorm", "post_attention_norm")];

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "qwen",
        classes: &["QWenLMHeadModel"],
        rules: &[&[copy("L.mlp.w1", "ffn_up"), copy("L.mlp.w2", "ffn_gate")]],
        ..PLAIN
    },
    Architecture { name: "qwen2", classes: &["Qwen2ForCausalLM", "KORMoForCausalLM"], ..PLAIN },
    Architecture { name: "qwen2moe", classes: &["Qwen2MoeForCausalLM"], ..PLAIN },
    Architecture {
        name: "qwen2vl",
        classes: &["Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
        keys: sections,
        rules: &[VISION],
        ..PLAIN
    },
    Architecture {
        name: "paddleocr",
        classes: &["PaddleOCRVLForConditionalGeneration"],
        keys: sections,
        rules: &[VISION],
        ..PLAIN
    },
    Architecture { name: "qwen3", classes: &["Qwen3ForCausalLM", "Qwen3Model"], ..PLAIN },
    Architecture { name: "qwen3moe", classes: &["Qwen3MoeForCausalLM"], ..PLAIN },
    Architecture {
        name: "qwen3vl",
        classes: &["Qwen3VLForConditionalGeneration"],
        keys: sections,
        rules: &[VISION],
        ..PLAIN
    },
    Architecture {
        name: "qwen3vlmoe",
        classes: &["Qwen3VLMoeForConditionalGeneration"],
        keys: sections,
        rules: &[VISION],
        ..PLAIN
    },
    Architecture { name: "dream", classes: &["DreamModel"], keys: bidirectional, ..PLAIN },
    Architecture {
        name: "llada-moe",
        classes: &["LLaDAMoEModelLM", "LLaDAMoEModel"],
        keys: |keys| {
            bidirectional(keys)?;
            keys.optional_number("expert_feed_forward_length", &["expert_intermediate_size"])?;
            Ok(())
        },
        ..PLAIN
    },
    Architecture { name: "rnd1", classes: &["RND1"], keys: bidirectional, ..PLAIN },
    Architecture { name: "seed_oss", classes: &["SeedOssForCausalLM"], rules: &[POST_ATTENTION], ..PLAIN },
    Architecture { name: "pangu-embedded", classes: &["PanguEmbeddedForCausalLM"], ..PLAIN },
    Architecture { name: "orion", classes: &["OrionForCausalLM"], keys: orion, ..PLAIN },
    Architecture {
        name: "bitnet",
        classes: &["BitNetForCausalLM"],
        rules: &[&[
            copy("L.self_attn.attn_sub_norm", "attn_sub_norm"),
            copy("L.self_attn.inner_attn_ln", "attn_sub_norm"),
            copy("L.mlp.ffn_sub_norm", "ffn_sub_norm"),
            copy("L.mlp.ffn_layernorm", "ffn_sub_norm"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "exaone",
        classes: &["ExaoneForCausalLM"],
        rules: &[&[
            copy("L.attn.attention.q_proj", "attn_q"),
            copy("L.attn.attention.k_proj", "attn_k"),
            copy("L.attn.attention.v_proj", "attn_v"),
            copy("L.attn.attention.out_proj", "attn_output"),
            copy("L.mlp.c_fc_0", "ffn_gate"),
            copy("L.mlp.c_fc_1", "ffn_up"),
            skip("rotary.inv_freq"),
        ]],
        keys: |keys| {
            keys.decoder()?;
            let epsilon = keys.model.config.optional_f32(&["layer_norm_epsilon"])?.unwrap_or(1e-5);
            keys.set("attention.layer_norm_rms_epsilon", epsilon);
            Ok(())
        },
        ..PLAIN
    },
    Architecture { name: "mellum", classes: &["MellumForCausalLM"], ..PLAIN },
    Architecture { name: "maincoder", classes: &["MaincoderForCausalLM"], ..PLAIN },
    Architecture { name: "hunyuan-dense", classes: &["HunYuanDenseV1ForCausalLM"], keys: hunyuan, ..PLAIN },
    Architecture {
        name: "hunyuan_vl",
        classes: &["HunYuanVLForConditionalGeneration"],
        keys: |keys| {
            hunyuan(keys)?;
            set_sections(keys, None);
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "openelm",
        classes: &["OpenELMForCausalLM"],
        keys: openelm,
        rules: &[&[
            copy("token_embeddings", "token_embd"),
            copy("L.attn_norm", "attn_norm"),
            copy("L.attn.qkv_proj", "attn_qkv"),
            copy("L.attn.q_norm", "attn_q_norm"),
            copy("L.attn.k_norm", "attn_k_norm"),
            split("L.ffn.proj_1", |_, recipe| equal_parts(recipe, ["ffn_gate", "ffn_up"])),
            copy("L.ffn.proj_2", "ffn_down"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "cogvlm",
        classes: &["CogVLMForCausalLM"],
        rules: &[&[
            copy("L.self_attn.language_expert_query_key_value", "attn_qkv"),
            copy("L.self_attn.language_expert_dense", "attn_output"),
            copy("L.self_attn.vision_expert_query_key_value", "vis_attn_qkv"),
            copy("L.self_attn.vision_expert_dense", "vis_attn_output"),
            copy("L.mlp.language_mlp.gate_proj", "ffn_gate"),
            copy("L.mlp.language_mlp.up_proj", "ffn_up"),
            copy("L.mlp.language_mlp.down_proj", "ffn_down"),
            copy("L.mlp.vision_mlp.gate_proj", "vis_gate"),
            copy("L.mlp.vision_mlp.up_proj", "vis_up"),
            copy("L.mlp.vision_mlp.down_proj", "vis_down"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "hunyuan-moe",
        classes: &["HunYuanMoEV1ForCausalLM"],
        keys: hunyuan,
        rules: &[&[
            copy("L.mlp.gate.wg", "ffn_gate_inp"),
            copy("L.mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
            copy("L.mlp.shared_mlp.up_proj", "ffn_up_shexp"),
            copy("L.mlp.shared_mlp.down_proj", "ffn_down_shexp"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "qwen3next",
        classes: &["Qwen3NextForCausalLM"],
        ahead: true,
        keys: delta_net,
        rules: &[NORMS, NEXT],
        ..PLAIN
    },
    Architecture {
        name: "qwen35",
        classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
        ahead: true,
        keys: delta_net_and_sections,
        rules: &[NORMS, QWEN35, VISION],
        ..PLAIN
    },
    Architecture {
        name: "qwen35moe",
        classes: &["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"],
        ahead: true,
        keys: delta_net_and_sections,
        rules: &[NORMS, QWEN35, VISION],
        ..PLAIN
    },
];

/// The image encoder of these models becomes a file of its own.
const VISION: &[Rule] = &[];

fn bidirectional(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    keys.set("attention.causal", false);
    Ok(())
}

/// Sections of the positions of images; text has the same position in each.
fn sections(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    set_sections(keys, None);
    Ok(())
}

/// The sections that the configuration names, or these.
fn set_sections(keys: &mut Keys<'_>, default: Option<Vec<u32>>) {
    let names = [
        "rope_scaling.mrope_section",
        "rope_parameters.mrope_section",
        "rope_scaling.xdrope_section",
        "rope_parameters.xdrope_section",
    ];
    if let Some(mut found) = keys.model.config.u32_list(&names).or(default) {
        found.resize(4, 0);
        keys.set("rope.dimension_sections", found.into_iter().map(|n| n as i32).collect::<Vec<_>>());
    }
}

fn delta_net_and_sections(keys: &mut Keys<'_>) -> Result<()> {
    delta_net(keys)?;
    // What the model takes where its configuration says nothing.
    set_sections(keys, Some(vec![11, 11, 10]));
    Ok(())
}

fn orion(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    // The setting is named like that of another kind of norm.
    let epsilon = keys.model.config.f32(&["rms_norm_eps"])?;
    keys.set("attention.layer_norm_epsilon", epsilon);
    let key = "orion.attention.layer_norm_rms_epsilon";
    keys.metadata.remove(key);
    Ok(())
}

fn hunyuan(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let config = keys.model.config;
    if let (Some(shared), Some(width)) = (
        config.u32_list(&["num_shared_expert"]).and_then(|list| list.first().copied()),
        config.optional_u32(&["intermediate_size"])?,
    ) {
        keys.set("expert_shared_feed_forward_length", width.saturating_mul(shared));
        keys.set("expert_feed_forward_length", width);
    }
    Ok(())
}

/// Heads and widths of networks differ by layer.
fn openelm(keys: &mut Keys<'_>) -> Result<()> {
    keys.sizes()?;
    let config = keys.model.config;
    let list = |name: &str| {
        config.u32_list(&[name]).ok_or_else(|| ConvertError::MissingKey { key: name.to_owned() })
    };
    keys.set("attention.head_count", list("num_query_heads")?);
    keys.set("attention.head_count_kv", list("num_kv_heads")?);
    let dim = keys.number("attention.key_length", &["head_dim"])?;
    keys.set("attention.value_length", dim);
    keys.set("rope.dimension_count", dim);
    keys.float("rope.freq_base", &["rope_freq_constant"])?;
    // The model's code has it.
    keys.set("attention.layer_norm_rms_epsilon", 1e-6f32);
    let times = config.f32_list(&["ffn_multipliers"]);
    let times = times.ok_or_else(|| ConvertError::MissingKey { key: "ffn_multipliers".into() })?;
    let (width, divisor) = (keys.model.width()?, keys.model.count(&["ffn_dim_divisor"])?);
    let widths = times.iter().map(|times| divisible(f64::from(*times) * width as f64, divisor));
    keys.set("feed_forward_length", widths.collect::<Vec<u32>>());
    Ok(())
}

/// The nearest multiple, at least one and at least nine tenths.
fn divisible(exact: f64, divisor: u64) -> u32 {
    let exact = exact.clamp(0.0, f64::from(1u32 << 28));
    let nearest = ((exact + divisor as f64 / 2.0) as u64 / divisor * divisor).max(divisor);
    let fits = nearest as f64 >= 0.9 * exact;
    u32::try_from(if fits { nearest } else { nearest + divisor }).unwrap_or(u32::MAX)
}

// ------------------------------------------------------------------ gated delta nets

/// Norms are stored as the difference to 1, but for that of the recurrent heads.
const NORMS: &[Rule] = &[
    map("norm", "output_norm", plus_one),
    map("L.input_layernorm", "attn_norm", plus_one),
    map("L.post_attention_layernorm", "post_attention_norm", plus_one),
    map("L.self_attn.q_norm", "attn_q_norm", plus_one),
    map("L.self_attn.k_norm", "attn_k_norm", plus_one),
    map("L.enorm", "nextn.enorm", plus_one),
    map("L.hnorm", "nextn.hnorm", plus_one),
    map("L.shared_head.norm", "nextn.shared_head_norm", plus_one),
];

const NEXT: &[Rule] = &[
    split("L.linear_attn.in_proj_qkvz", split_grouped),
    copy("L.linear_attn.in_proj_ba", "ssm_ba"),
    map("L.linear_attn.conv1d", "ssm_conv1d", squeeze),
    copy("L.linear_attn.dt_bias", "ssm_dt.bias"),
    map("L.linear_attn.A_log", "ssm_a", negative_exponential),
    copy("L.linear_attn.norm", "ssm_norm"),
    copy("L.linear_attn.out_proj", "ssm_out"),
];

/// Value heads change from the order of their key heads to a cyclic one.
const QWEN35: &[Rule] = &[
    map("L.linear_attn.in_proj_qkv", "attn_qkv", tile_after_keys),
    rows("L.linear_attn.in_proj_z", "attn_gate", tile_rows),
    rows("L.linear_attn.in_proj_b", "ssm_beta", tile_rows),
    rows("L.linear_attn.in_proj_a", "ssm_alpha", tile_rows),
    map("L.linear_attn.conv1d", "ssm_conv1d", |model, recipe| tile_after_keys(model, recipe.squeeze()?)),
    rows("L.linear_attn.dt_bias", "ssm_dt.bias", tile_rows),
    map("L.linear_attn.A_log", "ssm_a", |model, recipe| {
        negative_exponential(model, tile_rows(model, recipe)?)
    }),
    copy("L.linear_attn.norm", "ssm_norm"),
    map("L.linear_attn.out_proj", "ssm_out", |model, recipe| {
        tile_rows(model, recipe.transpose()?)?.transpose()
    }),
];

/// Numbers of key and value heads and their widths.
struct Heads {
    key_heads: u64,
    value_heads: u64,
    key_dim: u64,
    value_dim: u64,
}

impl Heads {
    fn of(model: &Model<'_>) -> Result<Self> {
        Ok(Self {
            key_heads: model.count(&["linear_num_key_heads"])?,
            value_heads: model.count(&["linear_num_value_heads"])?,
            key_dim: model.count(&["linear_key_head_dim"])?,
            value_dim: model.count(&["linear_value_head_dim"])?,
        })
    }
}

fn delta_net(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let heads = Heads::of(keys.model)?;
    keys.number("ssm.conv_kernel", &["linear_conv_kernel_dim"])?;
    keys.number("ssm.state_size", &["linear_key_head_dim"])?;
    keys.number("ssm.group_count", &["linear_num_key_heads"])?;
    keys.number("ssm.time_step_rank", &["linear_num_value_heads"])?;
    keys.set("ssm.inner_size", (heads.value_heads * heads.value_dim) as u32);
    keys.optional_number("full_attention_interval", &["full_attention_interval"])?;
    if let Some(kinds) = keys.model.config.text_list(&["layer_types"]) {
        let recurrent: Vec<bool> = kinds.iter().map(|kind| *kind == "linear_attention").collect();
        keys.set("attention.recurrent_layers", recurrent);
    }
    Ok(())
}

/// By key head: its query, its key, its values, their gates.
fn split_grouped(model: &Model<'_>, recipe: Recipe) -> Result<Vec<(&'static str, Recipe)>> {
    let Heads { key_heads, value_heads, key_dim, value_dim } = Heads::of(model)?;
    let values = value_heads / key_heads * value_dim;
    let inner: u64 = recipe.shape.iter().skip(1).product();
    let by_head = recipe.reshape(&[key_heads, 2 * key_dim + 2 * values, inner])?;
    let part = |start, count| by_head.clone().take(1, start, count)?.reshape(&[key_heads * count, inner]);
    let (q, k) = (part(0, key_dim)?, part(key_dim, key_dim)?);
    let (v, z) = (part(2 * key_dim, values)?, part(2 * key_dim + values, values)?);
    Ok(vec![("attn_qkv", Recipe::join(vec![q, k, v])?), ("attn_gate", z)])
}

/// Rows of value heads from grouped by key head to cyclic over key heads.
fn tile_rows(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let Heads { key_heads, value_heads, .. } = Heads::of(model)?;
    let rows = recipe.shape.first().copied().unwrap_or(0);
    let inner: u64 = recipe.shape.iter().skip(1).product();
    let shape = recipe.shape.clone();
    let split = [key_heads, value_heads / key_heads, rows / value_heads, inner];
    recipe.reorder(&split, &[1, 0, 2, 3], &shape)
}

/// The same for the rows after those of queries and keys.
fn tile_after_keys(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let Heads { key_heads, value_heads, key_dim, value_dim } = Heads::of(model)?;
    let mut parts = recipe.split_rows(&[2 * key_heads * key_dim, value_heads * value_dim])?.into_iter();
    let (Some(keys), Some(values)) = (parts.next(), parts.next()) else {
        return Err(ConvertError::MissingKey { key: "linear_attn".into() });
    };
    Recipe::join(vec![keys, tile_rows(model, values)?])
}
