//! Recurrences and row-wise operations against the evaluator, per instruction set and number of threads: two sequences
//! whose tokens come in the same steps, with sizes that are no multiple of a vector.

use std::collections::BTreeMap;
use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::reference::Reference;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, WeightSource};
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_graph::ops::{
    BlockAttention, CompressBlocks, Concat, Function, GatedDeltaRule, GatedLinearAttention, GatherRows,
    HyperRead, HyperWrite, Interpolate, KeyHeads, NgramHead, NgramRows, RepeatHeads, Reshape, Rope, RopeKind,
    RopePlace, Rwkv7, SelectiveScan, ShortConvolution, SumElements, SumExperts, TokenShift, Unary, Xielu,
};
use puna_graph::{
    CacheGroup, Graph, GroupStep, Input, Op, Operand, Output, Span, StateDecl, StateId, Step, ValueId,
    WeightDecl, WeightId,
};
use puna_quant::DType;

const VOCABULARY: u32 = 29;

/// A graph of one operation, whose inputs are rows of tables at the step's tokens.
#[derive(Default)]
struct Case {
    graph: Graph,
    weights: Vec<Vec<u8>>,
    seed: u64,
}

struct Bytes(Vec<Vec<u8>>);

impl WeightSource for Bytes {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        &self.0[weight.index()]
    }

    fn release(&self, _: WeightId) {}
}

impl Case {
    fn random(&mut self) -> f32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    /// A tensor with numbers between `low` and `high`.
    fn weight(&mut self, shape: &[u32], low: f32, high: f32) -> Operand {
        let count: u32 = shape.iter().product();
        let floats: Vec<f32> = (0..count).map(|_| low + (self.random() + 1.0) / 2.0 * (high - low)).collect();
        self.weights.push(floats.iter().flat_map(|x| x.to_le_bytes()).collect());
        let name = format!("weight {}", self.weights.len());
        self.graph.weights.push(WeightDecl { name, dtype: DType::F32, shape: shape.to_vec(), layer: None });
        Operand::Weight(WeightId(self.graph.weights.len() as u32 - 1))
    }

    /// A value with these extents after the rows.
    fn value(&mut self, trailing: &[u32], low: f32, high: f32) -> Operand {
        let table = self.weight(&[VOCABULARY, trailing.iter().product()], low, high);
        let rows = self.push(GatherRows, &[table, Operand::Input(Input::Tokens)]);
        self.push(Reshape { trailing: trailing.to_vec() }, &[rows])
    }

    fn push(&mut self, op: impl Into<Op>, inputs: &[Operand]) -> Operand {
        Operand::Value(self.graph.push(op, inputs.to_vec(), None, "node").expect("shapes fit"))
    }

