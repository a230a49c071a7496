//! From a configuration to a loaded model: file, back ends, caches, with a progress bar.

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::placement::{self, Devices};
use crate::{files, source};
use puna_backend::BackendError;
use puna_backends::{Features, Isa, Options as Processor};
use puna_flags::{Config, LoadMode};
use puna_gguf::{File, Metadata, OpenOptions};
use puna_graph::{Graph, ValueId};
use puna_quant::DType;
use puna_runtime::{
    Adapter, Choice, DraftHead, Extras, HeadInputs, Model, ModelOptions, Plan, Pooling, Purpose, RuntimeError,
};
use puna_tokenizer::Tokenizer;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of unused tensors that a warning lists.
const LISTED: usize = 3;

/// A model file that is open.
pub struct Opened {
    /// Its path.
    pub path: PathBuf,
    /// The file.
    pub file: Arc<File>,
}

impl Opened {
    /// The files that it is made of, which no tool may write over.
    pub fn inputs(&self) -> Vec<PathBuf> {
        inputs(&self.path, &self.file)
    }

    /// The tokenizer of the file, which must have one; what is odd about it is said.
    pub fn tokenizer(&self, console: &Console) -> Result<Tokenizer, Failure> {
        tokenizer(&self.path, &self.file.metadata, console)
    }
}

/// The model at `path`: a file, or a model folder, which is converted in memory.
pub fn file(path: &Path, options: &OpenOptions, console: &Console) -> Result<File, Failure> {
    if !path.is_dir() {
        return Ok(File::open(path, options)?);
    }
    let mut file = crate::convert::open_folder(path, console)?;
    for (key, value) in &options.overrides {
        file.metadata.set(key.clone(), value.clone());
    }
    Ok(file)
}

/// The metadata of the model at `path`, a file or a folder; weights are not read.
pub fn metadata(path: &Path, console: &Console) -> Result<Metadata, Failure> {
    match path.is_dir() {
        true => crate::convert::folder_metadata(path, console),
        false => Ok(File::header(path)?.metadata),
    }
}

/// The files that the model at `path` is made of.
pub fn inputs(path: &Path, file: &File) -> Vec<PathBuf> {
    if path.is_dir() { files::of_folder(path) } else { file.paths().to_vec() }
}

/// The tokenizer that the metadata of the file at `path` describes; what is odd about it is said.
pub fn tokenizer(path: &Path, metadata: &Metadata, console: &Console) -> Result<Tokenizer, Failure> {
    let tokenizer = Tokenizer::from_metadata(metadata)?
        .ok_or_else(|| Failure::Failed(format!("{} has no tokenizer", path.display())))?;
    tokenizer.warnings().iter().for_each(|warning| console.warn(warning));
    Ok(tokenizer)
}

/// Finds (or fetches) the model that the flags name, opens it and checks its tensors if a flag asks for that.
pub fn open(
    invocation: &Invocation,
    config: &Config,
    console: &Console,
    starter: bool,
) -> Result<Opened, Failure> {
    let path = source::model(invocation, &config.model, console, starter)?;
    let mode = config.model.load_mode;
    let options = OpenOptions {
        mmap: !matches!(mode, LoadMode::Read | LoadMode::Mlock),
        mlock: matches!(mode, LoadMode::Mlock | LoadMode::MmapMlock),
        overrides: config.model.overrides.clone(),
    };
    let mut file = self::file(&path, &options, console)?;
    if let Some(architecture) = file.metadata.optional_str("general.architecture")?.map(str::to_owned) {
        for (key, value) in config.rope.metadata(&architecture) {
            file.metadata.set(key, value);
        }
    }
    file.warnings().iter().for_each(|warning| console.warn(&warning.to_string()));
    if config.model.check_tensors {
        check_tensors(&file)?;
    }
    Ok(Opened { path, file: Arc::new(file) })
}

/// Refuses a file with a tensor in which a number is infinite or none.
fn check_tensors(file: &File) -> Result<(), Failure> {
    for tensor in file.tensors.iter() {
        puna_quant::validate_rows(tensor.dtype, file.bytes(tensor))
            .map_err(|error| Failure::Failed(format!("tensor {}: {error}", tensor.name)))?;
    }
    Ok(())
}

