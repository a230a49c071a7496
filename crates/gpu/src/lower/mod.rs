//! From the nodes of a segment to kernel launches, for one bucket of rows.
//!
//! Nodes become launches in their order. What a launch can do on the way is not launched on its own: a norm before
//! products, gating and the residual after them, rotation and storing before attention.

mod analysis;
mod attention;
mod best;
mod experts;
mod products;
mod recurrent;
mod rowwise;
mod shares;
mod stream;
mod wide;

use std::collections::{HashMap, HashSet};

use puna_backend::arena::{Arena, SlotId};
use puna_backend::{BackendError, Segment};
use puna_graph::ops::RopePlace;
use puna_graph::{Dim, Graph, Input, Op, Operand, Symbol, Type, ValueId};

use crate::highest::Highest;
use crate::states::{Caches, constants};
use crate::step::Places;
use crate::weights::Weights;
use crate::{Address, Argument, BufferId, Device, Extent, Extents, Launch};
use analysis::Analysis;
pub use analysis::supports;
pub use best::Selection;

/// Most token rows of steps that are recorded.
pub const RECORDED_ROWS: u32 = 64;
/// Threads of kernels that go over elements.
const THREADS: u32 = 256;

/// A value's place in work memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The value.
    pub value: ValueId,
    /// Where it lies.
    pub address: Address,
}

/// The launches for one bucket.
#[derive(Debug)]
pub struct Program {
    /// In order.
    pub launches: Vec<Launch>,
    /// Bytes of work memory.
    pub bytes: u64,
    /// Values from earlier segments.
    pub inputs: Vec<Place>,
    /// Values that leave the segment.
    pub outputs: Vec<Place>,
    /// What may follow the launches so that of the logits only the highest leave, the fewest first.
    pub selections: Vec<Selection>,
}

/// What lowering needs to know of a partition.
pub struct Surroundings<'a> {
    /// The segment.
    pub segment: &'a Segment,
    /// Its weights.
    pub weights: &'a Weights,
    /// Whose launches: the member of the device.
    pub member: usize,
    /// Its caches.
    pub caches: &'a Caches,
    /// Places of the step's data.
    pub places: Places,
    /// Work memory.
    pub arena: BufferId,
    /// Zeros that kernels count in and leave as zeros.
    pub counters: Address,
    /// Numbers made constant so far.
    pub constants: &'a mut HashMap<Vec<u8>, Address>,
}

/// An argument whose place may not be known yet.
#[derive(Clone, Copy, Debug)]
enum Arg {
    /// So many bytes after the start.
    Slot(SlotId, u64),
    Known(Argument),
}

impl From<i32> for Arg {
    fn from(integer: i32) -> Self {
        Arg::Known(Argument::Int(integer))
    }
}

impl From<u32> for Arg {
    fn from(integer: u32) -> Self {
        Arg::Known(Argument::Int(integer as i32))
    }
}

impl From<f32> for Arg {
    fn from(float: f32) -> Self {
        Arg::Known(Argument::Float(float))
    }
}

impl From<bool> for Arg {
    fn from(flag: bool) -> Self {
        Arg::Known(Argument::Int(flag as i32))
    }
}

impl From<Address> for Arg {
    fn from(address: Address) -> Self {
        Arg::Known(Argument::Address(address))
    }
}

impl From<SlotId> for Arg {
    fn from(slot: SlotId) -> Self {
        Arg::Slot(slot, 0)
    }
}

/// No memory.
const NULL: Arg = Arg::Known(Argument::Null);

/// Arguments of different types as a list.
macro_rules! args {
    ($($argument:expr),* $(,)?) => { vec![$(crate::lower::Arg::from($argument)),*] };
}
use args;

struct Pending {
    kernel: String,
    grid: [Extent; 3],
    threads: u32,
    shared: u32,
    arguments: Vec<Arg>,
    /// As of a launch.
    single: usize,
    /// If it is a product that others may join.
    streamed: Option<stream::Streamed>,
    /// What the members of a divided device exchange then.
    exchanged: Vec<shares::Exchanged>,
}

struct Lowering<'a, 'b> {
    around: Surroundings<'a>,
    device: &'b mut dyn Device,
    graph: &'a Graph,
    bucket: Extents,
    analysis: Analysis,
    pending: Vec<Pending>,
    arena: Arena,
    slots: HashMap<ValueId, SlotId>,
    /// Activations in half precision made so far, by what they are made of.
    prepared: HashMap<products::Source, (SlotId, SlotId)>,
    /// Gated units that the launch of their two products writes; gate and value by themselves lie nowhere.
    gated_units: HashSet<ValueId>,
}

