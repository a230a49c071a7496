//! Phi 1 to 4.

use super::{Architecture, PLAIN};
use crate::rules::copy;

pub(super) const ROWS: &[Architecture] = &[
    Architecture { name: "phi2", classes: &["PhiForCausalLM"], ..PLAIN },
    Architecture {
        name: "phi3",
        classes: &["Phi3ForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.window()
        },
        ..PLAIN
    },
    Architecture {
        name: "phimoe",
        classes: &["PhiMoEForCausalLM", "PhimoeForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            // The setting is named like that of another kind of norm; other readers want it under that name, too.
            let epsilon = keys.model.config.f32(&["rms_norm_eps"])?;
            keys.set("attention.layer_norm_epsilon", epsilon);
            Ok(())
        },
        rules: &[&[copy("L.mlp.router", "ffn_gate_inp")]],
        ..PLAIN
    },
];
