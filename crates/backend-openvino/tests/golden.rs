//! The text of small models, one for each family of operations. Nothing of OpenVINO is needed.

use std::path::Path;
use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::{Segment, WeightSource};
use puna_backend_openvino::translate::{CacheForm, Choices, Interface, order, translate};
use puna_backend_openvino::weights::Kind;
use puna_graph::ops::*;
use puna_graph::{CacheGroup, Graph, Input, Op, Operand, Output, StateDecl, StateId, WeightDecl, WeightId};
use puna_quant::DType;

/// Set, it has the texts written instead of compared.
const WRITE: &str = "PUNA_WRITE_PAGES";

/// Tensors of bytes that count up.
struct Counting(Vec<Vec<u8>>);

impl WeightSource for Counting {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        &self.0[weight.index()]
    }

    fn release(&self, _: WeightId) {}
}

/// A graph in the making.
#[derive(Default)]
struct Sketch {
    graph: Graph,
}

impl Sketch {
    fn weight(&mut self, dtype: DType, shape: &[u32]) -> Operand {
        let name = format!("tensor.{}", self.graph.weights.len());
        self.graph.weights.push(WeightDecl { name, dtype, shape: shape.to_vec(), layer: Some(0) });
        Operand::Weight(WeightId(self.graph.weights.len() as u32 - 1))
    }

    fn state(&mut self, state: StateDecl) -> StateId {
        self.graph.states.push(state);
        StateId(self.graph.states.len() as u32 - 1)
    }

