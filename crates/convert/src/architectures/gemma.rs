//! Gemma 1 to 3: norms stored as the difference to 1.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::rules::{Rule, map, plus_one};

const NORMS: &[Rule] = &[
    map("norm", "output_norm", plus_one),
    map("L.input_layernorm", "attn_norm", plus_one),
    map("L.self_attn.q_norm", "attn_q_norm", plus_one),
    map("L.self_attn.k_norm", "attn_k_norm", plus_one),
];

/// With norms after each branch, too.
const SANDWICH: &[Rule] = &[
    map("L.post_attention_layernorm", "post_attention_norm", plus_one),
    map("L.pre_feedforward_layernorm", "ffn_norm", plus_one),
    map("L.post_feedforward_layernorm", "post_ffw_norm", plus_one),
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
        defaults: &[("head_dim", 256.0), ("rms_norm_eps", 1e-6), ("sliding_window", 4096.0)],
        keys: gemma2,
        rules: &[NORMS, SANDWICH],
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Gemma3TextModel"],
        defaults: &[
            ("head_dim", 256.0),
            ("rms_norm_eps", 1e-6),
            ("num_attention_heads", 8.0),
            ("num_key_value_heads", 4.0),
            ("max_position_embeddings", 131072.0),
            ("rope_theta", 1_000_000.0),
            ("rope_local_base_freq", 10_000.0),
        ],
        keys: gemma3,
        rules: &[NORMS, SANDWICH],
        ..PLAIN
    },
];

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
