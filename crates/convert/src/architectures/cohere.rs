//! Cohere's Command models: one norm for both branches.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;

pub(super) const ROWS: &[Architecture] = &[
    Architecture { name: "command-r", classes: &["CohereForCausalLM"], keys: command, ..PLAIN },
    Architecture {
        name: "cohere2",
        classes: &["Cohere2ForCausalLM"],
        keys: |keys| {
            command(keys)?;
            keys.window()?;
            keys.window_pattern();
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "cohere2moe",
        classes: &["Cohere2MoeForCausalLM"],
        ahead: true,
        defaults: &[("rope_theta", 10_000.0)],
        keys: experts,
        ..PLAIN
    },
];

fn experts(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    command(keys)?;
    keys.window()?;
    keys.window_pattern();
    let config = keys.model.config;
    let shared = config.optional_u32(&["num_shared_experts"])?.unwrap_or(0);
    if shared > 0 && config.text(&["shared_expert_combination_strategy"]) == Some("sum") {
        return Err(ConvertError::KeyValue {
            key: "shared_expert_combination_strategy".into(),
            found: "sum".into(),
            expected: "average",
        });
    }
    keys.set("expert_shared_count", shared);
    keys.number("expert_feed_forward_length", &["intermediate_size"])?;
    keys.optional_number("feed_forward_length", &["prefix_dense_intermediate_size"])?;
    let kinds = config.text_list(&["mlp_layer_types"]).unwrap_or_default();
    let dense = kinds.iter().take_while(|kind| **kind == "dense").count();
    keys.set("leading_dense_block_count", dense as u32);
    // A softmax over the experts that were chosen is one over all of them, normalised.
    let softmax = config.text(&["expert_selection_fn"]).is_none_or(|name| name == "softmax");
    keys.set("expert_gating_func", if softmax { 1u32 } else { 2 });
    keys.set("expert_weights_norm", softmax || config.bool_or(&["norm_topk_prob"], true));
    Ok(())
}

fn command(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    keys.float("logit_scale", &["logit_scale"])?;
    Ok(())
}