/// Lowers a segment for steps of the bucket.
pub fn lower(
    around: Surroundings<'_>,
    device: &mut dyn Device,
    bucket: Extents,
) -> Result<Program, BackendError> {
    let segment = around.segment;
    let graph = &*segment.graph;
    let analysis = Analysis::new(segment, around.caches, bucket.tokens, device.matrix_units());
    let arena_buffer = around.arena;
    let mut lowering = Lowering {
        around,
        device,
        graph,
        bucket,
        analysis,
        pending: Vec::new(),
        arena: Arena::default(),
        slots: HashMap::new(),
        prepared: HashMap::new(),
        gated_units: HashSet::new(),
    };
    for value in &segment.inputs {
        lowering.value_slot(*value);
    }
    for index in segment.nodes.clone() {
        lowering.node(index)?;
    }
    let selections = lowering.select_best();
    let last = lowering.pending.len();
    for value in &segment.outputs {
        let slot = lowering.value_slot(*value);
        lowering.arena.touch(slot, last);
    }
    lowering.arena.lay_out();
    lowering.join_streams();
    let arena = &lowering.arena;
    let place = |value: &ValueId| {
        let slot = arena.slot(lowering.slots[value]);
        let address = Address { buffer: arena_buffer, offset: slot.offset as u64 };
        Place { value: *value, address }
    };
    let resolve = |argument: Arg| match argument {
        Arg::Known(argument) => argument,
        Arg::Slot(slot, bytes) => {
            let offset = arena.slot(slot).offset as u64 + bytes;
            Argument::Address(Address { buffer: arena_buffer, offset })
        }
    };
    let launches = lowering.pending.iter().map(|pending| Launch {
        kernel: pending.kernel.clone(),
        grid: pending.grid,
        threads: pending.threads,
        shared: pending.shared,
        arguments: pending.arguments.iter().copied().map(resolve).collect(),
        single: pending.single,
        exchanged: pending
            .exchanged
            .iter()
            .map(|exchanged| exchanged.blocks(arena_buffer, arena.slot(exchanged.slot).offset as u64))
            .collect(),
    });
    let mut launches: Vec<Launch> = launches.collect();
    // They came last.
    let mut chosen = launches.split_off(launches.len() - 2 * selections.len()).into_iter();
    let selection = |planned: &best::Planned| {
        let best::Planned { value, symbol, count, result } = *planned;
        let place = Address { buffer: arena_buffer, offset: arena.slot(result).offset as u64 };
        let highest = Highest { value, symbol, count, place };
        Selection { highest, launches: chosen.by_ref().take(2).collect() }
    };
    Ok(Program {
        selections: selections.iter().map(selection).collect(),
        inputs: segment.inputs.iter().map(place).collect(),
        outputs: segment.outputs.iter().map(place).collect(),
        bytes: arena.bytes() as u64,
        launches,
    })
}

/// The step's axis of a value.
fn symbol_of(ty: &Type) -> Symbol {
    match ty.shape.first() {
        Some(Dim::Of(symbol)) => *symbol,
        _ => Symbol::Tokens,
    }
}

/// A fixed extent, or 1.
fn extent(ty: &Type, axis: usize) -> u32 {
    match ty.shape.get(axis) {
        Some(Dim::Fixed(extent)) => *extent,
        _ => 1,
    }
}

/// Elements of a type without an axis of the step; 0 of others.
fn fixed_elements(ty: &Type) -> u32 {
    if ty.shape.iter().any(|dim| matches!(dim, Dim::Of(_))) {
        return 0;
    }
    (0..ty.shape.len()).map(|axis| extent(ty, axis)).product()
}

/// One axis of a grid.
const ONE: Extent = Extent::Fixed(1);

