//! The evaluator as a back end: runs every graph, slowly, with all values and caches in `f32`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use puna_graph::evaluate::{Context, Memory, Weights, run};
use puna_graph::{Array, Best, Graph, Op, Operand, StateDecl, StateId, Step, WeightId};

use crate::partition::{final_logits, key_rotations, owned_states};
use crate::{
    Backend, BackendError, Boundary, Bounds, CacheOptions, CellMove, DeviceId, DeviceInfo, DeviceKind,
    MemoryUse, Partition, ProgramId, Segment, States, WeightSource,
};

/// The oracle of all back ends.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reference;

impl Backend for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            name: "reference".into(),
            description: "slow evaluator that defines every operation".into(),
            kind: DeviceKind::Cpu,
            memory: None,
        }]
    }

    fn supports(&self, _: &Graph, _: usize) -> bool {
        true
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
        let nothing = || BackendError::Device { device: "reference".into(), reason: "no segment".into() };
        all.pop().ok_or_else(nothing)
    }

    fn load_all(
        &self,
        _: DeviceId,
        segments: Vec<Segment>,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Vec<Box<dyn Partition>>, BackendError> {
        let owned = owned_states(&segments);
        let Some(graph) = segments.first().map(|segment| segment.graph.clone()) else {
            return Ok(Vec::new());
        };
        let groups = graph.groups();
        let memory = graph.states.iter().enumerate().map(|(index, state)| {
            let group = groups.iter().position(|group| *group == state.group()).unwrap_or(0);
            let is_here = owned.iter().flatten().any(|owned| owned.index() == index);
            let cells = if is_here { caches.cells[group] as usize } else { 0 };
            has_room(state, cells)?;
            Ok(Memory::new(state, cells))
        });
        let memory = Arc::new(Mutex::new(memory.collect::<Result<Vec<_>, BackendError>>()?));
        progress(1.0);
        let decoded = Arc::new(Decoded { graph, source: weights, cache: Mutex::default() });
        let partition = |(segment, owned)| -> Box<dyn Partition> {
            let (decoded, memory) = (decoded.clone(), memory.clone());
            Box::new(ReferencePartition { segment, decoded, memory, owned })
        };
        Ok(segments.into_iter().zip(owned).map(partition).collect())
    }
}

/// Weights decoded when first used.
struct Decoded {
    graph: Arc<Graph>,
    source: Arc<dyn WeightSource>,
    cache: Mutex<HashMap<WeightId, Arc<Array>>>,
}

impl Weights for Decoded {
    fn decode(&self, weight: WeightId) -> Arc<Array> {
        let mut cache = self.cache.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        cache
            .entry(weight)
            .or_insert_with(|| {
                let declared = &self.graph.weights[weight.index()];
                let shape: Vec<usize> = declared.shape.iter().map(|extent| *extent as usize).collect();
                let mut floats = vec![0.0; shape.iter().product()];
                (declared.dtype.format().decode)(self.source.bytes(weight), &mut floats);
                Arc::new(Array::f32(shape, floats))
            })
            .clone()
    }
}

struct ReferencePartition {
    segment: Segment,
    decoded: Arc<Decoded>,
    /// Shared by the partitions of one model.
    memory: Arc<Mutex<Vec<Memory>>>,
    /// The states that this partition answers for.
    owned: Vec<StateId>,
}

impl Partition for ReferencePartition {
    fn compile(&mut self, _: Bounds) -> Result<ProgramId, BackendError> {
        Ok(ProgramId(0))
    }

    fn run(&mut self, _: ProgramId, step: &Step, boundary: &mut Boundary) -> Result<(), BackendError> {
        let mut memory = locked(&self.memory);
        let mut context = Context { graph: &self.segment.graph, step, memory: &mut memory };
        let mut values: HashMap<_, _> = self
            .segment
            .inputs
            .iter()
            .filter_map(|value| boundary.values.get(value).map(|array| (*value, array.clone())))
            .collect();
        run(self.segment.nodes.clone(), &*self.decoded, &mut context, &mut values);
        for output in &self.segment.outputs {
            let Some(value) = values.remove(output) else { continue };
            match step.best.filter(|_| final_logits(&self.segment) == Some(*output)) {
                Some(count) => {
                    let best = Best::of(value.floats(), value.width(), count as usize);
                    boundary.best.insert(*output, best);
                }
                None => drop(boundary.values.insert(*output, value)),
            }
        }
        Ok(())
    }

    fn states(&mut self) -> &mut dyn States {
        self
    }

    fn memory(&self) -> MemoryUse {
        let memory = locked(&self.memory);
        let caches = self.owned.iter().map(|state| {
            let memory = &memory[state.index()];
            4 * (memory.keys.len() + memory.values.len() + memory.recurrent.len()) as u64
        });
        MemoryUse { caches: caches.sum(), ..MemoryUse::default() }
    }
}

