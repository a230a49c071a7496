//! Random operations on random operands: whatever `infer` lets through can be evaluated.
#![allow(clippy::single_range_in_vec_init)] // a span's cells are a list of ranges, often of one
#![allow(clippy::print_stdout)] // says how often each operation was let through

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use puna_graph::evaluate::{Context, Memory, Weights, run};
use puna_graph::ops::*;
use puna_graph::{
    Array, CacheGroup, Graph, GroupStep, Input, Op, Operand, Span, StateDecl, StateId, Step, WeightDecl,
    WeightId,
};
use puna_quant::DType;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Mostly plain numbers, sometimes one that breaks things.
    fn float(&mut self) -> f32 {
        match self.below(10) {
            0 => self.of(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, -1e30]),
            _ => self.below(2000) as f32 / 500.0 - 2.0,
        }
    }

    fn extent(&mut self) -> u32 {
        self.of(&[0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 4])
    }

    fn small(&mut self) -> u32 {
        self.of(&[0, 1, 1, 2, 2, 3, 4, u32::MAX])
    }
}

/// Any operation with any attributes.
fn operation(name: &str, random: &mut Random, states: usize) -> Op {
    let state = StateId(random.below(states + 1) as u32);
    let float = random.float();
    let function = random.of(&[
        Function::Silu,
        Function::Gelu,
        Function::ReluSquared,
        Function::Exp,
        Function::Softplus,
    ]);
    let gating =
        random.of(&[Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxOfChosen, Gating::SqrtSoftplus]);
    let kind = random.of(&[RopeKind::Interleaved, RopeKind::Split]);
    let yarn = Yarn {
        original_context: random.small(),
        beta_fast: random.float(),
        beta_slow: random.float(),
        extrapolation: random.float(),
    };
    let mask = random.of(&[
        MaskRule::Causal,
        MaskRule::Window(0),
        MaskRule::Window(2),
        MaskRule::Chunked(0),
        MaskRule::Chunked(2),
        MaskRule::SymmetricWindow(3),
        MaskRule::Bidirectional,
    ]);
    match name {
        "GatherRows" => GatherRows.into(),
        "MatMul" => MatMul.into(),
        "Add" => Add.into(),
        "Mul" => Mul.into(),
        "Scale" => Scale { factor: float }.into(),
        "RmsNorm" => RmsNorm { epsilon: float }.into(),
        "LayerNorm" => LayerNorm { epsilon: float }.into(),
        "Rope" => Rope {
            kind,
            dimensions: random.small(),
            base: random.float(),
            position_scale: random.float(),
            yarn: (random.below(2) == 0).then_some(yarn),
            magnitude: float,
            place: random.of(&[
                RopePlace::Own,
                RopePlace::Reversed,
                RopePlace::BlockStart(2),
                RopePlace::OfTexts { long: true },
            ]),
        }
        .into(),
        "Attention" => Attention {
            state,
            scale: float,
            mask,
            soft_cap: (random.below(2) == 0).then(|| random.float()),
            alibi_max_bias: (random.below(2) == 0).then(|| random.float()),
            relative: (random.below(4) == 0)
                .then(|| RelativeBias { buckets: random.small(), both_directions: random.below(2) == 0 }),
        }
        .into(),
        "Glu" => Glu { function }.into(),
        "Unary" => Unary { function }.into(),
        "SoftCap" => SoftCap { cap: float }.into(),
        "Reshape" => {
            let axes = random.below(5);
            Reshape { trailing: (0..axes).map(|_| random.of(&[1, 2, 4, 8, u32::MAX])).collect() }.into()
        }
        "RouteExperts" => {
            let groups = ExpertGroups { count: random.small(), used: random.small() };
            let groups = (random.below(2) == 0).then_some(groups);
            RouteExperts { used: random.small(), gating, groups }.into()
        }
        "ExpertWeights" => ExpertWeights { gating, normalise: random.below(2) == 0, scale: float }.into(),
        "MatMulExperts" => MatMulExperts.into(),
        "SumExperts" => SumExperts.into(),
        "AddExpertBias" => AddExpertBias.into(),
        "Slice" => Slice { start: random.small(), length: random.small() }.into(),
        "ScaleRows" => ScaleRows.into(),
        "Div" => Div.into(),
        "Clamp" => Clamp { low: float, high: random.float() }.into(),
        "ClampedGlu" => {
            let shifted = GateBound::Shifted { alpha: random.float() };
            let bound = random.of(&[GateBound::BeforeSilu, GateBound::AfterSilu, shifted]);
            ClampedGlu { bound, limit: float }.into()
        }
        "PositionScale" => {
            PositionScale { slope: float, length: random.small(), offset: random.small() }.into()
        }
        "Xielu" => {
            Xielu { alpha_n: float, alpha_p: random.float(), beta: random.float(), epsilon: random.float() }
                .into()
        }
        "GroupOfExpert" => GroupOfExpert { size: random.small() }.into(),
        "WeightedSum" => WeightedSum.into(),
        "MatchNorm" => MatchNorm.into(),
        "GaussianCut" => GaussianCut { deviations: float }.into(),
        "Softmax" => Softmax.into(),
        "Concat" => Concat.into(),
        "RepeatHeads" => RepeatHeads { times: random.below(4) as u32 }.into(),
        "SumElements" => SumElements.into(),
        "MatMulHeads" => MatMulHeads.into(),
        "Interpolate" => Interpolate.into(),
        "ShortConvolution" => ShortConvolution { state, dilation: random.of(&[0, 1, 1, 2]) }.into(),
        "TokenShift" => TokenShift { state }.into(),
        "SelectiveScan" => SelectiveScan { state }.into(),
        "GatedDeltaRule" => {
            let key_heads = random.of(&[KeyHeads::Grouped, KeyHeads::Cyclic]);
            GatedDeltaRule { state, scale: float, key_heads }.into()
        }
        "GatedLinearAttention" => {
            let decays = random.below(4);
            let head_decays = (random.below(2) == 0).then(|| (0..decays).map(|_| random.float()).collect());
            GatedLinearAttention { state, scale: float, head_decays }.into()
        }
        "Rwkv7" => Rwkv7 { state }.into(),
        "HyperRead" => HyperRead { epsilon: float }.into(),
        "HyperWrite" => {
            let rounds = random.of(&[None, None, Some(0), Some(2), Some(u32::MAX)]);
            HyperWrite { magnitude: float, offset: random.float(), epsilon: random.float(), rounds }.into()
        }
        "BlockAttention" => {
            BlockAttention { state, scale: float, window: random.small(), ratio: random.small() }.into()
        }
        "CompressBlocks" => {
            CompressBlocks { state, ratio: random.small(), overlap: random.below(2) == 0 }.into()
        }
        "NgramRows" => {
            let multipliers = (0..random.below(6)).map(|_| random.next()).collect();
            let heads = (0..random.below(4))
                .map(|_| NgramHead { tokens: random.small(), first: random.small(), rows: random.small() })
                .collect();
            NgramRows { state, multipliers, heads, end: random.small() }.into()
        }
        "AdapterScale" => AdapterScale { adapter: random.small(), factor: float }.into(),
        "ChooseByTable" => ChooseByTable { experts: random.small() }.into(),
        "AddRow" => AddRow { row: random.small() }.into(),
        "MeanRows" => MeanRows.into(),
        "Convolution" => Convolution.into(),
        "GroupNorm" => GroupNorm { groups: random.small(), epsilon: float }.into(),
        "FillColumns" => FillColumns { start: random.small(), length: random.small(), value: float }.into(),
        "Features" => Features { width: random.small() }.into(),
        "PreferFeatured" => PreferFeatured.into(),
        other => panic!("this test does not know {other}"),
    }
}

