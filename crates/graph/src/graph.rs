//! The graph: arena vectors and index newtypes, appended in execution order.

use puna_quant::DType;

use crate::ops::OpDef;
use crate::{Dim, Element, GraphError, Op, Symbol, Type};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u32);
        impl $name {
            /// The index as a `usize`.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
index!(
    /// A node's result: index into [`Graph::nodes`].
    ValueId
);
index!(
    /// Index into [`Graph::weights`].
    WeightId
);
index!(
    /// Index into [`Graph::states`].
    StateId
);

/// What the engine feeds in at every step; the role is data, not a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// Token id of each row: `[Tokens]`.
    Tokens,
    /// Position of each row: `[Tokens]`.
    Positions,
    /// Indexes of the rows that leave the model: `[Outputs]`.
    OutputRows,
    /// Token id of each row of the encoder's input: `[EncoderTokens]`.
    EncoderTokens,
}

impl Input {
    /// Type of the input.
    pub fn ty(self) -> Type {
        let symbol = match self {
            Input::Tokens | Input::Positions => Symbol::Tokens,
            Input::OutputRows => Symbol::Outputs,
            Input::EncoderTokens => Symbol::EncoderTokens,
        };
        Type { element: Element::I32, shape: vec![Dim::Of(symbol)] }
    }
}

/// What a node reads. Weights and inputs are operands, not nodes, so a segment of nodes is only work to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// Result of an earlier node.
    Value(ValueId),
    /// A tensor of the model file.
    Weight(WeightId),
    /// Data of the step.
    Input(Input),
}

impl From<ValueId> for Operand {
    fn from(value: ValueId) -> Self {
        Operand::Value(value)
    }
}

/// One operation.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// Type of the result.
    pub ty: Type,
    /// Layer the node belongs to; embedding and output belong to none.
    pub layer: Option<u32>,
    /// For people, placement rules, adapters and the quantiser; no executor branches on it.
    pub name: &'static str,
}

/// A tensor that the graph uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeightDecl {
    /// Full name in the model file, for example `blk.3.attn_q.weight`.
    pub name: String,
    /// Number format in the file.
    pub dtype: DType,
    /// Extents, outermost first (a matrix is `[output, input]`, experts `[experts, output, input]`).
    pub shape: Vec<u32>,
    /// Layer it belongs to.
    pub layer: Option<u32>,
}

/// Which cells a cache keeps; one ledger of the runtime serves all states of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CacheGroup {
    /// Every position.
    Full,
    /// The last so many positions.
    Window(u32),
    /// No positions: a cell holds what a recurrent layer has made of all tokens up to one.
    Recurrent,
    /// What the decoder sees of an encoder's input, written by the rows of [`Symbol::EncoderTokens`].
    Encoder,
    /// Nothing beyond the step: cell `i` belongs to row `i`. Layers may share a state of this group, since each
    /// writes it before it reads it. Kept as `f32` whatever the format of other caches.
    Step,
    /// As `Step`, for the rows of [`Symbol::EncoderTokens`].
    EncoderStep,
}

impl CacheGroup {
    /// Rows that write its cells.
    pub fn writers(self) -> Symbol {
        match self {
            CacheGroup::Full | CacheGroup::Window(_) | CacheGroup::Recurrent | CacheGroup::Step => {
                Symbol::Tokens
            }
            CacheGroup::Encoder | CacheGroup::EncoderStep => Symbol::EncoderTokens,
        }
    }

    /// Rows that read its cells, which its spans cover.
    pub fn readers(self) -> Symbol {
        match self {
            CacheGroup::EncoderStep => Symbol::EncoderTokens,
            _ => Symbol::Tokens,
        }
    }

    /// Whether its cells outlive a step.
    pub fn is_kept(self) -> bool {
        !matches!(self, CacheGroup::Step | CacheGroup::EncoderStep)
    }
}

/// Memory that a model keeps from step to step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateDecl {
    /// Keys and values of one attention layer.
    KeyValue {
        /// Layer that owns it.
        layer: u32,
        /// Heads of keys and values.
        kv_heads: u32,
        /// Width of one key.
        key_dim: u32,
        /// Width of one value.
        value_dim: u32,
        /// Ledger that assigns its cells.
        group: CacheGroup,
    },
    /// What one recurrent operation carries from token to token; always of [`CacheGroup::Recurrent`].
    Recurrent {
        /// Layer that owns it.
        layer: u32,
        /// Numbers in one cell, kept as `f32` whatever the format of keys and values.
        elements: u32,
    },
}

