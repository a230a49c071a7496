//! The builder: keys, weights declared by use, and one method per operation.

mod ahead;
mod claims;
mod keys;

pub use claims::Claim;

use std::collections::HashMap;

use puna_gguf::{Metadata, Tensors, Value};
use puna_graph::ops::{
    Add, AddRow, Concat, Features, FillColumns, Function, GatherRows, Glu, LayerNorm, MatMul, Mul,
    RepeatHeads, Reshape, RmsNorm, Scale, Slice, SoftCap, Unary,
};
use puna_graph::{Graph, Input, Op, Operand, Output, StateDecl, StateId, ValueId, WeightDecl, WeightId};
use puna_quant::DType;

use crate::ahead::Reads;
use crate::blocks::Classifier;
use crate::{Architecture, BuildOptions, ModelError, Purpose};

type Result<T> = std::result::Result<T, ModelError>;

/// Limits that keep hostile files from building absurd graphs; real models are far below.
const MOST_LAYERS: u32 = 512;
const MOST_WIDTH: u32 = 1 << 24;

/// Numbers that most architectures read.
const COUNTS: &[&str] = &[
    "attention.key_length",
    "attention.value_length",
    "expert_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "leading_dense_block_count",
    "rope.dimension_count",
];

/// Builds one graph.
pub struct Builder<'m> {
    architecture: &'static str,
    metadata: &'m Metadata,
    tensors: &'m Tensors,
    options: BuildOptions,
    bidirectional: bool,
    /// Whether the rows of `output.weight` are the tokens.
    outputs_are_tokens: bool,
    classifier: Classifier,
    graph: Graph,
    declared: HashMap<String, WeightId>,
    layer: Option<u32>,
    layer_prefix: &'static str,
    layers: u32,
    /// Layers of the stack at work, as arrays of one element per layer have them: with those that guess tokens further
    /// ahead. An encoder and its decoder may have different numbers.
    stack: u32,
    /// `block_count`
    blocks: u32,
    needed: Vec<&'static str>,
    norm: Option<Norm>,
    /// What layers that guess tokens further ahead read.
    reads: Reads,
    /// The state that they read, once it is there.
    last_state: Option<ValueId>,
}

/// The kind of a model's norms, with its epsilon.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Norm {
    /// Root mean square.
    Rms(f32),
    /// Mean and variance.
    Layer(f32),
}

/// What happens to logits after the output matrix.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Head {
    /// Factor.
    pub scale: Option<f32>,
    /// Smooth limit, after the factor.
    pub soft_cap: Option<f32>,
    /// Whether `output.bias` is left out though the file has it.
    pub ignores_bias: bool,
    /// Columns that are overwritten.
    pub suppressed: Option<FillColumns>,
    /// Rows of `output.weight` where they are the last tokens of the vocabulary; the others are never chosen. Needs
    /// [`Builder::with_other_outputs`].
    pub last_tokens: Option<u32>,
}

impl<'m> Builder<'m> {
    /// Starts a graph for a file of this architecture.
    pub fn new(
        architecture: &'static Architecture,
        metadata: &'m Metadata,
        tensors: &'m Tensors,
        options: &BuildOptions,
    ) -> Result<Self> {
        let mut builder = Self {
            architecture: architecture.name,
            metadata,
            tensors,
            options: *options,
            bidirectional: false,
            outputs_are_tokens: true,
            classifier: Classifier::default(),
            graph: Graph::default(),
            declared: HashMap::new(),
            layer: None,
            layer_prefix: "blk",
            layers: 0,
            stack: 0,
            blocks: 0,
            needed: Vec::new(),
            norm: None,
            reads: Reads::AfterNorm,
            last_state: None,
        };
        builder.blocks = builder.count("block_count", MOST_LAYERS)?;
        builder.stack = builder.blocks;
        builder.layers = builder.layers_of_text()?;
        builder.prepare_ahead(architecture.guesses_ahead)?;
        builder.count("context_length", u32::MAX)?;
        // Not every layer or architecture reads these; a wrong one is an error in all.
        for key in ["feed_forward_length", "expert_feed_forward_length", "expert_used_count"] {
            builder.layer_u32(key)?;
        }
        for key in ["attention.head_count", "attention.head_count_kv"] {
            builder.layer_u32(key)?;
        }
        for key in COUNTS {
            builder.optional_u32(key)?;
        }
        builder.check_pooling()?;
        let causal = match options.causal {
            Some(causal) => causal,
            None => builder.bool_or("attention.causal", true)?,
        };
        builder.bidirectional = !causal;
        Ok(builder)
    }

