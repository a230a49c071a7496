//! What becomes of each tensor, decided before anything is written.

use super::choose::{self, Facts, Role, Subject};
use super::file_type::Row;
use super::importance::Importance;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{console, files};
use puna_flags::Config;
use puna_gguf::{Array, Metadata, TensorInfo, TensorSpec, Tensors, Value};
use puna_quant::{DType, tensors};
use regex_automata::meta::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// One tensor of the output.
pub struct Planned {
    /// Name in the input.
    source: String,
    /// Name in the output.
    pub name: String,
    /// Format in the output.
    pub dtype: DType,
    /// The format that was wanted where its blocks do not fit the rows.
    wanted: Option<DType>,
    missing_importance: bool,
}

impl Planned {
    /// The tensor of the input.
    pub fn tensor<'a>(&self, tensors: &'a Tensors) -> Result<&'a TensorInfo, Failure> {
        tensors
            .get(&self.source)
            .ok_or_else(|| Failure::Failed(format!("there is no tensor {}", self.source)))
    }
}

/// All tensors of the output, in its order.
pub struct Plan {
    pub tensors: Vec<Planned>,
    /// Layers that were left out, and the number of layers before.
    pruned: BTreeSet<u32>,
    layers: u32,
    rows: BTreeMap<String, u64>,
    /// Patterns that fit no tensor.
    unmatched: Vec<String>,
}

/// Formats that the flags give to tensors.
struct Wishes {
    output: Option<DType>,
    embedding: Option<DType>,
    patterns: Vec<Pattern>,
}

/// A format for the tensors whose names have something in them.
struct Pattern {
    text: String,
    regex: Regex,
    dtype: DType,
}

impl Wishes {
    fn new(invocation: &Invocation, config: &Config) -> Result<Self, Failure> {
        let flags = &config.quantize;
        let format = |name: &String| {
            let found = DType::from_name(name).filter(|dtype| dtype.format().quantize.is_some());
            found.ok_or_else(|| invocation.usage(format!("{name:?} is no number format for weights")))
        };
        let mut texts = flags.tensor_types.clone();
        for path in &flags.tensor_type_files {
            texts.extend(files::read_text(path, files::SMALL)?.split_whitespace().map(str::to_owned));
        }
        let mut patterns = Vec::new();
        for text in &texts {
            let (pattern, name) = text
                .rsplit_once('=')
                .ok_or_else(|| invocation.usage(format!("{text:?} is not of the form PATTERN=TYPE")))?;
            let insensitive = regex_automata::util::syntax::Config::new().case_insensitive(true);
            let regex = Regex::builder().syntax(insensitive).build(pattern).map_err(|error| {
                invocation.usage(format!("{pattern:?} is no regular expression: {error}"))
            })?;
            patterns.push(Pattern { text: pattern.to_owned(), regex, dtype: format(&name.to_owned())? });
        }
        Ok(Self {
            output: flags.output_tensor_type.as_ref().map(format).transpose()?,
            embedding: flags.token_embedding_type.as_ref().map(format).transpose()?,
            patterns,
        })
    }

    fn pattern(&self, name: &str) -> Option<DType> {
        self.patterns.iter().find(|pattern| pattern.regex.is_match(name)).map(|pattern| pattern.dtype)
    }

    /// Patterns that fit none of these names.
    fn unmatched<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Vec<String> {
        let fits = |pattern: &&Pattern| !names.clone().any(|name| pattern.regex.is_match(name));
        self.patterns.iter().filter(fits).map(|pattern| pattern.text.clone()).collect()
    }

    /// The format that the flags give to a tensor.
    fn of(&self, name: &str, role: Role) -> Option<DType> {
        let pattern = self.pattern(name);
        match role {
            Role::TokenEmbedding if name == "token_embd.weight" || pattern.is_none() => {
                self.embedding.or(pattern)
            }
            Role::Output => self.output.or(pattern),
            _ => pattern,
        }
    }
}

