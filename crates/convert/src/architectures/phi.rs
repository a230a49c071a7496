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
        rules: &[&[copy("L.mlp.router", "ffn_gate_inp")]],
        ..PLAIN
    },
];
