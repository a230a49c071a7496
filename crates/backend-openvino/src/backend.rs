//! The back end: devices of the library, and segments loaded onto them.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use puna_backend::partition::{key_rotations, states};
use puna_backend::{
    Backend, BackendError, Bounds, CacheOptions, DeviceId, DeviceInfo, DeviceKind, Partition, Segment,
    WeightSource,
};
use puna_graph::{CacheGroup, Graph, Op, Operand, StateDecl, WeightId};
use puna_quant::DType;

use crate::caches::{Plane, Turn};
use crate::compiled_cache::Entry;
use crate::ffi::{self, Compiled, Core, Tensor};
use crate::ir::Element;
use crate::library;
use crate::partition::{Kept, OpenVinoPartition, Program};
use crate::settings::{Lookup, Settings};
use crate::translate::{CacheForm, Choices, Translated, translate, unsupported};

/// Takes a line for people.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A device of the library with what the user set.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) core: Core,
    /// Name of ours.
    pub(crate) name: String,
    /// Name of the library's.
    pub(crate) plugin: String,
    pub(crate) settings: Arc<Settings>,
    pub(crate) threads: usize,
    log: Log,
}

impl Device {
    pub(crate) fn log(&self, line: &str) {
        (self.log)(&format!("{}: {line}", self.name));
    }

    /// Logs a line about times if the environment asks for them.
    pub(crate) fn profile(&self, line: impl FnOnce() -> String) {
        if self.settings.profiling {
            self.log(&line());
        }
    }
}

/// OpenVINO on one of its devices.
pub struct OpenVino {
    device: Device,
    description: String,
}

/// Name of the device for `--device`.
pub const DEVICE_NAME: &str = "OPENVINO0";

impl OpenVino {
    /// Finds and loads the library and chooses the device that the variables name. `threads`: worker threads where
    /// the device is this machine's processor. An error says in a line what is missing.
    pub fn new(lookup: Lookup<'_>, threads: usize, log: Log) -> Result<Self, BackendError> {
        let settings = Settings::read(lookup);
        let failed = |reason: String| BackendError::Device { device: DEVICE_NAME.to_owned(), reason };
        let path = library::find(lookup).ok_or_else(|| {
            failed(
                "OpenVINO is not installed (pip install openvino, or name its folder in OPENVINO_DIR)"
                    .to_owned(),
            )
        })?;
        ffi::load(&path).map_err(failed)?;
        let core = Core::new().map_err(failed)?;
        let available = core.devices().map_err(failed)?;
        let mut plugin = settings.device();
        let is_there =
            available.iter().any(|name| *name == plugin || name.split('.').next() == Some(plugin.as_str()));
        if !is_there {
            let there = available.join(", ");
            log(&format!("{DEVICE_NAME}: there is no device {plugin} (there are {there}); using CPU"));
            plugin = "CPU".to_owned();
        }
        let product = core.property(&plugin, "FULL_DEVICE_NAME").unwrap_or_default();
        let version = ffi::version();
        let version = version.split('-').next().unwrap_or("");
        let description = format!("OpenVINO {version} on {plugin} ({})", product.trim());
        let device =
            Device { core, name: DEVICE_NAME.to_owned(), plugin, settings: Arc::new(settings), threads, log };
        Ok(Self { device, description })
    }
}

impl Backend for OpenVino {
    fn name(&self) -> &'static str {
        "OPENVINO"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let kind = if self.device.plugin.starts_with("CPU") { DeviceKind::Cpu } else { DeviceKind::Gpu };
        let memory = self.device.core.property(&self.device.plugin, "GPU_DEVICE_TOTAL_MEM_SIZE").ok();
        vec![DeviceInfo {
            name: self.device.name.clone(),
            description: self.description.clone(),
            kind,
            memory: memory.and_then(|bytes| bytes.parse().ok()),
        }]
    }

    fn supports(&self, graph: &Graph, node: usize) -> bool {
        let reason = unsupported(graph, node);
        if let Some(reason) = &reason
            && self.device.settings.log_unsupported
        {
            let declared = &graph.nodes[node];
            let types: Vec<String> =
                declared.inputs.iter().map(|operand| graph.operand_type(*operand).to_string()).collect();
            let (op, name) = (declared.op.name(), declared.name);
            self.device.log(&format!("{op} '{name}' of {} runs elsewhere: {reason}", types.join(", ")));
        }
        reason.is_none()
    }

    fn load(
        &self,
        _: DeviceId,
        segment: Segment,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Box<dyn Partition>, BackendError> {
        let mut partition = OpenVinoPartition {
            device: self.device.clone(),
            kept: kept(&segment, caches)?,
            turns: HashMap::new(),
            capacity: vec![0; caches.cells.len()],
            segment,
            weights,
            options: caches.clone(),
            programs: Vec::new(),
            bounds: None,
            has_printed_addresses: false,
        };
        partition.find_turns();
        for group in 0..partition.capacity.len() {
            partition.make_room(group, 1)?;
        }
        if !progress(1.0) {
            return Err(partition.failed("loading was cancelled"));
        }
        Ok(Box::new(partition))
    }
}

