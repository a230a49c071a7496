//! Granite 3: Llama with factors.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::rules::{INTERLEAVED, Rule, copy, split, split_gate_up};

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "granite",
        classes: &["GraniteForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            scales(keys)
        },
        rules: &[INTERLEAVED],
        ..PLAIN
    },
    Architecture {
        name: "granitemoe",
        classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.optional_number("expert_shared_feed_forward_length", &["shared_intermediate_size"])?;
            scales(keys)
        },
        rules: &[
            INTERLEAVED,
            EXPERTS,
            &[
                split("L.shared_mlp.input_linear", |_, recipe| {
                    let half = recipe.shape.first().copied().unwrap_or(0) / 2;
                    let gate = recipe.clone().take(0, 0, half)?;
                    Ok(vec![("ffn_gate_shexp", gate), ("ffn_up_shexp", recipe.take(0, half, half)?)])
                }),
                copy("L.shared_mlp.output_linear", "ffn_down_shexp"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "granite_swa",
        classes: &["GraniteSWAForCausalLM"],
        keys: windowed,
        rules: &[INTERLEAVED, &[copy("L.self_attn.sinks", "attn_sinks.weight")]],
        ..PLAIN
    },
];

/// Windows, and layers that do not rotate.
fn windowed(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    scales(keys)?;
    keys.window()?;
    keys.window_pattern();
    let config = keys.model.config;
    let Some(bases) = config.f32_list(&["layer_rope_theta"]) else { return Ok(()) };
    keys.set("attention.rope_pattern", bases.iter().map(|base| *base != 0.0).collect::<Vec<bool>>());
    let kinds = config.text_list(&["layer_types"]).unwrap_or_default();
    // Each kind of layer has one base at most.
    for (key, windows) in [("rope.freq_base", false), ("rope.freq_base_swa", true)] {
        let of_kind = bases.iter().zip(&kinds).filter(|(_, kind)| (**kind == "sliding_attention") == windows);
        let mut found: Vec<f32> = of_kind.map(|(base, _)| *base).filter(|base| *base != 0.0).collect();
        found.dedup();
        match found.as_slice() {
            [] => {}
            [base] => keys.set(key, *base),
            _ => {
                return Err(ConvertError::KeyValue {
                    key: "layer_rope_theta".into(),
                    found: format!("{found:?}").chars().take(80).collect(),
                    expected: "one base for all layers of a kind",
                });
            }
        }
    }
    Ok(())
}

/// Experts in one tensor each.
pub(super) const EXPERTS: &[Rule] = &[
    split("L.block_sparse_moe.input_linear", split_gate_up),
    copy("L.block_sparse_moe.output_linear", "ffn_down_exps"),
    copy("L.block_sparse_moe.router.layer", "ffn_gate_inp"),
];

/// The factors.
pub(super) fn scales(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.optional_float("attention.scale", &["attention_multiplier"])?;
    keys.optional_float("embedding_scale", &["embedding_multiplier"])?;
    keys.optional_float("residual_scale", &["residual_multiplier"])?;
    keys.optional_float("logit_scale", &["logits_scaling"])?;
    Ok(())
}
