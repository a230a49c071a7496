//! PLaMo 1 to 3 of Preferred Networks.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::model::{HEADS, WIDTH};
use crate::rules::{Rule, copy, map, negative_exponential, plus_one, squeeze};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "plamo",
        classes: &["PlamoForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.set("context_length", 4096u32);
            let kv = keys.model.heads()? / shared(keys.model)?;
            keys.set("attention.head_count_kv", kv as u32);
            Ok(())
        },
        rules: &[&[
            copy("L.norm", "attn_norm"),
            // Query heads that share a key head are apart in the folder and side by side in the file.
            map("L.self_attn.q_proj", "attn_q", |model, recipe| {
                let (shared, shape) = (shared(model)?, recipe.shape.clone());
                let rest = recipe.elements() / model.heads()?;
                recipe.reorder(&[shared, model.heads()? / shared, rest], &[1, 0, 2], &shape)
            }),
            map("L.self_attn.o_proj", "attn_output", |model, recipe| {
                let (shared, heads, shape) = (shared(model)?, model.heads()?, recipe.shape.clone());
                let rows = shape.first().copied().unwrap_or(0);
                let dim = recipe.elements() / rows.max(1) / heads;
                recipe.reorder(&[rows, shared, heads / shared, dim], &[0, 2, 1, 3], &shape)
            }),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "plamo2",
        classes: &["Plamo2ForCausalLM", "PLaMo2ForCausalLM"],
        keys: plamo2,
        rules: &[
            NORMS,
            &[
                copy("L.mixer.q_weight", "attn_q_norm.weight"),
                copy("L.mixer.k_weight", "attn_k_norm.weight"),
                map("L.mixer.conv1d", "ssm_conv1d", squeeze),
                copy("L.mixer.bcdt_proj", "ssm_x"),
                map("L.mixer.A_log", "ssm_a", negative_exponential),
                copy("L.mixer.dt_norm_weight", "ssm_dt_norm"),
                copy("L.mixer.B_norm_weight", "ssm_b_norm"),
                copy("L.mixer.C_norm_weight", "ssm_c_norm"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "plamo3",
        classes: &["Plamo3ForCausalLM", "PLaMo3ForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            let window =
                keys.optional_number("attention.sliding_window", &["window_size", "sliding_window"])?;
            if window.is_some() {
                keys.optional_number("attention.sliding_window_pattern", &["sliding_window_pattern"])?;
            }
            Ok(())
        },
        rules: &[
            NORMS,
            &[map("L.mixer.q_norm", "attn_q_norm", plus_one), map("L.mixer.k_norm", "attn_k_norm", plus_one)],
        ],
        ..PLAIN
    },
];

/// What PLaMo 2 and 3 have in common: norms that are stored as the difference to what they begin with.
const NORMS: &[Rule] = &[
    map("norm", "output_norm", plus_one),
    map("L.pre_mixer_norm", "attn_norm", plus_one),
    map("L.post_mixer_norm.weight", "post_attention_norm", |_, recipe| Ok(recipe.map(|x| x + 1.0 / 5.0))),
    map("L.pre_mlp_norm", "ffn_norm", plus_one),
    map("L.post_mlp_norm.weight", "post_ffw_norm", |_, recipe| {
        Ok(recipe.map(|x| x + 1.0 / (5.0 * 5f32.sqrt())))
    }),
    copy("L.mixer.qkv_proj", "attn_qkv"),
    copy("L.mixer.o_proj", "attn_output"),
];

/// Query heads that share a key head; the setting for key heads is wrong in the published folder.
fn shared(model: &crate::model::Model<'_>) -> Result<u64> {
    model.count(&["n_shared_head"])
}

fn plamo2(keys: &mut Keys<'_>) -> Result<()> {
    let model = keys.model;
    let config = model.config;
    keys.sizes()?;
    keys.number("embedding_length", WIDTH)?;
    keys.number("feed_forward_length", &["intermediate_size"])?;
    let (heads, kv) = (config.u32(HEADS)?, config.u32(&["num_key_value_heads"])?);
    let step = u64::from(config.optional_u32(&["mamba_step"])?.unwrap_or(2)).max(1);
    let layers = model.layers()?;
    let has_mamba = config.bool_or(&["mamba_enabled"], true);
    let attends = |layer: u64| match layers <= step / 2 {
        true => layer + 1 == layers,
        false => layer % step == step / 2,
    };
    let of = |count: u32| {
        let by_layer = (0..layers).map(|layer| if !has_mamba || attends(layer) { count } else { 0 });
        by_layer.collect::<Vec<u32>>()
    };
    keys.set("attention.head_count", of(heads));
    keys.set("attention.head_count_kv", of(kv));
    let dim = keys.number("attention.key_length", &["hidden_size_per_head"])?;
    keys.set("attention.value_length", dim);
    keys.optional_float("rope.freq_base", &["rope_parameters.rope_theta", "rope_theta"])?;
    keys.number("ssm.state_size", &["mamba_d_state"])?;
    keys.number("ssm.conv_kernel", &["mamba_d_conv"])?;
    let mamba_heads = keys.number("ssm.time_step_rank", &["mamba_num_heads"])?;
    // The projection makes a value and a gate of each inner element.
    let projection = model.source.names().iter().find(|name| name.ends_with("mixer.in_proj.weight"));
    let rows = projection.and_then(|name| model.source.entry(name)?.shape.first().copied());
    let inner = rows.and_then(|rows| u32::try_from(rows / 2).ok());
    keys.set("ssm.inner_size", inner.unwrap_or(mamba_heads.saturating_mul(dim)));
    keys.set("ssm.group_count", 0u32);
    Ok(())
}