impl<'a> Lowering<'a, '_> {
    /// Rows of a symbol in the bucket.
    fn rows(&self, symbol: Symbol) -> u32 {
        self.bucket.rows(symbol)
    }

    /// A new place of `width` numbers a row.
    fn slot(&mut self, symbol: Symbol, width: usize) -> SlotId {
        let bytes = self.rows(symbol) as usize * width * 4;
        self.arena.add(symbol, width, bytes.max(16), self.pending.len())
    }

    /// A new place of so many bytes for the launch that comes.
    fn scratch(&mut self, bytes: usize) -> SlotId {
        self.arena.add(Symbol::Tokens, 0, bytes.max(16), self.pending.len())
    }

    /// The place of a value, made if it is new.
    fn value_slot(&mut self, value: ValueId) -> SlotId {
        if let Some(slot) = self.slots.get(&value) {
            return *slot;
        }
        let ty = self.graph.value_type(value).clone();
        let slot = self.slot(symbol_of(&ty), ty.row_elements());
        self.slots.insert(value, slot);
        slot
    }

    /// What a kernel reads for an operand.
    fn operand(&mut self, operand: Operand) -> Result<Arg, BackendError> {
        Ok(match operand {
            Operand::Value(value) => self.value_slot(value).into(),
            Operand::Weight(weight) => match self.around.weights.vector(weight) {
                Some(address) => address.into(),
                None => return Err(self.refuse("a weight is not there as a vector")),
            },
            Operand::Input(input) => self.input(input)?.into(),
        })
    }

    /// What a kernel reads for an operand that may be missing.
    fn optional(&mut self, operand: Option<&Operand>) -> Result<Arg, BackendError> {
        operand.map_or(Ok(NULL), |operand| self.operand(*operand))
    }

    fn input(&self, input: Input) -> Result<Address, BackendError> {
        Ok(match input {
            Input::Tokens => self.around.places.tokens(),
            Input::Positions => self.around.places.positions(),
            Input::OutputRows => self.around.places.output_rows(),
            Input::EncoderTokens => return Err(self.refuse("encoders do not run here")),
        })
    }

    /// Positions that rows are turned by.
    fn rope_positions(&mut self, place: RopePlace, positions: Operand) -> Result<Arg, BackendError> {
        match place {
            RopePlace::OfTexts { long } => Ok(self.around.places.positions_of_texts(long).into()),
            RopePlace::Own | RopePlace::Reversed | RopePlace::BlockStart(_) => self.operand(positions),
        }
    }

    fn constant(&mut self, bytes: Vec<u8>) -> Result<Address, BackendError> {
        if let Some(address) = self.around.constants.get(&bytes) {
            return Ok(*address);
        }
        let address = constants(self.device, &bytes)?;
        self.around.constants.insert(bytes, address);
        Ok(address)
    }

    fn refuse(&self, reason: &str) -> BackendError {
        BackendError::Device { device: self.device.name().to_string(), reason: reason.to_string() }
    }

    fn launch(
        &mut self,
        kernel: impl Into<String>,
        grid: [Extent; 3],
        threads: u32,
        shared: u32,
        arguments: Vec<Arg>,
    ) {
        let single = arguments.len();
        let kernel = kernel.into();
        self.push(Pending {
            kernel,
            grid,
            threads,
            shared,
            arguments,
            single,
            streamed: None,
            exchanged: Vec::new(),
        });
    }

    /// A product that may join those around it.
    fn stream(&mut self, streamed: stream::Streamed, arguments: Vec<Arg>) {
        let (kernel, grid) = (String::new(), [ONE; 3]);
        self.push(Pending {
            kernel,
            grid,
            threads: 0,
            shared: 0,
            arguments,
            single: 0,
            streamed: Some(streamed),
            exchanged: Vec::new(),
        });
    }

    fn push(&mut self, pending: Pending) {
        let task = self.pending.len();
        for argument in &pending.arguments {
            if let Arg::Slot(slot, _) = argument {
                self.arena.touch(*slot, task);
            }
        }
        self.pending.push(pending);
    }

    /// Blocks that go over `width` elements of each row.
    fn elements(&self, symbol: Symbol, width: u32) -> [Extent; 3] {
        let most = self.device.processors() * 16;
        [Extent::Rows { symbol, per: THREADS, times: width.max(1), most }, ONE, ONE]
    }

    /// A block for each of `times` groups of each row.
    fn groups(&self, symbol: Symbol, times: u32) -> [Extent; 3] {
        [Extent::Rows { symbol, per: 1, times, most: i32::MAX as u32 }, ONE, ONE]
    }

    /// Rows of a symbol, as an argument.
    fn row_count(&self, symbol: Symbol) -> Arg {
        Arg::Known(Argument::Rows(symbol, 1))
    }

    fn node(&mut self, index: usize) -> Result<(), BackendError> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let value = ValueId(index as u32);
        if let Op::Reshape(_) = &node.op {
            let Operand::Value(source) = node.inputs[0] else {
                return Err(self.refuse("only values change their shape"));
            };
            let slot = self.value_slot(source);
            self.slots.insert(value, slot);
            return Ok(());
        }
        if self.analysis.absorbed.contains(&index) {
            return Ok(());
        }
        if self.goes_along(node, value) {
            self.analysis.absorbed.insert(index);
            return Ok(());
        }
        match &node.op {
            Op::Reshape(_) => Ok(()),
            Op::MatMul(_) => self.matmul(index, node, value),
            Op::MatMulExperts(_) | Op::MatMulHeads(_) => self.expert_products(node, value),
            Op::GatherRows(_) => self.gather_rows(node, value),
            Op::Attention(attention) => self.attention(index, node, attention, value),
            Op::RouteExperts(_)
            | Op::ExpertWeights(_)
            | Op::SumExperts(_)
            | Op::AddExpertBias(_)
            | Op::GroupOfExpert(_) => self.expert_choice(node, value),
            Op::ShortConvolution(_)
            | Op::TokenShift(_)
            | Op::SelectiveScan(_)
            | Op::GatedDeltaRule(_)
            | Op::GatedLinearAttention(_)
            | Op::Rwkv7(_) => self.recurrence(node, value),
            _ => self.rowwise(node, value),
        }
    }
}
