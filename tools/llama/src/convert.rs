//! `llama convert`: a model folder of the Hugging Face hub as a GGUF file.

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::quantize::convert::Job;
use crate::quantize::file_type::{self, Row};
use crate::quantize::plan::Plan;
use crate::shards::{self, Output};
use crate::{files, interrupt, pages};
use puna_convert::{
    Conversion, ConvertError, LayersAhead, LoraConversion, Options, Recipe, architectures, stored_format,
};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};
use puna_gguf::{Metadata, TensorSpec, Tensors, Value};
use puna_models::{BuildOptions, ModelError, Purpose};
use puna_quant::DType;
use puna_runtime::HeadInputs;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Flags of `convert`.
pub const SPEC: Spec<Config> = Spec {
    name: "convert",
    tool: ToolSet::CONVERT,
    about: "Write a model folder of the Hugging Face hub (config.json, safetensors, tokenizer) as a GGUF file",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "DIR",
        help: "Model folder",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// Flags of `convert-lora`.
pub const LORA: Spec<Config> = Spec {
    name: "convert-lora",
    tool: ToolSet::CONVERT_LORA,
    about: "Write a LoRA adapter of the PEFT library (adapter_config.json, adapter_model.safetensors) as a GGUF file",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "DIR",
        help: "Adapter folder",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What the matrices of the file shall be.
#[derive(Clone, Copy)]
enum OutputType {
    /// One of the float formats.
    Float(&'static Row),
    /// A file type with its mixture.
    Quantized(&'static Row),
}

/// `llama convert`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let flags = &config.convert;
    if flags.list {
        return list();
    }
    let [folder] = config.positional.as_slice() else { return Err(invocation.usage("expected DIR")) };
    let folder = PathBuf::from(folder);
    let options = Options {
        name: flags.name.clone(),
        skip_unknown: flags.skip_unknown,
        pre_tokenizer: flags.pre_tokenizer.clone(),
        vocabulary_only: flags.vocabulary_only,
        ahead: match (flags.not_ahead, flags.only_ahead) {
            (false, false) => LayersAhead::Kept,
            (true, false) => LayersAhead::LeftOut,
            (false, true) => LayersAhead::Alone,
            (true, true) => return Err(invocation.usage("--no-mtp and --mtp exclude each other")),
        },
    };
    let conversion = Conversion::open(&folder, &options)?;
    conversion.warnings.iter().for_each(|warning| console.warn(warning));
    let kind = output_type(invocation, flags.output_type.as_deref(), &conversion)?;
    let plan = formats(invocation, &config, &conversion, kind)?;
    let row = match kind {
        OutputType::Float(row) | OutputType::Quantized(row) => row,
    };
    let before = if flags.only_ahead { "mtp-" } else { "" };
    let output = flags.output.clone().unwrap_or_else(|| default_output(&folder, before, row.names[0]));
    if !flags.vocabulary_only {
        check(&conversion.metadata, &plan, options.ahead)?;
    }
    if flags.dry_run {
        return pages::print(table(&plan, &output).as_bytes());
    }
    interrupt::install();
    let begun = Instant::now();
    let mut metadata = conversion.metadata.clone();
    if !flags.vocabulary_only {
        metadata.set("general.file_type", Value::U32(row.id));
        metadata.set("general.quantization_version", Value::U32(2));
    }
    let specs: Vec<TensorSpec> = plan.iter().map(|(spec, _)| spec.clone()).collect();
    let groups = crate::gguf_split::groups_of(specs, &config.gguf_split);
    let mut output = Output::new(shards::plan(&output, &metadata, groups)?, &files::of_folder(&folder))?;
    let bar = console.progress(Some(plan.iter().map(|(spec, _)| spec.byte_len().unwrap_or(0)).sum()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (spec, recipe) in &plan {
        let data = conversion.data(recipe)?;
        write_tensor(spec, recipe, &data, threads, &mut output)?;
        output.end_tensor()?;
        bar.inc(spec.byte_len().unwrap_or(0));
        conversion.release(recipe);
    }
    bar.finish_and_clear();
    let paths = output.finish()?;
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    console.info(&format!("wrote {} in {:.1} s", names.join(", "), begun.elapsed().as_secs_f64()));
    Ok(())
}

/// The classes that are known.
fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for row in architectures::rows() {
        for class in row.classes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{class:44} {}", row.name);
        }
    }
    pages::print(text.as_bytes())
}

fn output_type(
    invocation: &Invocation,
    name: Option<&str>,
    conversion: &Conversion,
) -> Result<OutputType, Failure> {
    let name = match name {
        None | Some("auto") => {
            if conversion.prefers_bfloat() {
                "bf16"
            } else {
                "f16"
            }
        }
        Some(name) => name,
    };
    let row = file_type::find(name).ok_or_else(|| {
        invocation.usage(format!("{name:?} is no type of file: give auto or one of quantize's"))
    })?;
    Ok(match row.dtype {
        DType::F32 | DType::F16 | DType::BF16 => OutputType::Float(row),
        _ => OutputType::Quantized(row),
    })
}

/// What is written of each tensor.
fn formats<'c>(
    invocation: &Invocation,
    config: &Config,
    conversion: &'c Conversion,
    kind: OutputType,
) -> Result<Vec<(TensorSpec, &'c Recipe)>, Failure> {
    let pairs = conversion.specs().into_iter().zip(conversion.tensors());
    match kind {
        OutputType::Float(row) => Ok(pairs
            .map(|(spec, (name, recipe))| {
                let dtype = stored_format(name, recipe, row.dtype);
                (TensorSpec { dtype, ..spec }, recipe)
            })
            .collect()),
        OutputType::Quantized(row) => {
            let directory = Tensors::from_specs(&conversion.specs())?;
            let plan = Plan::new(invocation, config, &conversion.metadata, &directory, Some(row), None)?;
            if let Some(refusal) = plan.refusal() {
                let remedy =
                    "convert to auto, make importance with imatrix, then quantize with --imatrix FILE";
                return Err(Failure::Failed(format!("{refusal}: {remedy}")));
            }
            let half = if conversion.prefers_bfloat() { DType::BF16 } else { DType::F16 };
            let recipes: HashMap<&str, &Recipe> =
                conversion.tensors().iter().map(|(name, recipe)| (name.as_str(), recipe)).collect();
            let mut chosen = Vec::new();
            for planned in &plan.tensors {
                let name = &planned.name;
                let Some(recipe) = recipes.get(name.as_str()).copied() else { continue };
                // What the mixture leaves alone is stored as in a float file.
                let dtype = match planned.dtype == recipe.dtype {
                    true => stored_format(name, recipe, half),
                    false => planned.dtype,
                };
                chosen.push((TensorSpec { name: name.clone(), dtype, shape: recipe.shape.clone() }, recipe));
            }
            Ok(chosen)
        }
    }
}

/// Refuses to write what could not run: the graph is built from what the file would say.
fn check(metadata: &Metadata, plan: &[(TensorSpec, &Recipe)], ahead: LayersAhead) -> Result<(), Failure> {
    // Heads that guess for another model may use its tensors, which are not here.
    if puna_runtime::DraftHead::inputs(metadata).is_ok_and(|inputs| matches!(inputs, HeadInputs::Layers(_))) {
        return Ok(());
    }
    let specs: Vec<TensorSpec> = plan.iter().map(|(spec, _)| spec.clone()).collect();
    let tensors = Tensors::from_specs(&specs)?;
    let build = |purpose| {
        let options = BuildOptions { context: 512, purpose, ..BuildOptions::default() };
        puna_models::build(metadata, &tensors, &options).map(|_| ())
    };
    let built = match ahead {
        LayersAhead::Alone => build(Purpose::GuessAhead),
        _ => build(Purpose::Generate),
    };
    let built = match built {
        Err(ModelError::NoLogits { .. }) => build(Purpose::Embed(None)),
        Ok(()) if puna_runtime::DraftHead::inputs(metadata)? == HeadInputs::LastState => {
            build(Purpose::GuessAhead)
        }
        other => other,
    };
    built.map_err(|error| {
        let text = console::printable(&error.to_string(), 500);
        let reason = disagreement(metadata, &specs).unwrap_or_default();
        Failure::Failed(format!("what config.json says and the weights do not make a model: {text}{reason}"))
    })
}

/// The setting of `config.json` that says something else than the weights, if it is one of those that are plain to see.
fn disagreement(metadata: &Metadata, specs: &[TensorSpec]) -> Option<String> {
    let architecture = metadata.get("general.architecture")?.text()?;
    let number = |key: &str| metadata.get(&format!("{architecture}.{key}"))?.integer();
    let layer = |spec: &TensorSpec| spec.name.strip_prefix("blk.")?.split_once('.')?.0.parse::<i128>().ok();
    let layers = specs.iter().filter_map(layer).max().map(|last| last + 1);
    let width = specs.iter().find(|spec| spec.name == "token_embd.weight")?.shape.last().copied()?;
    let differs = |key: &str, setting: &str, found: i128| {
        let said = number(key).filter(|said| *said != found)?;
        Some(format!(" (config.json: {setting} is {said}, the weights have {found})"))
    };
    let by_layers = layers.and_then(|layers| differs("block_count", "num_hidden_layers", layers));
    by_layers.or_else(|| differs("embedding_length", "hidden_size", i128::from(width)))
}

fn default_output(folder: &Path, before: &str, kind: &str) -> PathBuf {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned());
    folder.join(format!("{before}{}-{kind}.gguf", name.unwrap_or_else(|| "model".into())))
}

fn table(plan: &[(TensorSpec, &Recipe)], output: &Path) -> String {
    let mut text = String::new();
    let mut bytes = 0;
    for (spec, recipe) in plan {
        let size = spec.byte_len().unwrap_or(0);
        bytes += size;
        let from = console::printable(recipe.name(), 80);
        // Writing to a string cannot fail.
        let name = console::printable(&spec.name, 80);
        let _ = writeln!(text, "{name:36} {:>8} {:?} from {from}", spec.dtype.name(), spec.shape);
    }
    let _ = writeln!(text, "{} tensors, {}, to {}", plan.len(), console::size(bytes), output.display());
    text
}

/// Writes a tensor in the format of its entry.
fn write_tensor(
    spec: &TensorSpec,
    recipe: &Recipe,
    data: &[u8],
    threads: usize,
    output: &mut Output,
) -> Result<(), Failure> {
    if spec.dtype == recipe.dtype {
        return output.write(data);
    }
    let directory = Tensors::from_specs(&[TensorSpec { dtype: recipe.dtype, ..spec.clone() }])?;
    let Some(tensor) = directory.iter().next() else { return Ok(()) };
    Job { tensor, data, dtype: spec.dtype, importance: None }.run(threads, &mut |bytes| output.write(bytes))
}

/// `llama convert-lora`.
pub fn run_lora(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&LORA)? else { return Ok(()) };
    let [folder] = config.positional.as_slice() else { return Err(invocation.usage("expected DIR")) };
    let Some(base) = &config.convert.base else {
        return Err(invocation.usage("--base DIR, the folder of the model, is needed for its config.json"));
    };
    let folder = PathBuf::from(folder);
    let adapter = LoraConversion::open(&folder, base)?;
    let name = config.convert.output_type.as_deref().unwrap_or("f32");
    let dtype = DType::from_name(name).filter(|dtype| dtype.format().quantize.is_some());
    let dtype = dtype.ok_or_else(|| invocation.usage(format!("{name:?} is no number format for weights")))?;
    let specs: Vec<TensorSpec> =
        adapter.specs().into_iter().map(|spec| TensorSpec { dtype, ..spec }).collect();
    let output = config.convert.output.clone();
    let output = output.unwrap_or_else(|| default_output(&folder, "", &name.to_uppercase()));
    interrupt::install();
    let inputs = [files::of_folder(&folder), files::of_folder(base)].concat();
    write_adapter(&adapter, &specs, &output, &inputs)?;
    console.info(&format!("wrote {} tensors to {}", specs.len(), output.display()));
    Ok(())
}

