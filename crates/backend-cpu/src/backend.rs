//! The back end and its partitions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use puna_backend::partition::{file_bytes, key_rotations};
use puna_backend::{
    Backend, BackendError, Boundary, Bounds, CacheOptions, CellMove, DeviceId, DeviceInfo, DeviceKind,
    MemoryUse, Partition, ProgramId, Segment, States, WeightSource,
};
use puna_graph::{CacheGroup, Graph, Input, Op, Operand, StateDecl, StateId, Step, WeightId};

use crate::available::available;
use crate::frame::Frame;
use crate::isa::Features;
use crate::kernels::attention::{Partials, Plan, in_order};
use crate::lower::{Program, lower, rotation};
use crate::memory::AlignedBuffer;
use crate::pool::{Pool, PoolError, Stage};
use crate::states::Caches;
use crate::tasks::{Bound, Task, read_slot, write_slot};
use crate::weights::{Weights, is_table};

/// How the processor is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuOptions {
    /// Worker threads; 0 means one per usable core.
    pub threads: usize,
    /// Instruction sets to use.
    pub features: Features,
    /// Choose only kernels whose results for a row do not depend on how many rows share the step.
    pub deterministic: bool,
    /// Keep the pages of the file resident whose weights were repacked.
    pub keep_source: bool,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: 0, features: Features::detect(), deterministic: false, keep_source: false }
    }
}

/// The processor as a device.
pub struct Cpu {
    options: CpuOptions,
    pool: Arc<Pool>,
}

impl Cpu {
    /// Starts the worker threads.
    pub fn new(options: CpuOptions) -> Result<Self, BackendError> {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let pool = Arc::new(Pool::new(threads).map_err(pool_error)?);
        Ok(Self { options, pool })
    }

    /// Number of worker threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

fn device_error(reason: impl std::fmt::Display) -> BackendError {
    BackendError::Device { device: "CPU".into(), reason: reason.to_string() }
}

fn pool_error(error: PoolError) -> BackendError {
    device_error(error)
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "CPU"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let names = self.options.features.names();
        let sets = if names.is_empty() { "no vector instructions".to_string() } else { names.join(", ") };
        vec![DeviceInfo {
            name: "CPU".into(),
            description: format!("{sets}; {} threads", self.threads()),
            kind: DeviceKind::Cpu,
            memory: None,
        }]
    }

    fn supports(&self, graph: &Graph, node: usize) -> bool {
        let node = &graph.nodes[node];
        match &node.op {
            Op::GatherRows(_) => matches!(
                (node.inputs[0], node.inputs[1]),
                (Operand::Weight(_), Operand::Input(Input::Tokens | Input::Positions | Input::EncoderTokens))
                    | (Operand::Weight(_), Operand::Value(_))
                    | (Operand::Value(_), Operand::Input(Input::OutputRows))
            ),
            Op::MatMul(_) => {
                node.ty.shape.len() == 2
                    && matches!((node.inputs[0], node.inputs[1]), (Operand::Weight(_), Operand::Value(_)))
            }
            Op::MatMulExperts(_) | Op::MatMulHeads(_) => matches!(node.inputs[0], Operand::Weight(_)),
            Op::AddExpertBias(_) => matches!(node.inputs[1], Operand::Weight(_)),
            _ => true,
        }
    }

    fn inspect(&self, _: DeviceId) -> Result<Option<u64>, BackendError> {
        Ok(available())
    }

    fn weight_bytes(&self, graph: &Graph, weight: WeightId) -> u64 {
        match is_table(graph, weight) {
            // Its rows are read from the file.
            true => 0,
            false => file_bytes(graph, weight),
        }
    }

