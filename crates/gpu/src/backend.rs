//! The back end and its partitions.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use puna_backend::{
    Backend, BackendError, Boundary, Bounds, CacheOptions, CellMove, DeviceId, DeviceInfo, MemoryUse,
    Partition, ProgramId, Segment, States, WeightSource,
};
use puna_graph::{Array, CacheGroup, Dim, Element, Graph, StateId, Step};

use crate::check::check;
use crate::lower::{Place, Program, RECORDED_ROWS, Surroundings, lower, supports};
use crate::states::Caches;
use crate::step::{Places, StepData, bytes_of};
use crate::weights::Weights;
use crate::{Address, Api, BufferId, Device, Extents, Recording};

/// Bytes of the zeros that kernels count in.
const COUNTERS: u64 = 1 << 18;

/// A graphics API as a back end.
pub struct Gpu<A> {
    api: A,
    /// Devices that computed rightly when they were first used.
    checked: Mutex<BTreeSet<usize>>,
}

impl<A: Api> Gpu<A> {
    /// The devices of this API.
    pub fn new(api: A) -> Self {
        Self { api, checked: Mutex::default() }
    }

    /// Has a device compute something known, unless it did before.
    fn check(&self, device: DeviceId) -> Result<(), BackendError> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if !checked.contains(&device.0) {
            let opened = self.api.open(device.0)?;
            let name = opened.name().to_string();
            check(&name, |segment, weights, caches| {
                assemble(opened, segment, &weights, caches, &mut |_| true)
            })?;
            checked.insert(device.0);
        }
        Ok(())
    }
}

/// A segment on an open device.
fn assemble(
    mut device: Box<dyn Device>,
    segment: Segment,
    weights: &Arc<dyn WeightSource>,
    caches: &CacheOptions,
    progress: &mut dyn FnMut(f32) -> bool,
) -> Result<Box<dyn Partition>, BackendError> {
    let graph = segment.graph.clone();
    let nodes = segment.nodes.clone();
    let weights = Weights::load(&mut *device, &graph, nodes.clone(), weights, progress)?;
    let cells = caches.cells.clone();
    let caches = Caches::new(&mut *device, &graph, nodes, caches, &weights)?;
    let counters = Address { buffer: device.allocate(COUNTERS, "work space")?, offset: 0 };
    device.clear(counters, COUNTERS)?;
    device.finish()?;
    Ok(Box::new(GpuPartition {
        segment,
        device,
        weights,
        caches,
        cells,
        counters,
        constants: HashMap::new(),
        programs: Vec::new(),
    }))
}

impl<A: Api> Backend for Gpu<A> {
    fn name(&self) -> &'static str {
        self.api.name()
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.api.devices()
    }

    fn supports(&self, graph: &Graph, node: usize) -> bool {
        supports(graph, node)
    }

    fn load(
        &self,
        device: DeviceId,
        segment: Segment,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Box<dyn Partition>, BackendError> {
        self.check(device)?;
        assemble(self.api.open(device.0)?, segment, &weights, caches, progress)
    }
}

/// The launches of one bucket.
struct Bucket {
    places: Places,
    program: Program,
    recording: Option<Recording>,
}

/// What is made for bounds.
struct Compiled {
    bounds: Bounds,
    arena: BufferId,
    arena_bytes: u64,
    step: StepData,
    buckets: HashMap<Extents, Bucket>,
}

struct GpuPartition {
    segment: Segment,
    device: Box<dyn Device>,
    weights: Weights,
    caches: Caches,
    /// Cells of each cache group.
    cells: Vec<u32>,
    counters: Address,
    constants: HashMap<Vec<u8>, Address>,
    programs: Vec<Compiled>,
}

/// Whether kernels may use the cells of a group.
pub(crate) fn is_served(group: CacheGroup) -> bool {
    matches!(group, CacheGroup::Full | CacheGroup::Window(_) | CacheGroup::Recurrent)
}

/// The number of rows that launches for `rows` rows are made for.
fn bucket_of(rows: usize, bound: u32) -> u32 {
    (rows.max(1).next_power_of_two() as u32).min(bound.max(1).next_power_of_two())
}