impl Plan {
    /// Decides about every tensor. `row` is the type of file; without one all tensors are copied.
    pub fn new(
        invocation: &Invocation,
        config: &Config,
        metadata: &Metadata,
        directory: &Tensors,
        row: Option<&Row>,
        importance: Option<&Importance>,
    ) -> Result<Self, Failure> {
        let flags = &config.quantize;
        let wishes = Wishes::new(invocation, config)?;
        let mut facts = Facts::new(metadata, directory, importance.is_some());
        let architecture = metadata.get("general.architecture").and_then(Value::text).unwrap_or_default();
        let pruned: BTreeSet<u32> = flags.prune_layers.iter().copied().collect();
        if let Some(layer) = pruned.iter().find(|layer| **layer >= facts.layers) {
            return Err(Failure::Failed(format!(
                "there is no layer {layer}: the model has {}",
                facts.layers
            )));
        }
        if !pruned.is_empty() && pruned.len() as u32 == facts.layers {
            return Err(Failure::Failed(format!("--prune-layers leaves none of {} layers", facts.layers)));
        }
        let is_pruned =
            |info: &&TensorInfo| layer_of(&info.name).is_some_and(|layer| pruned.contains(&layer));
        let mut infos: Vec<&TensorInfo> = directory.iter().filter(|info| !is_pruned(info)).collect();
        // Files that stay apart keep their order. In one, tensors without a layer come first, then layer by layer. Mixtures
        // count tensors in this order.
        if flags.keep_split {
            infos.sort_by_key(|info| (info.shard(), info.file_offset()));
        } else {
            infos.sort_by(|a, b| (layer_of(&a.name), &a.name).cmp(&(layer_of(&b.name), &b.name)));
        }
        facts.values = infos.iter().filter(|info| Role::of(&info.name) == Role::Value).count() as u32;
        let mut tensors = Vec::new();
        let mut numbers: BTreeMap<Role, u32> = BTreeMap::new();
        for info in infos {
            let name = renumbered(&info.name, layer_of(&info.name), &pruned);
            let role = Role::of(&name);
            let axes = info.shape.iter().skip_while(|extent| **extent == 1).count();
            let subject = Subject {
                name: &name,
                role,
                row: info.shape.last().copied().unwrap_or(1),
                matrices: if axes > 2 { info.shape.iter().rev().skip(2).product() } else { 1 },
                layer: layer_of(&name).unwrap_or(0),
                number: numbers.get(&role).copied().unwrap_or(0),
            };
            let kept = role == Role::Output && flags.leave_output_tensor;
            let quantized = tensors::is_quantized(architecture, &name, axes) && !kept;
            if quantized && wishes.of(&name, role).is_none() {
                *numbers.entry(role).or_default() += 1;
            }
            let planned = match row.filter(|_| quantized) {
                Some(row) => decide(info, &subject, row, &wishes, &facts, flags.pure, importance)?,
                None => Planned::copied(info),
            };
            if planned.dtype != info.dtype
                && !matches!(info.dtype, DType::F32 | DType::F16 | DType::BF16)
                && !flags.allow_requantize
            {
                return Err(Failure::Failed(format!(
                    "tensor {} is {} already; --allow-requantize makes it {} all the same, at a loss",
                    info.name, info.dtype, planned.dtype
                )));
            }
            tensors.push(Planned { name, ..planned });
        }
        let unmatched = wishes.unmatched(tensors.iter().map(|planned: &Planned| planned.name.as_str()));
        let rows = directory
            .iter()
            .map(|info| (info.name.clone(), info.shape.last().copied().unwrap_or(1)))
            .collect();
        Ok(Self { tensors, pruned, layers: facts.layers, rows, unmatched })
    }

