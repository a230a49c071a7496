//! From a segment of the graph to OpenVINO's representation: one file per family of operations.
//!
//! A value keeps its shape and order; integers are `i32`, floats `f32`. What only the host knows (positions, masks,
//! past keys) comes in as parameters, listed as [`Feed`]s in the order in which they were needed.

mod attention;
mod elementwise;
mod experts;
mod hyper;
mod interface;
mod matmul;
mod norm;
pub mod order;
mod recurrent;
mod rope;
mod shape;
mod tools;

use std::collections::HashMap;
use std::sync::Arc;

use puna_backend::{Segment, WeightSource};
use puna_graph::ops::MaskRule;
use puna_graph::{
    CacheGroup, Dim, Graph, Input, Node, Op, Operand, StateId, Symbol, Type, ValueId, WeightId,
};

use crate::ir::{Blob, Element, Extent, Model, Port};
use crate::weights::{Coding, Kind, Part};
pub use attention::is_pageable_state;
pub use interface::Interface;
use matmul::decode;
use order::Orders;
pub use rope::RopeTable;

/// Data of a step that the host puts into a parameter.
#[derive(Clone, PartialEq, Debug)]
pub enum Feed {
    /// An input of the graph, `i32`.
    Step(Input),
    /// A value of an earlier segment.
    Value(ValueId),
    /// Cosines of a table of rotations, once for each half of the elements that turn: `[Tokens, 1, 1, 2 · pairs]`.
    Cosines(usize),
    /// Sines, likewise.
    Sines(usize),
    /// Factors of positions, `[Tokens, 1]`.
    PositionScale(puna_graph::ops::PositionScale),
    /// Added to scores: 0 where a row sees a cell, very negative elsewhere; `[Tokens, cells]`.
    Mask {
        /// Cache group, as an index into `Graph::groups`.
        group: usize,
        /// Which positions are seen.
        rule: MaskRule,
    },
    /// Minus the distance of row and cell in positions, `[Tokens, cells]`.
    Distances {
        /// Cache group, as an index into `Graph::groups`.
        group: usize,
    },
    /// Keys of earlier steps, `[heads, cells, width]`.
    PastKeys(StateId),
    /// Values of earlier steps, `[heads, cells, width]`.
    PastValues(StateId),
    /// Recurrent states that the spans start from, `[spans, elements]`.
    Recurrent(StateId),
    /// Number of spans, all equally long; one `i64`.
    Spans,
    /// Blocks of keys, `[blocks, heads, places, width]`; written by the model.
    KeyBlocks(StateId),
    /// Blocks of values, `[blocks, heads, places, width]`; written by the model.
    ValueBlocks(StateId),
    /// Cells before the rows of each span, `i32`.
    PastLengths {
        /// Cache group, as an index into `Graph::groups`.
        group: usize,
    },
    /// First row of each span and the end of the last, `i32`.
    RunBegins,
    /// Blocks of all spans, `i32`.
    BlockIndexes {
        /// Cache group, as an index into `Graph::groups`.
        group: usize,
    },
    /// First block of each span in the list of blocks, and its length, `i32`.
    BlockBegins {
        /// Cache group, as an index into `Graph::groups`.
        group: usize,
    },
    /// Most cells of a span, one `i32`.
    LongestRun {
        /// Cache group, as an index into `Graph::groups`.
        group: usize,
    },
}

impl Feed {
    /// Name of the parameter.
    pub fn name(&self) -> String {
        match self {
            Feed::Step(input) => format!("step.{input:?}").to_lowercase(),
            Feed::Value(value) => format!("value.{}", value.0),
            Feed::Cosines(table) => format!("rope.{table}.cosines"),
            Feed::Sines(table) => format!("rope.{table}.sines"),
            Feed::PositionScale(scale) => {
                format!("position_scale.{}.{}.{}", scale.slope, scale.length, scale.offset)
            }
            Feed::Mask { group, rule } => {
                let rule = match rule {
                    MaskRule::Causal => "causal".to_owned(),
                    MaskRule::Window(length) => format!("window{length}"),
                    MaskRule::Chunked(length) => format!("chunk{length}"),
                    MaskRule::SymmetricWindow(length) => format!("around{length}"),
                    MaskRule::Bidirectional => "all".to_owned(),
                };
                format!("mask.{group}.{rule}")
            }
            Feed::Distances { group } => format!("distances.{group}"),
            Feed::PastKeys(state) => format!("past.{}.keys", state.0),
            Feed::PastValues(state) => format!("past.{}.values", state.0),
            Feed::Recurrent(state) => format!("state.{}", state.0),
            Feed::Spans => "spans".to_owned(),
            Feed::KeyBlocks(state) => format!("key_cache.{}", state.0),
            Feed::ValueBlocks(state) => format!("value_cache.{}", state.0),
            Feed::PastLengths { group } => format!("past_lens.{group}"),
            Feed::RunBegins => "subsequence_begins".to_owned(),
            Feed::BlockIndexes { group } => format!("block_indices.{group}"),
            Feed::BlockBegins { group } => format!("block_indices_begins.{group}"),
            Feed::LongestRun { group } => format!("max_context_len.{group}"),
        }
    }
}

