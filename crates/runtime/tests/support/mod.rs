//! What the tests share: a small model made by hand, ways to run it, and measures of difference.
#![allow(dead_code)] // each test program uses a part

use std::sync::Arc;

use puna_backend::reference::Reference;
use puna_backend::{Backend, WeightSource};
pub use puna_conformance::normalised_squared_error;
use puna_graph::ops::{
    Add, Attention, Function, GatherRows, Glu, MaskRule, MatMul, Reshape, RmsNorm, Rope, RopeKind, RopePlace,
};
use puna_graph::{CacheGroup, Graph, Input, Operand, Output, StateDecl, StateId, WeightDecl, WeightId};
use puna_quant::DType;
use puna_runtime::{
    Batch, Model, ModelInformation, ModelOptions, OutputRows, Outputs, Placement, RuntimeError, Work,
};

pub const VOCABULARY: u32 = 24;
const WIDTH: u32 = 16;
const HEADS: u32 = 2;
const HEAD: u32 = 8;
const HIDDEN: u32 = 20;

/// Weights as bytes in memory.
pub struct Bytes(pub Vec<Vec<u8>>);

impl WeightSource for Bytes {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        &self.0[weight.index()]
    }

    fn release(&self, _: WeightId) {}
}

/// A decoder with one attention layer per cache group given, and made-up weights that depend on `seed`.
pub struct Handmade {
    pub graph: Graph,
    seed: u64,
    weights: Vec<Vec<u8>>,
}

impl Handmade {
    pub fn new(layers: &[CacheGroup], seed: u64) -> Self {
        let mut model = Self { graph: Graph::default(), seed, weights: Vec::new() };
        let table = model.weight("token_embd", &[VOCABULARY, WIDTH]);
        let mut x = model.push(GatherRows, &[table, Operand::Input(Input::Tokens)]);
        for (layer, group) in layers.iter().enumerate() {
            x = model.layer(x, layer as u32, *group);
        }
        x = model.push(GatherRows, &[x, Operand::Input(Input::OutputRows)]);
        x = model.push(RmsNorm { epsilon: 1e-5 }, &[x]);
        let output = model.weight("output", &[VOCABULARY, WIDTH]);
        let Operand::Value(logits) = model.push(MatMul, &[output, x]) else { unreachable!() };
        model.graph.outputs.push((Output::Logits, logits));
        model
    }

    fn layer(&mut self, x: Operand, layer: u32, group: CacheGroup) -> Operand {
        let state = StateId(self.graph.states.len() as u32);
        let key_value = StateDecl::KeyValue { layer, kv_heads: 1, key_dim: HEAD, value_dim: HEAD, group };
        self.graph.states.push(key_value);
        let normed = self.push(RmsNorm { epsilon: 1e-5 }, &[x]);
        let mut project = |name: &str, heads: u32| {
            let weight = self.weight(&format!("blk.{layer}.{name}"), &[heads * HEAD, WIDTH]);
            let flat = self.push(MatMul, &[weight, normed]);
            self.push(Reshape { trailing: vec![heads, HEAD] }, &[flat])
        };
        let (query, key, value) = (project("attn_q", HEADS), project("attn_k", 1), project("attn_v", 1));
        let rope = Rope {
            kind: RopeKind::Split,
            dimensions: HEAD,
            base: 1000.0,
            position_scale: 1.0,
            yarn: None,
            magnitude: 1.0,
            place: RopePlace::Own,
        };
        let query = self.push(rope, &[query, Operand::Input(Input::Positions)]);
        let key = self.push(rope, &[key, Operand::Input(Input::Positions)]);
        let mask = match group {
            CacheGroup::Full => MaskRule::Causal,
            CacheGroup::Window(length) => MaskRule::Window(length),
            other => panic!("the handmade model has no {other:?}"),
        };
        let attention =
            Attention { state, scale: 0.35, mask, soft_cap: None, alibi_max_bias: None, relative: None };
        let mixed = self.push(attention, &[query, key, value]);
        let weight = self.weight(&format!("blk.{layer}.attn_output"), &[WIDTH, HEADS * HEAD]);
        let projected = self.push(MatMul, &[weight, mixed]);
        let x = self.push(Add, &[x, projected]);
        let normed = self.push(RmsNorm { epsilon: 1e-5 }, &[x]);
        let gate = self.weight(&format!("blk.{layer}.ffn_gate"), &[HIDDEN, WIDTH]);
        let gate = self.push(MatMul, &[gate, normed]);
        let up = self.weight(&format!("blk.{layer}.ffn_up"), &[HIDDEN, WIDTH]);
        let up = self.push(MatMul, &[up, normed]);
        let hidden = self.push(Glu { function: Function::Silu }, &[gate, up]);
        let down = self.weight(&format!("blk.{layer}.ffn_down"), &[WIDTH, HIDDEN]);
        let down = self.push(MatMul, &[down, hidden]);
        self.push(Add, &[x, down])
    }

