//! Layers that guess tokens further ahead (multi-token prediction): after those of the model in files, with or beside them in
//! folders.

use puna_gguf::{Array, Metadata, Value};

use crate::ConvertError;
use crate::architectures::Architecture;
use crate::model::Model;
use crate::rules::{BLOCKS, Name};

type Result<T> = std::result::Result<T, ConvertError>;

/// What folders that keep these layers apart call what is around them, and what others call it.
const AROUND: &[(&str, &str)] = &[
    ("fc", "eh_proj"),
    ("pre_fc_norm_embedding", "enorm"),
    ("pre_fc_norm_hidden", "hnorm"),
    ("norm", "shared_head.norm"),
];

/// The name that a tensor of these layers would have after so many layers of the model, if the folder keeps it apart.
pub(crate) fn counted_on(name: &str, layers: u32) -> Option<String> {
    let rest = name.strip_prefix("model.").unwrap_or(name).strip_prefix("mtp.")?;
    if let Some(rest) = rest.strip_prefix("layers.") {
        let (layer, rest) = rest.split_once('.')?;
        let layer = layer.parse::<u32>().ok()?.checked_add(layers)?;
        return Some(format!("model.layers.{layer}.{rest}"));
    }
    let (part, ending) = rest.split_once('.')?;
    let (_, part) = AROUND.iter().find(|(apart, _)| *apart == part)?;
    Some(format!("model.layers.{layers}.{part}.{ending}"))
}

/// How many such layers a folder has: those up to the last with a matrix that joins embeddings and states.
pub(crate) fn count(model: &Model<'_>) -> Result<u32> {
    const MOST: u32 = 64;
    if !model.architecture.ahead {
        return Ok(0);
    }
    let layers = model.layers()? as u32;
    let joins = |name: &String| {
        let name = counted_on(name, layers).unwrap_or_else(|| name.clone());
        let name = Name::parse(&name);
        let layer = name.layer.filter(|_| name.stack == BLOCKS && name.pattern == "L.eh_proj.weight")?;
        layer.checked_add(1)?.checked_sub(layers)
    };
    Ok(model.source.names().iter().filter_map(joins).max().unwrap_or(0).min(MOST))
}

/// Counts these layers in, and makes arrays of one element per layer longer.
pub(crate) fn write_keys(model: &Model<'_>, metadata: &mut Metadata) -> Result<()> {
    if model.ahead == 0 {
        return Ok(());
    }
    let (layers, architecture) = (model.layers()?, model.architecture.name);
    let key = |name: &str| format!("{architecture}.{name}");
    let like = layer_alike(metadata, model.architecture, layers as usize);
    let arrays: Vec<(String, Array)> = metadata
        .iter()
        .filter(|(name, _)| name.starts_with(&key("")) && !name.ends_with("rope.dimension_sections"))
        .filter_map(|(name, value)| match value {
            Value::Array(array) if array.len() == layers as usize => Some((name.to_owned(), array.clone())),
            _ => None,
        })
        .collect();
    for (name, mut array) in arrays {
        // Nothing of these layers is bounded.
        let bound = name.contains("swiglu_clamp");
        for _ in 0..model.ahead {
            repeat(&mut array, like, bound);
        }
        metadata.set(name, Value::Array(array));
    }
    metadata.set(key("block_count"), layers as u32 + model.ahead);
    metadata.set(key("nextn_predict_layers"), model.ahead);
    Ok(())
}

/// A layer of the model that these layers are like where layers differ: the last one that attends, with a window or without
/// as the architecture's row says.
fn layer_alike(metadata: &Metadata, architecture: &Architecture, layers: usize) -> usize {
    let array = |name: &str| match metadata.get(&format!("{}.{name}", architecture.name)) {
        Some(Value::Array(array)) => Some(array),
        _ => None,
    };
    let number = |name: &str, layer: usize| match array(name)?.get(layer)? {
        Value::Bool(flag) => Some(i128::from(flag)),
        other => other.integer(),
    };
    let fits = |layer: &usize| {
        let attends = number("attention.head_count_kv", *layer) != Some(0);
        let recurs = number("attention.recurrent_layers", *layer) == Some(1);
        let windowed = number("attention.sliding_window_pattern", *layer);
        attends && !recurs && windowed.is_none_or(|windowed| (windowed == 1) == architecture.windows_ahead)
    };
    (0..layers).rev().find(fits).unwrap_or(layers.saturating_sub(1))
}

/// Appends the element of a layer, or zero.
fn repeat(array: &mut Array, layer: usize, zero: bool) {
    fn push<T: Copy + Default>(values: &mut Vec<T>, layer: usize, zero: bool) {
        values.push(values.get(layer).copied().filter(|_| !zero).unwrap_or_default());
    }
    match array {
        Array::U32(values) => push(values, layer, zero),
        Array::I32(values) => push(values, layer, zero),
        Array::F32(values) => push(values, layer, zero),
        Array::Bool(values) => push(values, layer, zero),
        _ => {}
    }
}
