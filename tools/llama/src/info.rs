//! `llama info`: what a model file holds, and the memory it will need.

use crate::console::{self, Console, size};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::placement::{self, Devices};
use crate::{load, pages, source};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};
use puna_gguf::{File, OpenOptions, Value};
use puna_models::ModelError;
use puna_quant::FORMATS;
use puna_runtime::{Estimate, ModelOptions, Plan, Purpose, RuntimeError};
use serde_json::{Map, json};
use std::path::PathBuf;

/// Flags of `info`.
pub const SPEC: Spec<Config> = Spec {
    name: "info",
    tool: ToolSet::INFO,
    about: "Describe a model file: metadata, tensors, formats, sizes, and an estimate of the memory it needs at -c",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "FILE",
        help: "Model file, like -m",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// Elements of an array that are shown.
const SHOWN: usize = 3;
/// Characters of a string that are shown.
const LONGEST: usize = 100;

/// `llama info`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((mut config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    match config.positional.as_slice() {
        [] => {}
        [path] if path.is_empty() => return Err(invocation.usage("expected a file, not an empty name")),
        [path] if config.model.path.is_none() => config.model.path = Some(PathBuf::from(path)),
        _ => return Err(invocation.usage("expected one file")),
    }
    let path = source::model(invocation, &config.model, &console, false)?;
    let file = load::file(&path, &OpenOptions::default(), &console)?;
    file.warnings().iter().for_each(|warning| console.warn(&warning.to_string()));
    let mut options = load::options(&config, 1, 1)?;
    let mut estimate = puna_runtime::estimate(&file.metadata, &file.tensors, &options);
    if let Err(RuntimeError::Model(ModelError::NoLogits { .. })) = estimate {
        options = ModelOptions { purpose: Purpose::Embed(None), ..options };
        estimate = puna_runtime::estimate(&file.metadata, &file.tensors, &options);
    }
    let estimate = estimate.map_err(|error| error.to_string());
    let plan = match &estimate {
        Ok(_) => plan(&file, &config, &console, &options),
        Err(reason) => Err(reason.clone()),
    };
    let paths = if path.is_dir() { vec![path] } else { file.paths().to_vec() };
    let facts = Facts { file: &file, paths, estimate, plan, config: &config };
    let text = if config.json { facts.json() } else { facts.text() };
    pages::print(text.as_bytes())
}

/// Where the model would go.
fn plan(file: &File, config: &Config, console: &Console, options: &ModelOptions) -> Result<Plan, String> {
    let devices = placement::devices(&load::processor(&config.cpu), &config.device, &file.tensors, console);
    let Devices { backends, placement } = devices.map_err(|failure| failure.message())?;
    puna_runtime::planned(&file.metadata, &file.tensors, &backends, &placement, options)
        .map_err(|error| error.to_string())
}

struct Facts<'a> {
    file: &'a File,
    /// Its files, or the folder that it was made of.
    paths: Vec<PathBuf>,
    estimate: Result<Estimate, String>,
    plan: Result<Plan, String>,
    config: &'a Config,
}