    fn push(&mut self, op: impl Into<puna_graph::Op>, inputs: &[Operand]) -> Operand {
        Operand::Value(self.graph.push(op, inputs.to_vec(), None, "node").expect("shapes fit"))
    }

    fn weight(&mut self, name: &str, shape: &[u32]) -> Operand {
        let count = shape.iter().map(|extent| *extent as usize).product();
        let floats = uniform(name, count, self.seed);
        self.weights.push(floats.iter().flat_map(|x| (0.6 * *x as f32).to_le_bytes()).collect());
        let declared =
            WeightDecl { name: name.to_owned(), dtype: DType::F32, shape: shape.to_vec(), layer: None };
        self.graph.weights.push(declared);
        Operand::Weight(WeightId(self.graph.weights.len() as u32 - 1))
    }

    /// Loads it on these back ends, the first of which runs what it can.
    pub fn try_load(
        &self,
        backends: &[Arc<dyn Backend>],
        options: &ModelOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Model, RuntimeError> {
        let information = ModelInformation { architecture: "handmade".into(), ..Default::default() };
        let (graph, weights) = (self.graph.clone(), Arc::new(Bytes(self.weights.clone())));
        Model::assemble(graph, weights, information, backends, &Placement::default(), options, progress)
    }

    /// The same, which must succeed.
    pub fn load_on(&self, backends: &[Arc<dyn Backend>], options: &ModelOptions) -> Model {
        self.try_load(backends, options, &mut |_| true).expect("loads")
    }

    /// Loads it on the evaluator.
    pub fn load(&self, options: &ModelOptions) -> Model {
        self.load_on(&reference(), options)
    }
}

pub fn reference() -> Vec<Arc<dyn Backend>> {
    vec![Arc::new(Reference)]
}

/// Numbers in [-1, 1) that depend on a name and a seed (SplitMix64; Steele et al., 2014).
pub fn uniform(name: &str, count: usize, seed: u64) -> Vec<f64> {
    let mut state = name.bytes().fold(seed, |state, byte| state.wrapping_mul(257).wrapping_add(byte as u64));
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Options of a small context.
pub fn options(context: u32, sequences: u32, micro_batch: u32) -> ModelOptions {
    ModelOptions { context, sequences, micro_batch, ..ModelOptions::default() }
}

/// Made-up token ids.
pub fn text(length: usize, seed: u64) -> Vec<u32> {
    let uniform = uniform("text", length, seed);
    uniform.iter().map(|x| ((x + 1.0) / 2.0 * VOCABULARY as f64) as u32).collect()
}

pub fn work(sequence: u32, tokens: &[u32], outputs: OutputRows) -> Work {
    Work { sequence, tokens: tokens.to_vec(), outputs }
}

/// Runs tokens of one sequence and returns all rows of logits.
pub fn all_rows(model: &mut Model, sequence: u32, tokens: &[u32]) -> Vec<f32> {
    run(model, vec![work(sequence, tokens, OutputRows::All)]).logits.into_vec()
}

pub fn run(model: &mut Model, work: Vec<Work>) -> Outputs {
    model.run(&Batch::of(work)).expect("runs")
}

/// Asserts equality up to the order of sums in the evaluator.
#[track_caller]
pub fn assert_same(found: &[f32], expected: &[f32]) {
    let error = normalised_squared_error(found, expected);
    assert!(error < 1e-11, "normalised error {error:e}");
}
