//! From a configuration to a loaded model: file, back ends, caches, with a progress bar.

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::interrupt;
use crate::invocation::Invocation;
use crate::{devices, source};
use puna_backend::Backend;
use puna_flags::{Config, LoadMode};
use puna_gguf::{File, OpenOptions};
use puna_quant::DType;
use puna_runtime::{Model, ModelOptions, Placement, RuntimeError};
use std::path::PathBuf;
use std::sync::Arc;

/// A model file that is open.
pub struct Opened {
    /// Its path.
    pub path: PathBuf,
    /// The file.
    pub file: Arc<File>,
}

/// Finds (or fetches) the model that the flags name and opens it.
pub fn open(
    invocation: &Invocation,
    config: &Config,
    console: &Console,
    starter: bool,
) -> Result<Opened, Failure> {
    let path = source::model(invocation, &config.model, console, starter)?;
    let mode = config.model.load_mode;
    let mut overrides = config.model.overrides.clone();
    if let Some(architecture) = File::header(&path)?.metadata.optional_str("general.architecture")? {
        overrides.extend(config.rope.metadata(architecture));
    }
    let options = OpenOptions {
        mmap: !matches!(mode, LoadMode::Read | LoadMode::Mlock),
        mlock: matches!(mode, LoadMode::Mlock | LoadMode::MmapMlock),
        overrides,
    };
    let file = Arc::new(File::open(&path, &options)?);
    file.warnings().iter().for_each(|warning| console.warn(&warning.to_string()));
    Ok(Opened { path, file })
}

/// Loads the model with caches for so many sequences and logits of so many tokens in a step (0 for all).
pub fn model(
    opened: &Opened,
    config: &Config,
    console: &Console,
    sequences: u32,
    outputs: u32,
) -> Result<Model, Failure> {
    let threads = config.cpu.threads.unwrap_or_else(devices::default_threads);
    let backend = backend(threads, config.device.names.as_deref().unwrap_or_default())?;
    let context = &config.context;
    let options = ModelOptions {
        context: context.size,
        sequences,
        batch: context.batch,
        micro_batch: context.micro_batch.min(context.batch),
        outputs,
        keys: cache_format(context.type_k)?,
        values: cache_format(context.type_v)?,
        full_window_cache: context.full_window,
    };
    let model = load(&opened.file, &backend, &options, console)?;
    let memory = model.memory();
    let caches: u64 = memory.iter().map(|memory| memory.caches).sum();
    let information = model.information();
    console.info(&format!(
        "{} ({}), {} on {}, context {} ({} of cache)",
        if information.name.is_empty() { "model" } else { &information.name },
        information.architecture,
        console::size(information.file_bytes),
        backend.name(),
        information.context,
        console::size(caches),
    ));
    Ok(model)
}

/// Loads a model with a progress bar; Ctrl-C cancels.
pub fn load(
    file: &Arc<File>,
    backend: &Arc<dyn Backend>,
    options: &ModelOptions,
    console: &Console,
) -> Result<Model, Failure> {
    let bytes: u64 = file.tensors.iter().map(|tensor| tensor.byte_len()).sum();
    let bar = console.progress(Some(bytes));
    let mut progress = |share: f32| {
        bar.set_position((share as f64 * bytes as f64) as u64);
        !interrupt::take()
    };
    let model = Model::load(
        file.clone(),
        std::slice::from_ref(backend),
        &Placement::default(),
        options,
        &mut progress,
    );
    bar.finish_and_clear();
    Ok(model?)
}

/// The back end with the first of these device names; the automatic one without a name or with `none`.
pub fn backend(threads: usize, names: &[String]) -> Result<Arc<dyn Backend>, Failure> {
    let name = names.first().map(String::as_str).filter(|name| !name.eq_ignore_ascii_case("none"));
    let options = puna_backends::Options { threads, ..puna_backends::Options::default() };
    Ok(puna_backends::start(name, &options).map_err(RuntimeError::from)?)
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
