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
];

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