/// Element type of a cache in this format.
fn cache_element(dtype: DType) -> Result<Element, BackendError> {
    match dtype {
        DType::F32 => Ok(Element::F32),
        DType::F16 | DType::BF16 => Ok(Element::F16),
        _ => Err(BackendError::CacheFormatUnknown { dtype }),
    }
}

/// Room for the states of a segment.
fn kept(segment: &Segment, caches: &CacheOptions) -> Result<Vec<Kept>, BackendError> {
    let own = states(&segment.graph, segment.nodes.clone());
    let groups = segment.graph.groups();
    let (key_element, value_element) = (cache_element(caches.keys)?, cache_element(caches.values)?);
    let mut all = Vec::new();
    for (index, state) in segment.graph.states.iter().enumerate() {
        if !own.iter().any(|own| own.index() == index) {
            all.push(Kept::Elsewhere);
            continue;
        }
        all.push(match state {
            StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => Kept::KeyValue {
                keys: Plane::new(*kv_heads as usize, *key_dim as usize, key_element),
                values: Plane::new(*kv_heads as usize, *value_dim as usize, value_element),
            },
            StateDecl::Recurrent { elements, .. } => {
                let group = groups.iter().position(|group| *group == CacheGroup::Recurrent).unwrap_or(0);
                let elements = *elements as usize;
                let length = elements.saturating_mul(caches.cells[group] as usize);
                let bytes = 4 * length as u64;
                let mut numbers: Vec<f32> = Vec::new();
                numbers.try_reserve_exact(length).map_err(|_| BackendError::OutOfMemory {
                    device: DEVICE_NAME.to_owned(),
                    bytes,
                    purpose: "recurrent states",
                })?;
                numbers.resize(length, 0.0);
                Kept::Recurrent { elements, numbers }
            }
        });
    }
    Ok(all)
}

impl OpenVinoPartition {
    fn find_turns(&mut self) {
        let graph = self.segment.graph.clone();
        for (state, rotation) in key_rotations(&graph, self.segment.nodes.clone()) {
            let Some(rotation) = rotation else { continue };
            let node = &graph.nodes[rotation.rope];
            let Op::Rope(rope) = &node.op else { continue };
            let factors = match node.inputs.get(2) {
                Some(Operand::Weight(weight)) => {
                    let declared = &graph.weights[weight.index()];
                    let mut factors = vec![0.0; declared.shape.iter().product::<u32>() as usize];
                    (declared.dtype.format().decode)(self.weights.bytes(*weight), &mut factors);
                    Some(factors)
                }
                _ => None,
            };
            let frequencies = rope.frequencies(factors.as_deref());
            self.turns.insert(state, Turn { rope: *rope, frequencies, offset: rotation.offset as usize });
        }
    }

    /// The models for steps up to `bounds`: one of dynamic extents, or two of fixed ones.
    pub(crate) fn compile_programs(&mut self, bounds: Bounds) -> Result<Vec<Program>, BackendError> {
        let base = Choices {
            form: CacheForm::Host,
            manual_attention: self.device.settings.manual_attention(&self.device.plugin),
            keys: cache_element(self.options.keys)?,
            values: cache_element(self.options.values)?,
            ..Choices::default()
        };
        if !self.device.settings.is_static(&self.device.plugin) {
            return Ok(vec![self.compile_program(base)?]);
        }
        let chunk = self.device.settings.chunk().min(bounds.tokens).max(1);
        let mut programs = Vec::new();
        for tokens in [chunk, 1] {
            if programs.is_empty() || chunk > 1 {
                programs.push(self.compile_program(Choices {
                    tokens: Some(tokens as u64),
                    outputs: Some(bounds.outputs.min(tokens).max(1) as u64),
                    cells: Some(self.options.cells.iter().map(|cells| *cells as u64).collect()),
                    ..base.clone()
                })?);
            }
        }
        Ok(programs)
    }