/// What a model's output is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Product {
    /// A value that leaves the segment.
    Value(ValueId),
    /// This step's keys, `[Tokens, heads, width]`.
    NewKeys(StateId),
    /// This step's values, `[Tokens, heads, width]`.
    NewValues(StateId),
    /// Recurrent states that the spans end with, `[spans, elements]`.
    Recurrent(StateId),
}

impl Product {
    /// Name of the output.
    pub fn name(self) -> String {
        match self {
            Product::Value(value) => format!("out.{}", value.0),
            Product::NewKeys(state) => format!("new.{}.keys", state.0),
            Product::NewValues(state) => format!("new.{}.values", state.0),
            Product::Recurrent(state) => format!("next.{}", state.0),
        }
    }
}

/// Where keys and values of earlier steps are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheForm {
    /// In the host's memory: parameters hold them, results bring the new ones.
    Host,
    /// In the model: it appends to variables of its own.
    Stateful,
    /// In blocks that the shim's operation reads and writes.
    Paged,
}

/// What a translation depends on besides the segment.
#[derive(Clone, PartialEq, Debug)]
pub struct Choices {
    /// Where caches are.
    pub form: CacheForm,
    /// Write attention as products and softmax even where one operation would do.
    pub manual_attention: bool,
    /// Token rows of every step; `None` leaves them to the step.
    pub tokens: Option<u64>,
    /// Rows that leave the model, likewise.
    pub outputs: Option<u64>,
    /// Cells of every cache group, likewise.
    pub cells: Option<Vec<u64>>,
    /// Kind of device, which decides how weights are written.
    pub kind: Kind,
    /// Element type of cached keys.
    pub keys: Element,
    /// Element type of cached values.
    pub values: Element,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            form: CacheForm::Host,
            manual_attention: false,
            tokens: None,
            outputs: None,
            cells: None,
            kind: Kind::Cpu,
            keys: Element::F32,
            values: Element::F32,
        }
    }
}

/// A translated segment.
pub struct Translated {
    /// The model.
    pub model: Model,
    /// Its constants.
    pub blob: Blob,
    /// Its parameters and results.
    pub interface: Interface,
}

/// Operations that have a translation.
#[rustfmt::skip] // names in the order of the arms
const TRANSLATED: &[&str] = &[
    "GatherRows", "MatMul", "MatMulHeads", "Add", "Mul", "Div", "Scale", "SoftCap", "Clamp", "Unary", "Glu",
    "ClampedGlu", "Xielu", "Softmax", "SumElements", "ScaleRows", "PositionScale", "WeightedSum",
    "Interpolate", "RmsNorm", "LayerNorm", "MatchNorm", "GaussianCut", "Rope", "Attention", "Reshape",
    "Slice", "Concat", "RepeatHeads", "RouteExperts", "ExpertWeights", "MatMulExperts", "SumExperts",
    "AddExpertBias", "GroupOfExpert", "ShortConvolution", "TokenShift", "SelectiveScan", "GatedDeltaRule",
    "GatedLinearAttention", "Rwkv7", "AddRow", "HyperRead", "HyperWrite",
];

