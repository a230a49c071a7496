//! Gemma: norms stored as the difference to 1 up to version 3.

use super::{Architecture, PLAIN};
use crate::keys::{Keys, global_head_dim, of_full_layers};
use crate::model::{Model, QUERY_SCALAR};
use crate::rules::{Rule, copy, map, plus_one, rows};
use crate::{ConvertError, Recipe};

const NORMS: &[Rule] = &[
    map("norm", "output_norm", plus_one),
    map("L.input_layernorm", "attn_norm", plus_one),
    map("L.self_attn.q_norm", "attn_q_norm", plus_one),
    map("L.self_attn.k_norm", "attn_k_norm", plus_one),
];

/// Gemma 3's norms, those of queries with the factor of their scores.
const NORMS_OF_3: &[Rule] = &[map("L.self_attn.q_norm", "attn_q_norm", |model, recipe| {
    Ok(recipe.map(|x| x + 1.0).multiply(query_factor(model)?))
})];

/// Gemma 2's queries with the factor of their scores.
const QUERIES_OF_2: &[Rule] =
    &[rows("L.self_attn.q_proj", "attn_q", |model, recipe| Ok(recipe.multiply(query_factor(model)?)))];

/// By what queries are multiplied where a model divides scores by the root of another number than engines do. No key
/// says the number: engines take the width of a head, in models with the layers of the 27B ones the even share of the
/// width.
fn query_factor(model: &Model<'_>) -> Result<f32, ConvertError> {
    let found = model.config.f32(&[QUERY_SCALAR])?;
    if found <= 0.0 {
        let (key, found) = (QUERY_SCALAR.to_owned(), found.to_string());
        return Err(ConvertError::KeyValue { key, found, expected: "a number above 0" });
    }
    let expected = match (model.architecture.name, model.layers()?) {
        ("gemma2", 46) | ("gemma3", 62) => (model.width()? / model.heads()?).max(1),
        _ => model.head_dim()?,
    };
    Ok((expected as f32 / found).sqrt())
}

/// With norms after each branch, too.
const SANDWICH: &[Rule] = &[
    map("L.post_attention_layernorm", "post_attention_norm", plus_one),
    map("L.pre_feedforward_layernorm", "ffn_norm", plus_one),
    map("L.post_feedforward_layernorm", "post_ffw_norm", plus_one),
];