    fn push(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Operand {
        let value = self.graph.push(op, inputs.to_vec(), Some(0), "node").expect("shapes fit");
        Operand::Value(value)
    }

    /// `[Tokens, width]`, looked up.
    fn rows(&mut self, width: u32) -> Operand {
        let table = self.weight(DType::F32, &[5, width]);
        self.push(GatherRows, &[table, Operand::Input(Input::Tokens)])
    }

    fn heads(&mut self, x: Operand, heads: u32, width: u32) -> Operand {
        self.push(Reshape { trailing: vec![heads, width] }, &[x])
    }

    /// Compares the translation with the recorded one.
    fn check(mut self, name: &str, result: Operand, choices: &Choices) {
        let Operand::Value(value) = result else { panic!("a node makes the result") };
        self.graph.outputs.push((Output::Watched, value));
        let bytes = |weight: &WeightDecl| {
            let elements: usize = weight.shape.iter().product::<u32>() as usize;
            let format = weight.dtype.format();
            (0..elements / format.block * format.bytes).map(|byte| byte as u8 % 64).collect()
        };
        let weights: Arc<dyn WeightSource> =
            Arc::new(Counting(self.graph.weights.iter().map(bytes).collect()));
        let graph = Arc::new(self.graph);
        let (_, segment): (_, Segment) = partition(&graph, |_| 0).remove(0);
        let translated = translate(&segment, &weights, choices);
        let feeds: Vec<String> = translated.interface.feeds.iter().map(|feed| feed.name()).collect();
        let products: Vec<String> =
            translated.interface.products.iter().map(|product| product.name()).collect();
        let again = Interface::named(&segment, &weights, &feeds, &products);
        assert_eq!(again.as_ref(), Some(&translated.interface), "names say what an input or output is");
        // The writer's tabs would make the files twice as long.
        let xml = translated.model.to_xml().replace('\t', "");
        let text = format!(
            "<!-- feeds: {}; products: {}; bytes of constants: {} -->\n{xml}",
            feeds.join(" "),
            products.join(" "),
            translated.blob.length()
        );
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.xml"));
        if std::env::var(WRITE).is_ok() {
            std::fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder");
            std::fs::write(&path, text).expect("the text is written");
            return;
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        let different = text.lines().zip(recorded.lines()).position(|(new, old)| new != old);
        assert!(
            text == recorded,
            "{name}.xml differs from line {:?} on; if that is meant, run this test with {WRITE}=1",
            different.map(|line| line + 1)
        );
    }
}

fn key_value(group: CacheGroup) -> StateDecl {
    StateDecl::KeyValue { layer: 0, kv_heads: 1, key_dim: 4, value_dim: 4, group }
}

#[test]
fn products() {
    for (name, dtype, kind) in [
        ("product_f16", DType::F16, Kind::Cpu),
        ("product_q4_1", DType::Q4_1, Kind::Cpu),
        ("product_q4_1_dynamic", DType::Q4_1, Kind::CpuDynamic),
        ("product_q6_k_graphics", DType::Q6_K, Kind::Gpu),
        ("product_q4_0_npu", DType::Q4_0, Kind::Npu),
    ] {
        let mut sketch = Sketch::default();
        let x = sketch.rows(256);
        let weight = sketch.weight(dtype, &[3, 256]);
        let bias = sketch.weight(DType::F32, &[3]);
        let result = sketch.push(MatMul, &[weight, x, bias]);
        sketch.check(name, result, &Choices { kind, ..Choices::default() });
    }
}

#[test]
fn look_ups() {
    let mut sketch = Sketch::default();
    let table = sketch.weight(DType::Q8_0, &[7, 32]);
    let result = sketch.push(GatherRows, &[table, Operand::Input(Input::Tokens)]);
    sketch.check("look_up", result, &Choices::default());
}

#[test]
fn norms() {
    let mut sketch = Sketch::default();
    let x = sketch.rows(8);
    let weight = sketch.weight(DType::F32, &[8]);
    let normal = sketch.push(RmsNorm { epsilon: 1e-5 }, &[x, weight]);
    let result = sketch.push(LayerNorm { epsilon: 1e-6 }, &[normal]);
    sketch.check("norms", result, &Choices::default());
}

#[test]
fn elements() {
    let mut sketch = Sketch::default();
    let (gate, up) = (sketch.rows(8), sketch.rows(8));
    let glu = sketch.push(Glu { function: Function::Silu }, &[gate, up]);
    let capped = sketch.push(SoftCap { cap: 30.0 }, &[glu]);
    let scaled = sketch.push(Scale { factor: 0.5 }, &[capped]);
    let result = sketch.push(Add, &[scaled, up]);
    sketch.check("elements", result, &Choices::default());
}

#[test]
fn rotations() {
    for (name, kind, dimensions) in [
        ("rotation_split", RopeKind::Split, 8),
        ("rotation_split_partial", RopeKind::Split, 4),
        ("rotation_interleaved", RopeKind::Interleaved, 8),
    ] {
        let mut sketch = Sketch::default();
        let x = sketch.rows(16);
        let x = sketch.heads(x, 2, 8);
        let rope = Rope {
            kind,
            dimensions,
            base: 10_000.0,
            position_scale: 1.0,
            yarn: None,
            magnitude: 1.0,
            place: RopePlace::default(),
        };
        let result = sketch.push(rope, &[x, Operand::Input(Input::Positions)]);
        sketch.check(name, result, &Choices::default());
    }
}

/// Queries and keys of products, whose rows are reordered, so that their rotation needs no other order.
#[test]
fn neighbours_apart() {
    let mut sketch = Sketch::default();
    let state = sketch.state(key_value(CacheGroup::Full));
    let x = sketch.rows(8);
    let rope = Rope {
        kind: RopeKind::Interleaved,
        dimensions: 4,
        base: 10_000.0,
        position_scale: 1.0,
        yarn: None,
        magnitude: 1.0,
        place: RopePlace::default(),
    };
    let turned = [8, 4].map(|width| {
        let weight = sketch.weight(DType::Q8_0, &[width, 32]);
        let wide = sketch.weight(DType::F32, &[32, 8]);
        let wide = sketch.push(MatMul, &[wide, x]);
        let rows = sketch.push(MatMul, &[weight, wide]);
        let heads = sketch.heads(rows, width / 4, 4);
        sketch.push(rope, &[heads, Operand::Input(Input::Positions)])
    });
    let values = sketch.rows(4);
    let values = sketch.heads(values, 1, 4);
    let mask = MaskRule::Causal;
    let op = Attention { state, scale: 0.5, mask, soft_cap: None, alibi_max_bias: None, relative: None };
    let result = sketch.push(op, &[turned[0], turned[1], values]);
    // Where something else reads the keys, they keep their order.
    let nodes = 0..sketch.graph.nodes.len();
    let mut other = sketch.graph.clone();
    other.push(Reshape { trailing: vec![4] }, vec![turned[1]], Some(0), "other").expect("it fits");
    assert_eq!(order::find(&sketch.graph, nodes.clone()).keys.len(), 1);
    assert!(order::find(&other, nodes).keys.is_empty());
    sketch.check("rotation_neighbours_apart", result, &Choices::default());
}

#[test]
fn attention() {
    for (name, form, manual_attention, group) in [
        ("attention_host", CacheForm::Host, false, CacheGroup::Full),
        ("attention_products", CacheForm::Host, true, CacheGroup::Window(8)),
        ("attention_stateful", CacheForm::Stateful, false, CacheGroup::Full),
        ("attention_pages", CacheForm::Paged, false, CacheGroup::Window(8)),
    ] {
        let mut sketch = Sketch::default();
        let state = sketch.state(key_value(group));
        let (queries, keys, values) = (sketch.rows(8), sketch.rows(4), sketch.rows(4));
        let inputs = [sketch.heads(queries, 2, 4), sketch.heads(keys, 1, 4), sketch.heads(values, 1, 4)];
        let mask = match group {
            CacheGroup::Window(length) => MaskRule::Window(length),
            _ => MaskRule::Causal,
        };
        let op = Attention { state, scale: 0.5, mask, soft_cap: None, alibi_max_bias: None, relative: None };
        let result = sketch.push(op, &inputs);
        sketch.check(name, result, &Choices { form, manual_attention, ..Choices::default() });
    }
}

#[test]
fn fixed_extents() {
    let mut sketch = Sketch::default();
    let state = sketch.state(key_value(CacheGroup::Full));
    let (queries, keys, values) = (sketch.rows(8), sketch.rows(4), sketch.rows(4));
    let inputs = [sketch.heads(queries, 2, 4), sketch.heads(keys, 1, 4), sketch.heads(values, 1, 4)];
    let op = Attention {
        state,
        scale: 0.5,
        mask: MaskRule::Causal,
        soft_cap: Some(20.0),
        alibi_max_bias: None,
        relative: None,
    };
    let result = sketch.push(op, &inputs);
    let choices = Choices { tokens: Some(16), outputs: Some(1), cells: Some(vec![64]), ..Choices::default() };
    sketch.check("attention_fixed", result, &choices);
}

#[test]
fn experts() {
    let mut sketch = Sketch::default();
    let x = sketch.rows(32);
    let router = sketch.weight(DType::F32, &[4, 32]);
    let logits = sketch.push(MatMul, &[router, x]);
    let route = RouteExperts { used: 2, gating: Gating::Softmax, groups: None };
    let chosen = sketch.push(route, &[logits]);
    let share = ExpertWeights { gating: Gating::Softmax, normalise: true, scale: 1.0 };
    let shares = sketch.push(share, &[logits, chosen]);
    let (up, down) = (sketch.weight(DType::Q8_0, &[4, 32, 32]), sketch.weight(DType::Q8_0, &[4, 32, 32]));
    let inner = sketch.push(MatMulExperts, &[up, x, chosen]);
    let outer = sketch.push(MatMulExperts, &[down, inner, chosen]);
    let result = sketch.push(SumExperts, &[outer, shares]);
    sketch.check("experts", result, &Choices::default());
}

#[test]
fn hyper_connections() {
    let mut sketch = Sketch::default();
    let x = sketch.rows(8);
    let streams = sketch.heads(x, 2, 4);
    let (logits, scales, bases) =
        (sketch.rows(8), sketch.weight(DType::F32, &[3]), sketch.weight(DType::F32, &[8]));
    let read = sketch.push(HyperRead { epsilon: 1e-6 }, &[streams, logits, scales, bases]);
    let write = HyperWrite { magnitude: 2.0, offset: 0.0, epsilon: 1e-6, rounds: Some(2) };
    let result = sketch.push(write, &[streams, read, logits, scales, bases]);
    sketch.check("hyper_connections", result, &Choices::default());
}

#[test]
fn recurrences() {
    let mut sketch = Sketch::default();
    let state = sketch.state(StateDecl::Recurrent { layer: 0, elements: 3 * 8 });
    let x = sketch.rows(8);
    let weight = sketch.weight(DType::F32, &[8, 4]);
    let result = sketch.push(ShortConvolution { state, dilation: 1 }, &[x, weight]);
    sketch.check("convolution", result, &Choices::default());
}

#[test]
fn arrangements() {
    let mut sketch = Sketch::default();
    let x = sketch.rows(8);
    let first = sketch.push(Slice { start: 0, length: 4 }, &[x]);
    let both = sketch.push(Concat, &[x, first]);
    let heads = sketch.heads(both, 3, 4);
    let result = sketch.push(RepeatHeads { times: 2 }, &[heads]);
    sketch.check("arrangements", result, &Choices::default());
}