struct Decoded(Vec<Arc<Array>>);

impl Weights for Decoded {
    fn decode(&self, weight: WeightId) -> Arc<Array> {
        self.0[weight.index()].clone()
    }
}

/// A graph with weights and states of small extents, no nodes yet.
fn beginning(random: &mut Random) -> Graph {
    let mut graph = Graph::default();
    for index in 0..12 {
        let axes = 1 + random.below(3);
        let shape = (0..axes).map(|_| random.extent()).collect();
        graph.weights.push(WeightDecl { name: format!("w{index}"), dtype: DType::F32, shape, layer: None });
    }
    for _ in 0..8 {
        let mut extent = || random.of(&[1, 2, 2, 2, 4]);
        let state = match extent() {
            2 => StateDecl::Recurrent { layer: 0, elements: extent() * extent() * extent() },
            kind => StateDecl::KeyValue {
                layer: 0,
                kv_heads: extent(),
                key_dim: extent(),
                value_dim: extent(),
                group: if kind == 1 { CacheGroup::Full } else { CacheGroup::Window(3) },
            },
        };
        graph.states.push(state);
    }
    // What most operations want: rows, rows of heads, and integers, for each token.
    for (index, shape) in
        [vec![3, 4], vec![2], vec![2, 2], vec![2, 2, 2], vec![2, 2, 1], vec![4]].into_iter().enumerate()
    {
        graph.weights[index].shape = shape;
    }
    let mut push = |op: Op, inputs| graph.push(op, inputs, None, "given").expect("it is valid");
    let wide = push(GatherRows.into(), vec![Operand::Weight(WeightId(0)), Operand::Input(Input::Tokens)]);
    push(Reshape { trailing: vec![2, 2] }.into(), vec![wide.into()]);
    let narrow = push(Slice { start: 1, length: 2 }.into(), vec![wide.into()]);
    push(RouteExperts { used: 2, gating: Gating::Softmax, groups: None }.into(), vec![narrow.into()]);
    push(Reshape { trailing: vec![1, 2] }.into(), vec![narrow.into()]);
    graph
}