/// Why this node has no translation; `None` if it has.
pub fn unsupported(graph: &Graph, node: usize) -> Option<String> {
    let declared = &graph.nodes[node];
    let ty = |index: usize| declared.inputs.get(index).map(|operand| graph.operand_type(*operand));
    if !TRANSLATED.contains(&declared.op.name()) {
        return Some("it has no translation yet".to_owned());
    }
    let rank = |index: usize| ty(index).map_or(0, |ty| ty.shape.len());
    match &declared.op {
        Op::Rope(_) | Op::PositionScale(_)
            if declared.inputs.get(1) != Some(&Operand::Input(Input::Positions)) =>
        {
            Some("positions that are not those of the step".to_owned())
        }
        Op::Rope(_) if declared.inputs.get(2).is_some_and(|f| !matches!(f, Operand::Weight(_))) => {
            Some("frequency factors that are no tensor of the file".to_owned())
        }
        Op::Attention(op) if op.relative.is_some() => Some("a learned bias by distance".to_owned()),
        Op::Attention(op)
            if matches!(
                graph.states[op.state.index()].group(),
                CacheGroup::Encoder | CacheGroup::EncoderStep
            ) =>
        {
            Some("a cache that belongs to an encoder".to_owned())
        }
        _ if declared.ty.shape.contains(&Dim::Of(Symbol::EncoderTokens))
            || declared.inputs.contains(&Operand::Input(Input::EncoderTokens)) =>
        {
            Some("rows of an encoder".to_owned())
        }
        Op::AdapterScale(_) => Some("adapters that can be switched".to_owned()),
        Op::MatMul(_) if rank(0) != 2 => Some(format!("a product with a value of {} axes", rank(0))),
        _ => None,
    }
}

/// Translates a segment. Every node of it has a translation.
pub fn translate(segment: &Segment, weights: &Arc<dyn WeightSource>, choices: &Choices) -> Translated {
    let mut translator = Translator {
        graph: &segment.graph,
        weights: weights.clone(),
        choices,
        model: Model::default(),
        blob: Blob::default(),
        values: HashMap::new(),
        feeds: Vec::new(),
        fed: Vec::new(),
        added: Vec::new(),
        products: Vec::new(),
        ropes: rope::tables(&segment.graph, segment.nodes.clone(), weights.as_ref()),
        decoded: HashMap::new(),
        matrices: HashMap::new(),
        tables: HashMap::new(),
        pieces: Vec::new(),
        variables: HashMap::new(),
        masks: Vec::new(),
        orders: order::find(&segment.graph, segment.nodes.clone()),
        index: 0,
    };
    for index in segment.nodes.clone() {
        translator.index = index;
        let node = &segment.graph.nodes[index];
        let port = translator.node(node);
        translator.values.insert(ValueId(index as u32), port);
    }
    for output in &segment.outputs {
        let port = translator.values[output];
        translator.product(Product::Value(*output), port);
    }
    // Fixed extents are those of an NPU, on whatever device.
    let is_for_processors = choices.tokens.is_none() && !matches!(choices.kind, Kind::Gpu | Kind::Npu);
    if is_for_processors && translator.added.is_empty() {
        translator.mark_as_language_model();
    }
    let Translator { model, blob, mut feeds, added, products, ropes, .. } = translator;
    feeds.extend(added);
    Translated { model, blob, interface: Interface { feeds, products, ropes } }
}

/// A model in the making.
struct Translator<'a> {
    graph: &'a Graph,
    weights: Arc<dyn WeightSource>,
    choices: &'a Choices,
    model: Model,
    blob: Blob,
    values: HashMap<ValueId, Port>,
    feeds: Vec<Feed>,
    /// Parameters of `feeds`.
    fed: Vec<Port>,
    /// Parameters that are not in the text.
    added: Vec<Feed>,
    products: Vec<Product>,
    ropes: Vec<RopeTable>,
    /// Tensors as plain floats.
    decoded: HashMap<WeightId, Port>,
    /// Tensors as matrices to multiply with.
    matrices: HashMap<WeightId, Port>,
    /// Tensors as tables to look up in.
    tables: HashMap<WeightId, matmul::Table>,
    /// What of tensors is in the blob.
    pieces: Vec<(WeightId, Coding, Part, Port)>,
    /// Keys and values of all steps of states that the model keeps.
    variables: HashMap<StateId, [Port; 2]>,
    /// Masks repeated for several heads: group, rule, copies.
    masks: Vec<(usize, MaskRule, i64, Port)>,
    /// Whose pairs are apart.
    orders: Orders,
    /// The node that is being translated.
    index: usize,
}