    /// What the user should know: substitutes for formats that do not fit, by what they stand for, and patterns without
    /// tensors.
    pub fn warnings(&self) -> Vec<String> {
        let mut groups: BTreeMap<(u64, DType, DType), Vec<&str>> = BTreeMap::new();
        for planned in &self.tensors {
            if let Some(wanted) = planned.wanted {
                let row = self.rows.get(&planned.source).copied().unwrap_or(0);
                groups.entry((row, wanted, planned.dtype)).or_default().push(&planned.source);
            }
        }
        let line = |((row, wanted, used), names): ((u64, DType, DType), Vec<&str>)| {
            format!(
                "rows of {row} elements are no multiple of {wanted}'s blocks of {}: {used} instead for {} tensors \
                 ({}{})",
                wanted.block(),
                names.len(),
                names.first().copied().unwrap_or_default(),
                if names.len() > 1 { ", ..." } else { "" }
            )
        };
        let none = |pattern: &String| format!("--tensor-type {pattern:?} matches no tensor");
        groups.into_iter().map(line).chain(self.unmatched.iter().map(none)).collect()
    }

    /// Why the plan must not be carried out.
    pub fn refusal(&self) -> Option<String> {
        let planned = self.tensors.iter().find(|planned| planned.missing_importance)?;
        Some(format!("tensor {} would be {}, which needs importance", planned.source, planned.dtype))
    }

    /// Bytes of the tensors before and after.
    pub fn sizes(&self, tensors: &Tensors) -> (u64, u64) {
        self.tensors.iter().fold((0, 0), |(before, after), planned| {
            let Some(tensor) = tensors.get(&planned.source) else { return (before, after) };
            let spec = TensorSpec { name: String::new(), dtype: planned.dtype, shape: tensor.shape.clone() };
            (before + tensor.byte_len(), after + spec.byte_len().unwrap_or(0))
        })
    }

    /// Elements of all tensors.
    pub fn elements(&self, tensors: &Tensors) -> u64 {
        self.tensors.iter().filter_map(|planned| tensors.get(&planned.source)).map(|t| t.elements()).sum()
    }

    /// One line for each tensor, then the sizes.
    pub fn table(&self, tensors: &Tensors) -> String {
        let mut text = String::new();
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for (number, planned) in self.tensors.iter().enumerate() {
            let Some(tensor) = tensors.get(&planned.source) else { continue };
            let shape: Vec<String> = tensor.shape.iter().rev().map(|extent| format!("{extent:6}")).collect();
            let spec = TensorSpec { name: String::new(), dtype: planned.dtype, shape: tensor.shape.clone() };
            let after = spec.byte_len().unwrap_or(0);
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "[{:4}/{:4}] {:36} - [{}], type = {:>6}, size = {:8.3} MiB",
                number + 1,
                self.tensors.len(),
                console::printable(&planned.name, usize::MAX),
                shape.join(", "),
                tensor.dtype.name(),
                mebibytes(tensor.byte_len())
            );
            if planned.dtype != tensor.dtype {
                let _ = write!(text, " -> {:8.3} MiB ({})", mebibytes(after), planned.dtype);
            }
            text.push('\n');
        }
        let (before, after) = self.sizes(tensors);
        let elements = self.elements(tensors).max(1) as f64;
        for (what, bytes) in [("model", before), ("quant", after)] {
            let bits = bytes as f64 * 8.0 / elements;
            let _ = writeln!(text, "{what} size  = {:8.2} MiB ({bits:.2} BPW)", mebibytes(bytes));
        }
        if self.tensors.iter().any(|planned| planned.missing_importance) {
            text.push_str("importance is needed (--imatrix)\n");
        }
        text
    }

    /// Takes the layers that were left out from the metadata, too.
    pub fn prune_metadata(&self, metadata: &mut Metadata) {
        if self.pruned.is_empty() {
            return;
        }
        let Some(architecture) =
            metadata.get("general.architecture").and_then(Value::text).map(str::to_owned)
        else {
            return;
        };
        let prefix = format!("{architecture}.");
        let keys: Vec<String> =
            metadata.iter().map(|(key, _)| key.to_owned()).filter(|key| key.starts_with(&prefix)).collect();
        for key in keys {
            let Some(Value::Array(array)) = metadata.get(&key) else { continue };
            if array.len() == self.layers as usize {
                let array = without(array, &self.pruned);
                metadata.set(key, array);
            }
        }
        let left = self.layers - self.pruned.len() as u32;
        metadata.set(format!("{architecture}.block_count"), Value::U32(left));
    }
}

