//! Models with factors, functions or loops of their own: MiniCPM, Apertus, Talkie, hierarchical reasoning.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{INTERLEAVED, copy, equal_parts, map, skip, split};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "minicpm",
        classes: &["MiniCPMForCausalLM"],
        keys: minicpm,
        rules: &[INTERLEAVED],
        ..PLAIN
    },
    Architecture {
        name: "apertus",
        classes: &["ApertusForCausalLM"],
        keys: apertus,
        rules: &[&[
            copy("L.attention_layernorm", "attn_norm"),
            copy("L.feedforward_layernorm", "ffn_norm"),
            skip("L.mlp.act_fn.alpha_n"),
            skip("L.mlp.act_fn.alpha_p"),
            skip("L.mlp.act_fn.beta"),
            skip("L.mlp.act_fn.eps"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "talkie",
        classes: &["TalkieForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.set("attention.layer_norm_rms_epsilon", f32::EPSILON);
            let source = keys.model.source;
            let gain = Recipe::source(source, "lm_head_gain.w_g")?.floats(source)?;
            keys.set("logit_scale", gain.first().copied().unwrap_or(1.0));
            Ok(())
        },
        rules: &[&[
            copy("embed", "token_embd"),
            copy("lm_head", "output.weight"),
            skip("lm_head_gain.w_g"),
            map("L.attn.attn_query", "attn_q", turned_back),
            map("L.attn.attn_key", "attn_k", turned_back),
            copy("L.attn.attn_value", "attn_v"),
            map("L.attn.attn_resid", "attn_output", |model, r| {
                gained(model, r, "attn.attn_resid.weight", "attn_gain.a_g")
            }),
            map("L.attn.head_gain.head_g", "attn_q_norm.weight", |_, recipe| {
                let heads = recipe.elements();
                recipe.reshape(&[heads, 1])
            }),
            skip("L.attn_gain.a_g"),
            copy("L.mlp.mlp_gate", "ffn_gate"),
            copy("L.mlp.mlp_linear", "ffn_up"),
            map("L.mlp.mlp_resid", "ffn_down", |model, r| {
                gained(model, r, "mlp.mlp_resid.weight", "mlp_gain.a_g")
            }),
            skip("L.mlp_gain.a_g"),
            copy("L.embed_skip.a_g", "layer_output_scale.weight"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "hrm_text",
        classes: &["HrmTextForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            let first = keys.model.first_stack()?;
            keys.set("hrm.layers_per_stack", first);
            keys.number("hrm.h_cycles", &["H_cycles"])?;
            keys.number("hrm.l_cycles", &["L_cycles"])?;
            let config = keys.model.config;
            let range = config.optional_f32(&["initializer_range"])?.filter(|range| *range > 0.0);
            let scale = config.optional_f32(&["embedding_scale"])?;
            keys.set("embedding_scale", scale.unwrap_or(1.0 / range.unwrap_or(0.02)));
            Ok(())
        },
        rules: &[&[
            copy("z_L_init", "hrm.z_l_init"),
            split("L.attn.gqkv_proj", |_, r| equal_parts(r, ["attn_gate", "attn_q", "attn_k", "attn_v"])),
            copy("L.attn.o_proj", "attn_output"),
            split("L.mlp.gate_up_proj", |_, r| equal_parts(r, ["ffn_gate", "ffn_up"])),
            copy("L.self_attn.gate_proj", "attn_gate"),
        ]],
        ..PLAIN
    },
];

/// The model turns heads the other way round: the second half of each changes its sign.
fn turned_back(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let dim = model.head_dim()?;
    let rows = recipe.shape.first().copied().unwrap_or(0);
    let sign = |row: u64| if row % dim < dim / 2 { 1.0 } else { -1.0 };
    recipe.multiply_rows((0..rows).map(sign).collect())
}

/// A matrix times the gain that follows it.
fn gained(model: &Model<'_>, recipe: Recipe, name: &str, gain: &str) -> Result<Recipe> {
    let gain = recipe.name().replace(name, gain);
    let factors = Recipe::source(model.source, &gain)?.floats(model.source)?;
    Ok(recipe.multiply(factors.first().copied().unwrap_or(1.0)))
}

fn minicpm(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let config = keys.model.config;
    keys.float("embedding_scale", &["scale_emb"])?;
    let depth = config.f32(&["scale_depth"])?;
    keys.set("residual_scale", depth / (keys.model.layers()? as f32).sqrt());
    let base = config.f32(&["dim_model_base"])?.max(1.0);
    keys.set("logit_scale", keys.model.width()? as f32 / base);
    Ok(())
}

/// The numbers of the activation are tensors in the folder and keys in the file.
fn apertus(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let source = keys.model.source;
    for (key, name) in [
        ("xielu.alpha_n", "alpha_n"),
        ("xielu.alpha_p", "alpha_p"),
        ("xielu.beta", "beta"),
        ("xielu.eps", "eps"),
    ] {
        let mut values = Vec::new();
        for layer in 0..keys.model.layers()? {
            let name = format!("model.layers.{layer}.mlp.act_fn.{name}");
            let found = Recipe::source(source, &name)?.floats(source)?;
            let [value] = found.as_slice() else {
                let shape = vec![found.len() as u64];
                return Err(ConvertError::Shape { name, shape, what: "read as one number".into() });
            };
            values.push(*value);
        }
        keys.metadata.set(key, values);
    }
    Ok(())
}