impl GpuPartition {
    fn error(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Device { device: self.device.name().to_string(), reason: reason.into() }
    }

    /// Refuses a step that names what is not there; kernels rely on it.
    fn check(&self, step: &Step, bounds: Bounds) -> Result<(), BackendError> {
        let rows = step.tokens.len();
        let refuse = |reason: String| Err(self.error(format!("a step cannot run: {reason}")));
        if rows > bounds.tokens as usize || step.output_rows.len() > bounds.outputs as usize {
            let outputs = step.output_rows.len();
            return refuse(format!("{rows} tokens and {outputs} outputs exceed {bounds:?}"));
        }
        if step.positions.len() != rows || step.output_rows.iter().any(|row| *row as usize >= rows) {
            return refuse(format!("positions or output rows do not fit {rows} tokens"));
        }
        let groups = self.segment.graph.groups();
        if step.groups.len() != groups.len() {
            return refuse(format!("{} cache groups instead of {}", step.groups.len(), groups.len()));
        }
        for ((group, cells), kind) in step.groups.iter().zip(&self.cells).zip(&groups) {
            if !is_served(*kind) {
                continue;
            }
            let known =
                if *kind == CacheGroup::Recurrent { *cells as usize } else { group.cell_positions.len() };
            let inside = group.write_cells.len() == rows
                && group.write_cells.iter().all(|cell| cell < cells)
                && group.cell_positions.len() <= *cells as usize
                && group.spans.len() <= rows
                && group.spans.iter().all(|span| {
                    span.tokens.start <= span.tokens.end
                        && span.tokens.end as usize <= rows
                        && span
                            .cells
                            .iter()
                            .all(|range| range.start <= range.end && range.end as usize <= known)
                });
            if !inside {
                return refuse("spans or cells that are not there".into());
            }
        }
        Ok(())
    }

    /// Makes the launches of a bucket, if that was not done before.
    fn prepare(&mut self, program: usize, bucket: Extents) -> Result<(), BackendError> {
        let compiled = &mut self.programs[program];
        if compiled.buckets.contains_key(&bucket) {
            return Ok(());
        }
        let places = compiled.step.places(bucket);
        let around = Surroundings {
            segment: &self.segment,
            weights: &self.weights,
            caches: &self.caches,
            places: places.clone(),
            arena: compiled.arena,
            counters: self.counters,
            constants: &mut self.constants,
        };
        let program = lower(around, &mut *self.device, bucket)?;
        if program.bytes > compiled.arena_bytes {
            let reason = format!("{} bytes of work space, {} are there", program.bytes, compiled.arena_bytes);
            return Err(self.error(reason));
        }
        compiled.buckets.insert(bucket, Bucket { places, program, recording: None });
        Ok(())
    }

    fn upload(&mut self, place: &Place, array: &Array) -> Result<(), BackendError> {
        let bytes = match self.segment.graph.value_type(place.value).element {
            Element::F32 => array.floats().iter().flat_map(|float| float.to_le_bytes()).collect(),
            Element::I32 => bytes_of(array.integers()),
        };
        self.device.write(place.address, &bytes)
    }

