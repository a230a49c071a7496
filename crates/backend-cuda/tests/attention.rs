//! Attention as models have it (products, rotation, cache, mask) with the heads that have kernels of their own and with
//! others, for prompts, single tokens and steps of many sequences, against the evaluator.

mod emulated;

use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::reference::Reference;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, WeightSource};
use puna_backend_cuda::Cuda;
use puna_conformance::normalised_squared_error;
use puna_conformance::run::group_step;
use puna_graph::ops::{Attention, GatherRows, MaskRule, MatMul, Reshape, Rope, RopeKind, RopePlace};
use puna_graph::{
    CacheGroup, Graph, GroupStep, Input, Operand, Output, Span, StateDecl, StateId, Step, ValueId,
    WeightDecl, WeightId,
};
use puna_quant::DType;

const WIDTH: u32 = 32;
const VOCABULARY: u32 = 50;

struct Tensors(Vec<Vec<u8>>);

impl WeightSource for Tensors {
    fn bytes(&self, weight: WeightId) -> &[u8] {
        &self.0[weight.index()]
    }
    fn release(&self, _: WeightId) {}
}

struct Case {
    head: u32,
    heads: u32,
    kv_heads: u32,
    mask: MaskRule,
    soft_cap: Option<f32>,
    sinks: bool,
    kind: RopeKind,
}

fn model(case: &Case) -> (Arc<Graph>, Arc<Tensors>) {
    let mut graph = Graph::default();
    let mut bytes = Vec::new();
    let mut state = 9_u64;
    let mut weight = |graph: &mut Graph, shape: Vec<u32>, size: f32| {
        let count: u32 = shape.iter().product();
        let mut floats = Vec::new();
        for _ in 0..count {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let x = ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * size;
            floats.extend(x.to_le_bytes());
        }
        bytes.push(floats);
        let name = format!("w{}", graph.weights.len());
        graph.weights.push(WeightDecl { name, dtype: DType::F32, shape, layer: None });
        Operand::Weight(WeightId(graph.weights.len() as u32 - 1))
    };
    let table = weight(&mut graph, vec![VOCABULARY, WIDTH], 2.0);
    let x = graph.push(GatherRows, vec![table, Operand::Input(Input::Tokens)], None, "x").expect("x");
    let mut split = |graph: &mut Graph, heads: u32, size: f32| -> ValueId {
        let matrix = weight(graph, vec![heads * case.head, WIDTH], size);
        let y = graph.push(MatMul, vec![matrix, x.into()], None, "y").expect("a product");
        let reshape = Reshape { trailing: vec![heads, case.head] };
        graph.push(reshape, vec![y.into()], None, "heads").expect("heads")
    };
    let q = split(&mut graph, case.heads, 1.5);
    let k = split(&mut graph, case.kv_heads, 1.5);
    let v = split(&mut graph, case.kv_heads, 1.0);
    let rope = Rope {
        kind: case.kind,
        dimensions: case.head / 2,
        base: 10000.0,
        position_scale: 1.0,
        yarn: None,
        magnitude: 1.0,
        place: RopePlace::default(),
    };
    let positions = Operand::Input(Input::Positions);
    let q = graph.push(rope, vec![q.into(), positions], None, "q").expect("turned");
    let k = graph.push(rope, vec![k.into(), positions], None, "k").expect("turned");
    let mut inputs: Vec<Operand> = vec![q.into(), k.into(), v.into()];
    if case.sinks {
        inputs.push(weight(&mut graph, vec![case.heads], 2.0));
    }
    graph.states.push(StateDecl::KeyValue {
        layer: 0,
        kv_heads: case.kv_heads,
        key_dim: case.head,
        value_dim: case.head,
        group: CacheGroup::Full,
    });
    let attention = Attention {
        state: StateId(0),
        scale: 1.0 / (case.head as f32).sqrt(),
        mask: case.mask,
        soft_cap: case.soft_cap,
        alibi_max_bias: None,
        relative: None,
    };
    let out = graph.push(attention, inputs, None, "attention").expect("attention");
    graph.outputs = vec![(Output::Logits, out)];
    (Arc::new(graph), Arc::new(Tensors(bytes)))
}