fn locked(memory: &Mutex<Vec<Memory>>) -> MutexGuard<'_, Vec<Memory>> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The parts of a state's memory, each with the elements of one cell.
fn parts<'m>(memory: &'m mut Memory, state: &StateDecl) -> Vec<(&'m mut Vec<f32>, usize)> {
    match state {
        StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => vec![
            (&mut memory.keys, (kv_heads * key_dim) as usize),
            (&mut memory.values, (kv_heads * value_dim) as usize),
        ],
        StateDecl::Recurrent { elements, .. } => vec![(&mut memory.recurrent, *elements as usize)],
    }
}

/// Elements of one cell in all parts of a state.
fn cell_elements(state: &StateDecl) -> usize {
    match state {
        StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => {
            *kv_heads as usize * (*key_dim as usize + *value_dim as usize)
        }
        StateDecl::Recurrent { elements, .. } => *elements as usize,
    }
}

/// Asks for the memory of a state before it is taken, since taking what is not there ends the program.
fn has_room(state: &StateDecl, cells: usize) -> Result<(), BackendError> {
    let floats = cell_elements(state).saturating_mul(cells);
    let bytes = (floats as u64).saturating_mul(4);
    Vec::<f32>::new().try_reserve_exact(floats).map_err(|_| BackendError::OutOfMemory {
        device: "reference".into(),
        bytes,
        purpose: "caches",
    })
}

fn cell(index: u32, width: usize) -> Range<usize> {
    index as usize * width..(index as usize + 1) * width
}

impl ReferencePartition {
    fn of_group(&self, group: usize) -> Vec<StateId> {
        let groups = self.segment.graph.groups();
        let states = &self.segment.graph.states;
        let of_group = |state: &&StateId| groups.get(group) == Some(&states[state.index()].group());
        self.owned.iter().filter(of_group).copied().collect()
    }
}

impl States for ReferencePartition {
    fn copy(&mut self, group: usize, moves: &[CellMove]) -> Result<(), BackendError> {
        let mut memory = locked(&self.memory);
        for state in self.of_group(group) {
            let declared = &self.segment.graph.states[state.index()];
            for (floats, width) in parts(&mut memory[state.index()], declared) {
                for CellMove { from, to } in moves {
                    floats.copy_within(cell(*from, width), *to as usize * width);
                }
            }
        }
        Ok(())
    }

    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError> {
        let mut memory = locked(&self.memory);
        let rotations = key_rotations(&self.segment.graph, self.segment.nodes.clone());
        for state in self.of_group(group) {
            let rope = rotations.iter().find(|(other, _)| *other == state).and_then(|(_, rope)| *rope);
            let Some(rotation) = rope else { continue };
            let node = &self.segment.graph.nodes[rotation.rope];
            let Op::Rope(rope) = &node.op else { continue };
            let factors = match node.inputs.get(2) {
                Some(Operand::Weight(weight)) => Some(self.decoded.decode(*weight)),
                _ => None,
            };
            let frequencies = rope.frequencies(factors.as_ref().map(|factors| factors.floats()));
            let StateDecl::KeyValue { key_dim, kv_heads, .. } = &self.segment.graph.states[state.index()]
            else {
                continue;
            };
            let keys = (kv_heads * key_dim) as usize;
            for (index, delta) in cells {
                for head in memory[state.index()].keys[cell(*index, keys)].chunks_exact_mut(*key_dim as usize)
                {
                    for (pair, frequency) in frequencies.iter().enumerate() {
                        // A turn by the difference alone: the stored key already carries the magnitude.
                        let (sine, cosine) = (*delta as f64 * frequency).sin_cos();
                        let (i, j) = rope.pair(pair);
                        let (i, j) = (i + rotation.offset as usize, j + rotation.offset as usize);
                        let (a, b) = (head[i] as f64, head[j] as f64);
                        head[i] = (a * cosine - b * sine) as f32;
                        head[j] = (a * sine + b * cosine) as f32;
                    }
                }
            }
        }
        Ok(())
    }

    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError> {
        let declared = &self.segment.graph.states[state.index()];
        let mut memory = locked(&self.memory);
        let parts = parts(&mut memory[state.index()], declared);
        let floats = cells
            .iter()
            .flat_map(|index| parts.iter().flat_map(|(floats, width)| &floats[cell(*index, *width)]));
        Ok(floats.flat_map(|float| float.to_le_bytes()).collect())
    }

    fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        let declared = &self.segment.graph.states[state.index()];
        let mut memory = locked(&self.memory);
        let mut parts = parts(&mut memory[state.index()], declared);
        let expected = cells.len() * parts.iter().map(|(_, width)| width).sum::<usize>() * 4;
        if bytes.len() != expected {
            return Err(BackendError::SavedState { layer: declared.layer(), found: bytes.len(), expected });
        }
        let mut saved = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        for index in cells {
            for (floats, width) in &mut parts {
                floats[cell(*index, *width)].iter_mut().zip(&mut saved).for_each(|(to, from)| *to = from);
            }
        }
        Ok(())
    }

    fn states(&self) -> Vec<StateId> {
        self.owned.clone()
    }
}
