//! The back end and its partitions.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use puna_backend::{
    Backend, BackendError, Boundary, Bounds, CacheOptions, CellMove, DeviceId, DeviceInfo, MemoryUse,
    Partition, ProgramId, Segment, States, WeightSource,
};
use puna_graph::{Array, CacheGroup, Dim, Element, Graph, StateId, Step, WeightId};

use crate::check::check;
use crate::division::Divided;
use crate::lower::{Place, Program, RECORDED_ROWS, Surroundings, lower, supports};
use crate::states::Caches;
use crate::step::{Places, StepData, bytes_of};
use crate::weights::{Weights, device_bytes};
use crate::{Address, Api, BufferId, Device, Division, Extents, Launch, Recording};

/// Bytes of the zeros that kernels count in.
const COUNTERS: u64 = 1 << 18;

/// Matrices of fewer bytes are not worth dividing: reading all of one takes no longer than an exchange.
const LEAST_DIVIDED: u64 = 2 << 20;

/// Held while a step runs on a device whose blocks, or whose members, wait for each other: another model's step could take the places
/// of those that are waited for.
static MEETING: Mutex<()> = Mutex::new(());

/// A graphics API as a back end.
pub struct Gpu<A> {
    api: Arc<A>,
    /// Devices that computed rightly when they were first used.
    checked: Mutex<BTreeSet<usize>>,
    /// Devices that were looked at and wait for a model.
    waiting: Mutex<HashMap<usize, Box<dyn Device>>>,
}

impl<A: Api> Gpu<A> {
    /// The devices of this API.
    pub fn new(api: A) -> Self {
        Self { api: Arc::new(api), checked: Mutex::default(), waiting: Mutex::default() }
    }

