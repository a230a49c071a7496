//! `llama quantize`: a model in other number formats.

mod choose;
pub mod convert;
pub mod file_type;
mod importance;
pub mod plan;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::gguf_edit::narrow;
use crate::invocation::Invocation;
use crate::shards::{self, Output};
use crate::{interrupt, pages};
use convert::Job;
use file_type::Row;
use importance::Importance;
use plan::{Plan, Planned};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};
use puna_gguf::{File, Metadata, OpenOptions, TensorSpec, Value};
use std::path::PathBuf;
use std::time::Instant;

/// Flags of `quantize`.
pub const SPEC: Spec<Config> = Spec {
    name: "quantize",
    tool: ToolSet::QUANTIZE,
    about: "Write a model in other number formats. INPUT is a GGUF file, TYPE one of Q1_0 Q2_0 Q4_0 Q4_1 MXFP4_MOE Q5_0 \
            Q5_1 IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ1_S IQ1_M TQ1_0 TQ2_0 Q2_K Q2_K_S IQ3_XXS IQ3_S IQ3_M IQ3_XS Q3_K_S \
            Q3_K_M Q3_K_L IQ4_NL IQ4_XS Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K Q8_0 F16 BF16 F32 or COPY, OUTPUT \
            ggml-model-TYPE.gguf beside INPUT unless given.",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "INPUT [OUTPUT] TYPE [THREADS]",
        help: "Model file, file to write, type, threads",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// What the arguments that are no flags say.
struct Arguments {
    input: PathBuf,
    output: PathBuf,
    /// None: copy all tensors.
    file_type: Option<&'static Row>,
    threads: usize,
}

/// `llama quantize`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let arguments = arguments(invocation, &config)?;
    let flags = &config.quantize;
    if !flags.include_weights.is_empty() && !flags.exclude_weights.is_empty() {
        return Err(invocation.usage("--include-weights and --exclude-weights exclude each other"));
    }
    let options = OpenOptions { overrides: config.model.overrides.clone(), ..OpenOptions::default() };
    let file = File::open(&arguments.input, &options)?;
    file.warnings().iter().for_each(|warning| console.warn(&warning.to_string()));
    check_overrides(&config.model.overrides)?;
    shards::check_layers(&file.metadata)?;
    let importance = match &flags.importance {
        Some(path) => {
            let found = Importance::read(path, &flags.include_weights, &flags.exclude_weights)?;
            console.info(&format!("importance of {} tensors from {}", found.len(), path.display()));
            for part in &found.unmatched {
                console.warn(&format!("no tensor with importance has {part:?} in its name"));
            }
            Some(found)
        }
        None => None,
    };
    let plan = Plan::new(
        invocation,
        &config,
        &file.metadata,
        &file.tensors,
        arguments.file_type,
        importance.as_ref(),
    )?;
    plan.warnings().iter().for_each(|warning| console.warn(warning));
    if flags.dry_run {
        return pages::print(plan.table(&file.tensors).as_bytes());
    }
    if let Some(refusal) = plan.refusal() {
        return Err(Failure::Failed(format!("{refusal}: give --imatrix FILE with this tensor")));
    }
    interrupt::install();
    let begun = Instant::now();
    let metadata = metadata(&config, &file, &arguments, &plan, importance.as_ref());
    let inputs: Vec<PathBuf> = file.paths().iter().chain(&flags.importance).cloned().collect();
    let paths = write(
        (&file, inputs.as_slice()),
        &metadata,
        &arguments,
        &plan,
        importance.as_ref(),
        flags.keep_split,
        &console,
    )?;
    let (before, after) = plan.sizes(&file.tensors);
    let bits = |bytes: u64| bytes as f64 * 8.0 / plan.elements(&file.tensors).max(1) as f64;
    console.info(&format!("model size  = {} ({:.2} bits per weight)", console::size(before), bits(before)));
    console.info(&format!("quant size  = {} ({:.2} bits per weight)", console::size(after), bits(after)));
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    console.info(&format!("wrote {} in {:.1} s", names.join(", "), begun.elapsed().as_secs_f64()));
    Ok(())
}

/// Refuses another architecture that is none: nothing could run the file.
fn check_overrides(overrides: &[(String, Value)]) -> Result<(), Failure> {
    for (key, value) in overrides.iter().filter(|(key, _)| key == "general.architecture") {
        let known = |name: &str| puna_models::ARCHITECTURES.iter().any(|row| row.name == name);
        if !value.text().is_some_and(known) {
            return Err(Failure::Failed(format!("--override-kv {key}: {value} is no known architecture")));
        }
    }
    Ok(())
}

