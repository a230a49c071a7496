//! The traits that a back end implements, and the plain values they take.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use puna_graph::{Array, Best, Graph, StateId, Step, ValueId, WeightId};
use puna_quant::DType;

use crate::BackendError;
use crate::partition::{file_bytes, load_separately};

/// Index into [`Backend::devices`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceId(pub usize);

/// What kind of hardware a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// Runs on the host's processor and in its memory.
    Cpu,
    /// Has memory of its own.
    Gpu,
}

/// One device, for people and for placement.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceInfo {
    /// Name as given to `--device`, for example `CPU`.
    pub name: String,
    /// Product name and what of it is used.
    pub description: String,
    /// Kind of hardware.
    pub kind: DeviceKind,
    /// Bytes of memory in all, if known.
    pub memory: Option<u64>,
}

/// Where weights come from. Implementations keep the file open.
pub trait WeightSource: Send + Sync {
    /// The tensor's bytes in its own format.
    fn bytes(&self, weight: WeightId) -> &[u8];
    /// Tells that the bytes were copied to the device, so their pages need not stay resident.
    fn release(&self, weight: WeightId);
    /// A line of text that no other bytes have, which is known without reading these: which file they are in, since when,
    /// and where. `None` where nothing of that kind is known.
    fn identity(&self, _weight: WeightId) -> Option<String> {
        None
    }
}

/// Number formats and sizes of the caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// Format of keys.
    pub keys: DType,
    /// Format of values.
    pub values: DType,
    /// Sequences that may exist at once.
    pub sequences: u32,
    /// Cells of each cache group (of a recurrent one: whole states), in the order of `Graph::groups`.
    pub cells: Vec<u32>,
}

/// A maximal run of nodes on one device.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The whole graph.
    pub graph: Arc<Graph>,
    /// Its nodes in this segment.
    pub nodes: Range<usize>,
    /// Values of earlier segments that it reads.
    pub inputs: Vec<ValueId>,
    /// Its values that later segments or the caller read.
    pub outputs: Vec<ValueId>,
}

/// Upper limits that a program is compiled for; the real extents come with each step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bounds {
    /// Token rows.
    pub tokens: u32,
    /// Rows that leave the model.
    pub outputs: u32,
}

/// A compiled program of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProgramId(pub usize);

/// Values that cross from segment to segment, and to the caller.
#[derive(Default, Debug)]
pub struct Boundary {
    /// By the node that made them.
    pub values: HashMap<ValueId, Array>,
    /// The highest numbers of each row instead of the values, where the step is content with them ([`Step::best`]).
    pub best: HashMap<ValueId, Best>,
}

/// Moves or copies a cell's contents within one cache group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CellMove {
    /// Cell read.
    pub from: u32,
    /// Cell written.
    pub to: u32,
}

/// A kind of hardware or driver.
pub trait Backend: Send + Sync {
    /// Short name, for example `CPU`.
    fn name(&self) -> &'static str;
    /// The devices it found; a missing driver means none.
    fn devices(&self) -> Vec<DeviceInfo>;
    /// Whether it can run this node. Pure.
    fn supports(&self, graph: &Graph, node: usize) -> bool;
    /// Has a device show that it can be used, and tells how many bytes of its memory are free, if that is known.
    fn inspect(&self, _device: DeviceId) -> Result<Option<u64>, BackendError> {
        Ok(None)
    }
    /// Bytes of its memory that a weight of the graph takes; as many as in the file, unless it lays weights out anew.
    fn weight_bytes(&self, graph: &Graph, weight: WeightId) -> u64 {
        file_bytes(graph, weight)
    }
    /// These devices as the only one of another back end, which divides the rows of large matrices between them. The shares are in
    /// any unit; none for shares of their free memory.
    fn divided(&self, _devices: &[DeviceId], _shares: &[f32]) -> Result<Arc<dyn Backend>, BackendError> {
        let reason = "its devices cannot share the rows of matrices".to_string();
        Err(BackendError::Device { device: self.name().to_string(), reason })
    }
    /// Takes a segment's weights in and makes room for its states. `progress` is called with the share of
    /// weight bytes taken in, 0 to 1; when it returns false loading stops with [`BackendError::Device`].
    fn load(
        &self,
        device: DeviceId,
        segment: Segment,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Box<dyn Partition>, BackendError>;
    /// [`Backend::load`] of all that one model has on a device: a partition for each segment. States that several of
    /// them touch, and what else they can share, are there once; one partition alone answers for each state.
    fn load_all(
        &self,
        device: DeviceId,
        segments: Vec<Segment>,
        weights: Arc<dyn WeightSource>,
        caches: &CacheOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Vec<Box<dyn Partition>>, BackendError> {
        let mut load = |segment, progress: &mut dyn FnMut(f32) -> bool| {
            self.load(device, segment, weights.clone(), caches, progress)
        };
        load_separately(self.name(), segments, &mut load, progress)
    }
}

/// One segment on one device: its weights, its states, its programs.
pub trait Partition: Send {
    /// Prepares for steps up to `bounds`; equal bounds give the same program.
    fn compile(&mut self, bounds: Bounds) -> Result<ProgramId, BackendError>;
    /// Runs one step: reads the segment's inputs from `boundary` and puts its outputs there.
    fn run(&mut self, program: ProgramId, step: &Step, boundary: &mut Boundary) -> Result<(), BackendError>;
    /// The segment's caches.
    fn states(&mut self) -> &mut dyn States;
    /// Bytes of memory it holds: weights, caches and work space.
    fn memory(&self) -> MemoryUse;
}

/// Bytes held by a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Weights in the device's own layout (not counting pages of the file that are used in place).
    pub weights: u64,
    /// Caches.
    pub caches: u64,
    /// Work space of compiled programs.
    pub work: u64,
}

/// Operations on cache cells; `group` is an index into `Graph::groups`.
pub trait States {
    /// Copies cells, in order, in every state of the group.
    fn copy(&mut self, group: usize, moves: &[CellMove]) -> Result<(), BackendError>;
    /// Rotates the keys of cells by a change of position (context shift), in every state of the group whose
    /// keys carry rotary positions. Recurrent groups are never shifted.
    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError>;
    /// Contents of the cells of one state, in this order, in the cache's own formats: for each cell its keys
    /// then its values, or the numbers of a recurrent state as `f32`.
    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError>;
    /// Writes what [`States::save`] gave into cells.
    fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError>;
    /// The states that live here.
    fn states(&self) -> Vec<StateId>;
}
