//! What is added to a model when it is loaded: adapters and control vectors.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_gguf::{File, OpenOptions, TensorInfo};
use puna_graph::passes::additions::{self, Direction, LowRank};
use puna_graph::{Graph, WeightDecl};
use puna_quant::DType;

use crate::RuntimeError;

/// Most layers that a control vector may name.
const MOST_LAYERS: u32 = 512;

/// A LoRA adapter.
#[derive(Clone, Debug)]
pub struct Adapter {
    path: PathBuf,
    file: Arc<File>,
    scale: f32,
    pairs: Vec<Pair>,
}

/// The two factors of one weight's change.
#[derive(Clone, Debug)]
struct Pair {
    weight: String,
    down: TensorInfo,
    up: TensorInfo,
}

const DOWN: &str = ".lora_a";
const UP: &str = ".lora_b";

impl Adapter {
    /// Opens an adapter's file, to be applied with this factor on top of the file's own.
    pub fn open(path: &Path, scale: f32) -> Result<Self, RuntimeError> {
        let file = File::open(path, &OpenOptions::default())?;
        let wrong = |reason: String| RuntimeError::Addition { path: path.to_owned(), reason };
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let found = file.metadata.str_or(key, "")?;
            if found != expected {
                return Err(wrong(format!("{key} is {found:?}, expected {expected:?}")));
            }
        }
        let mut pairs = Vec::new();
        for down in file.tensors.iter() {
            let Some(weight) = down.name.strip_suffix(DOWN) else {
                let paired = down
                    .name
                    .strip_suffix(UP)
                    .is_some_and(|weight| file.tensors.get(&format!("{weight}{DOWN}")).is_some());
                // Norms have no low rank; what some writers add for them is left out.
                if paired || down.name.ends_with("_norm.weight") {
                    continue;
                }
                return Err(wrong(format!("tensor {:?} is no factor of a change", down.name)));
            };
            let up = file.tensors.get(&format!("{weight}{UP}"));
            let up = up.ok_or_else(|| wrong(format!("tensor \"{weight}{UP}\" is missing")))?;
            pairs.push(Pair { weight: weight.to_owned(), down: down.clone(), up: up.clone() });
        }
        if pairs.is_empty() {
            return Err(wrong("it has no tensors".into()));
        }
        if file.metadata.contains("adapter.alora.invocation_tokens") {
            return Err(wrong("it counts only after certain tokens (aLoRA), which is not built yet".into()));
        }
        let alpha = file.metadata.f32_or("adapter.lora.alpha", 0.0)?;
        if !alpha.is_finite() || !scale.is_finite() {
            return Err(wrong("its factor is not finite".into()));
        }
        Ok(Self { path: path.to_owned(), file: Arc::new(file), scale, pairs })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Factor that it was opened with.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Names of the weights that it changes.
    pub fn weights(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|pair| pair.weight.as_str())
    }

    /// The factors of the change of a weight, `A` and `B`.
    pub fn factors(&self, weight: &str) -> Option<(&TensorInfo, &TensorInfo)> {
        let pair = self.pairs.iter().find(|pair| pair.weight == weight)?;
        Some((&pair.down, &pair.up))
    }

    /// What the product of `A` and `B` is multiplied by: the factor it was opened with times `alpha / rank`.
    pub fn factor(&self, up: &TensorInfo) -> Result<f32, RuntimeError> {
        Ok(self.scale * self.own_factor(up)?)
    }

    /// The file's own factor, `alpha / rank`.
    fn own_factor(&self, up: &TensorInfo) -> Result<f32, RuntimeError> {
        let alpha = self.file.metadata.f32_or("adapter.lora.alpha", 0.0)?;
        let rank = up.shape.last().copied().unwrap_or(1).max(1) as f32;
        Ok(if alpha == 0.0 { 1.0 } else { alpha / rank })
    }

    /// Refuses an adapter of another architecture.
    fn check(&self, architecture: &str) -> Result<(), RuntimeError> {
        let found = self.file.metadata.str("general.architecture")?;
        if found == architecture {
            return Ok(());
        }
        let reason = format!("it is for models of {found:?}, the model's architecture is {architecture:?}");
        Err(RuntimeError::Addition { path: self.path.clone(), reason })
    }
}