fn write_adapter(
    adapter: &LoraConversion,
    specs: &[TensorSpec],
    path: &Path,
    inputs: &[PathBuf],
) -> Result<(), Failure> {
    let mut output = Output::new(shards::plan(path, &adapter.metadata, vec![specs.to_vec()])?, inputs)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for (spec, (_, recipe)) in specs.iter().zip(adapter.tensors()) {
        write_tensor(spec, recipe, &adapter.data(recipe)?, threads, &mut output)?;
        output.end_tensor()?;
    }
    output.finish()?;
    Ok(())
}

/// The console's warnings, and a file that runs, of a model folder.
pub fn open_folder(folder: &Path, console: &Console) -> Result<puna_gguf::File, Failure> {
    Ok(opened_folder(folder, console, false)?.into_file()?)
}

/// The console's warnings, and the metadata, of a model folder, which needs no weights for that.
pub fn folder_metadata(folder: &Path, console: &Console) -> Result<Metadata, Failure> {
    Ok(opened_folder(folder, console, true)?.metadata)
}

fn opened_folder(folder: &Path, console: &Console, vocabulary_only: bool) -> Result<Conversion, Failure> {
    let conversion = Conversion::open(folder, &Options { vocabulary_only, ..Options::default() })?;
    conversion.warnings.iter().for_each(|warning| console.warn(warning));
    Ok(conversion)
}
