//! GLM-4 and ChatGLM.

use super::{Architecture, PLAIN};
use crate::rules::copy;

pub(super) const ROWS: &[Architecture] = &[
    Architecture { name: "chatglm", classes: &["GlmForCausalLM"], ..PLAIN },
    Architecture {
        name: "glm4",
        classes: &["Glm4ForCausalLM", "Glm4vForConditionalGeneration"],
        rules: &[&[
            copy("L.post_self_attn_layernorm", "post_attention_norm"),
            copy("L.post_mlp_layernorm", "post_ffw_norm"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "glm4moe",
        classes: &["Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"],
        ahead: true,
        keys: |keys| {
            keys.decoder()?;
            keys.grouped_experts()?;
            keys.set("expert_gating_func", 2u32);
            Ok(())
        },
        rules: &[&[copy("L.post_attention_layernorm", "post_attention_norm")]],
        ..PLAIN
    },
];