    fn recurrent(&mut self, elements: u32) -> StateId {
        self.graph.states.push(StateDecl::Recurrent { layer: 0, elements });
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// Compares the operation's result on the CPU with the evaluator's.
    fn check(mut self, name: &str, result: Operand) {
        let Operand::Value(value) = result else { panic!("{name}: a result is a value") };
        let width = self.graph.value_type(value).row_elements() as u32;
        let flat = self.push(Reshape { trailing: vec![width] }, &[result]);
        let Operand::Value(rows) = self.push(GatherRows, &[flat, Operand::Input(Input::OutputRows)]) else {
            unreachable!("a node is a value")
        };
        self.graph.outputs.push((Output::Logits, rows));
        let graph = Arc::new(self.graph);
        let weights = Arc::new(Bytes(self.weights));
        let right = run(&Reference, &graph, &weights, rows);
        for (level, features) in Features::detect().levels() {
            for threads in [1, 3] {
                let cpu =
                    Cpu::new(CpuOptions { threads, features, deterministic: false, keep_source: false })
                        .expect("threads start");
                let found = run(&cpu, &graph, &weights, rows);
                assert_eq!(found.len(), right.len(), "{name}");
                let scale = right.iter().fold(0.0, |most: f32, x| most.max(x.abs())).max(1e-3);
                for (index, (found, right)) in found.iter().zip(&right).enumerate() {
                    let error = (found - right).abs();
                    assert!(
                        error <= 1e-5 * scale,
                        "{name} on {level}, {threads} threads: number {index} is {found}, should be {right}"
                    );
                }
            }
        }
    }
}

/// Runs of tokens per step: sequence and number.
const STEPS: &[&[(u32, u32)]] =
    &[&[(0, 5), (1, 3)], &[(1, 1), (0, 4)], &[(0, 1), (1, 1)], &[(1, 9)], &[(0, 2)]];

/// What all steps give, one after the other.
fn run(backend: &dyn Backend, graph: &Arc<Graph>, weights: &Arc<Bytes>, result: ValueId) -> Vec<f32> {
    const CELLS: u32 = 40;
    let cells = vec![CELLS; graph.groups().len()];
    let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 2, cells };
    let (_, segment) = partition(graph, |_| 0).remove(0);
    let mut partition = backend
        .load(DeviceId(0), segment, weights.clone(), &caches, &mut |_| true)
        .expect("the segment loads");
    let program = partition.compile(Bounds { tokens: 16, outputs: 16 }).expect("the segment compiles");
    let (mut lengths, mut recurrent) = (BTreeMap::<u32, u32>::new(), BTreeMap::<u32, u32>::new());
    let mut cell_positions: Vec<i32> = Vec::new();
    let mut owned: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut found = Vec::new();
    for (number, pieces) in STEPS.iter().enumerate() {
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        let (mut full, mut carried) = (GroupStep::default(), GroupStep::default());
        for (sequence, count) in *pieces {
            let first = tokens.len() as u32;
            let rows = first..first + count;
            let length = lengths.entry(*sequence).or_default();
            for _ in 0..*count {
                tokens.push((7 * *length + 11 * sequence + *length * *length) % VOCABULARY);
                positions.push(*length as i32);
                full.write_cells.push(cell_positions.len() as u32);
                owned.entry(*sequence).or_default().push(cell_positions.len() as u32);
                cell_positions.push(*length as i32);
                *length += 1;
            }
            let cells = owned[sequence].iter().map(|cell| *cell..cell + 1).collect();
            full.spans.push(Span { tokens: rows.clone(), cells });
            let before = recurrent.get(sequence).map(|cell| *cell..cell + 1);
            // Sequence 0 leaves a state behind at each step, sequence 1 changes its own.
            let cell = if *sequence == 0 { 1 + number as u32 } else { 0 };
            carried.write_cells.extend(rows.clone().map(|_| cell));
            carried.spans.push(Span { tokens: rows, cells: before.into_iter().collect() });
            recurrent.insert(*sequence, cell);
        }
        full.cell_positions = cell_positions.clone();
        let of_group = |group: CacheGroup| match group {
            CacheGroup::Recurrent => carried.clone(),
            _ => full.clone(),
        };
        let output_rows = (0..tokens.len() as u32).collect();
        let groups = graph.groups().into_iter().map(of_group).collect();
        let mut boundary = Boundary::default();
        let sequences = full.spans.iter().map(|span| span.tokens.clone()).collect();
        let step = Step { tokens, positions, output_rows, sequences, groups, ..Step::default() };
        partition.run(program, &step, &mut boundary).expect("the step runs");
        found.extend(boundary.values.remove(&result).expect("it leaves the segment").into_floats());
    }
    found
}

#[test]
fn convolutions_and_shifts() {
    for (channels, kernel, dilation, has_bias) in
        [(37, 4, 1, true), (300, 3, 3, false), (5, 1, 1, true), (19, 12, 1, false), (600, 4, 2, true)]
    {
        let mut case = Case::default();
        let x = case.value(&[channels], -1.0, 1.0);
        let taps = case.weight(&[channels, kernel], -1.0, 1.0);
        let mut inputs = vec![x, taps];
        if has_bias {
            inputs.push(case.weight(&[channels], -1.0, 1.0));
        }
        let state = case.recurrent(dilation * (kernel - 1) * channels);
        let result = case.push(ShortConvolution { state, dilation }, &inputs);
        case.check(&format!("{channels} channels, {kernel} taps, dilation {dilation}"), result);
    }
    for width in [3, 37, 700] {
        let mut case = Case::default();
        let x = case.value(&[width], -1.0, 1.0);
        let state = case.recurrent(width);
        let result = case.push(TokenShift { state }, &[x]);
        case.check(&format!("shift of {width}"), result);
    }
}

#[test]
fn selective_scans() {
    for (heads, dim, size, groups, per_head) in
        [(37, 1, 16, 1, false), (6, 1, 5, 2, false), (6, 33, 20, 2, true), (4, 8, 128, 1, true)]
    {
        let mut case = Case::default();
        let u = case.value(&[heads, dim], -1.0, 1.0);
        let steps = case.value(&[heads], 0.0, 2.0);
        let rates = if per_head { vec![heads] } else { vec![heads, size] };
        let a = case.weight(&rates, -2.0, -0.01);
        let b = case.value(&[groups, size], -1.0, 1.0);
        let c = case.value(&[groups, size], -1.0, 1.0);
        let skip = case.weight(&[heads], -1.0, 1.0);
        let state = case.recurrent(heads * dim * size);
        let result = case.push(SelectiveScan { state }, &[u, steps, a, b, c, skip]);
        case.check(&format!("scan of {heads} heads of {dim}, {size} each"), result);
    }
}