/// Results of a prompt of 90 tokens, of one of 5, and of three single tokens.
fn results(backend: &dyn Backend, case: &Case, cache: DType) -> Vec<Vec<f32>> {
    let (graph, tensors) = model(case);
    let (_, segment) = partition(&graph, |_| 0).remove(0);
    let caches = CacheOptions { keys: cache, values: cache, sequences: 1, cells: vec![128] };
    let mut partition =
        backend.load(DeviceId(0), segment, tensors, &caches, &mut |_| true).expect("it loads");
    let program = partition.compile(Bounds { tokens: 128, outputs: 1 }).expect("it compiles");
    let (mut first, mut all) = (0, Vec::new());
    for count in [90, 5, 1, 1, 1] {
        let end = first + count;
        let step = Step {
            tokens: (first..end).map(|token| token * 7 % VOCABULARY).collect(),
            positions: (first as i32..end as i32).collect(),
            output_rows: vec![count - 1],
            groups: vec![group_step(CacheGroup::Full, first, end)],
            ..Step::default()
        };
        let mut boundary = Boundary::default();
        partition.run(program, &step, &mut boundary).expect("it runs");
        let out = graph.output(Output::Logits).expect("an output");
        all.push(boundary.values[&out].floats().to_vec());
        first = end;
    }
    all
}

/// Cells between the two pieces of a sequence's.
const GAP: u32 = 3;

/// Results of a step of a token of each of some sequences, after prompts of so many tokens. The cells of each are in two pieces.
fn joint_results(backend: &dyn Backend, case: &Case, cache: DType, lengths: &[u32]) -> Vec<f32> {
    let (graph, tensors) = model(case);
    let (_, segment) = partition(&graph, |_| 0).remove(0);
    let rooms = lengths.iter().map(|length| length + 1 + GAP);
    let (starts, mut positions) =
        (rooms.clone().scan(0, |at, room| Some(std::mem::replace(at, *at + room))), vec![]);
    let pieces: Vec<[std::ops::Range<u32>; 2]> = starts
        .zip(lengths)
        .map(|(start, length)| {
            let half = length.div_ceil(2);
            positions.extend(0..half as i32);
            positions.extend([0; GAP as usize]);
            positions.extend(half as i32..=*length as i32);
            [start..start + half, start + half + GAP..start + length + 1 + GAP]
        })
        .collect();
    let sequences = lengths.len() as u32;
    let caches = CacheOptions { keys: cache, values: cache, sequences, cells: vec![positions.len() as u32] };
    let mut partition =
        backend.load(DeviceId(0), segment, tensors, &caches, &mut |_| true).expect("it loads");
    let program = partition.compile(Bounds { tokens: 512, outputs: 64 }).expect("it compiles");
    let mut run = |tokens: Vec<u32>, at: Vec<i32>, write_cells: Vec<u32>, spans: Vec<Span>| {
        let groups = vec![GroupStep { write_cells, cell_positions: positions.clone(), spans }];
        let step = Step { output_rows: vec![0], tokens, positions: at, groups, ..Step::default() };
        let mut boundary = Boundary::default();
        partition.run(program, &step, &mut boundary).expect("it runs");
        let out = graph.output(Output::Logits).expect("an output");
        boundary.values[&out].floats().to_vec()
    };
    for (sequence, (length, [first, second])) in lengths.iter().zip(&pieces).enumerate() {
        if *length > 0 {
            let cells = [first.clone(), second.start..second.end - 1];
            let cells: Vec<_> = cells.into_iter().filter(|cells| !cells.is_empty()).collect();
            let tokens = (0..*length).map(|token| (token * 7 + sequence as u32) % VOCABULARY).collect();
            let write_cells = cells.iter().cloned().flatten().collect();
            run(tokens, (0..*length as i32).collect(), write_cells, vec![Span { tokens: 0..*length, cells }]);
        }
    }
    let span = |(row, [first, second]): (usize, &[std::ops::Range<u32>; 2])| {
        let cells = [first.clone(), second.clone()].into_iter().filter(|cells| !cells.is_empty()).collect();
        Span { tokens: row as u32..row as u32 + 1, cells }
    };
    run(
        (0..sequences).map(|row| row * 11 % VOCABULARY).collect(),
        lengths.iter().map(|length| *length as i32).collect(),
        pieces.iter().map(|[_, second]| second.end - 1).collect(),
        pieces.iter().enumerate().map(span).collect(),
    )
}