/// Operands of [`beginning`] that fit an operation which random ones seldom do; none for the others.
fn fitting(name: &str) -> &'static [Operand] {
    use puna_graph::ValueId;
    const WIDE: Operand = Operand::Value(ValueId(0));
    const HEADS: Operand = Operand::Value(ValueId(1));
    const ROWS: Operand = Operand::Value(ValueId(2));
    const EXPERTS: Operand = Operand::Value(ValueId(3));
    const ONE_HEAD: Operand = Operand::Value(ValueId(4));
    const VECTOR: Operand = Operand::Weight(WeightId(1));
    const MATRIX: Operand = Operand::Weight(WeightId(2));
    const MATRICES: Operand = Operand::Weight(WeightId(3));
    const KERNEL: Operand = Operand::Weight(WeightId(4));
    const FOUR: Operand = Operand::Weight(WeightId(5));
    match name {
        "Rope" => &[HEADS, Operand::Input(Input::Positions)],
        "AddExpertBias" => &[HEADS, MATRIX, EXPERTS],
        "MatMulExperts" => &[MATRICES, HEADS, EXPERTS],
        "ShortConvolution" => &[ROWS, MATRIX],
        "SelectiveScan" => &[HEADS, ROWS, MATRIX, HEADS, HEADS, VECTOR],
        "GatedDeltaRule" => &[HEADS, HEADS, HEADS, HEADS, ROWS],
        "HyperRead" => &[HEADS, ROWS, VECTOR, VECTOR],
        "HyperWrite" => &[HEADS, ROWS, WIDE, VECTOR, FOUR],
        "BlockAttention" => &[HEADS, ONE_HEAD, ONE_HEAD],
        "CompressBlocks" => &[ROWS, ROWS, MATRIX],
        "NgramRows" | "Features" => &[Operand::Input(Input::Tokens)],
        "PreferFeatured" => &[ROWS, ROWS],
        "ChooseByTable" => &[ROWS],
        "AddRow" => &[ROWS, MATRIX],
        "MeanRows" => &[ROWS, Operand::Input(Input::OutputRows)],
        "Convolution" => &[ROWS, KERNEL],
        "GroupNorm" | "FillColumns" => &[ROWS],
        _ => &[],
    }
}

fn operand(random: &mut Random, graph: &Graph) -> Operand {
    match random.below(5) {
        0 => Operand::Weight(WeightId(random.below(graph.weights.len()) as u32)),
        1 => Operand::Input(random.of(&[Input::Tokens, Input::Positions, Input::OutputRows])),
        // Those that were made to fit.
        2 => Operand::Value(puna_graph::ValueId(random.below(5) as u32)),
        _ => Operand::Value(puna_graph::ValueId(random.below(graph.nodes.len()) as u32)),
    }
}