/// INPUT [OUTPUT] TYPE [THREADS].
fn arguments(invocation: &Invocation, config: &Config) -> Result<Arguments, Failure> {
    let given: Vec<&str> = config.positional.iter().map(String::as_str).collect();
    let is_type = |text: &str| text.eq_ignore_ascii_case("COPY") || file_type::find(text).is_some();
    let (input, output, kind, threads) = match given.as_slice() {
        [input, kind] if is_type(kind) => (*input, None, *kind, None),
        [input, kind, threads] if is_type(kind) && threads.parse::<usize>().is_ok() => {
            (*input, None, *kind, Some(*threads))
        }
        [input, output, kind] => (*input, Some(*output), *kind, None),
        [input, output, kind, threads] => (*input, Some(*output), *kind, Some(*threads)),
        [_, kind] => return Err(invocation.usage(file_type::unknown(kind))),
        _ => return Err(invocation.usage("expected INPUT [OUTPUT] TYPE [THREADS]")),
    };
    let file_type = file_type::find(kind);
    if !is_type(kind) {
        return Err(invocation.usage(file_type::unknown(kind)));
    }
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = match threads {
        None => most,
        Some(text) => match text.parse() {
            Ok(0) => most,
            Ok(threads @ 1..=4096) => threads,
            _ => return Err(invocation.usage(format!("{text:?} is no number of threads"))),
        },
    };
    let input = PathBuf::from(input);
    let name = file_type.map_or("COPY", |row| row.names[0]);
    let output =
        output.map_or_else(|| input.with_file_name(format!("ggml-model-{name}.gguf")), PathBuf::from);
    Ok(Arguments { input, output, file_type, threads })
}

/// The metadata to write.
fn metadata(
    config: &Config,
    file: &File,
    arguments: &Arguments,
    plan: &Plan,
    importance: Option<&Importance>,
) -> Metadata {
    let mut metadata = file.metadata.clone();
    if let Some(row) = arguments.file_type {
        metadata.set("general.quantization_version", Value::U32(2));
        metadata.set("general.file_type", Value::U32(row.id));
    }
    for (key, value) in &config.model.overrides {
        metadata.set(key.clone(), narrow(value));
    }
    plan.prune_metadata(&mut metadata);
    if let (Some(importance), Some(path)) = (importance, &config.quantize.importance) {
        metadata.set("quantize.imatrix.file", Value::String(path.display().to_string()));
        if let Some(dataset) = importance.datasets.first() {
            metadata.set("quantize.imatrix.dataset", Value::String(dataset.clone()));
        }
        metadata.set("quantize.imatrix.entries_count", Value::U32(importance.len() as u32));
        metadata.set("quantize.imatrix.chunks_count", Value::U32(importance.chunks));
    }
    metadata
}

/// Writes the file or files, none of which may be one of the `inputs`.
fn write(
    (file, inputs): (&File, &[PathBuf]),
    metadata: &Metadata,
    arguments: &Arguments,
    plan: &Plan,
    importance: Option<&Importance>,
    keep_split: bool,
    console: &Console,
) -> Result<Vec<PathBuf>, Failure> {
    let parts = if keep_split { file.paths().len().max(1) } else { 1 };
    let mut groups: Vec<Vec<TensorSpec>> = vec![Vec::new(); parts];
    let mut order: Vec<(usize, &Planned)> = Vec::new();
    for planned in &plan.tensors {
        let tensor = planned.tensor(&file.tensors)?;
        let part = if keep_split { tensor.shard() } else { 0 };
        let spec =
            TensorSpec { name: planned.name.clone(), dtype: planned.dtype, shape: tensor.shape.clone() };
        groups[part].push(spec);
        order.push((part, planned));
    }
    order.sort_by_key(|(part, _)| *part);
    let mut output = Output::new(shards::plan(&arguments.output, metadata, groups)?, inputs)?;
    let bar = console.progress(Some(plan.sizes(&file.tensors).0));
    for (_, planned) in order {
        let tensor = planned.tensor(&file.tensors)?;
        let data = file.bytes(tensor);
        if planned.dtype == tensor.dtype {
            output.write(data)?;
        } else {
            let columns = importance.and_then(|importance| importance.of(&tensor.name));
            let job = Job { tensor, data, dtype: planned.dtype, importance: columns };
            job.run(arguments.threads, &mut |bytes| output.write(bytes))?;
        }
        output.end_tensor()?;
        bar.inc(tensor.byte_len());
        file.release(tensor);
    }
    bar.finish_and_clear();
    output.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_type() {
        for row in file_type::FILE_TYPES {
            assert!(SPEC.about.split_whitespace().any(|word| word == row.names[0]), "{}", row.names[0]);
        }
    }
}