/// What the flags say about the model's sizes, for so many sequences and logits of so many tokens in a step (0 for
/// all).
pub fn options(config: &Config, sequences: u32, outputs: u32) -> Result<ModelOptions, Failure> {
    let context = &config.context;
    Ok(ModelOptions {
        context: context.size,
        sequences,
        micro_batch: context.micro_batch.min(context.batch),
        outputs,
        keys: cache_format(context.type_k)?,
        values: cache_format(context.type_v)?,
        full_window_cache: context.full_window,
        only_long_texts: false,
        purpose: Purpose::Generate,
        causal: config.embedding.causal,
        head_inputs: HeadInputs::None,
    })
}

/// What the flags say about pooling.
pub fn pooling(config: &Config) -> Option<Pooling> {
    config.embedding.pooling.and_then(Pooling::from_name)
}

/// The same, else what the file says, else none.
pub fn pooling_of(config: &Config, metadata: &Metadata) -> Result<Pooling, Failure> {
    if let Some(pooling) = pooling(config) {
        return Ok(pooling);
    }
    let architecture = metadata.str_or("general.architecture", "")?;
    let number = metadata.u32_or(&format!("{architecture}.pooling_type"), 0)?;
    Ok(Pooling::ALL.get(number as usize).map_or(Pooling::None, |(pooling, _)| *pooling))
}

/// Loads the model with caches for so many sequences and logits of so many tokens in a step (0 for all).
pub fn model(
    opened: &Opened,
    config: &Config,
    console: &Console,
    sequences: u32,
    outputs: u32,
) -> Result<Model, Failure> {
    model_with(opened, config, console, &options(config, sequences, outputs)?)
}

/// Loads the model with these options.
pub fn model_with(
    opened: &Opened,
    config: &Config,
    console: &Console,
    options: &ModelOptions,
) -> Result<Model, Failure> {
    build(opened, config, console, options, &|_| Vec::new(), false)
}

/// The same, with values of its graph that [`Model::observe`] will hand on.
pub fn watched(
    opened: &Opened,
    config: &Config,
    console: &Console,
    options: &ModelOptions,
    watch: &dyn Fn(&Graph) -> Vec<ValueId>,
) -> Result<Model, Failure> {
    build(opened, config, console, options, watch, false)
}

/// The same as [`model_with`], with adapters whose strength can be changed while the model runs, where the back end can
/// do that.
pub fn switchable(
    opened: &Opened,
    config: &Config,
    console: &Console,
    options: &ModelOptions,
) -> Result<Model, Failure> {
    build(opened, config, console, options, &|_| Vec::new(), true)
}

fn build(
    opened: &Opened,
    config: &Config,
    console: &Console,
    options: &ModelOptions,
    watch: &dyn Fn(&Graph) -> Vec<ValueId>,
    switch: bool,
) -> Result<Model, Failure> {
    let devices = placement::devices(&processor(&config.cpu), &config.device, &opened.file.tensors, console)?;
    let mut extras = extras(config)?;
    // Others cannot do that.
    extras.switchable = switch && devices.backends.len() == 1;
    let model = load_with(&opened.file, &devices, options, console, &extras, watch)?;
    let unused = puna_models::unused_tensors(model.graph(), &opened.file.tensors);
    let ahead = |name: &&str| layer(name).is_some_and(|layer| layer >= model.information().layers);
    let (ahead, unused): (Vec<&str>, Vec<&str>) = unused.into_iter().partition(ahead);
    if !ahead.is_empty() && options.head_inputs != HeadInputs::LastState {
        let known = puna_models::guesses_ahead(&model.information().architecture);
        let how = if known { " (--spec-type draft-mtp)" } else { "" };
        console.info(&format!("its layers that guess tokens ahead are not used{how}"));
    }
    if !unused.is_empty() {
        let more = if unused.len() > LISTED { ", ..." } else { "" };
        let names = unused.iter().take(LISTED).map(|name| console::printable(name, 100)).collect::<Vec<_>>();
        console.warn(&format!("the model does not use {} tensors: {}{more}", unused.len(), names.join(", ")));
    }
    let memory = model.memory();
    let caches: u64 = memory.iter().map(|memory| memory.caches).sum();
    let information = model.information();
    console.info(&format!(
        "{} ({}), {} on {}, context {} ({} of cache)",
        if information.name.is_empty() {
            "model".to_owned()
        } else {
            console::printable(&information.name, 100)
        },
        console::printable(&information.architecture, 100),
        console::size(model.weight_bytes()),
        device_names(model.plan()),
        information.context,
        console::size(caches),
    ));
    let trained = information.context_train;
    if information.context > trained && config.rope.scaling.is_none() && config.rope.scale.is_none() {
        console.warn(&format!(
            "a context of {} is more than the {trained} tokens that the model was trained with: beyond them answers get worse",
            information.context
        ));
    }
    let is_short = |choice: &&Choice| matches!(choice, Choice::Positions { .. });
    let (short, placed): (Vec<&Choice>, Vec<_>) = model.plan().choices.iter().partition(is_short);
    // Otherwise it was made as large as texts seem to need.
    if config.context.size > 0 {
        short.into_iter().for_each(|choice| console.warn(&choice.to_string()));
    }
    if model.plan().devices.len() > 1 || !placed.is_empty() {
        // What was warned of is not said again.
        let choices = placed.into_iter().cloned().collect();
        console.info(&Plan { choices, ..model.plan().clone() }.to_string());
    }
    Ok(model)
}