    /// With tensors that blocks take as optional and files of this architecture must have, wherever they are used. Names are
    /// without the layer's prefix.
    pub fn needing(mut self, names: &[&'static str]) -> Self {
        self.needed.extend(names);
        self
    }

    /// With an `output.weight` whose rows are something else than the tokens of the embedding table.
    pub fn with_other_outputs(mut self) -> Self {
        self.outputs_are_tokens = false;
        self
    }

    /// Cells that one sequence may use.
    pub fn context(&self) -> u32 {
        self.options.context
    }

    /// Whether every text counts as long.
    pub fn only_long_texts(&self) -> bool {
        self.options.only_long_texts
    }

    /// Notes that texts up to this length are short, longer ones long.
    pub fn set_short_context(&mut self, tokens: u32) {
        self.graph.short_context = Some(tokens);
    }

    /// What the graph is for.
    pub fn purpose(&self) -> Purpose {
        self.options.purpose
    }

    /// Architecture of the file.
    pub fn architecture(&self) -> &str {
        self.architecture
    }

    /// Whether rows see later ones, by the file or because [`Builder::see_both_directions`] was called.
    pub fn is_bidirectional(&self) -> bool {
        self.bidirectional
    }

    /// Lets every row see all of its sequence in the step, unless the options say otherwise.
    pub fn see_both_directions(&mut self) {
        self.bidirectional = self.options.causal != Some(true);
    }

    /// What becomes of a pooled row where scores are asked for.
    pub fn classifier(&self) -> Classifier {
        self.classifier
    }

    /// Overrides the default of [`Builder::classifier`].
    pub fn set_classifier(&mut self, classifier: Classifier) {
        self.classifier = classifier;
    }

    /// Ends the graph with these outputs.
    pub fn finish(mut self, outputs: Vec<(Output, ValueId)>) -> Graph {
        self.graph.outputs.extend(outputs);
        self.graph
    }

    /// The layer being built.
    pub fn layer(&self) -> u32 {
        self.layer.unwrap_or(0)
    }

    /// Number of layers that are run.
    pub fn layers(&self) -> u32 {
        self.layers
    }

    // --------------------------------------------------------------- weights

    /// The name in the file; some tensors are stored without `.weight`.
    fn tensor_name(&self, name: &str) -> String {
        let full = match self.layer {
            Some(layer) => format!("{}.{layer}.{name}", self.layer_prefix),
            None => name.to_string(),
        };
        match full.strip_suffix(".weight") {
            Some(short) if self.tensors.get(&full).is_none() && self.tensors.get(short).is_some() => {
                short.to_string()
            }
            _ => full,
        }
    }

    /// Whether the file has this tensor in the current layer, or [must have it](Builder::needing).
    pub fn has(&self, name: &str) -> bool {
        self.needed.contains(&name) || self.tensors.get(&self.tensor_name(name)).is_some()
    }

    /// Whether the file has one of these tensors (`.weight` is added) in the current layer: then it must have all of them.
    pub fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.has(&format!("{name}.weight")))
    }

    /// Whether the file has the first of two tensors in the current layer; it must have one.
    pub fn either(&self, first: &str, second: &str) -> Result<bool> {
        match (self.has(first), self.has(second)) {
            (true, _) => Ok(true),
            (false, true) => Ok(false),
            (false, false) => Err(self.missing_tensor(format!(
                "{} or {}",
                self.tensor_name(first),
                self.tensor_name(second)
            ))),
        }
    }

    /// The error of a tensor that is not there.
    pub fn missing_tensor(&self, name: String) -> ModelError {
        ModelError::MissingTensor { name, architecture: self.architecture.to_string() }
    }

    /// Row-major shape of a tensor in the file.
    fn file_shape(&self, name: &str) -> Option<&[u64]> {
        self.tensors.get(name).map(|tensor| tensor.shape.as_slice())
    }

    /// Full name of a tensor of the current layer.
    pub fn full_name(&self, name: &str) -> String {
        self.tensor_name(name)
    }

    /// Row-major shape of a tensor of the current layer, without leading extents of 1; each extent is at least
    /// 1 and below the limit of any width.
    pub fn shape_of(&self, name: &str) -> Result<Vec<u32>> {
        let name = self.tensor_name(name);
        let Some(found) = self.file_shape(&name) else {
            return Err(self.missing_tensor(name));
        };
        let extents = found.iter().skip_while(|extent| **extent == 1);
        if found.iter().any(|extent| !(1..=u64::from(MOST_WIDTH)).contains(extent)) {
            let found = found.to_vec();
            return Err(ModelError::TensorExtents { name, found, most: MOST_WIDTH });
        }
        Ok(extents.map(|extent| *extent as u32).collect())
    }

    /// Whether the file has this tensor, which belongs to no layer, or must have it.
    pub fn has_global(&self, name: &str) -> bool {
        self.needed.contains(&name) || self.tensors.get(name).is_some()
    }

    /// Declares a tensor of the current layer (or of none) and checks its shape; the suffix is part of `name`.
    pub fn weight(&mut self, name: &str, shape: &[u32]) -> Result<Operand> {
        let name = self.tensor_name(name);
        self.weight_at(name, shape, self.layer)
    }

    /// [`Builder::weight`] of another layer.
    pub fn weight_of_layer(&mut self, layer: u32, name: &str, shape: &[u32]) -> Result<Operand> {
        let outer = self.layer.replace(layer);
        let weight = self.weight(name, shape);
        self.layer = outer;
        weight
    }

    /// [`Builder::weight`] of a tensor whose first two axes may be one in the file, as models are published.
    pub fn joinable_weight(&mut self, name: &str, shape: &[u32]) -> Result<Operand> {
        let tensor = self.tensors.get(&self.tensor_name(name));
        let (Some(tensor), [first, second, rest @ ..]) = (tensor, shape) else {
            return self.weight(name, shape);
        };
        let joined: Vec<u32> =
            [first.saturating_mul(*second)].into_iter().chain(rest.iter().copied()).collect();
        let fits = tensor.shape.iter().copied().eq(joined.iter().map(|extent| u64::from(*extent)));
        let has_whole_rows =
            shape.last().is_some_and(|row| (*row as usize).is_multiple_of(tensor.dtype.block()));
        if !fits || !has_whole_rows {
            return self.weight(name, shape);
        }
        let operand = self.weight(name, &joined)?;
        if let Operand::Weight(weight) = operand {
            self.graph.weights[weight.index()].shape = shape.to_vec();
        }
        Ok(operand)
    }

    /// [`Builder::weight`] for a tensor that belongs to no layer.
    pub fn global_weight(&mut self, name: &str, shape: &[u32]) -> Result<Operand> {
        self.weight_at(name.to_string(), shape, None)
    }

    /// [`Builder::weight`] for a tensor of 32-bit integers; readers see them as floats.
    pub fn integer_weight(&mut self, name: &str, shape: &[u32]) -> Result<Operand> {
        let name = self.tensor_name(name);
        let found = self.tensors.get(&name).map(|tensor| tensor.dtype);
        match found.filter(|dtype| *dtype != DType::I32) {
            Some(dtype) => Err(ModelError::TensorFormat { name, dtype }),
            None => self.declare(name, shape, self.layer),
        }
    }

    fn weight_at(&mut self, name: String, shape: &[u32], layer: Option<u32>) -> Result<Operand> {
        let found = self.tensors.get(&name).map(|tensor| tensor.dtype);
        let refused = [DType::I8, DType::I16, DType::I32, DType::I64, DType::Q8_1, DType::Q8_K];
        let declared = self.declare(name.clone(), shape, layer)?;
        match found.filter(|dtype| refused.contains(dtype)) {
            Some(dtype) => Err(ModelError::TensorFormat { name, dtype }),
            None => Ok(declared),
        }
    }

    fn declare(&mut self, name: String, shape: &[u32], layer: Option<u32>) -> Result<Operand> {
        let Some(tensor) = self.tensors.get(&name) else {
            return Err(self.missing_tensor(name));
        };
        // Leading extents of 1 are not written to files, and a column is as good as a vector.
        let significant = |shape: &[u64]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
        let wanted: Vec<u64> = shape.iter().map(|extent| *extent as u64).collect();
        if significant(&tensor.shape) != significant(&wanted) {
            return Err(ModelError::TensorShape {
                name,
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        if shape.contains(&0) {
            return Err(ModelError::EmptyTensor { name });
        }
        if let Some(id) = self.declared.get(&name) {
            return Ok(Operand::Weight(*id));
        }
        let id = WeightId(self.graph.weights.len() as u32);
        self.declared.insert(name.clone(), id);
        self.graph.weights.push(WeightDecl { name, dtype: tensor.dtype, shape: shape.to_vec(), layer });
        Ok(Operand::Weight(id))
    }

    /// A tensor `[n, rows, columns]` that belongs to no layer as one matrix `[n · rows, columns]`.
    pub fn stacked_weight(&mut self, name: &str, [count, rows, columns]: [u32; 3]) -> Result<Operand> {
        let operand = self.global_weight(name, &[count, rows, columns])?;
        if let Operand::Weight(weight) = operand {
            self.graph.weights[weight.index()].shape = vec![count * rows, columns];
        }
        Ok(operand)
    }

    /// [`Builder::weight`] if the file has the tensor.
    pub fn optional_weight(&mut self, name: &str, shape: &[u32]) -> Result<Option<Operand>> {
        if self.has(name) { self.weight(name, shape).map(Some) } else { Ok(None) }
    }

    /// A tensor that belongs to no layer, if the file has it.
    pub fn optional_global_weight(&mut self, name: &str, shape: &[u32]) -> Result<Option<Operand>> {
        if self.has_global(name) { self.global_weight(name, shape).map(Some) } else { Ok(None) }
    }

    /// Vocabulary size: rows of the embedding table, unless the output matrix and the file's tokens agree that it has a wrong
    /// number.
    pub fn vocabulary(&self) -> Result<u32> {
        const TABLE: &str = "token_embd.weight";
        let Some(rows) = self.said_globally(TABLE, 1) else {
            return Err(match self.file_shape(TABLE) {
                None => self.missing_tensor(TABLE.to_string()),
                Some(found) => {
                    let (name, found) = (TABLE.to_string(), found.to_vec());
                    let expected = vec![MOST_WIDTH, self.width_or("embedding_length", 0)?];
                    ModelError::TensorShape { name, found, expected }
                }
            });
        };
        let tokens = match self.metadata.get("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) => u32::try_from(tokens.len()).ok(),
            _ => self.optional_u32("vocab_size")?,
        };
        let outputs = [self.said_globally("output.weight", 1), self.said_globally("output.bias", 0)];
        let outputs = outputs.into_iter().filter(|_| self.outputs_are_tokens);
        self.agreed(tokens, [Some(rows)].into_iter().chain(outputs))
    }

    // ------------------------------------------------------------ operations

    /// Appends an operation to the current layer.
    pub fn push(&mut self, op: impl Into<Op>, inputs: Vec<Operand>, name: &'static str) -> Result<ValueId> {
        let layer = self.layer;
        self.graph.push(op, inputs, layer, name).map_err(|source| ModelError::Graph { name, layer, source })
    }

    /// Declares a cache; one that does not outlive the step is shared by all layers that need the same.
    pub fn state(&mut self, state: StateDecl) -> StateId {
        let same = |other: &StateDecl| match (other, &state) {
            (
                StateDecl::KeyValue { kv_heads, key_dim, value_dim, group, .. },
                StateDecl::KeyValue { kv_heads: h, key_dim: k, value_dim: v, group: g, .. },
            ) => !group.is_kept() && (kv_heads, key_dim, value_dim, group) == (h, k, v, g),
            _ => false,
        };
        if let Some(index) = self.graph.states.iter().position(same) {
            return StateId(index as u32);
        }
        self.graph.states.push(state);
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// Last extent of a value.
    pub fn width(&self, value: ValueId) -> u32 {
        self.graph.value_type(value).width().unwrap_or(0)
    }

    /// Rows of the embedding table for the step's tokens: `[Tokens, embedding_length]`. Of a layer that guesses ahead what it
    /// makes of these and of states.
    pub fn embed(&mut self) -> Result<ValueId> {
        match self.guessing_layer() {
            Some(layer) => self.embed_ahead(layer),
            None => self.embed_input(Input::Tokens, "embedding_length"),
        }
    }

    /// Rows of the embedding table, as wide as a key says, for these tokens.
    pub fn embed_input(&mut self, tokens: Input, width: &str) -> Result<ValueId> {
        let width = self.count(width, MOST_WIDTH)?;
        let table = self.global_weight("token_embd.weight", &[self.vocabulary()?, width])?;
        self.push(GatherRows, vec![table, Operand::Input(tokens)], "embed")
    }

    /// `x` plus row 0 of `token_types`, which has a row for each kind of segment.
    pub fn add_token_type(&mut self, x: ValueId) -> Result<ValueId> {
        const NAME: &str = "token_types.weight";
        let rows = self.metadata.optional_u32("tokenizer.ggml.token_type_count")?;
        let rows = self.agreed(rows, [self.said_globally(NAME, 1)])?;
        let table = self.global_weight(NAME, &[rows, self.width(x)])?;
        self.push(AddRow { row: 0 }, vec![x.into(), table], "token_types")
    }

    /// `x` plus the row of `position_embd` at each row's position: one for each of `context_length`.
    pub fn add_positions(&mut self, x: ValueId) -> Result<ValueId> {
        let rows = self.count("context_length", MOST_WIDTH)?;
        let table = self.global_weight("position_embd.weight", &[rows, self.width(x)])?;
        self.graph.positions = Some(rows);
        let positions = self.push(GatherRows, vec![table, Operand::Input(Input::Positions)], "positions")?;
        self.add(x, positions)
    }

    /// `name.weight · x + name.bias`; the bias counts if the file has it.
    pub fn linear(&mut self, name: &'static str, x: ValueId, width: u32) -> Result<ValueId> {
        self.linear_with(name, x, width, true)
    }

    /// [`Builder::linear`] that leaves the bias out unless `bias`. A `name.scale` of one number multiplies the
    /// product before the bias.
    pub fn linear_with(&mut self, name: &'static str, x: ValueId, width: u32, bias: bool) -> Result<ValueId> {
        let weight = self.weight(&format!("{name}.weight"), &[width, self.width(x)])?;
        let bias = match bias {
            true => self.optional_weight(&format!("{name}.bias"), &[width])?,
            false => None,
        };
        let Some(scale) = self.optional_weight(&format!("{name}.scale"), &[1])? else {
            return self.push(MatMul, [weight, x.into()].into_iter().chain(bias).collect(), name);
        };
        let product = self.push(MatMul, vec![weight, x.into()], name)?;
        let scaled = self.mul(product, scale, name)?;
        bias.map_or(Ok(scaled), |bias| self.add(scaled, bias))
    }

    /// Kind and epsilon of the model's norms: RMS with `attention.layer_norm_rms_epsilon`, else layer norms
    /// with `attention.layer_norm_epsilon`.
    pub fn norm_kind(&self) -> Result<Norm> {
        const LAYER_EPSILON: &str = "attention.layer_norm_epsilon";
        match self.norm {
            Some(norm) => Ok(norm),
            None if self.metadata.contains(&self.key("attention.layer_norm_rms_epsilon")) => {
                self.positive_f32("attention.layer_norm_rms_epsilon").map(Norm::Rms)
            }
            None if self.metadata.contains(&self.key(LAYER_EPSILON)) => {
                self.positive_f32(LAYER_EPSILON).map(Norm::Layer)
            }
            None => Err(self.missing_key("attention.layer_norm_rms_epsilon or attention.layer_norm_epsilon")),
        }
    }

    /// Overrides [`Builder::norm_kind`].
    pub fn set_norm_kind(&mut self, norm: Norm) {
        self.norm = Some(norm);
    }

    /// The model's norm of the last axis, with `name.weight` (of a head, or with a row per head; some files
    /// lack the suffix) and, if the file has it, `name.bias`.
    pub fn norm(&mut self, name: &'static str, x: ValueId) -> Result<ValueId> {
        match (name, self.layer) {
            ("output_norm", None) => self.last_norm(x),
            _ => self.norm_of(name, x),
        }
    }

    fn norm_of(&mut self, name: &'static str, x: ValueId) -> Result<ValueId> {
        let mut weight_name = format!("{name}.weight");
        if !self.has(&weight_name) && self.has(name) {
            weight_name = name.to_string();
        }
        let mut shape = vec![self.width(x)];
        let is_split = self.graph.value_type(x).shape.len() > 2;
        let heads = self.heads_of(x);
        let per_head = is_split
            && self.has(&weight_name)
            && match self.shape_of(&weight_name)?[..] {
                [] => false,
                [all] => heads > 1 && all == heads.saturating_mul(self.width(x)),
                _ => true,
            };
        if per_head {
            shape.insert(0, heads);
        }
        let weight = self.joinable_weight(&weight_name, &shape)?;
        let bias = self.optional_weight(&format!("{name}.bias"), &shape)?;
        let mut inputs = vec![x.into(), weight];
        match self.norm_kind()? {
            Norm::Layer(epsilon) => {
                inputs.extend(bias);
                self.push(LayerNorm { epsilon }, inputs, name)
            }
            Norm::Rms(epsilon) => {
                let normed = self.push(RmsNorm { epsilon }, inputs, name)?;
                bias.map_or(Ok(normed), |bias| self.add(normed, bias))
            }
        }
    }

    /// The model's norm of the last axis without weights.
    pub fn norm_unweighted(&mut self, x: ValueId, name: &'static str) -> Result<ValueId> {
        let op: Op = match self.norm_kind()? {
            Norm::Rms(epsilon) => RmsNorm { epsilon }.into(),
            Norm::Layer(epsilon) => LayerNorm { epsilon }.into(),
        };
        self.push(op, vec![x.into()], name)
    }

    /// `[rows, n]` as `[rows, n / dim, dim]`.
    pub fn split_heads(&mut self, x: ValueId, dim: u32) -> Result<ValueId> {
        let heads = self.width(x) / dim.max(1);
        self.push(Reshape { trailing: vec![heads, dim] }, vec![x.into()], "heads")
    }

    /// `[rows, heads, dim]` as `[rows, heads · dim]`.
    pub fn join_heads(&mut self, x: ValueId) -> Result<ValueId> {
        let width = self.heads_of(x) * self.width(x);
        self.push(Reshape { trailing: vec![width] }, vec![x.into()], "joined")
    }

    /// Second extent of a value that is split into heads.
    pub fn heads_of(&self, value: ValueId) -> u32 {
        match self.graph.value_type(value).shape.get(1) {
            Some(puna_graph::Dim::Fixed(heads)) => *heads,
            _ => 0,
        }
    }

    /// Elements `start..start + length` of the last axis.
    pub fn slice(&mut self, x: ValueId, start: u32, length: u32) -> Result<ValueId> {
        self.push(Slice { start, length }, vec![x.into()], "slice")
    }

    /// `function(x)`.
    pub fn unary(&mut self, function: Function, x: ValueId, name: &'static str) -> Result<ValueId> {
        self.push(Unary { function }, vec![x.into()], name)
    }

    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: impl Into<Operand>) -> Result<ValueId> {
        self.push(Add, vec![a.into(), b.into()], "residual")
    }

    /// `a · b`, elementwise.
    pub fn mul(&mut self, a: ValueId, b: impl Into<Operand>, name: &'static str) -> Result<ValueId> {
        self.push(Mul, vec![a.into(), b.into()], name)
    }

    /// `x · factor`.
    pub fn scale(&mut self, x: ValueId, factor: f32, name: &'static str) -> Result<ValueId> {
        self.push(Scale { factor }, vec![x.into()], name)
    }

    /// `function(gate) · up`.
    pub fn glu(&mut self, function: Function, gate: ValueId, up: ValueId) -> Result<ValueId> {
        self.push(Glu { function }, vec![gate.into(), up.into()], "ffn_act")
    }

    /// Runs `build` with names referring to the tensors of one layer.
    pub fn at_layer(
        &mut self,
        layer: u32,
        build: impl FnOnce(&mut Self) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let outer = self.layer.replace(layer);
        let result = build(self);
        self.layer = outer;
        result
    }

    /// Runs `layer` for each layer in turn, or for the one that guesses ahead; inside, names refer to the layer's tensors.
    pub fn each_layer(
        &mut self,
        x: ValueId,
        mut layer: impl FnMut(&mut Self, ValueId) -> Result<ValueId>,
    ) -> Result<ValueId> {
        match self.guessing_layer() {
            Some(guessing) => self.at_layer(guessing, |b| layer(b, x)),
            None => self.each_layer_of("blk", self.layers, x, layer),
        }
    }

    /// [`Builder::each_layer`] for so many layers whose tensors have another prefix than `blk`.
    pub fn each_layer_of(
        &mut self,
        prefix: &'static str,
        layers: u32,
        mut x: ValueId,
        mut layer: impl FnMut(&mut Self, ValueId) -> Result<ValueId>,
    ) -> Result<ValueId> {
        let stack = if prefix == "blk" { self.blocks } else { layers };
        (self.layer_prefix, self.stack) = (prefix, stack);
        for index in 0..layers {
            self.layer = Some(index);
            x = layer(self, x)?;
        }
        self.layer = None;
        (self.layer_prefix, self.stack) = ("blk", self.blocks);
        Ok(x)
    }

    /// The rows that leave the model: `[Outputs, width]`.
    pub fn output_rows(&mut self, x: ValueId) -> Result<ValueId> {
        self.push(GatherRows, vec![x.into(), Operand::Input(Input::OutputRows)], "output_rows")
    }

    /// Numbers that the step brings beside its tokens, `[Tokens, width]`.
    pub fn features(&mut self, width: u32) -> Result<ValueId> {
        self.push(Features { width }, vec![Operand::Input(Input::Tokens)], "features")
    }

    /// Logits of the rows that leave the model; `output.weight` or, without it, the embedding table.
    pub fn logits(self, x: ValueId) -> Result<Graph> {
        self.logits_with(x, Head::default())
    }

    /// [`Builder::logits`] followed by what `head` says. Where embeddings are asked for they are made of `x`
    /// instead.
    pub fn logits_with(mut self, x: ValueId, head: Head) -> Result<Graph> {
        if matches!(self.purpose(), Purpose::Embed(_)) {
            return self.embeddings(x);
        }
        // A guess's rows were selected before the last norm.
        let rows = if self.guesses_ahead() { x } else { self.output_rows(x)? };
        let vocabulary = self.vocabulary()?;
        let said = head.last_tokens.unwrap_or(vocabulary);
        let weight = self.output_matrix(said, self.width(x))?;
        let mut inputs = vec![weight, rows.into()];
        if !head.ignores_bias {
            inputs.extend(self.optional_global_weight("output.bias", &[said])?);
        }
        let mut logits = self.push(MatMul, inputs, "output")?;
        if let Some(factor) = head.scale {
            logits = self.scale(logits, factor, "logit_scale")?;
        }
        if let Some(cap) = head.soft_cap {
            logits = self.push(SoftCap { cap }, vec![logits.into()], "logit_soft_cap")?;
        }
        if let Some(fill) = head.suppressed {
            logits = self.push(fill, vec![logits.into()], "suppressed")?;
        }
        if said != vocabulary {
            logits = self.after_tokens_never_chosen(logits, vocabulary)?;
        }
        let state = self.state_output()?;
        Ok(self.finish([(Output::Logits, logits)].into_iter().chain(state).collect()))
    }

    /// Logits of a vocabulary's last tokens after those of all before them, which are never chosen.
    fn after_tokens_never_chosen(&mut self, logits: ValueId, vocabulary: u32) -> Result<ValueId> {
        const NAME: &str = "never_chosen";
        let Some(before) = vocabulary.checked_sub(self.width(logits)) else {
            let [first, second] = ["token_embd.weight", "output.weight"].map(str::to_string);
            let shape = |name: &str| self.file_shape(name).unwrap_or_default().to_vec();
            let (first_shape, second_shape) = (shape(&first), shape(&second));
            return Err(ModelError::TensorsDisagree { first, first_shape, second, second_shape });
        };
        // Any column will do: it is overwritten.
        let column = self.slice(logits, 0, 1)?;
        let column = self.split_heads(column, 1)?;
        let columns = self.push(RepeatHeads { times: before }, vec![column.into()], NAME)?;
        let columns = self.join_heads(columns)?;
        let fill = FillColumns { start: 0, length: before, value: f32::NEG_INFINITY };
        let columns = self.push(fill, vec![columns.into()], NAME)?;
        self.push(Concat, vec![columns.into(), logits.into()], NAME)
    }
}