impl StateDecl {
    /// The ledger that assigns this state's cells.
    pub fn group(&self) -> CacheGroup {
        match self {
            StateDecl::KeyValue { group, .. } => *group,
            StateDecl::Recurrent { .. } => CacheGroup::Recurrent,
        }
    }

    /// The layer that owns it.
    pub fn layer(&self) -> u32 {
        match self {
            StateDecl::KeyValue { layer, .. } | StateDecl::Recurrent { layer, .. } => *layer,
        }
    }
}

/// What a value that leaves the model means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Output {
    /// `[Outputs, vocabulary]`, unnormalised log-probabilities of the next token.
    Logits,
    /// `[Outputs, width]`: what a draft head's next step takes as features of the token that it drafted.
    Hidden,
    /// `[Tokens, width]`: of every row the last state, which layers that guess tokens further ahead read.
    LastState,
    /// `[Outputs, width]`: the same of the rows that leave the model, if it is computed for these apart.
    OutputState,
    /// Any value that somebody watches.
    Watched,
    /// `[Outputs, width]`: embeddings or scores, of these rows of each sequence.
    Embeddings(PooledRows),
}

/// Which rows of a sequence an embedding is made from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PooledRows {
    /// Every row has one of its own.
    All,
    /// The first.
    First,
    /// The last.
    Last,
    /// The mean of all; asked for at the last row, with the whole sequence in one step.
    Mean,
}

/// A model's computation. The node order is the execution order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Graph {
    /// Operations; a node reads only earlier nodes.
    pub nodes: Vec<Node>,
    /// Tensors of the model file, each once.
    pub weights: Vec<WeightDecl>,
    /// Caches.
    pub states: Vec<StateDecl>,
    /// Values that leave the model.
    pub outputs: Vec<(Output, ValueId)>,
    /// Most tokens of a text that is not long; none where that makes no difference.
    pub short_context: Option<u32>,
    /// Positions that the model has learned, so that no text may be longer; none where there is no such limit.
    pub positions: Option<u32>,
}

impl Graph {
    /// Appends an operation after checking its shapes.
    pub fn push(
        &mut self,
        op: impl Into<Op>,
        inputs: Vec<Operand>,
        layer: Option<u32>,
        name: &'static str,
    ) -> Result<ValueId, GraphError> {
        let op = op.into();
        let types: Vec<Type> = inputs.iter().map(|operand| self.operand_type(*operand)).collect();
        let ty = op.infer(&types)?;
        if let Some(state) = op.state()
            && !self.states.get(state.index()).is_some_and(|declared| op.fits_state(&types, declared))
        {
            return Err(GraphError::State { op: op.name(), inputs: types, state: state.index() });
        }
        let id = ValueId(self.nodes.len() as u32);
        self.nodes.push(Node { op, inputs, ty, layer, name });
        Ok(id)
    }

    /// Type of what an operand refers to. Weights count as `f32` here: their number format is a matter of
    /// the back end.
    pub fn operand_type(&self, operand: Operand) -> Type {
        match operand {
            Operand::Value(value) => self.nodes[value.index()].ty.clone(),
            Operand::Weight(weight) => Type::f32(
                self.weights[weight.index()].shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>(),
            ),
            Operand::Input(input) => input.ty(),
        }
    }

    /// Type of a node's result.
    pub fn value_type(&self, value: ValueId) -> &Type {
        &self.nodes[value.index()].ty
    }

    /// The distinct cache groups in ascending order; `Step::groups` follows this order.
    pub fn groups(&self) -> Vec<CacheGroup> {
        let mut groups: Vec<CacheGroup> = self.states.iter().map(StateDecl::group).collect();
        groups.sort();
        groups.dedup();
        groups
    }

    /// The value that carries embeddings and the rows that they are made from.
    pub fn embeddings(&self) -> Option<(ValueId, PooledRows)> {
        self.outputs.iter().find_map(|(role, value)| match role {
            Output::Embeddings(rows) => Some((*value, *rows)),
            Output::Logits | Output::Hidden | Output::LastState | Output::OutputState | Output::Watched => {
                None
            }
        })
    }

    /// The value that carries this output.
    pub fn output(&self, output: Output) -> Option<ValueId> {
        self.outputs.iter().find(|(role, _)| *role == output).map(|(_, value)| *value)
    }
}