/// The layer that a tensor's name is of.
fn layer(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Names of the devices that a model is on, those with most of it first.
pub fn device_names(plan: &Plan) -> String {
    let mut devices: Vec<_> = plan.devices.iter().collect();
    devices.sort_by_key(|device| std::cmp::Reverse(device.need.weights));
    devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Adapters and control vectors that the flags name.
pub fn extras(config: &Config) -> Result<Extras, Failure> {
    let flags = &config.model;
    let mut extras = Extras::default();
    for (path, scale) in &flags.adapters {
        extras.adapters.push(Adapter::open(path, *scale)?);
    }
    let (first, last) = flags.control_layers.unwrap_or((1, u32::MAX));
    for (path, strength) in &flags.control_vectors {
        extras.add_control_vector(path, *strength, first..=last)?;
    }
    Ok(extras)
}

/// Loads a model as it is, with a progress bar. Ctrl-C ends the program here: there is nothing to put in order.
pub fn load(
    file: &Arc<File>,
    devices: &Devices,
    options: &ModelOptions,
    console: &Console,
) -> Result<Model, Failure> {
    load_with(file, devices, options, console, &Extras::default(), &|_| Vec::new())
}

/// [`load`] with adapters and control vectors, and with values of the graph to watch.
fn load_with(
    file: &Arc<File>,
    devices: &Devices,
    options: &ModelOptions,
    console: &Console,
    extras: &Extras,
    watch: &dyn Fn(&Graph) -> Vec<ValueId>,
) -> Result<Model, Failure> {
    let Devices { backends, placement } = devices;
    loading(file, options, console, &mut |progress| {
        Model::load_with(file.clone(), backends, placement, options, extras, watch, progress)
    })
}

/// Loads a draft head that guesses for a model.
pub fn head(
    opened: &Opened,
    target: &Opened,
    config: &Config,
    console: &Console,
    options: &ModelOptions,
) -> Result<DraftHead, Failure> {
    let tensors = &opened.file.tensors;
    let devices = placement::devices(&processor(&config.cpu), &config.device, tensors, console)?;
    let Devices { backends, placement } = &devices;
    let head = loading(&opened.file, options, console, &mut |progress| {
        DraftHead::load(&opened.file, &target.file, backends, placement, options, progress)
    })?;
    console.info(&format!("what guesses ahead: {}", console::size(head.weight_bytes())));
    Ok(head)
}

/// What loads and tells how far it is.
type Load<'l, T> = &'l mut dyn FnMut(&mut dyn FnMut(f32) -> bool) -> Result<T, RuntimeError>;

/// Loads with a progress bar.
fn loading<T>(
    file: &Arc<File>,
    options: &ModelOptions,
    console: &Console,
    load: Load<'_, T>,
) -> Result<T, Failure> {
    file.prefetch();
    let bytes: u64 = file.tensors.iter().map(|tensor| tensor.byte_len()).sum();
    let bar = console.progress(Some(bytes));
    let mut progress = |share: f32| {
        bar.set_position((share as f64 * bytes as f64) as u64);
        true
    };
    let loaded = load(&mut progress);
    bar.finish_and_clear();
    loaded.map_err(|error| with_remedy(error, file, options.context))
}

/// The failure for an error of loading; where memory is short it says what needs less.
fn with_remedy(error: RuntimeError, file: &File, asked: u32) -> Failure {
    let context = match asked {
        0 => {
            let architecture = file.metadata.str_or("general.architecture", "").unwrap_or("");
            format!("the context comes from the model's {architecture}.context_length; -c sets another one")
        }
        asked => format!("a context of {asked} was asked for (-c)"),
    };
    let remedies = match &error {
        RuntimeError::LedgerMemory { .. } | RuntimeError::Option { option: "context", .. } => vec![],
        RuntimeError::DoesNotFit { on_host, .. } => vec![*on_host],
        RuntimeError::Backend(BackendError::OutOfMemory { device, .. }) => vec![device == "CPU"],
        _ => return Failure::from(error),
    };
    let fewer = match remedies[..] {
        [] => "",
        [true] => "; caches of fewer bits (-ctk q8_0 -ctv q8_0) need less",
        _ => {
            "; fewer layers on the device (-ngl), experts on the CPU (--cpu-moe) and caches of fewer bits (-ctk q8_0 \
             -ctv q8_0) need less"
        }
    };
    let anyway = match &error {
        RuntimeError::DoesNotFit { .. } => "; --fit off tries it all the same",
        _ => "",
    };
    match Failure::from(error) {
        Failure::Failed(reason) => Failure::Failed(format!("{reason}{fewer}{anyway}; {context}")),
        other => other,
    }
}

/// How the flags say that the processor is used.
pub fn processor(cpu: &puna_flags::Cpu) -> Processor {
    Processor {
        threads: cpu.threads.unwrap_or_else(puna_backends::default_threads),
        features: features(cpu.isa),
        deterministic: cpu.deterministic,
        repack_keep: cpu.repack_keep,
        ..backend_options()
    }
}

/// What the processor has up to a level of [`puna_flags::ISA_LEVELS`].
pub fn features(isa: &str) -> Features {
    Features::detect().limited(Isa::from_name(isa).unwrap_or_default())
}

/// What back ends are started with here if no flag says otherwise.
pub fn backend_options() -> Processor {
    Processor {
        variable: |name| std::env::var(name).ok(),
        log: |line| drop(writeln!(std::io::stderr(), "{line}")),
        ..Processor::default()
    }
}

/// A number format by its printed name.
pub fn cache_format(name: &str) -> Result<DType, Failure> {
    DType::from_name(name).ok_or_else(|| Failure::Failed(format!("unknown cache format {name}")))
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Cancelled => Self::Interrupted,
            other => Self::Failed(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use puna_conformance::zoo;
    use puna_flags::{FLAGS, Outcome, Spec, ToolSet};
    use puna_gguf::Value;
    use puna_models::BuildOptions;
    use std::ffi::OsString;

    use super::*;

    const SPEC: Spec<Config> =
        Spec { name: "cli", tool: ToolSet::CLI, about: "", groups: FLAGS, positional: None };

    /// The graph of a small model, as text, with changes to its metadata by flags.
    fn graph(metadata: &Metadata, file: &File, arguments: &[&str]) -> String {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let Ok(Outcome::Run { config, .. }) = SPEC.parse(Config::default(), &arguments, &|_| None) else {
            panic!("{arguments:?}")
        };
        let mut metadata = metadata.clone();
        config.rope.metadata("llama").into_iter().for_each(|(key, value)| drop(metadata.set(key, value)));
        let built = puna_models::build(
            &metadata,
            &file.tensors,
            &BuildOptions { context: 64, ..BuildOptions::default() },
        );
        built.expect("the model can be built").to_string()
    }

    fn small() -> File {
        let model = zoo::models().into_iter().find(|model| model.name == "llama-gqa4-tied");
        model.expect("a zoo model").open()
    }

    #[test]
    fn every_flag_of_position_encoding_changes_the_graph() {
        let file = small();
        let yarn = ["--rope-scaling", "yarn", "--rope-scale", "4"];
        for (base, flag) in [
            (&[][..], &["--rope-scale", "4"][..]),
            (&[], &["--rope-freq-scale", "0.5"]),
            (&[], &["--rope-freq-base", "12345"]),
            (&["--rope-scale", "4"], &["--rope-scaling", "none"]),
            (&["--rope-scale", "4"], &["--rope-scaling", "yarn"]),
            (&yarn, &["--yarn-orig-ctx", "77"]),
            (&yarn, &["--yarn-ext-factor", "0.5"]),
            (&yarn, &["--yarn-attn-factor", "0.5"]),
            (&yarn, &["--yarn-beta-slow", "3"]),
            (&yarn, &["--yarn-beta-fast", "11"]),
        ] {
            let before = graph(&file.metadata, &file, base);
            assert_ne!(before, graph(&file.metadata, &file, &[base, flag].concat()), "{flag:?}");
        }
    }

    #[test]
    fn every_level_of_instruction_sets_that_a_flag_names_exists() {
        let names = Isa::ALL.map(|(name, _)| name);
        assert_eq!(puna_flags::ISA_LEVELS, names);
    }

    #[test]
    fn a_factor_keeps_the_files_kind_of_scaling() {
        let file = small();
        let mut metadata = file.metadata.clone();
        metadata.set("llama.rope.scaling.type", Value::String("yarn".into()));
        let by_file = graph(&metadata, &file, &["--rope-scale", "4"]);
        assert_eq!(by_file, graph(&file.metadata, &file, &["--rope-scaling", "yarn", "--rope-scale", "4"]));
        assert_ne!(by_file, graph(&file.metadata, &file, &["--rope-scale", "4"]));
    }

    /// Whatever a flag writes is read by a tool; a flag that nothing reads has to say that it has no effect.
    #[test]
    fn every_field_of_the_configuration_is_read() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut code = String::new();
        for folder in [
            sources.clone(),
            sources.join("chat"),
            sources.join("quantize"),
            sources.join("imatrix"),
            sources.join("gguf_hash"),
            sources.join("perplexity"),
        ] {
            for entry in std::fs::read_dir(folder).expect("the sources").flatten() {
                if entry.path().extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(entry.path()).expect("a source");
                    // Tests read nothing for the user.
                    code.push_str(text.split("#[cfg(test)]").next().unwrap_or(""));
                }
            }
        }
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        let reads = |field: &str| {
            code.match_indices(&format!(".{field}"))
                .any(|(place, found)| !code[place + found.len()..].starts_with(is_part))
        };
        let config = include_str!("../../../crates/flags/src/config.rs");
        let mut fields = 0;
        for line in config.lines().filter_map(|line| line.strip_prefix("    pub ")) {
            let Some((field, _)) = line.split_once(": ").filter(|(field, _)| field.chars().all(is_part))
            else {
                continue;
            };
            // Those that `Rope::metadata` reads have a test of their own.
            let rope = field.starts_with("yarn_") || ["scaling", "scale", "freq_base"].contains(&field);
            assert!(rope || reads(field), "nothing reads {field}");
            fields += 1;
        }
        assert!(fields > 60, "{fields}");
    }

    #[test]
    fn invalid_numbers_are_found_and_the_tensor_named() {
        let good = small();
        check_tensors(&good).expect("the model is good");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bad.gguf");
        let spec = puna_gguf::TensorSpec { name: "blk.0.bad".into(), dtype: DType::F32, shape: vec![4] };
        let bytes: Vec<u8> = [1.0, 2.0, f32::NAN, 3.0].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
        puna_gguf::write(&path, &Metadata::new(), &[(spec, &bytes)]).expect("the file is written");
        let file = File::open(&path, &OpenOptions::default()).expect("the file is sound");
        let error = check_tensors(&file).expect_err("one is no number");
        assert!(matches!(error, Failure::Failed(text) if text.starts_with("tensor blk.0.bad: ")));
    }

    #[test]
    fn an_impossible_context_says_where_it_comes_from() {
        let mut file = small();
        file.metadata.set("llama.context_length", 0_u32);
        let file = Arc::new(file);
        let console = Console::new(&puna_flags::Log { disable: true, ..Default::default() }, 0).expect("one");
        let wish = puna_flags::Device { names: Some(vec!["reference".into()]), ..Default::default() };
        let devices =
            placement::devices(&Processor::default(), &wish, &file.tensors, &console).expect("they start");
        for (context, part) in [(0, "llama.context_length; -c sets another one"), (u32::MAX, "(-c)")] {
            let options = ModelOptions { context, ..ModelOptions::default() };
            match load(&file, &devices, &options, &console) {
                Err(Failure::Failed(text)) => assert!(text.ends_with(part), "{text}"),
                _ => panic!("{context}"),
            }
        }
    }
}