    fn download(&mut self, place: &Place, step: &Step) -> Result<Array, BackendError> {
        let ty = self.segment.graph.value_type(place.value).clone();
        let shape: Vec<usize> = ty
            .shape
            .iter()
            .map(|dim| match dim {
                Dim::Fixed(extent) => *extent as usize,
                Dim::Of(symbol) => step.extent(*symbol),
            })
            .collect();
        let count: usize = shape.iter().product();
        if ty.element == Element::F32 {
            return Ok(Array::f32(shape, self.device.read_floats(place.address, count)?));
        }
        let mut bytes = vec![0; 4 * count];
        self.device.read(place.address, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(Array::i32(shape, words.iter().map(|word| i32::from_le_bytes(*word)).collect()))
    }
}

impl Partition for GpuPartition {
    fn compile(&mut self, bounds: Bounds) -> Result<ProgramId, BackendError> {
        if let Some(index) = self.programs.iter().position(|compiled| compiled.bounds == bounds) {
            return Ok(ProgramId(index));
        }
        let most = |rows: u32| bucket_of(rows as usize, rows);
        let (tokens, outputs) = (most(bounds.tokens), most(bounds.outputs));
        let step = StepData::new(&mut *self.device, &self.cells, tokens as usize, outputs as usize)?;
        // Work space is that of the largest steps, and of those that split their work most.
        let mut bytes = 0;
        let mut sizes: Vec<u32> = vec![1, 2, 4, 8, 16, 32, 64, tokens];
        sizes.extend((7..16).map(|power| 1 << power));
        sizes.retain(|rows| *rows <= tokens);
        for tokens in sizes {
            for outputs in [1, outputs.min(tokens)] {
                let bucket = Extents { tokens, outputs, spans: 0 };
                let around = Surroundings {
                    segment: &self.segment,
                    weights: &self.weights,
                    caches: &self.caches,
                    places: step.places(bucket),
                    arena: BufferId(usize::MAX),
                    counters: self.counters,
                    constants: &mut self.constants,
                };
                bytes = lower(around, &mut *self.device, bucket)?.bytes.max(bytes);
            }
        }
        let arena = self.device.allocate(bytes.max(16), "work space")?;
        self.programs.push(Compiled {
            bounds,
            arena,
            arena_bytes: bytes.max(16),
            step,
            buckets: HashMap::new(),
        });
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn run(&mut self, program: ProgramId, step: &Step, boundary: &mut Boundary) -> Result<(), BackendError> {
        let Some(compiled) = self.programs.get(program.0) else {
            return Err(self.error("a program that was not compiled"));
        };
        let bounds = compiled.bounds;
        self.check(step, bounds)?;
        if step.tokens.is_empty() {
            return Ok(());
        }
        let bucket = Extents {
            tokens: bucket_of(step.tokens.len(), bounds.tokens),
            outputs: bucket_of(step.output_rows.len(), bounds.outputs),
            spans: 0,
        };
        self.prepare(program.0, bucket)?;
        let compiled = &mut self.programs[program.0];
        let Some(made) = compiled.buckets.get_mut(&bucket) else {
            return Err(self.error("a bucket that was not prepared"));
        };
        compiled.step.write(&mut *self.device, &self.segment.graph, &made.places, step)?;
        let inputs = made.program.inputs.clone();
        let outputs = made.program.outputs.clone();
        for place in &inputs {
            let array = boundary.values.get(&place.value);
            let array = array.ok_or_else(|| self.error("a segment's input is missing"))?;
            self.upload(place, array)?;
        }
        let compiled = &mut self.programs[program.0];
        let Some(made) = compiled.buckets.get_mut(&bucket) else {
            return Err(self.error("a bucket that was not prepared"));
        };
        if bucket.tokens <= RECORDED_ROWS {
            let recording = match made.recording {
                Some(recording) => recording,
                None => {
                    let recording = self.device.record(&made.program.launches, bucket)?;
                    made.recording = Some(recording);
                    recording
                }
            };
            self.device.replay(recording)?;
        } else {
            let spans = step.groups.iter().map(|group| group.spans.len()).max().unwrap_or(0);
            let extents = Extents {
                tokens: step.tokens.len() as u32,
                outputs: step.output_rows.len() as u32,
                spans: spans as u32,
            };
            self.device.run(&made.program.launches, extents)?;
        }
        for place in &outputs {
            let array = self.download(place, step)?;
            boundary.values.insert(place.value, array);
        }
        self.device.finish()
    }

    fn states(&mut self) -> &mut dyn States {
        self
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse {
            weights: self.weights.bytes(),
            caches: self.caches.bytes(),
            work: COUNTERS
                + self.programs.iter().map(|made| made.arena_bytes + made.step.bytes()).sum::<u64>(),
        }
    }
}

impl States for GpuPartition {
    fn copy(&mut self, group: usize, moves: &[CellMove]) -> Result<(), BackendError> {
        self.caches.copy(&mut *self.device, group, moves)
    }

    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError> {
        self.caches.shift(&mut *self.device, group, cells)
    }

    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError> {
        self.caches.save(&mut *self.device, state, cells)
    }

    fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        self.caches.restore(&mut *self.device, state, cells, bytes)
    }

    fn states(&self) -> Vec<StateId> {
        self.caches.order().to_vec()
    }
}
