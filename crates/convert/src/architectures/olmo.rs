//! OLMo 1 to 3, and EXAONE 4 with the same norms.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::rules::{INTERLEAVED, Rule, copy};

/// Norms follow the branches instead of preceding them.
const POST_NORMS: &[Rule] = &[
    copy("L.post_attention_layernorm", "post_attention_norm"),
    copy("L.post_feedforward_layernorm", "post_ffw_norm"),
];

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "olmo",
        classes: &["OlmoForCausalLM", "OLMoForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.set("attention.layer_norm_epsilon", 1e-5f32);
            keys.optional_float("attention.clamp_kqv", &["clip_qkv"])?;
            Ok(())
        },
        rules: &[INTERLEAVED],
        ..PLAIN
    },
    Architecture {
        name: "olmo2",
        classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        keys: windowed,
        rules: &[POST_NORMS],
        ..PLAIN
    },
    Architecture { name: "olmoe", classes: &["OlmoeForCausalLM"], ..PLAIN },
    Architecture {
        name: "exaone4",
        classes: &["Exaone4ForCausalLM"],
        keys: windowed,
        rules: &[POST_NORMS],
        ..PLAIN
    },
];

fn windowed(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    let kinds = keys.model.config.text_list(&["layer_types"]).unwrap_or_default();
    if kinds.contains(&"sliding_attention") {
        keys.window()?;
        keys.window_pattern();
    }
    Ok(())
}