/// Everything that is added to a model.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Adapters, all at once.
    pub adapters: Vec<Adapter>,
    /// How strongly each counts can be changed while the model runs ([`crate::Model::set_adapters`]).
    pub switchable: bool,
    /// Vectors that are added to what layers hand on.
    pub directions: BTreeMap<u32, Vec<f32>>,
    /// The file that the first direction of each layer is of, for messages.
    pub direction_files: BTreeMap<u32, PathBuf>,
    /// Tensors that the model's file lacks and another file lends, by name.
    pub lent: HashMap<String, (Arc<File>, TensorInfo)>,
}

impl Extras {
    /// Adds the vectors of a file, times a factor, for the layers in a range. Layers count from 0, and files have no
    /// vector for the first.
    pub fn add_control_vector(
        &mut self,
        path: &Path,
        strength: f32,
        layers: std::ops::RangeInclusive<u32>,
    ) -> Result<(), RuntimeError> {
        let file = File::open(path, &OpenOptions::default())?;
        let wrong = |reason: String| RuntimeError::Addition { path: path.to_owned(), reason };
        let mut found = false;
        for tensor in file.tensors.iter() {
            let layer = tensor.name.strip_prefix("direction.").and_then(|number| number.parse::<u32>().ok());
            let Some(layer) = layer.filter(|layer| (1..MOST_LAYERS).contains(layer)) else {
                return Err(wrong(format!("tensor {:?} is no direction of a layer", tensor.name)));
            };
            if tensor.dtype != DType::F32 {
                return Err(wrong(format!("{} is {}, not f32", tensor.name, tensor.dtype)));
            }
            found = true;
            if !layers.contains(&layer) {
                continue;
            }
            let numbers = file.bytes(tensor).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let vector: Vec<f32> = numbers.map(|number| number * strength).collect();
            let sum = self.directions.entry(layer).or_insert_with(|| vec![0.0; vector.len()]);
            self.direction_files.entry(layer).or_insert_with(|| path.to_owned());
            if sum.len() != vector.len() {
                return Err(wrong(format!(
                    "{} has {} numbers, another {}",
                    tensor.name,
                    vector.len(),
                    sum.len()
                )));
            }
            sum.iter_mut().zip(vector).for_each(|(sum, number)| *sum += number);
        }
        if found { Ok(()) } else { Err(wrong("it has no directions".into())) }
    }

    /// How strongly each adapter counts at first, if that can be changed.
    pub(crate) fn strengths(&self) -> Vec<f32> {
        self.adapters.iter().filter(|_| self.switchable).map(Adapter::scale).collect()
    }

    /// Refuses a direction that is not as wide as what its layer hands on.
    fn check_direction(&self, graph: &Graph, layer: u32, width: usize) -> Result<(), RuntimeError> {
        let end = graph.nodes.iter().rfind(|node| node.layer == Some(layer));
        let Some(expected) = end.and_then(|node| node.ty.width()) else { return Ok(()) };
        if expected as usize == width {
            return Ok(());
        }
        let path = self.direction_files.get(&layer).cloned().unwrap_or_default();
        let reason =
            format!("tensor direction.{layer} has {width} numbers, the model's layers hand on {expected}");
        Err(RuntimeError::Addition { path, reason })
    }