impl Translator<'_> {
    fn node(&mut self, node: &Node) -> Port {
        match &node.op {
            Op::GatherRows(_) => self.gather_rows(node),
            Op::MatMul(_) => self.matmul(node),
            Op::MatMulHeads(_) => self.matmul_heads(node),
            Op::Add(_) => self.binary("Add", node),
            Op::Mul(_) => self.binary("Multiply", node),
            Op::Div(_) => self.binary("Divide", node),
            Op::Scale(op) => self.scale(node, op.factor),
            Op::SoftCap(op) => self.soft_cap(node, op.cap),
            Op::Clamp(op) => self.clamp(node, op.low, op.high),
            Op::Unary(op) => {
                let x = self.operand(node, 0);
                self.function(op.function, x)
            }
            Op::Glu(op) => self.glu(node, op.function),
            Op::ClampedGlu(op) => self.clamped_glu(node, op),
            Op::Xielu(op) => self.xielu(node, op),
            Op::Softmax(_) => {
                let x = self.operand(node, 0);
                self.softmax(x, -1)
            }
            Op::SumElements(_) => self.sum_elements(node),
            Op::ScaleRows(_) => self.scale_rows(node),
            Op::PositionScale(op) => self.position_scale(node, op),
            Op::WeightedSum(_) => self.weighted_sum(node),
            Op::Interpolate(_) => self.interpolate(node),
            Op::RmsNorm(op) => self.rms_norm(node, op.epsilon),
            Op::LayerNorm(op) => self.layer_norm(node, op.epsilon),
            Op::MatchNorm(_) => self.match_norm(node),
            Op::GaussianCut(op) => self.gaussian_cut(node, op.deviations),
            Op::Rope(op) => self.rope(node, op),
            Op::Attention(op) => self.attention(node, op),
            Op::Reshape(op) => self.reshape_node(node, &op.trailing),
            Op::Slice(op) => self.slice_node(node, op.start, op.length),
            Op::Concat(_) => self.concat_node(node),
            Op::RepeatHeads(op) => self.repeat_heads(node, op.times),
            Op::RouteExperts(op) => self.route_experts(node, op),
            Op::ExpertWeights(op) => self.expert_weights(node, op),
            Op::MatMulExperts(_) => self.matmul_experts(node),
            Op::SumExperts(_) => self.sum_experts(node),
            Op::AddExpertBias(_) => self.add_expert_bias(node),
            Op::GroupOfExpert(op) => self.group_of_expert(node, op.size),
            Op::ShortConvolution(op) => self.short_convolution(node, op.state, op.dilation),
            Op::TokenShift(op) => self.token_shift(node, op.state),
            Op::SelectiveScan(op) => self.selective_scan(node, op.state),
            Op::GatedDeltaRule(op) => self.gated_delta_rule(node, op),
            Op::GatedLinearAttention(op) => self.gated_linear_attention(node, op),
            Op::Rwkv7(op) => self.rwkv7(node, op.state),
            Op::AddRow(op) => self.add_row(node, op.row),
            Op::HyperRead(op) => self.hyper_read(node, op),
            Op::HyperWrite(op) => self.hyper_write(node, op),
            other => unreachable!("{} has no row in TRANSLATED", other.name()),
        }
    }

    /// What the node reads at this place; a tensor of the file as floats.
    fn operand(&mut self, node: &Node, index: usize) -> Port {
        match node.inputs[index] {
            Operand::Value(value) => self.value(value),
            Operand::Input(input) => self.feed(Feed::Step(input)),
            Operand::Weight(weight) => self.floats(weight),
        }
    }

    fn value(&mut self, value: ValueId) -> Port {
        if let Some(port) = self.values.get(&value) {
            return *port;
        }
        let port = self.feed(Feed::Value(value));
        self.values.insert(value, port);
        port
    }

    fn operand_type(&self, node: &Node, index: usize) -> Type {
        self.graph.operand_type(node.inputs[index])
    }

    /// The parameter of a feed, made when first asked for.
    fn feed(&mut self, feed: Feed) -> Port {
        if let Some(index) = self.feeds.iter().position(|other| *other == feed) {
            return self.fed[index];
        }
        let (element, shape) = self.feed_type(&feed);
        let port = self.model.parameter(&feed.name(), element, &shape);
        self.feeds.push(feed);
        self.fed.push(port);
        port
    }

    fn feed_type(&self, feed: &Feed) -> (Element, Vec<Extent>) {
        let tokens = self.choices.tokens;
        let floats = |shape: Vec<Extent>| (Element::F32, shape);
        // What the step brings itself is seen after the cells of earlier steps.
        let seen = |group: usize| {
            let cells = self.choices.cells.as_ref().and_then(|cells| cells.get(group).copied());
            cells.zip(tokens).map(|(cells, tokens)| cells + tokens)
        };
        match feed {
            Feed::Step(input) => (Element::I32, self.extents(&input.ty())),
            Feed::Value(value) => {
                let ty = self.graph.value_type(*value);
                let element = match ty.element {
                    puna_graph::Element::F32 => Element::F32,
                    puna_graph::Element::I32 => Element::I32,
                };
                (element, self.extents(ty))
            }
            Feed::Cosines(table) | Feed::Sines(table) => {
                let width = 2 * self.ropes[*table].frequencies.len() as u64;
                floats(vec![tokens, Some(1), Some(1), Some(width)])
            }
            Feed::PositionScale(_) => floats(vec![tokens, Some(1)]),
            Feed::Mask { group, .. } | Feed::Distances { group } => floats(vec![tokens, seen(*group)]),
            Feed::PastKeys(state) => (self.choices.keys, self.past(*state, true)),
            Feed::PastValues(state) => (self.choices.values, self.past(*state, false)),
            Feed::Recurrent(state) => {
                let spans = tokens.map(|_| 1);
                match &self.graph.states[state.index()] {
                    puna_graph::StateDecl::Recurrent { elements, .. } => {
                        floats(vec![spans, Some(*elements as u64)])
                    }
                    puna_graph::StateDecl::KeyValue { .. } => floats(vec![spans, None]),
                }
            }
            Feed::Spans => (Element::I64, vec![Some(1)]),
            // The shim makes these.
            Feed::KeyBlocks(_) | Feed::ValueBlocks(_) => (Element::F32, vec![None; 4]),
            Feed::PastLengths { .. }
            | Feed::RunBegins
            | Feed::BlockIndexes { .. }
            | Feed::BlockBegins { .. }
            | Feed::LongestRun { .. } => (Element::I32, vec![None]),
        }
    }

    fn past(&self, state: StateId, keys: bool) -> Vec<Extent> {
        let puna_graph::StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } =
            &self.graph.states[state.index()]
        else {
            return Vec::new();
        };
        let group = self.group(state);
        let cells = self.choices.cells.as_ref().and_then(|cells| cells.get(group).copied());
        let width = if keys { *key_dim } else { *value_dim };
        vec![Some(*kv_heads as u64), cells, Some(width as u64)]
    }

    /// Index of a state's group in `Graph::groups`.
    fn group(&self, state: StateId) -> usize {
        let group = self.graph.states[state.index()].group();
        self.graph.groups().iter().position(|other| *other == group).unwrap_or(0)
    }

    fn extents(&self, ty: &Type) -> Vec<Extent> {
        let extent = |dim: &Dim| match dim {
            Dim::Fixed(extent) => Some(*extent as u64),
            Dim::Of(Symbol::Tokens) => self.choices.tokens,
            Dim::Of(Symbol::Outputs) => self.choices.outputs,
            Dim::Of(Symbol::EncoderTokens) => None,
        };
        ty.shape.iter().map(extent).collect()
    }

    fn product(&mut self, product: Product, port: Port) {
        // Layers that share a cache bring the same keys and values.
        if self.products.contains(&product) {
            return;
        }
        self.model.result(port, &product.name());
        self.products.push(product);
    }
}

/// Extents of a type after the first axis, all of which are fixed.
fn trailing(ty: &Type) -> Vec<i64> {
    ty.shape
        .iter()
        .skip(1)
        .map(|dim| match dim {
            Dim::Fixed(extent) => *extent as i64,
            Dim::Of(_) => -1,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translated_operations_exist_and_only_new_ones_are_missing() {
        for name in TRANSLATED {
            assert!(Op::NAMES.contains(name), "{name}");
        }
        assert!(TRANSLATED.len() * 4 >= Op::NAMES.len() * 3, "{} of {}", TRANSLATED.len(), Op::NAMES.len());
    }
}