    fn compile_program(&self, choices: Choices) -> Result<Program, BackendError> {
        let device = &self.device;
        let failed = |what: &str, reason: String| self.failed(format!("{what}: {reason}"));
        let start = Instant::now();
        let mut translated = translate(&self.segment, &self.weights, &choices);
        let translation = start.elapsed();
        if device.settings.dump_graph {
            let text = self.segment.graph.to_string();
            write_beside(Path::new("cgraph_ov.txt"), &text)
                .map_err(|error| failed("cgraph_ov.txt", error))?;
        }
        if device.settings.dump_ir {
            let extents = choices.tokens.map_or("dynamic".to_owned(), |tokens| tokens.to_string());
            let name = format!("model_{}_{extents}.xml", self.segment.nodes.start);
            write_beside(Path::new(&name), &translated.model.to_xml())
                .map_err(|error| failed(&name, error))?;
        }
        let properties = device.settings.properties(&device.plugin, device.threads);
        let entry = device.settings.compiled_model_folder.as_ref().map(|folder| {
            let compiled_for = format!("{} {} {properties:?}", ffi::version(), device.plugin);
            Entry::new(folder, &self.segment, self.weights.as_ref(), &choices, &compiled_for)
        });
        let found = entry.as_ref().and_then(Entry::find);
        // A file that the library refuses is one that is not there.
        let imported = found.and_then(|bytes| device.core.import(&bytes, &device.plugin).ok());
        let compiled = match imported {
            Some(compiled) => {
                device.profile(|| {
                    format!("compiled model found in the cache, imported in {:.2?}", start.elapsed())
                });
                compiled
            }
            None => {
                let compiled = self.compile_translated(&mut translated, &properties, translation)?;
                if let Some(entry) = entry
                    && let Err(error) = entry.keep(|path| compiled.export(path))
                {
                    device.log(&format!("the compiled model is not kept: {error}"));
                }
                compiled
            }
        };
        let request = compiled.request().map_err(|error| failed("compiling", error))?;
        let named = |name: String| CString::new(name).unwrap_or_default();
        Ok(Program {
            request,
            choices,
            constants: translated.blob.length(),
            feeds: translated.feeds.into_iter().map(|feed| (feed.clone(), named(feed.name()))).collect(),
            products: translated
                .products
                .into_iter()
                .map(|product| (product, named(product.name())))
                .collect(),
            ropes: translated.ropes,
        })
    }

    /// Makes the constants, reads the model and compiles it.
    fn compile_translated(
        &self,
        translated: &mut Translated,
        properties: &[(String, String)],
        translation: Duration,
    ) -> Result<Compiled, BackendError> {
        let device = &self.device;
        let failed = |what: &str, reason: String| self.failed(format!("{what}: {reason}"));
        let start = Instant::now();
        let xml = translated.model.to_xml();
        let constants = translated.blob.length();
        let tensor = Tensor::filled(constants, |bytes| translated.blob.fill(bytes));
        let tensor = tensor.map_err(|error| failed("constants", error))?;
        if device.settings.reduces_memory() {
            self.used_weights().into_iter().for_each(|weight| self.weights.release(weight));
        }
        let filled = start.elapsed();
        let model = device.core.read(&xml, tensor).map_err(|error| failed("reading", error))?;
        let read = start.elapsed();
        let compiled = device
            .core
            .compile(&model, &device.plugin, properties)
            .map_err(|error| failed("compiling", error))?;
        device.profile(|| {
            format!(
                "{} layers: translated in {translation:.2?}, {} MB of constants in {filled:.2?}, read in {:.2?}, \
                 compiled in {:.2?}",
                translated.model.layer_count(),
                constants / 1_000_000,
                read - filled,
                start.elapsed() - read,
            )
        });
        Ok(compiled)
    }

    fn used_weights(&self) -> Vec<WeightId> {
        let nodes = &self.segment.graph.nodes[self.segment.nodes.clone()];
        let operands = nodes.iter().flat_map(|node| &node.inputs);
        operands
            .filter_map(|operand| match operand {
                Operand::Weight(weight) => Some(*weight),
                _ => None,
            })
            .collect()
    }
}

fn write_beside(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| error.to_string())
}
