//! Running one sequence of a model on a back end, without the runtime's ledgers.

use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition, ProgramId, WeightSource};
use puna_gguf::File;
use puna_graph::{CacheGroup, Graph, GroupStep, Output, Span, Step, ValueId, WeightId};
use puna_quant::DType;

/// Weights of an open file.
pub struct FileWeights {
    file: Arc<File>,
    graph: Arc<Graph>,
}

impl FileWeights {
    /// The weights of a graph that was built from the file.
    pub fn new(file: Arc<File>, graph: Arc<Graph>) -> Self {
        Self { file, graph }
    }
}

impl WeightSource for FileWeights {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        let name = &self.graph.weights[weight.index()].name;
        self.file.tensors.get(name).map_or(&[], |tensor| self.file.bytes(tensor))
    }

    fn release(&self, weight: WeightId) {
        if let Some(tensor) = self.file.tensors.get(&self.graph.weights[weight.index()].name) {
            self.file.release(tensor);
        }
    }

    fn identity(&self, weight: WeightId) -> Option<String> {
        let tensor = self.file.tensors.get(&self.graph.weights[weight.index()].name)?;
        self.file.identity(tensor)
    }
}

/// What one sequence does with the caches of a group when it goes on from position `first` to `end`: cell `i` holds
/// position `i`, a recurrent state is in cell 0.
pub fn group_step(group: CacheGroup, first: u32, end: u32) -> GroupStep {
    let tokens = 0..end - first;
    if group == CacheGroup::Step {
        let positions: Vec<i32> = (first as i32..end as i32).collect();
        return GroupStep::of_rows(&positions, &[tokens]);
    }
    if group == CacheGroup::Recurrent {
        let cells = if first > 0 { std::iter::once(0..1).collect() } else { Vec::new() };
        return GroupStep {
            write_cells: vec![0; tokens.len()],
            cell_positions: Vec::new(),
            spans: vec![Span { tokens, cells }],
        };
    }
    GroupStep {
        write_cells: (first..end).collect(),
        cell_positions: (0..end as i32).collect(),
        spans: vec![Span { tokens, cells: std::iter::once(0..end).collect() }],
    }
}

/// Runs one step on empty caches of a back end's first device and returns a value of it.
pub fn once(backend: &dyn Backend, file: Arc<File>, graph: Graph, step: &Step, value: ValueId) -> Vec<f32> {
    let graph = Arc::new(graph);
    let weights = Arc::new(FileWeights { file, graph: graph.clone() });
    let rows = step.tokens.len().max(step.encoder_tokens.len()) as u32;
    let cells = vec![rows; graph.groups().len()];
    let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 1, cells };
    let (_, segment) = partition(&graph, |_| 0).remove(0);
    let mut partition =
        backend.load(DeviceId(0), segment, weights, &caches, &mut |_| true).expect("the segment loads");
    let program = partition.compile(Bounds { tokens: rows, outputs: rows }).expect("the segment compiles");
    let mut boundary = Boundary::default();
    partition.run(program, step, &mut boundary).expect("the step runs");
    boundary.values.remove(&value).expect("the value leaves the model").into_floats()
}

/// A model on one back end with one sequence, cell `i` holding position `i`.
pub struct SingleSequence {
    graph: Arc<Graph>,
    partitions: Vec<(Box<dyn Partition>, ProgramId)>,
    length: u32,
}

impl SingleSequence {
    /// Loads the whole graph on a back end's first device, with caches of this format and so many cells.
    pub fn load(backend: &dyn Backend, file: Arc<File>, graph: Graph, cache: DType, cells: u32) -> Self {
        Self::load_cut(backend, file, graph, cache, cells, |_| 0)
    }

    /// The same in segments, cut wherever `part_of` of the next node is another number.
    pub fn load_cut(
        backend: &dyn Backend,
        file: Arc<File>,
        graph: Graph,
        cache: DType,
        cells: u32,
        part_of: impl Fn(usize) -> usize,
    ) -> Self {
        let graph = Arc::new(graph);
        let weights = Arc::new(FileWeights::new(file, graph.clone()));
        let cells_of_groups = vec![cells; graph.groups().len()];
        let caches = CacheOptions { keys: cache, values: cache, sequences: 1, cells: cells_of_groups };
        let segments = partition(&graph, part_of).into_iter().map(|(_, segment)| segment).collect();
        let partitions = backend.load_all(DeviceId(0), segments, weights, &caches, &mut |_| true);
        let compile = |mut partition: Box<dyn Partition>| {
            let bounds = Bounds { tokens: cells, outputs: cells };
            let program = partition.compile(bounds).expect("the segment compiles");
            (partition, program)
        };
        let partitions = partitions.expect("the segments load").into_iter().map(compile).collect();
        Self { graph, partitions, length: 0 }
    }

    /// Starts the sequence again.
    pub fn reset(&mut self) {
        self.length = 0;
    }

    /// Appends tokens and returns the logits of each, `[tokens, vocabulary]`.
    pub fn push(&mut self, tokens: &[u32]) -> Vec<f32> {
        let (first, end) = (self.length, self.length + tokens.len() as u32);
        self.length = end;
        let step = Step {
            tokens: tokens.to_vec(),
            positions: (first as i32..end as i32).collect(),
            output_rows: (0..tokens.len() as u32).collect(),
            groups: self.graph.groups().into_iter().map(|group| group_step(group, first, end)).collect(),
            sequences: std::iter::once(0..tokens.len() as u32).collect(),
            ..Step::default()
        };
        let mut boundary = Boundary::default();
        for (partition, program) in &mut self.partitions {
            partition.run(*program, &step, &mut boundary).expect("the step runs");
        }
        let logits = self.graph.output(Output::Logits).expect("the model has logits");
        boundary.values.remove(&logits).expect("logits leave the model").into_floats()
    }
}
