//! The back end: devices of the library, and segments loaded onto them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use puna_backend::partition::{key_rotations, states};
use puna_backend::{
    Backend, BackendError, CacheOptions, DeviceId, DeviceInfo, DeviceKind, Partition, Segment, WeightSource,
};
use puna_graph::ops::RopeKind;
use puna_graph::{CacheGroup, Graph, Op, Operand, StateDecl, StateId};

use crate::blocks::Blocks;
use crate::caches::{Plane, Turn};
use crate::compiled_cache::Shared;
use crate::ffi::{self, Core, Shim};
use crate::formats::{formats, saved_as};
use crate::ir::Element;
use crate::memory::Kept;
use crate::pages::Pages;
use crate::partition::OpenVinoPartition;
use crate::settings::{Lookup, Settings};
use crate::translate::{CacheForm, is_pageable_state, order, unsupported};
use crate::{library, shim};

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
    /// The product's name.
    pub(crate) product: String,
    /// The library's version, for example `2026.4.1-…`.
    pub(crate) version: String,
    pub(crate) settings: Arc<Settings>,
    pub(crate) threads: usize,
    pub(crate) shim: Option<Arc<Shim>>,
    /// Compiled models that partitions share.
    pub(crate) shared: Shared,
    log: Log,
    /// Lines that are logged only once.
    logged: Arc<Mutex<HashSet<String>>>,
}

impl Device {
    pub(crate) fn log(&self, line: &str) {
        (self.log)(&format!("{}: {line}", self.name));
    }

    /// Logs a line that several models of a segment may give, the first time.
    pub(crate) fn log_once(&self, line: &str) {
        if self.logged.lock().is_ok_and(|mut logged| logged.insert(line.to_owned())) {
            self.log(line);
        }
    }

    /// Where keys and values are kept on this device.
    pub(crate) fn form(&self) -> CacheForm {
        let is_static = self.settings.is_static(&self.plugin);
        match &self.shim {
            // Where extents are fixed nothing can be appended.
            _ if self.settings.stateful && !is_static => CacheForm::Stateful,
            Some(_) if !is_static && self.plugin.starts_with("CPU") => CacheForm::Paged,
            _ => CacheForm::Host,
        }
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
    /// Why there are no pages, said when the first model is loaded.
    without_pages: Mutex<Option<String>>,
}

/// Name of the device for `--device`.
pub const DEVICE_NAME: &str = "OPENVINO0";

impl OpenVino {
    /// Finds and loads the library and chooses the device that the variables name. `threads`: worker threads where
    /// the device is this machine's processor. An error says in a line what is missing.
    pub fn new(lookup: Lookup<'_>, threads: usize, log: Log) -> Result<Self, BackendError> {
        let settings = Settings::read(lookup);
        let tell = |line: &str| log(&format!("{DEVICE_NAME}: {line}"));
        settings.complaints.iter().for_each(|line| tell(line));
        let failed = |reason: String| BackendError::Device { device: DEVICE_NAME.to_owned(), reason };
        let path = library::find(lookup, &tell).ok_or_else(|| {
            failed(
                "OpenVINO is not installed (pip install openvino, or name its folder in OPENVINO_DIR)"
                    .to_owned(),
            )
        })?;
        ffi::load(&path).map_err(failed)?;
        let full_version = ffi::version().map_err(failed)?;
        let core = Core::new().map_err(failed)?;
        let available = core.devices().map_err(failed)?;
        let mut plugin = settings.device();
        let is_there =
            available.iter().any(|name| *name == plugin || name.split('.').next() == Some(plugin.as_str()));
        if !is_there {
            let there = available.join(", ");
            tell(&format!("there is no device {plugin} (there are {there}); using CPU"));
            plugin = "CPU".to_owned();
        }
        let product = core.property(&plugin, "FULL_DEVICE_NAME").unwrap_or_default();
        let product = product.trim().to_owned();
        let version = full_version.split('-').next().unwrap_or("");
        let description = format!("OpenVINO {version} on {plugin} ({product})");
        let is_static = settings.is_static(&plugin);
        if settings.stateful && is_static {
            tell("GGML_OPENVINO_STATEFUL_EXECUTION has no effect with fixed extents");
        }
        // Only there it is of use.
        let takes_shim = plugin.starts_with("CPU") && !is_static;
        let shim = takes_shim.then(|| shim::open(lookup, &path, version)).transpose();
        let (shim, without_shim) = match shim {
            Ok(shim) => (shim, None),
            Err(reason) => (None, Some(reason)),
        };
        let without_pages = without_shim.filter(|_| !settings.stateful);
        let device = Device {
            core,
            name: DEVICE_NAME.to_owned(),
            plugin,
            product,
            version: full_version.clone(),
            settings: Arc::new(settings),
            threads,
            shim: shim.flatten().map(Arc::new),
            shared: Shared::default(),
            log,
            logged: Arc::default(),
        };
        device.settings.without_effect(device.form()).iter().for_each(|line| device.log(line));
        Ok(Self { device, description, without_pages: Mutex::new(without_pages) })
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
        let without_pages =
            self.without_pages.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(reason) = without_pages {
            (self.device.log)(&format!(
                "{DEVICE_NAME}: keys and values are kept by the host, which is slower: {reason}"
            ));
        }
        let form = self.device.form();
        let formats = formats(&self.device.settings, form, caches);
        let formats =
            formats.map_err(|reason| BackendError::Device { device: self.device.name.clone(), reason })?;
        let mut partition = OpenVinoPartition {
            device: self.device.clone(),
            kept: kept(&segment, caches, form, formats)?,
            formats,
            saved_formats: [saved_as(caches.keys)?, saved_as(caches.values)?],
            turns: HashMap::new(),
            key_orders: order::find(&segment.graph, segment.nodes.clone()).keys,
            columns: caches.cells.iter().map(|_| HashMap::new()).collect(),
            appended: 0,
            pages: caches.cells.iter().map(|_| Pages::default()).collect(),
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

/// Room for the states of a segment.
fn kept(
    segment: &Segment,
    caches: &CacheOptions,
    form: CacheForm,
    [key_element, value_element]: [Element; 2],
) -> Result<Vec<Kept>, BackendError> {
    let own = states(&segment.graph, segment.nodes.clone());
    let groups = segment.graph.groups();
    let mut all = Vec::new();
    for (index, state) in segment.graph.states.iter().enumerate() {
        if !own.iter().any(|own| own.index() == index) {
            all.push(Kept::Elsewhere);
            continue;
        }
        all.push(match state {
            StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. }
                if form == CacheForm::Paged && is_pageable_state(&segment.graph, StateId(index as u32)) =>
            {
                Kept::Paged {
                    keys: Blocks::new(*kv_heads as usize, *key_dim as usize, key_element),
                    values: Blocks::new(*kv_heads as usize, *value_dim as usize, value_element),
                }
            }
            StateDecl::KeyValue { kv_heads, key_dim, value_dim, group, .. }
                if form == CacheForm::Stateful && group.is_kept() =>
            {
                let bytes = |width: u32, dtype| Ok((kv_heads * width) as usize * saved_as(dtype)?.bits() / 8);
                Kept::InModel {
                    cell_bytes: bytes(*key_dim, caches.keys)? + bytes(*value_dim, caches.values)?,
                }
            }
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
            let mut rope = *rope;
            if self.key_orders.contains_key(&state) {
                rope.kind = RopeKind::Split;
            }
            self.turns.insert(state, Turn { rope, frequencies, offset: rotation.offset as usize });
        }
    }
}