    /// Has a device compute something known, unless it did before.
    fn check(&self, device: DeviceId) -> Result<(), BackendError> {
        let mut checked = locked(&self.checked);
        if !checked.contains(&device.0) {
            let opened = self.api.open(device.0)?;
            let name = opened.name().to_string();
            check(&name, |segment, weights, caches| {
                one(assemble(opened, vec![segment], &weights, caches, &mut |_| true)?)
            })?;
            checked.insert(device.0);
        }
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The partition of the only segment.
fn one(mut partitions: Vec<Box<dyn Partition>>) -> Result<Box<dyn Partition>, BackendError> {
    let missing = || BackendError::Device { device: "gpu".into(), reason: "there is no segment".into() };
    partitions.pop().ok_or_else(missing)
}

/// Segments on an open device.
fn assemble(
    mut device: Box<dyn Device>,
    segments: Vec<Segment>,
    weights: &Arc<dyn WeightSource>,
    caches: &CacheOptions,
    progress: &mut dyn FnMut(f32) -> bool,
) -> Result<Vec<Box<dyn Partition>>, BackendError> {
    let Some(graph) = segments.first().map(|segment| segment.graph.clone()) else { return Ok(Vec::new()) };
    let nodes = segments.iter().flat_map(|segment| segment.nodes.clone());
    let weights = Weights::load(&mut *device, &graph, nodes.clone(), weights, progress)?;
    let cells = caches.cells.clone();
    let caches = Caches::new(&mut *device, &graph, nodes, caches, &weights)?;
    let counters = Address { buffer: device.allocate(COUNTERS, "work space")?, offset: 0 };
    device.clear(counters, COUNTERS)?;
    device.finish()?;
    let name = device.name().to_string();
    let shared = Shared {
        device,
        weights,
        caches,
        counters,
        constants: HashMap::new(),
        arena: (BufferId(usize::MAX), 0),
        arena_bytes: 0,
        steps: Vec::new(),
    };
    let shared = Arc::new(Mutex::new(shared));
    let partition = |(index, segment)| -> Box<dyn Partition> {
        Box::new(GpuPartition {
            name: name.clone(),
            segment,
            shared: shared.clone(),
            is_first: index == 0,
            cells: cells.clone(),
            programs: Vec::new(),
        })
    };
    Ok(segments.into_iter().enumerate().map(partition).collect())
}

impl<A: Api + 'static> Gpu<A> {
    /// [`Backend::divided`] for matrices of at least so many bytes.
    pub fn divide(
        &self,
        devices: &[DeviceId],
        shares: &[f32],
        least_bytes: u64,
    ) -> Result<Arc<dyn Backend>, BackendError> {
        let free = devices.iter().map(|device| self.inspect(*device)).collect::<Result<Vec<_>, _>>()?;
        // Without other wishes, what is free says how much each gets.
        let shares = match shares {
            [] => free.iter().map(|free| free.map_or(1.0, |bytes| bytes.max(1) as f32)).collect(),
            given => given.to_vec(),
        };
        let (mut indexes, mut given, mut room) = (Vec::new(), Vec::new(), Vec::new());
        for ((device, share), free) in devices.iter().zip(shares).zip(free) {
            // Who gets nothing is none of them.
            if share > 0.0 {
                indexes.push(device.0);
                given.push(share);
                room.push(free);
            }
        }
        let division = Division::new(given, &room, least_bytes);
        Ok(Arc::new(Gpu::new(Divided::new(self.api.clone(), indexes, division))))
    }
}

impl<A: Api + 'static> Backend for Gpu<A> {
    fn name(&self) -> &'static str {
        self.api.name()
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.api.devices()
    }

    fn supports(&self, graph: &Graph, node: usize) -> bool {
        supports(graph, node)
    }

    fn inspect(&self, device: DeviceId) -> Result<Option<u64>, BackendError> {
        self.check(device)?;
        let mut waiting = locked(&self.waiting);
        match waiting.get_mut(&device.0) {
            Some(opened) => opened.free_memory(),
            None => {
                let mut opened = self.api.open(device.0)?;
                let free = opened.free_memory();
                waiting.insert(device.0, opened);
                free
            }
        }
    }

    fn weight_bytes(&self, graph: &Graph, weight: WeightId) -> u64 {
        device_bytes(graph, weight, &self.api.division())
    }

    fn divided(&self, devices: &[DeviceId], shares: &[f32]) -> Result<Arc<dyn Backend>, BackendError> {
        self.divide(devices, shares, LEAST_DIVIDED)
    }

    fn load(
        &self,
        device: DeviceId,
        segment: Segment,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Box<dyn Partition>, BackendError> {
        one(self.load_all(device, vec![segment], weights, caches, progress)?)
    }

    fn load_all(
        &self,
        device: DeviceId,
        segments: Vec<Segment>,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Vec<Box<dyn Partition>>, BackendError> {
        self.check(device)?;
        let waiting = locked(&self.waiting).remove(&device.0);
        let opened = waiting.map_or_else(|| self.api.open(device.0), Ok)?;
        assemble(opened, segments, &weights, caches, progress)
    }
}

/// What the partitions of one model have together on a device. They run one after another.
struct Shared {
    device: Box<dyn Device>,
    weights: Weights,
    caches: Caches,
    counters: Address,
    constants: HashMap<Vec<u8>, Address>,
    /// Work memory, and its bytes.
    arena: (BufferId, u64),
    /// Bytes of all work memory that was taken.
    arena_bytes: u64,
    /// Places of a step's data, for each number of token and output rows.
    steps: Vec<((u32, u32), StepData)>,
}

impl Shared {
    /// Work memory of at least so many bytes.
    fn work_space(&mut self, bytes: u64) -> Result<BufferId, BackendError> {
        if bytes > self.arena.1 {
            // Programs made before keep the one they know.
            self.arena = (self.device.allocate(bytes, "work space")?, bytes);
            self.arena_bytes += bytes;
        }
        Ok(self.arena.0)
    }

    /// Index of the places for steps of so many rows.
    fn step(&mut self, cells: &[u32], tokens: u32, outputs: u32) -> Result<usize, BackendError> {
        if let Some(index) = self.steps.iter().position(|(rows, _)| *rows == (tokens, outputs)) {
            return Ok(index);
        }
        let step = StepData::new(&mut *self.device, cells, tokens as usize, outputs as usize)?;
        self.steps.push(((tokens, outputs), step));
        Ok(self.steps.len() - 1)
    }

    /// The launches of a bucket of a segment, in work memory `arena`, for each member of the device.
    fn lower(
        &mut self,
        segment: &Segment,
        places: &Places,
        arena: BufferId,
        bucket: Extents,
    ) -> Result<Vec<Program>, BackendError> {
        let members = self.device.division().shares.len();
        let program = |member| {
            let around = Surroundings {
                segment,
                weights: &self.weights,
                member,
                caches: &self.caches,
                places: places.clone(),
                arena,
                counters: self.counters,
                constants: &mut self.constants,
            };
            lower(around, &mut *self.device, bucket)
        };
        (0..members).map(program).collect()
    }
}

/// The launches of one bucket.
struct Bucket {
    places: Places,
    /// For each member of the device.
    programs: Vec<Program>,
    /// By the selection that follows the launches, if one does.
    recordings: Vec<(Option<usize>, Recording)>,
}

impl Bucket {
    /// Index of the selection that gives so many numbers of each row, if they suffice and there is one.
    fn selection(&self, best: Option<u32>) -> Option<usize> {
        let best = best?;
        self.programs.first()?.selections.iter().position(|selection| selection.highest.count >= best)
    }

    /// All launches of each member, those of a selection last.
    fn lists(&self, selection: Option<usize>) -> Vec<Vec<Launch>> {
        let list = |program: &Program| {
            let chosen = selection.and_then(|index| program.selections.get(index));
            let chosen = chosen.iter().flat_map(|chosen| &chosen.launches);
            program.launches.iter().chain(chosen).cloned().collect()
        };
        self.programs.iter().map(list).collect()
    }
}

/// What is made for bounds.
struct Compiled {
    bounds: Bounds,
    arena: BufferId,
    arena_bytes: u64,
    /// Index into [`Shared::steps`].
    step: usize,
    buckets: HashMap<Extents, Bucket>,
}

struct GpuPartition {
    /// The device's name.
    name: String,
    segment: Segment,
    shared: Arc<Mutex<Shared>>,
    /// Whether it answers for what is shared.
    is_first: bool,
    /// Cells of each cache group.
    cells: Vec<u32>,
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

fn slices(lists: &[Vec<Launch>]) -> Vec<&[Launch]> {
    lists.iter().map(Vec::as_slice).collect()
}

/// Bytes of work memory that all members of a device need.
fn most_bytes(programs: &[Program]) -> u64 {
    programs.iter().map(|program| program.bytes).max().unwrap_or(0)
}

impl GpuPartition {
    fn error(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Device { device: self.name.clone(), reason: reason.into() }
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
    fn prepare(&mut self, shared: &mut Shared, program: usize, bucket: Extents) -> Result<(), BackendError> {
        let compiled = &mut self.programs[program];
        if compiled.buckets.contains_key(&bucket) {
            return Ok(());
        }
        let places = shared.steps[compiled.step].1.places(bucket);
        let programs = shared.lower(&self.segment, &places, compiled.arena, bucket)?;
        let (needed, there) = (most_bytes(&programs), compiled.arena_bytes);
        if needed > there {
            return Err(self.error(format!("{needed} bytes of work space, {there} are there")));
        }
        compiled.buckets.insert(bucket, Bucket { places, programs, recordings: Vec::new() });
        Ok(())
    }

    fn upload(
        &self,
        shared: &mut Shared,
        member: usize,
        place: &Place,
        array: &Array,
    ) -> Result<(), BackendError> {
        let bytes = match self.segment.graph.value_type(place.value).element {
            Element::F32 => array.floats().iter().flat_map(|float| float.to_le_bytes()).collect(),
            Element::I32 => bytes_of(array.integers()),
        };
        shared.device.write_to(member, place.address, &bytes)
    }

    fn download(&self, shared: &mut Shared, place: &Place, step: &Step) -> Result<Array, BackendError> {
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
            return Ok(Array::of_floats(shape, shared.device.read_floats(place.address, count)?));
        }
        let mut bytes = vec![0; 4 * count];
        shared.device.read(place.address, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(Array::i32(shape, words.iter().map(|word| i32::from_le_bytes(*word)).collect()))
    }

    /// Runs the launches of a prepared bucket, and those of a selection.
    fn launch(
        &mut self,
        shared: &mut Shared,
        program: usize,
        bucket: Extents,
        step: &Step,
        selection: Option<usize>,
    ) -> Result<(), BackendError> {
        let Some(made) = self.programs[program].buckets.get_mut(&bucket) else {
            return Err(self.error("a bucket that was not prepared"));
        };
        if bucket.tokens <= RECORDED_ROWS {
            let recorded = made.recordings.iter().find(|(of, _)| *of == selection);
            let recording = match recorded {
                Some((_, recording)) => *recording,
                None => {
                    let recording = shared.device.record(&slices(&made.lists(selection)), bucket)?;
                    made.recordings.push((selection, recording));
                    recording
                }
            };
            return shared.device.replay(recording);
        }
        let spans = step.groups.iter().map(|group| group.spans.len()).max().unwrap_or(0);
        let extents = Extents {
            tokens: step.tokens.len() as u32,
            outputs: step.output_rows.len() as u32,
            spans: spans as u32,
        };
        shared.device.run_each(&slices(&made.lists(selection)), extents)
    }
}

impl Partition for GpuPartition {
    fn compile(&mut self, bounds: Bounds) -> Result<ProgramId, BackendError> {
        if let Some(index) = self.programs.iter().position(|compiled| compiled.bounds == bounds) {
            return Ok(ProgramId(index));
        }
        let most = |rows: u32| bucket_of(rows as usize, rows);
        let (tokens, outputs) = (most(bounds.tokens), most(bounds.outputs));
        let mut shared = locked(&self.shared);
        let step = shared.step(&self.cells, tokens, outputs)?;
        // Work space is that of the largest steps, and of those that split their work most.
        let mut bytes = 16;
        let mut sizes: Vec<u32> = vec![1, 2, 4, 8, 16, 32, 64, tokens];
        sizes.extend((7..16).map(|power| 1 << power));
        sizes.retain(|rows| *rows <= tokens);
        for tokens in sizes {
            for outputs in [1, outputs.min(tokens)] {
                let bucket = Extents { tokens, outputs, spans: 0 };
                let places = shared.steps[step].1.places(bucket);
                let nowhere = BufferId(usize::MAX);
                bytes = most_bytes(&shared.lower(&self.segment, &places, nowhere, bucket)?).max(bytes);
            }
        }
        let arena = shared.work_space(bytes)?;
        drop(shared);
        let buckets = HashMap::new();
        self.programs.push(Compiled { bounds, arena, arena_bytes: bytes, step, buckets });
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
        let shared = self.shared.clone();
        let shared = &mut *locked(&shared);
        let waits = shared.device.blocks_meet() || shared.device.division().shares.len() > 1;
        let _meeting = waits.then(|| locked(&MEETING));
        self.prepare(shared, program.0, bucket)?;
        let compiled = &self.programs[program.0];
        let Some(made) = compiled.buckets.get(&bucket) else {
            return Err(self.error("a bucket that was not prepared"));
        };
        let inputs: Vec<Vec<Place>> = made.programs.iter().map(|program| program.inputs.clone()).collect();
        let selection = made.selection(step.best);
        // The first member answers for all.
        let first = made.programs.first();
        let mut outputs = first.map(|program| program.outputs.clone()).unwrap_or_default();
        let highest =
            first.and_then(|program| program.selections.get(selection?)).map(|selection| selection.highest);
        let data = &mut shared.steps[compiled.step].1;
        data.write(&mut *shared.device, &self.segment.graph, &made.places, step)?;
        for (member, places) in inputs.iter().enumerate() {
            for place in places {
                let array = boundary.values.get(&place.value);
                let array = array.ok_or_else(|| self.error("a segment's input is missing"))?;
                self.upload(shared, member, place, array)?;
            }
        }
        self.launch(shared, program.0, bucket, step, selection)?;
        if let (Some(highest), Some(wanted)) = (highest, step.best) {
            let best = highest.read(&mut *shared.device, &self.segment.graph, step, wanted)?;
            boundary.best.insert(highest.value, best);
            outputs.retain(|place| place.value != highest.value);
        }
        for place in &outputs {
            let array = self.download(shared, place, step)?;
            boundary.values.insert(place.value, array);
        }
        shared.device.finish()
    }

    fn states(&mut self) -> &mut dyn States {
        self
    }

    fn memory(&self) -> MemoryUse {
        if !self.is_first {
            return MemoryUse::default();
        }
        let shared = locked(&self.shared);
        MemoryUse {
            weights: shared.weights.bytes(),
            caches: shared.caches.bytes(),
            work: COUNTERS
                + shared.arena_bytes
                + shared.steps.iter().map(|(_, step)| step.bytes()).sum::<u64>(),
        }
    }
}

impl States for GpuPartition {
    fn copy(&mut self, group: usize, moves: &[CellMove]) -> Result<(), BackendError> {
        let Shared { device, caches, .. } = &mut *locked(&self.shared);
        if self.is_first { caches.copy(&mut **device, group, moves) } else { Ok(()) }
    }

    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError> {
        let Shared { device, caches, .. } = &mut *locked(&self.shared);
        if self.is_first { caches.shift(&mut **device, group, cells) } else { Ok(()) }
    }

    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError> {
        let Shared { device, caches, .. } = &mut *locked(&self.shared);
        caches.save(&mut **device, state, cells)
    }

    fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        let Shared { device, caches, .. } = &mut *locked(&self.shared);
        caches.restore(&mut **device, state, cells, bytes)
    }

    fn states(&self) -> Vec<StateId> {
        if self.is_first { locked(&self.shared).caches.order().to_vec() } else { Vec::new() }
    }
}