/// What Gemma 3's classes have where the settings say nothing.
const GEMMA3: &[(&str, f64)] = &[
    ("head_dim", 256.0),
    (QUERY_SCALAR, 256.0),
    ("rms_norm_eps", 1e-6),
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("max_position_embeddings", 131072.0),
    ("rope_theta", 1_000_000.0),
    ("rope_local_base_freq", 10_000.0),
];

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "gemma",
        classes: &["GemmaForCausalLM"],
        defaults: &[("head_dim", 256.0), ("rms_norm_eps", 1e-6)],
        rules: &[NORMS, &[map("L.post_attention_layernorm", "ffn_norm", plus_one)]],
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        classes: &["Gemma2ForCausalLM"],
        defaults: &[
            ("head_dim", 256.0),
            (QUERY_SCALAR, 256.0),
            ("rms_norm_eps", 1e-6),
            ("sliding_window", 4096.0),
        ],
        keys: gemma2,
        rules: &[QUERIES_OF_2, NORMS, SANDWICH],
        ..PLAIN
    },
    Architecture {
        name: "gemma-embedding",
        classes: &["Gemma3TextModel"],
        applies: |config| config.bool_or(&["use_bidirectional_attention"], false),
        defaults: GEMMA3,
        keys: |keys| {
            gemma3(keys)?;
            for dense in [2, 3] {
                let tensor = keys.model.source.entry(&format!("{dense}_Dense.linear.weight"));
                if let Some([outputs, inputs]) = tensor.map(|entry| entry.shape.as_slice()) {
                    for (side, width) in [("in", inputs), ("out", outputs)] {
                        let width = u32::try_from(*width).unwrap_or(u32::MAX);
                        keys.set(&format!("dense_{dense}_feat_{side}"), width);
                    }
                }
            }
            Ok(())
        },
        rules: &[
            NORMS_OF_3,
            NORMS,
            SANDWICH,
            &[copy("2_Dense.linear", "dense_2"), copy("3_Dense.linear", "dense_3")],
        ],
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3TextModel"],
        defaults: GEMMA3,
        keys: gemma3,
        rules: &[NORMS_OF_3, NORMS, SANDWICH],
        ..PLAIN
    },
    Architecture {
        name: "gemma4",
        classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        keys: gemma4,
        rules: &[
            PLAIN_SANDWICH,
            PER_LAYER,
            &[
                copy("L.layer_scalar", "layer_output_scale.weight"),
                copy("L.router.proj", "ffn_gate_inp"),
                copy("L.router.scale", "ffn_gate_inp.scale"),
                copy("L.router.per_expert_scale", "ffn_down_exps.scale"),
                copy("L.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
                copy("L.experts.down_proj", "ffn_down_exps.weight"),
                copy("L.pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
                copy("L.post_feedforward_layernorm_1", "post_ffw_norm_1"),
                copy("L.post_feedforward_layernorm_2", "post_ffw_norm_2"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "gemma3n",
        classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        keys: gemma3n,
        rules: &[
            PLAIN_SANDWICH,
            PER_LAYER,
            &[
                map("embed_tokens", "token_embd", within_table),
                map("lm_head", "output", within_table),
                copy("altup_projections.#", "altup_proj"),
                copy("altup_unembed_projections.#", "altup_unembd_proj"),
                copy("L.altup.correct_output_scale", "altup_correct_scale.weight"),
                copy("L.altup.correction_coefs", "altup_correct_coef"),
                copy("L.altup.prediction_coefs", "altup_predict_coef"),
                copy("L.altup.modality_router", "altup_router"),
                copy("L.altup.router_norm", "altup_router_norm"),
                copy("L.laurel.linear_left", "laurel_l"),
                copy("L.laurel.linear_right", "laurel_r"),
                copy("L.laurel.post_laurel_norm", "laurel_post_norm"),
            ],
        ],
        ..PLAIN
    },
];

/// The rows of tokens that the table of embeddings per layer has, too; the others stand for images and sound.
fn within_table(model: &Model<'_>, recipe: Recipe) -> Result<Recipe, ConvertError> {
    let rows = recipe.shape.first().copied().unwrap_or(0);
    let table = model.config.optional_u32(&["vocab_size_per_layer_input"])?.map_or(rows, u64::from);
    if table < rows { recipe.take(0, 0, table) } else { Ok(recipe) }
}

/// What the engine and llama.cpp take for granted is checked.
fn gemma3n(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    /// Layers with keys and values of their own, where later ones have none.
    const OWN_LAYERS: u32 = 20;
    /// First layers, whose networks keep a twentieth of their activations.
    const SPARSE_LAYERS: usize = 10;
    by_kind(keys)?;
    let model = keys.model;
    let config = model.config;
    let refuse = |key: &str, found: String, expected: &'static str| {
        Err(ConvertError::KeyValue { key: key.into(), found, expected })
    };
    for (key, expected, text) in [("altup_active_idx", 0, "0"), ("altup_num_inputs", 4, "4")] {
        let found = config.optional_u32(&[key])?.unwrap_or(expected);
        if found != expected {
            return refuse(key, found.to_string(), text);
        }
    }
    keys.set("altup.active_idx", 0u32);
    keys.set("altup.num_inputs", 4u32);
    let layers = model.layers()? as u32;
    let shared = config.optional_u32(&["num_kv_shared_layers"])?.unwrap_or(0);
    if layers.saturating_sub(shared) != layers.min(OWN_LAYERS) {
        return refuse("num_kv_shared_layers", shared.to_string(), "all layers from the 21st on");
    }
    if let Some(shares) = config.f32_list(&["activation_sparsity_pattern"]) {
        let as_usual =
            |(layer, share): (usize, &f32)| *share == if layer < SPARSE_LAYERS { 0.95 } else { 0.0 };
        if !shares.iter().enumerate().all(as_usual) {
            let key = "activation_sparsity_pattern";
            return refuse(key, format!("{shares:?}"), "0.95 in the first ten layers and 0 in the others");
        }
    }
    if let Some(table) = config.optional_u32(&["vocab_size_per_layer_input"])? {
        let all = config.optional_u32(&["vocab_size"])?.unwrap_or(table);
        keys.set("vocab_size", table.min(all));
    }
    Ok(())
}

/// Norms around each branch as they are.
const PLAIN_SANDWICH: &[Rule] = &[
    copy("L.post_attention_layernorm", "post_attention_norm"),
    copy("L.pre_feedforward_layernorm", "ffn_norm"),
    copy("L.post_feedforward_layernorm", "post_ffw_norm"),
];

/// Embeddings of each layer.
const PER_LAYER: &[Rule] = &[
    copy("embed_tokens_per_layer", "per_layer_token_embd"),
    copy("per_layer_model_projection", "per_layer_model_proj"),
    copy("per_layer_projection_norm", "per_layer_proj_norm"),
    copy("L.per_layer_input_gate", "inp_gate"),
    copy("L.per_layer_projection", "proj"),
    copy("L.post_per_layer_input_norm", "post_norm"),
];

/// Windows whose layers rotate otherwise, and embeddings of each layer.
fn by_kind(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    let config = keys.model.config;
    match config.u32_list(&["intermediate_size"]) {
        None => keys.decoder()?,
        Some(widths) => {
            keys.sizes()?;
            keys.set("feed_forward_length", widths);
            keys.attention()?;
            keys.rope()?;
        }
    }
    keys.window()?;
    keys.window_pattern();
    keys.optional_number("embedding_length_per_layer_input", &["hidden_size_per_layer_input"])?;
    keys.optional_number("attention.shared_kv_layers", &["num_kv_shared_layers"])?;
    let soft_cap = config.optional_f32(&["final_logit_softcapping"])?.unwrap_or(0.0);
    keys.set("final_logit_softcapping", soft_cap);
    let local = config.rope_of("sliding_attention", "rope_theta");
    keys.set("rope.freq_base_swa", local.unwrap_or(10_000.0));
    Ok(())
}

/// Full layers may have heads of other widths and numbers.
fn gemma4(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    by_kind(keys)?;
    let model = keys.model;
    let config = model.config;
    let window_dim = model.head_dim()? as u32;
    let full_dim = global_head_dim(model)?.unwrap_or(window_dim);
    for (key, dim) in [
        ("attention.key_length", full_dim),
        ("attention.value_length", full_dim),
        ("rope.dimension_count", full_dim),
        ("attention.key_length_swa", window_dim),
        ("attention.value_length_swa", window_dim),
        ("rope.dimension_count_swa", window_dim),
    ] {
        keys.set(key, dim);
    }
    let heads = model.kv_heads()? as u32;
    let full_heads =
        of_full_layers(model, "num_global_key_value_heads", "num_key_value_heads")?.unwrap_or(heads);
    if let Some(kinds) = config.text_list(&["layer_types"]) {
        let heads = kinds.iter().map(|kind| if *kind == "sliding_attention" { heads } else { full_heads });
        keys.set("attention.head_count_kv", heads.collect::<Vec<u32>>());
        // Layers that share keys and values may have networks of twice the width.
        if config.bool_or(&["use_double_wide_mlp"], false) {
            let width = config.u32(&["intermediate_size"])?;
            let shared = config.optional_u32(&["num_kv_shared_layers"])?.unwrap_or(0) as usize;
            let own = kinds.len().saturating_sub(shared);
            let widths =
                (0..kinds.len()).map(|layer| if layer < own { width } else { width.saturating_mul(2) });
            keys.set("feed_forward_length", widths.collect::<Vec<u32>>());
        }
    }
    Ok(())
}

fn gemma2(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    keys.window()?;
    // Where the model has no limit, the engine must not fall back on the usual one.
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let found = keys.model.config.optional_f32(&[key])?.unwrap_or(0.0);
        keys.set(key, found);
    }
    Ok(())
}

fn gemma3(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    keys.window()?;
    keys.window_pattern();
    keys.optional_float("final_logit_softcapping", &["final_logit_softcapping"])?;
    let local = keys.model.config.rope_of("sliding_attention", "rope_theta");
    let local = local.map_or_else(|| keys.model.config.f32(&["rope_local_base_freq"]), Ok)?;
    keys.set("rope.freq_base_swa", local);
    Ok(())
}