#[test]
fn delta_rules() {
    for (key_heads, heads, key_dim, value_dim, per_channel, kind) in [
        (2, 4, 20, 70, false, KeyHeads::Grouped),
        (2, 4, 20, 70, false, KeyHeads::Cyclic),
        (3, 3, 33, 64, true, KeyHeads::Grouped),
        (1, 2, 128, 128, true, KeyHeads::Grouped),
        (1, 1, 5, 3, false, KeyHeads::Grouped),
    ] {
        let mut case = Case::default();
        let [q, k] = [(); 2].map(|()| case.value(&[key_heads, key_dim], -0.3, 0.3));
        let v = case.value(&[heads, value_dim], -1.0, 1.0);
        let decays = case.value(&[heads, if per_channel { key_dim } else { 1 }], -2.0, 0.0);
        let rates = case.value(&[heads], 0.0, 1.0);
        let state = case.recurrent(heads * key_dim * value_dim);
        let op = GatedDeltaRule { state, scale: 0.3, key_heads: kind };
        let result = case.push(op, &[q, k, v, decays, rates]);
        case.check(&format!("delta rule of {heads} heads, {key_dim} by {value_dim}, {kind:?}"), result);
    }
}

#[test]
fn linear_attention() {
    for (heads, key_dim, value_dim) in [(3, 20, 70), (2, 64, 64), (1, 5, 3)] {
        for (constant, bonus) in [(false, false), (false, true), (true, false)] {
            let mut case = Case::default();
            let [q, k] = [(); 2].map(|()| case.value(&[heads, key_dim], -1.0, 1.0));
            let v = case.value(&[heads, value_dim], -1.0, 1.0);
            let mut inputs = vec![q, k, v];
            if !constant {
                inputs.push(case.value(&[heads, key_dim], 0.2, 1.0));
            }
            if bonus {
                inputs.push(case.weight(&[heads, key_dim], -1.0, 1.0));
            }
            let head_decays = constant.then(|| (0..heads).map(|head| 0.9 - 0.1 * head as f32).collect());
            let state = case.recurrent(heads * key_dim * value_dim);
            let result = case.push(GatedLinearAttention { state, scale: 0.3, head_decays }, &inputs);
            case.check(&format!("linear attention, {key_dim} by {value_dim}, {constant}, {bonus}"), result);
        }
    }
}

#[test]
fn rwkv7() {
    for (heads, dim) in [(3, 40), (2, 64), (1, 7)] {
        let mut case = Case::default();
        let r = case.value(&[heads, dim], -1.0, 1.0);
        let w = case.value(&[heads, dim], 0.5, 1.0);
        let [k, v] = [(); 2].map(|()| case.value(&[heads, dim], -1.0, 1.0));
        let e = case.value(&[heads, dim], -0.2, 0.2);
        let a = case.value(&[heads, dim], 0.0, 1.0);
        let state = case.recurrent(heads * dim * dim);
        let result = case.push(Rwkv7 { state }, &[r, w, k, v, e, a]);
        case.check(&format!("RWKV 7 of {heads} heads of {dim}"), result);
    }
}

#[test]
fn blocks() {
    for (heads, width, window, ratio, has_sinks) in [(11, 24, 3, 2, true), (3, 33, 5, 4, false)] {
        let mut case = Case::default();
        let q = case.value(&[heads, width], -1.0, 1.0);
        let [k, b] = [(); 2].map(|()| case.value(&[1, width], -1.0, 1.0));
        let mut inputs = vec![q, k, b];
        if has_sinks {
            inputs.push(case.weight(&[heads], -1.0, 1.0));
        }
        case.graph.states.push(StateDecl::KeyValue {
            layer: 0,
            kv_heads: 1,
            key_dim: width,
            value_dim: width,
            group: CacheGroup::Full,
        });
        let op = BlockAttention { state: StateId(0), scale: 0.4, window, ratio };
        let result = case.push(op, &inputs);
        case.check(&format!("block attention of {heads} heads, window {window}, ratio {ratio}"), result);
    }
    for (channels, ratio, overlap) in [(26, 3, true), (13, 2, false)] {
        let mut case = Case::default();
        let [values, gates] = [(); 2].map(|()| case.value(&[channels], -1.0, 1.0));
        let biases = case.weight(&[ratio, channels], -1.0, 1.0);
        let state = case.recurrent(4 * ratio * channels / if overlap { 1 } else { 2 });
        let op = CompressBlocks { state, ratio, overlap };
        let blocks = case.push(op, &[values, gates, biases]);
        let width = if overlap { channels / 2 } else { channels };
        let heads = case.push(Reshape { trailing: vec![1, width] }, &[blocks]);
        let rope = Rope {
            kind: RopeKind::Interleaved,
            dimensions: 6,
            base: 100.0,
            position_scale: 1.0,
            yarn: None,
            magnitude: 1.0,
            place: RopePlace::BlockStart(ratio),
        };
        let turned = case.push(rope, &[heads, Operand::Input(Input::Positions)]);
        let back = Rope { place: RopePlace::Reversed, ..rope };
        let result = case.push(back, &[turned, Operand::Input(Input::Positions)]);
        case.check(&format!("blocks of {ratio}, overlap {overlap}"), result);
    }
}