impl Planned {
    fn copied(info: &TensorInfo) -> Self {
        let (source, name) = (info.name.clone(), info.name.clone());
        Self { source, name, dtype: info.dtype, wanted: None, missing_importance: false }
    }
}

/// The format of one tensor that is to be quantised.
fn decide(
    info: &TensorInfo,
    subject: &Subject<'_>,
    row: &Row,
    wishes: &Wishes,
    facts: &Facts,
    pure: bool,
    importance: Option<&Importance>,
) -> Result<Planned, Failure> {
    let (file_type, default) = (row.file_type, row.dtype);
    let wanted = wishes
        .of(subject.name, subject.role)
        .unwrap_or_else(|| if pure { default } else { choose::mixture(file_type, default, subject, facts) });
    let dtype = tensors::fallback(wanted, subject.row).ok_or_else(|| {
        Failure::Failed(format!(
            "tensor {} has rows of {} elements, no multiple of {wanted}'s blocks of {}, and {wanted} has no substitute",
            subject.name,
            subject.row,
            wanted.block()
        ))
    })?;
    let columns = importance.and_then(|importance| importance.of(&info.name));
    let expected = subject.row.saturating_mul(subject.matrices);
    if let Some(columns) = columns
        && columns.len() as u64 != expected
    {
        return Err(Failure::Failed(format!(
            "tensor {} needs the importance of {expected} columns, but the file has {}",
            subject.name,
            columns.len()
        )));
    }
    let missing_importance = dtype != info.dtype
        && columns.is_none()
        && choose::needs_importance(file_type, dtype, subject.role)
        && !(facts.tied && subject.name == "token_embd.weight");
    let wanted = (wanted != dtype).then_some(wanted);
    Ok(Planned { wanted, dtype, missing_importance, ..Planned::copied(info) })
}

/// The number in `blk.N.`.
fn layer_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// The name after layers were left out.
fn renumbered(name: &str, layer: Option<u32>, pruned: &BTreeSet<u32>) -> String {
    let Some(layer) = layer.filter(|_| !pruned.is_empty()) else { return name.to_owned() };
    let before = pruned.range(..layer).count() as u32;
    let rest = name.splitn(3, '.').nth(2).unwrap_or_default();
    format!("blk.{}.{rest}", layer - before)
}

/// The array without the elements of these numbers.
fn without(array: &Array, pruned: &BTreeSet<u32>) -> Array {
    fn keep<T: Clone>(values: &[T], pruned: &BTreeSet<u32>) -> Vec<T> {
        let kept = values.iter().enumerate().filter(|(index, _)| !pruned.contains(&(*index as u32)));
        kept.map(|(_, value)| value.clone()).collect()
    }
    match array {
        Array::U8(values) => Array::U8(keep(values, pruned)),
        Array::I8(values) => Array::I8(keep(values, pruned)),
        Array::U16(values) => Array::U16(keep(values, pruned)),
        Array::I16(values) => Array::I16(keep(values, pruned)),
        Array::U32(values) => Array::U32(keep(values, pruned)),
        Array::I32(values) => Array::I32(keep(values, pruned)),
        Array::F32(values) => Array::F32(keep(values, pruned)),
        Array::Bool(values) => Array::Bool(keep(values, pruned)),
        Array::String(values) => Array::String(keep(values, pruned)),
        Array::U64(values) => Array::U64(keep(values, pruned)),
        Array::I64(values) => Array::I64(keep(values, pruned)),
        Array::F64(values) => Array::F64(keep(values, pruned)),
    }
}