impl Facts<'_> {
    fn parameters(&self) -> u64 {
        self.file.tensors.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.elements()))
    }

    fn bytes(&self) -> u64 {
        self.file.tensors.iter().fold(0u64, |sum, tensor| sum.saturating_add(tensor.byte_len()))
    }

    /// Bytes of the files; of a folder those of the tensors.
    fn size(&self) -> u64 {
        if self.file.paths().is_empty() { self.bytes() } else { self.file.size_on_disk() }
    }

    /// Bits per weight.
    fn bits(&self) -> f64 {
        self.bytes() as f64 * 8.0 / (self.parameters().max(1)) as f64
    }

    /// Formats that occur, with their tensors and bytes.
    fn formats(&self) -> Vec<(&'static str, u64, u64)> {
        let count = |name| {
            let of = self.file.tensors.iter().filter(|tensor| tensor.dtype.name() == name);
            of.fold((0, 0u64), |(count, bytes), tensor| (count + 1, bytes.saturating_add(tensor.byte_len())))
        };
        let all = FORMATS.iter().map(|format| (format.name, count(format.name)));
        all.filter(|(_, (count, _))| *count > 0).map(|(name, (count, bytes))| (name, count, bytes)).collect()
    }

    /// Layers that guess tokens ahead, if there are any.
    fn layers_ahead(&self) -> Option<u32> {
        let metadata = &self.file.metadata;
        let architecture = metadata.get("general.architecture")?.text()?;
        let count =
            |key: &str| u32::try_from(metadata.get(&format!("{architecture}.{key}"))?.integer()?).ok();
        let all = count("block_count")?;
        count("nextn_predict_layers").filter(|layers| (1..all).contains(layers))
    }

    fn text(&self) -> String {
        let file = self.file;
        let named = |key| file.metadata.get(key).and_then(Value::text).unwrap_or("not named").to_owned();
        let mut lines = Vec::new();
        let mut fact = |name: &str, value: String| lines.push(format!("{name:<14}{value}"));
        for path in &self.paths {
            fact("file", path.display().to_string());
        }
        let layout = format!("GGUF version {}, alignment {}", file.version(), file.alignment());
        fact("size", format!("{} ({layout})", size(self.size())));
        fact("architecture", short(&named("general.architecture")));
        fact("name", short(&named("general.name")));
        fact("parameters", format!("{}, {:.2} bits per weight", count(self.parameters()), self.bits()));
        if let Some(layers) = self.layers_ahead() {
            let last =
                if layers == 1 { "the last layer".to_owned() } else { format!("the last {layers} layers") };
            let known = puna_models::guesses_ahead(&named("general.architecture"));
            let use_of_it = if known { "--spec-type draft-mtp" } else { "not used with this architecture" };
            fact("guesses ahead", format!("with {last} ({use_of_it})"));
        }
        lines.push(format!("\nmetadata ({} keys)", file.metadata.len()));
        lines.extend(file.metadata.iter().map(|(key, value)| format!("  {} = {}", short(key), shown(value))));
        lines.push(format!("\ntensors ({})", file.tensors.len()));
        for (name, count, bytes) in self.formats() {
            lines.push(format!("  {name:<8}{count:>6} tensors {:>12}", size(bytes)));
        }
        for tensor in file.tensors.iter() {
            let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
            let (name, shape) = (short(&tensor.name), shape.join(" x "));
            lines.push(format!(
                "  {name:<40} {:<8} {:>12}  {shape}",
                tensor.dtype.name(),
                size(tensor.byte_len())
            ));
        }
        match &self.estimate {
            Ok(estimate) => {
                lines.push(format!("\nmemory with {} tokens of context (estimate)", estimate.context));
                let context = &self.config.context;
                let cache = format!("cache ({} keys, {} values)", context.type_k, context.type_v);
                for (name, bytes) in [
                    ("weights", estimate.weights),
                    (cache.as_str(), estimate.caches),
                    ("computing", estimate.work),
                    ("all", estimate.total()),
                ] {
                    lines.push(format!("  {name:<30} {}", size(bytes)));
                }
            }
            Err(reason) => {
                lines.push(format!("\nmemory: no estimate, because {}", console::printable(reason, 500)))
            }
        }
        match (&self.plan, &self.estimate) {
            (Ok(plan), _) => {
                lines.push("\nplacement (estimate)".to_owned());
                lines.extend(plan.devices.iter().map(|device| format!("  {device}")));
                lines.extend(plan.choices.iter().map(|choice| format!("  {choice}")));
            }
            (Err(reason), Ok(_)) => {
                lines.push(format!("\nplacement: none, because {}", console::printable(reason, 500)));
            }
            (Err(_), Err(_)) => {}
        }
        lines.join("\n") + "\n"
    }

    fn json(&self) -> String {
        let file = self.file;
        let metadata: Map<_, _> =
            file.metadata.iter().map(|(key, value)| (key.to_owned(), json_value(value))).collect();
        let tensors: Vec<_> = file
            .tensors
            .iter()
            .map(|tensor| {
                json!({"name": tensor.name, "format": tensor.dtype.name(), "shape": tensor.shape,
                       "bytes": tensor.byte_len()})
            })
            .collect();
        let formats: Vec<_> = self
            .formats()
            .into_iter()
            .map(|(name, count, bytes)| json!({"format": name, "tensors": count, "bytes": bytes}))
            .collect();
        let memory = match &self.estimate {
            Ok(estimate) => json!({
                "context": estimate.context, "weights": estimate.weights, "cache": estimate.caches,
                "compute": estimate.work, "total": estimate.total(),
            }),
            Err(reason) => json!({"reason": reason}),
        };
        let placement = match &self.plan {
            Ok(plan) => {
                let devices = plan.devices.iter().map(|device| {
                    json!({
                        "device": device.name, "embeddings": device.embeddings, "output": device.output,
                        "layers": [device.layers.start, device.layers.end], "weights": device.need.weights,
                        "cache": device.need.caches, "compute": device.need.work, "free": device.free,
                    })
                });
                let choices = plan.choices.iter().map(ToString::to_string);
                json!({
                    "context": plan.context, "devices": devices.collect::<Vec<_>>(),
                    "choices": choices.collect::<Vec<_>>(),
                })
            }
            Err(reason) => json!({"reason": reason}),
        };
        let all = json!({
            "files": self.paths, "size": self.size(), "version": file.version(),
            "alignment": file.alignment(), "parameters": self.parameters(), "bits_per_weight": self.bits(),
            "layers_ahead": self.layers_ahead().unwrap_or(0), "metadata": metadata, "formats": formats, "tensors": tensors, "memory": memory,
            "placement": placement,
        });
        format!("{all:#}\n")
    }
}

/// A count for people: `134.52 M`.
fn count(number: u64) -> String {
    match number {
        0..1_000_000 => number.to_string(),
        1_000_000..1_000_000_000 => format!("{:.2} M", number as f64 / 1e6),
        _ => format!("{:.2} B", number as f64 / 1e9),
    }
}

/// Text on one line, without control characters, cut when long.
fn short(text: &str) -> String {
    console::printable(text, LONGEST)
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", short(text)),
        Value::Array(array) => {
            let first: Vec<String> =
                (0..SHOWN).filter_map(|index| array.get(index)).map(|value| shown(&value)).collect();
            let more = array.len().saturating_sub(first.len());
            let end = if more > 0 { format!(", ... {more} more") } else { String::new() };
            format!("{} [{}{end}]", array.element_type().name(), first.join(", "))
        }
        other => short(&other.to_string()),
    }
}

fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(value) => json!(value),
        Value::String(text) => json!(text),
        Value::Array(array) => {
            let first: Vec<_> =
                (0..SHOWN).filter_map(|index| array.get(index)).map(|value| json_value(&value)).collect();
            json!({"array": array.element_type().name(), "length": array.len(), "first": first})
        }
        other => match (other.integer(), other.float()) {
            (Some(number), _) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => json!(number),
                (_, Ok(number)) => json!(number),
                _ => json!(number.to_string()),
            },
            (None, Some(number)) => json!(number),
            (None, None) => json!(other.to_string()),
        },
    }
}
