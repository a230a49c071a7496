//! Draft models that read states of the model they draft for: DFlash.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::rules::copy;

pub(super) const ROWS: &[Architecture] = &[Architecture {
    name: "dflash",
    classes: &["DFlashDraftModel"],
    keys: dflash,
    rules: &[&[copy("fc", "fc"), copy("hidden_norm", "enc.output_norm")]],
    ..PLAIN
}];

fn dflash(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.decoder()?;
    let config = keys.model.config;
    if config.bool_or(&["dflash_config.use_swa", "use_swa"], false) {
        let (key, found) = ("dflash_config.use_swa".to_owned(), "true".to_owned());
        return Err(ConvertError::KeyValue { key, found, expected: "false: windows are not known here" });
    }
    let layers = config.u32_list(&["dflash_config.target_layer_ids", "target_layer_ids"]);
    let missing = || ConvertError::MissingKey { key: "dflash_config.target_layer_ids".into() };
    // Settings name layers whose results are read, the file those whose inputs are.
    let layers: Vec<u32> =
        layers.ok_or_else(missing)?.into_iter().map(|layer| layer.saturating_add(1)).collect();
    keys.set("target_layers", layers);
    keys.number("block_size", &["dflash_config.block_size", "block_size"])?;
    if let Some(mask) = config.optional_u32(&["dflash_config.mask_token_id", "mask_token_id"])? {
        keys.metadata.set("tokenizer.ggml.mask_token_id", mask);
    }
    Ok(())
}
