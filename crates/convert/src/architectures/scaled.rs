//! Models with factors or functions of their own: MiniCPM, Apertus.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::rules::{INTERLEAVED, copy, skip};
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
];

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