    fn load(
        &self,
        device: DeviceId,
        segment: Segment,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Box<dyn Partition>, BackendError> {
        let mut all = self.load_all(device, vec![segment], weights, caches, progress)?;
        all.pop().ok_or_else(|| device_error("there is no segment"))
    }

    fn load_all(
        &self,
        _: DeviceId,
        segments: Vec<Segment>,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Vec<Box<dyn Partition>>, BackendError> {
        let Some(graph) = segments.first().map(|segment| segment.graph.clone()) else {
            return Ok(Vec::new());
        };
        let nodes = segments.iter().flat_map(|segment| segment.nodes.clone());
        let weights =
            Weights::load(graph.clone(), nodes.clone(), weights, &self.pool, self.options, progress)?;
        let rotations = key_rotations(&graph, nodes.clone())
            .into_iter()
            .map(|(state, keys)| {
                let rotation = keys.and_then(|keys| {
                    let node = &graph.nodes[keys.rope];
                    let Op::Rope(rope) = &node.op else { return None };
                    let StateDecl::KeyValue { key_dim, .. } = graph.states[state.index()] else {
                        return None;
                    };
                    let (kernel, frequencies) = rotation(&graph, node, rope, &weights);
                    let (offset, head_dim) = (keys.offset as usize, key_dim as usize);
                    Some((crate::kernels::rope::Rope { offset, head_dim, ..kernel }, frequencies))
                });
                (state, rotation)
            })
            .collect();
        let cells = caches.cells.clone();
        let caches = Caches::new(&graph, nodes, rotations, caches, self.options.features)?;
        let memory = work_space(1)?;
        let shared = Arc::new(Mutex::new(Shared { weights, caches, partials: Vec::new(), memory }));
        let partition = |(index, segment)| -> Box<dyn Partition> {
            Box::new(CpuPartition {
                segment,
                features: self.options.features,
                pool: self.pool.clone(),
                shared: shared.clone(),
                is_first: index == 0,
                cells: cells.clone(),
                programs: Vec::new(),
            })
        };
        Ok(segments.into_iter().enumerate().map(partition).collect())
    }
}

fn work_space(bytes: usize) -> Result<AlignedBuffer, BackendError> {
    AlignedBuffer::new(bytes).ok_or(BackendError::OutOfMemory {
        device: "CPU".into(),
        bytes: bytes as u64,
        purpose: "work space",
    })
}

/// What the partitions of one model have together. They run one after another.
struct Shared {
    weights: Weights,
    caches: Caches,
    /// Partial results of attention over split cells; grows with the context.
    partials: Vec<f32>,
    /// Work memory for the largest of the programs.
    memory: AlignedBuffer,
}

/// A program and what it needs for a step.
struct Compiled {
    bounds: Bounds,
    program: Program,
    plans: Vec<Plan>,
}

struct CpuPartition {
    segment: Segment,
    features: Features,
    pool: Arc<Pool>,
    shared: Arc<Mutex<Shared>>,
    /// Whether it answers for what is shared.
    is_first: bool,
    /// Cells of each cache group.
    cells: Vec<u32>,
    programs: Vec<Compiled>,
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for CpuPartition {
    fn drop(&mut self) {
        // A worker that lost its core may still read weights for a step that ended without it.
        self.pool.settle();
    }
}

impl CpuPartition {
    /// Refuses a step that would make chunks access the same memory, or memory that is not there. All tasks rely
    /// on it.
    fn check(&self, weights: &Weights, step: &Step, bounds: Bounds) -> Result<(), BackendError> {
        let rows = step.tokens.len();
        let refuse = |reason: String| Err(device_error(format!("a step cannot run: {reason}")));
        if rows > bounds.tokens as usize || step.output_rows.len() > bounds.outputs as usize {
            let outputs = step.output_rows.len();
            return refuse(format!("{rows} tokens and {outputs} outputs exceed {bounds:?}"));
        }
        if step.positions.len() != rows || step.output_rows.iter().any(|row| *row as usize >= rows) {
            return refuse(format!("positions or output rows do not fit {rows} tokens"));
        }
        let read = step.encoder_tokens.len();
        if read > bounds.tokens as usize || step.encoder_positions.len() != read {
            return refuse(format!("{read} tokens of the encoder or their positions do not fit {bounds:?}"));
        }
        if step.sequences.iter().any(|sequence| sequence.start > sequence.end || sequence.end as usize > rows)
        {
            return refuse(format!("sequences do not fit {rows} tokens"));
        }
        for node in &self.segment.graph.nodes[self.segment.nodes.clone()] {
            let (Op::GatherRows(_), [Operand::Weight(table), Operand::Input(input)]) =
                (&node.op, &node.inputs[..])
            else {
                continue;
            };
            let tokens = match input {
                Input::Tokens => &step.tokens[..],
                Input::EncoderTokens => &step.encoder_tokens[..],
                Input::Positions | Input::OutputRows => &[],
            };
            if let Some(token) = tokens.iter().find(|token| **token as usize >= weights.rows(*table)) {
                return refuse(format!("token {token} is not in the vocabulary"));
            }
        }
        let groups = self.segment.graph.groups();
        if step.groups.len() != groups.len() {
            return refuse(format!("{} cache groups instead of {}", step.groups.len(), groups.len()));
        }
        for ((group, cells), kind) in step.groups.iter().zip(&self.cells).zip(&groups) {
            let mut written = group.write_cells.clone();
            written.sort_unstable();
            written.dedup();
            let covered: usize = group.spans.iter().map(|span| span.tokens.len()).sum();
            let mut ends: Vec<_> =
                group.spans.iter().map(|span| (span.tokens.start, span.tokens.end)).collect();
            ends.sort_unstable();
            let disjoint = ends.windows(2).all(|pair| pair[0].1 <= pair[1].0);
            let (writers, readers) = (step.extent(kind.writers()), step.extent(kind.readers()));
            // The rows of a sequence share its recurrent cell; spans run in order there.
            let own = *kind == CacheGroup::Recurrent || written.len() == writers;
            if !own || group.write_cells.len() != writers || written.last().is_some_and(|cell| cell >= cells)
            {
                return refuse("rows do not have cells of their own".into());
            }
            if covered > readers || !disjoint || group.cell_positions.len() > *cells as usize {
                return refuse("spans overlap or name cells that are not there".into());
            }
        }
        Ok(())
    }
}

impl Partition for CpuPartition {
    fn compile(&mut self, bounds: Bounds) -> Result<ProgramId, BackendError> {
        if let Some(index) = self.programs.iter().position(|compiled| compiled.bounds == bounds) {
            return Ok(ProgramId(index));
        }
        let mut shared = locked(&self.shared);
        let program = lower(&self.segment, &shared.weights, bounds);
        let bytes = program.arena.bytes();
        if shared.memory.len() < bytes {
            shared.memory = work_space(bytes)?;
        }
        let plans = program.plans.iter().map(|(heads, _)| Plan::new(*heads)).collect();
        self.programs.push(Compiled { bounds, program, plans });
        Ok(ProgramId(self.programs.len() - 1))
    }

    fn run(&mut self, program: ProgramId, step: &Step, boundary: &mut Boundary) -> Result<(), BackendError> {
        let shared = self.shared.clone();
        let Shared { weights, caches, partials, memory } = &mut *locked(&shared);
        self.check(weights, step, self.programs[program.0].bounds)?;
        let compiled = &mut self.programs[program.0];
        let mut partial_floats = 0;
        let groups = self.segment.graph.groups();
        for (plan, (_, group)) in compiled.plans.iter_mut().zip(&compiled.program.plans) {
            let rows = step.extent(groups[*group].readers());
            let group = &step.groups[*group];
            let spans = in_order(&group.spans, &group.cell_positions);
            plan.build(&spans, rows, &group.cell_positions).map_err(device_error)?;
            partial_floats = plan.partial_floats().max(partial_floats);
        }
        if partials.len() < partial_floats {
            partials.resize(partial_floats, 0.0);
        }
        let frame = Frame {
            step,
            features: self.features,
            threads: self.pool.threads(),
            weights,
            caches,
            arena: &compiled.program.arena,
            memory,
        };
        let graph = &self.segment.graph;
        for (value, slot) in &compiled.program.inputs {
            let array =
                boundary.values.get(value).ok_or_else(|| device_error("a segment's input is missing"))?;
            write_slot(&frame, array, graph.value_type(*value).element, *slot);
        }
        // SAFETY: the buffer lives as long as the run, and stages of one layer follow each other.
        let partials = unsafe { Partials::new(partials.as_mut_ptr(), partials.len()) };
        let plans = &compiled.plans[..];
        let mut next = None;
        let mut bound: Vec<Bound<'_>> = Vec::with_capacity(compiled.program.tasks.len());
        for task in compiled.program.tasks.iter().rev() {
            let cut = task.cut(&frame);
            bound.push(Bound { task, cut, next, frame: &frame, graph, plans, partials });
            // A step without output rows does not reach the last matrices.
            if let Task::MatMul(task) = task
                && cut.chunks > 0
            {
                next = Some((task, cut));
            }
        }
        bound.reverse();
        let stages: Vec<&dyn Stage> = bound.iter().map(|task| task as &dyn Stage).collect();
        self.pool.run(&stages).map_err(pool_error)?;
        for (value, slot) in &compiled.program.outputs {
            boundary.values.insert(*value, read_slot(&frame, graph, *value, *slot));
        }
        Ok(())
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
            weights: shared.weights.bytes() as u64,
            caches: shared.caches.bytes() as u64,
            work: shared.memory.len() as u64 + 4 * shared.partials.len() as u64,
        }
    }
}

impl States for CpuPartition {
    fn copy(&mut self, group: usize, moves: &[CellMove]) -> Result<(), BackendError> {
        if self.is_first { locked(&self.shared).caches.copy(group, moves) } else { Ok(()) }
    }

    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError> {
        if self.is_first { locked(&self.shared).caches.shift(group, cells) } else { Ok(()) }
    }

    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError> {
        locked(&self.shared).caches.save(state, cells)
    }

    fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        locked(&self.shared).caches.restore(state, cells, bytes)
    }

    fn states(&self) -> Vec<StateId> {
        if self.is_first { locked(&self.shared).caches.states() } else { Vec::new() }
    }
}