#[test]
fn tokens_of_many_sequences_see_their_own() {
    let Some(backend) = emulated::device() else { return };
    let case = |head, heads, kv_heads| Case {
        head,
        heads,
        kv_heads,
        mask: MaskRule::Causal,
        soft_cap: None,
        sinks: false,
        kind: RopeKind::Split,
    };
    let cases = [
        case(128, 8, 2),
        Case { sinks: true, mask: MaskRule::Window(50), ..case(64, 6, 2) },
        case(64, 12, 1),
        Case { soft_cap: Some(2.0), ..case(256, 4, 1) },
    ];
    // Of any length, so that shares begin anywhere, and all alike.
    let uneven: Vec<u32> = (0..9).map(|row| row * 53 % 97).chain([150, 64, 63]).collect();
    let even = vec![70; 12];
    // Steps that are filled up to 64 rows, and one that is not; the emulation takes half a minute for each.
    let counts: &[u32] = if Cuda::find().is_ok() { &[33, 40, 48, 63, 64] } else { &[40] };
    let many: Vec<Vec<u32>> =
        counts.iter().map(|count| (0..*count).map(|row| row * 53 % 97).collect()).collect();
    let mut wrong = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        for lengths in [&uneven, &even].into_iter().chain(many.iter().filter(|_| index == 0)) {
            let right = joint_results(&Reference, case, DType::F32, lengths);
            for (cache, tolerance) in [(DType::F16, 1e-5), (DType::Q8_0, 1e-3)] {
                let found = joint_results(&*backend, case, cache, lengths);
                let error = normalised_squared_error(&found, &right);
                if error.is_nan() || error > tolerance {
                    wrong.push(format!(
                        "heads of {}, {cache}, {} rows: {error:.1e}",
                        case.head,
                        lengths.len()
                    ));
                }
                assert_eq!(found, joint_results(&*backend, case, cache, lengths), "the same in each run");
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn attention_equals_the_evaluator() {
    let backend: Box<dyn Backend> = match Cuda::find() {
        Ok(cuda) => Box::new(cuda),
        Err(_) => match emulated::backend() {
            Some(backend) => Box::new(backend),
            None => return,
        },
    };
    let case = |head, heads, kv_heads, mask| Case {
        head,
        heads,
        kv_heads,
        mask,
        soft_cap: None,
        sinks: false,
        kind: RopeKind::Split,
    };
    let cases = [
        case(128, 8, 2, MaskRule::Causal),
        Case { kind: RopeKind::Interleaved, ..case(64, 3, 1, MaskRule::Window(20)) },
        Case { sinks: true, soft_cap: Some(2.0), ..case(64, 4, 4, MaskRule::Chunked(16)) },
        Case { sinks: true, ..case(256, 18, 1, MaskRule::Causal) },
        case(96, 4, 2, MaskRule::Window(7)),
    ];
    let mut wrong = Vec::new();
    for case in &cases {
        let right = results(&Reference, case, DType::F32);
        for (cache, tolerance) in [(DType::F16, 1e-5), (DType::Q8_0, 1e-3)] {
            let found = results(&*backend, case, cache);
            for (index, (found, right)) in found.iter().zip(&right).enumerate() {
                let error = normalised_squared_error(found, right);
                if error.is_nan() || error > tolerance {
                    wrong.push(format!("heads of {}, {cache}, step {index}: {error:.1e}", case.head));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
