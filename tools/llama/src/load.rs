//! From a configuration to a loaded model: file, back ends, caches, with a progress bar.

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::interrupt;
use crate::invocation::Invocation;
use crate::{devices, source};
use puna_backend::{Backend, DeviceId};
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

/// Loads the model with caches for one sequence.
pub fn model(opened: &Opened, config: &Config, console: &Console, outputs: u32) -> Result<Model, Failure> {
    let (backends, placement) = backends(config)?;
    let context = &config.context;
    let options = ModelOptions {
        context: context.size,
        sequences: 1,
        batch: context.batch,
        micro_batch: context.micro_batch.min(context.batch),
        outputs,
        keys: cache_format(context.type_k)?,
        values: cache_format(context.type_v)?,
        full_window_cache: context.full_window,
    };
    let model = load(&opened.file, &backends, &placement, &options, console)?;
    let device = backends.get(placement.backend).map_or("", |backend| backend.name());
    let memory = model.memory();
    let caches: u64 = memory.iter().map(|memory| memory.caches).sum();
    let information = model.information();
    console.info(&format!(
        "{} ({}), {} on {device}, context {} ({} of cache)",
        if information.name.is_empty() { "model" } else { &information.name },
        information.architecture,
        console::size(information.file_bytes),
        information.context,
        console::size(caches),
    ));
    Ok(model)
}

/// Loads a model with a progress bar; Ctrl-C cancels.
pub fn load(
    file: &Arc<File>,
    backends: &[Arc<dyn Backend>],
    placement: &Placement,
    options: &ModelOptions,
    console: &Console,
) -> Result<Model, Failure> {
    let bytes: u64 = file.tensors.iter().map(|tensor| tensor.byte_len()).sum();
    let bar = console.progress(Some(bytes));
    let mut progress = |share: f32| {
        bar.set_position((share as f64 * bytes as f64) as u64);
        !interrupt::take()
    };
    let model = Model::load(file.clone(), backends, placement, options, &mut progress);
    bar.finish_and_clear();
    Ok(model?)
}

/// The back ends that exist and the one that the flags choose.
pub fn backends(config: &Config) -> Result<(Vec<Arc<dyn Backend>>, Placement), Failure> {
    let backends = puna_backends::start(&puna_backends::Options { threads: config.cpu.threads.unwrap_or_else(devices::default_threads) })
        .map_err(RuntimeError::from)?;
    let placement = placement(&backends, config.device.names.as_deref().unwrap_or_default())?;
    Ok((backends, placement))
}

/// The device with the first of these names; without a name (or with `none`) the preferred one.
pub fn placement(backends: &[Arc<dyn Backend>], names: &[String]) -> Result<Placement, Failure> {
    let Some(name) = names.first().filter(|name| !name.eq_ignore_ascii_case("none")) else {
        return Ok(Placement::default());
    };
    let mut known = Vec::new();
    for (backend, candidate) in backends.iter().enumerate() {
        for (device, information) in candidate.devices().into_iter().enumerate() {
            if information.name.eq_ignore_ascii_case(name) {
                return Ok(Placement { backend, device: DeviceId(device) });
            }
            known.push(information.name);
        }
    }
    Err(Failure::Failed(format!("there is no device {name}, only {}", known.join(", "))))
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
