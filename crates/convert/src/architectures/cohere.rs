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
];

fn command(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    keys.float("logit_scale", &["logit_scale"])?;
    Ok(())
}