#[test]
fn hashed_rows() {
    let mut case = Case::default();
    let state = case.recurrent(2);
    let heads = vec![
        NgramHead { tokens: 2, first: 0, rows: 20 },
        NgramHead { tokens: 3, first: 20, rows: 11 },
        NgramHead { tokens: 3, first: 0, rows: 31 },
    ];
    let op = NgramRows { state, multipliers: vec![3, u64::MAX - 4, 77], heads, end: 5 };
    let rows = case.push(op, &[Operand::Input(Input::Tokens)]);
    let table = case.weight(&[31, 12], -1.0, 1.0);
    let result = case.push(GatherRows, &[table, rows]);
    case.check("hashed rows", result);
}

#[test]
fn row_wise_operations() {
    type Build = fn(&mut Case) -> Operand;
    let cases: &[(&str, Build)] = &[
        ("Concat", |case| {
            let a = case.value(&[3, 5], -1.0, 1.0);
            let b = case.value(&[3, 7], -1.0, 1.0);
            case.push(Concat, &[a, b])
        }),
        ("RepeatHeads", |case| {
            let x = case.value(&[3, 5], -1.0, 1.0);
            case.push(RepeatHeads { times: 4 }, &[x])
        }),
        ("SumElements", |case| {
            let x = case.value(&[3, 50], -1.0, 1.0);
            case.push(SumElements, &[x])
        }),
        ("SumExperts", |case| {
            let x = case.value(&[3, 50], -1.0, 1.0);
            let shares = case.value(&[3], -1.0, 1.0);
            let weighted = case.push(SumExperts, &[x, shares]);
            let plain = case.push(SumExperts, &[x]);
            case.push(Concat, &[weighted, plain])
        }),
        ("Interpolate", |case| {
            let [a, b] = [(); 2].map(|()| case.value(&[37], -1.0, 1.0));
            let shares = case.weight(&[3, 37], -1.0, 1.0);
            case.push(Interpolate, &[a, b, shares])
        }),
        ("Interpolate by row", |case| {
            let [a, b] = [(); 2].map(|()| case.value(&[37], -1.0, 1.0));
            let shares = case.value(&[2, 37], -1.0, 1.0);
            case.push(Interpolate, &[a, b, shares])
        }),
        ("Softplus", |case| {
            let x = case.value(&[37], -30.0, 30.0);
            case.push(Unary { function: Function::Softplus }, &[x])
        }),
        ("SignedRoot", |case| {
            let x = case.value(&[37], -2.0, 2.0);
            case.push(Unary { function: Function::SignedRoot }, &[x])
        }),
        ("Xielu", |case| {
            let x = case.value(&[37], -4.0, 4.0);
            case.push(Xielu { alpha_p: 0.4, alpha_n: 0.7, beta: 0.5, epsilon: -1e-6 }, &[x])
        }),
        ("HyperRead", |case| {
            let streams = case.value(&[4, 33], -1.0, 1.0);
            let logits = case.value(&[24], -1.0, 1.0);
            let (scales, bases) = (case.weight(&[3], 0.0, 1.0), case.weight(&[24], -1.0, 1.0));
            case.push(HyperRead { epsilon: 1e-3 }, &[streams, logits, scales, bases])
        }),
        ("HyperWrite", |case| {
            let streams = case.value(&[4, 33], -1.0, 1.0);
            let y = case.value(&[33], -1.0, 1.0);
            let logits = case.value(&[24], -1.0, 1.0);
            let (scales, bases) = (case.weight(&[3], 0.0, 1.0), case.weight(&[24], -1.0, 1.0));
            let op = HyperWrite { magnitude: 2.0, offset: 0.0, epsilon: 1e-3, rounds: Some(3) };
            case.push(op, &[streams, y, logits, scales, bases])
        }),
        ("HyperWrite without a mixture", |case| {
            let streams = case.value(&[4, 33], -1.0, 1.0);
            let y = case.value(&[33], -1.0, 1.0);
            let logits = case.value(&[8], -1.0, 1.0);
            let (scales, bases) = (case.weight(&[2], 0.0, 1.0), case.weight(&[8], -1.0, 1.0));
            let op = HyperWrite { magnitude: 1.5, offset: 0.1, epsilon: 1e-3, rounds: None };
            case.push(op, &[streams, y, logits, scales, bases])
        }),
    ];
    for (name, build) in cases {
        let mut case = Case { seed: 3, ..Case::default() };
        let result = build(&mut case);
        case.check(name, result);
    }
}