/// A step of a few tokens, in one or two sequences.
fn step(random: &mut Random, graph: &Graph) -> Step {
    let tokens = 1 + random.below(4) as u32;
    let cut = random.below(tokens as usize + 1) as u32;
    let spans = [0..cut, cut..tokens];
    let groups = graph.groups().into_iter().map(|group| {
        let recurrent = group == CacheGroup::Recurrent;
        // The first sequence goes on from an earlier cell.
        let cells = [if recurrent { vec![0..1] } else { vec![0..cut + 1] }, vec![cut + 1..tokens + 1]];
        let spans = spans.iter().cloned().zip(cells).filter(|(tokens, _)| !tokens.is_empty());
        GroupStep {
            write_cells: (1..=tokens).collect(),
            cell_positions: (0..=tokens as i32).collect(),
            spans: spans
                .map(|(tokens, cells)| Span {
                    cells: if recurrent && tokens.start > 0 { Vec::new() } else { cells },
                    tokens,
                })
                .collect(),
        }
    });
    Step {
        tokens: (0..tokens).map(|_| random.of(&[0, 1, 3, 1000, u32::MAX])).collect(),
        positions: (1..=tokens as i32).collect(),
        output_rows: (0..tokens).filter(|_| random.below(2) == 0).collect(),
        groups: groups.collect(),
        sequences: spans.into_iter().filter(|rows| !rows.is_empty()).collect(),
        long_texts: vec![random.below(2) == 0],
        featured_rows: (0..tokens).filter(|_| random.below(2) == 0).collect(),
        features: vec![0.5; 4],
        ..Step::default()
    }
}

#[test]
fn what_infer_lets_through_can_be_evaluated() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted: BTreeMap<&str, u32> = Op::NAMES.iter().map(|name| (*name, 0)).collect();
    let mut refused = 0;
    for _ in 0..1500 {
        let mut graph = beginning(&mut random);
        for _ in 0..1500 {
            let name = random.of(Op::NAMES);
            // Deep chains of one operation would only repeat it.
            if graph.nodes.iter().filter(|node| node.op.name() == name).count() >= 4 {
                continue;
            }
            let op = operation(name, &mut random, graph.states.len());
            // Few different operands: many operations want several of one shape.
            let few: Vec<Operand> = (0..1 + random.below(4)).map(|_| operand(&mut random, &graph)).collect();
            let mut inputs: Vec<Operand> = fitting(name).to_vec();
            if inputs.is_empty() || random.below(2) == 0 {
                inputs = (0..1 + random.below(6)).map(|_| random.of(&few)).collect();
            } else if random.below(2) == 0 {
                let index = random.below(inputs.len());
                inputs[index] = few[0];
            }
            match graph.push(op, inputs, None, "random") {
                Ok(_) => *accepted.entry(name).or_default() += 1,
                Err(_) => refused += 1,
            }
        }
        let weights = graph.weights.iter().map(|weight| {
            let shape: Vec<usize> = weight.shape.iter().map(|extent| *extent as usize).collect();
            let numbers = (0..shape.iter().product()).map(|_| random.float()).collect();
            Arc::new(Array::f32(shape, numbers))
        });
        let weights = Decoded(weights.collect());
        let step = step(&mut random, &graph);
        let mut memory: Vec<Memory> = graph.states.iter().map(|state| Memory::new(state, 6)).collect();
        let mut context = Context { graph: &graph, step: &step, memory: &mut memory };
        let mut values = HashMap::new();
        run(0..graph.nodes.len(), &weights, &mut context, &mut values);
        for (index, node) in graph.nodes.iter().enumerate() {
            let found = &values[&puna_graph::ValueId(index as u32)].shape;
            let wanted: Vec<usize> = node
                .ty
                .shape
                .iter()
                .map(|dim| match dim {
                    puna_graph::Dim::Fixed(extent) => *extent as usize,
                    puna_graph::Dim::Of(symbol) => step.extent(*symbol),
                })
                .collect();
            assert_eq!(*found, wanted, "{} of {:?}", node.op.name(), node.ty);
        }
    }
    println!("{refused} refused, accepted: {accepted:?}");
    for (name, count) in accepted {
        assert!(count >= 5, "{name} was let through {count} times only");
    }
}