    /// Adds everything to a graph; the weights are then found in what is returned.
    pub(crate) fn add_to(&self, graph: &mut Graph, architecture: &str) -> Result<Added, RuntimeError> {
        let mut added = Added::default();
        let mut changes = Vec::new();
        let mut origins = Vec::new();
        for (number, adapter) in self.adapters.iter().enumerate() {
            adapter.check(architecture)?;
            for pair in &adapter.pairs {
                let mut declare = |tensor: &TensorInfo| -> Result<WeightDecl, RuntimeError> {
                    let name = format!("adapter.{number}.{}", tensor.name);
                    added.tensors.insert(name.clone(), (adapter.file.clone(), tensor.clone()));
                    declaration(name, tensor).ok_or_else(|| RuntimeError::Addition {
                        path: adapter.path.clone(),
                        reason: format!("tensor {:?} has the shape {:?}", tensor.name, tensor.shape),
                    })
                };
                let (down, up) = (declare(&pair.down)?, declare(&pair.up)?);
                let (scale, number) = match self.switchable {
                    true => (adapter.own_factor(&pair.up)?, u32::try_from(number).ok()),
                    false => (adapter.factor(&pair.up)?, None),
                };
                changes.push(LowRank { weight: pair.weight.clone(), down, up, scale, adapter: number });
                origins.push(adapter);
            }
        }
        let mut directions = Vec::new();
        for (layer, vector) in &self.directions {
            self.check_direction(graph, *layer, vector.len())?;
            let name = format!("direction.{layer}");
            let bytes = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            added.numbers.insert(name.clone(), bytes);
            let shape = vec![vector.len() as u32];
            let vector = WeightDecl { name, dtype: DType::F32, shape, layer: None };
            directions.push(Direction { layer: *layer, vector });
        }
        for (change, adapter) in changes.iter().zip(&origins) {
            check_change(graph, change, adapter)?;
        }
        let found = additions::add(graph, &changes, &directions)?;
        for ((count, change), adapter) in found.changes.iter().zip(&changes).zip(origins) {
            if *count == 0 {
                let reason = format!("the model does not use {:?}", change.weight);
                return Err(RuntimeError::Addition { path: adapter.path.clone(), reason });
            }
        }
        Ok(added)
    }
}

/// Refuses a change whose factors have other shapes than its weight, which may be a table that is looked up.
fn check_change(graph: &Graph, change: &LowRank, adapter: &Adapter) -> Result<(), RuntimeError> {
    let Some(weight) = graph.weights.iter().find(|weight| weight.name == change.weight) else {
        return Ok(());
    };
    fn matrix(shape: &[u32]) -> Option<(&[u32], u32, u32)> {
        let (outer, [rows, columns]) = shape.split_last_chunk()?;
        Some((outer, *rows, *columns))
    }
    let fits = || {
        let (outer, rows, columns) = matrix(&weight.shape)?;
        let (down_outer, first, second) = matrix(&change.down.shape)?;
        let (up_outer, up_rows, rank) = matrix(&change.up.shape)?;
        let usual = (first, second, up_rows) == (rank, columns, rows);
        let table = (first, second, up_rows) == (rows, rank, columns);
        Some(down_outer == outer && up_outer == outer && (usual || table))
    };
    if fits() != Some(false) {
        return Ok(());
    }
    let name = &change.weight;
    let (down, up) = (&change.down.shape, &change.up.shape);
    let reason = format!(
        "tensors {name}{DOWN} of shape {down:?} and {name}{UP} of {up:?} do not fit the model's {name} of {:?}",
        weight.shape
    );
    Err(RuntimeError::Addition { path: adapter.path.clone(), reason })
}

/// Names and bytes of weights that the model's file does not have.
#[derive(Default)]
pub(crate) struct Added {
    pub(crate) tensors: HashMap<String, (Arc<File>, TensorInfo)>,
    pub(crate) numbers: HashMap<String, Vec<u8>>,
}

fn declaration(name: String, tensor: &TensorInfo) -> Option<WeightDecl> {
    let shape: Option<Vec<u32>> = tensor.shape.iter().map(|extent| u32::try_from(*extent).ok()).collect();
    let mut shape = shape.filter(|shape| !shape.contains(&0))?;
    // A rank of 1 may have lost its axis.
    while shape.len() < 2 {
        shape.insert(0, 1);
    }
    Some(WeightDecl { name, dtype: tensor.dtype, shape, layer: None })
}
