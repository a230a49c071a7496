//! What can be seen from the graph alone: who reads a value, and which nodes others do on the way.

use std::collections::{HashMap, HashSet};

use puna_backend::Segment;
use puna_graph::ops::{Attention, RopePlace};
use puna_graph::{CacheGroup, Dim, Element, Graph, Input, Op, Operand, Symbol, Type, ValueId};
use puna_quant::DType;

use super::attention::flash;
use super::extent;
use crate::states::{Caches, Rows};
use crate::{MatrixUnits, codes};

/// Facts about a segment.
pub struct Analysis {
    /// Nodes that read a value, with the place among their inputs; what leaves the segment has a reader more.
    readers: HashMap<ValueId, Vec<(usize, usize)>>,
    /// Nodes that need no launch of their own.
    pub absorbed: HashSet<usize>,
    /// By attention: the nodes that turn its queries and keys, if that is done together with storing them.
    pub turned: HashMap<usize, (usize, usize)>,
}

/// No node.
const OUTSIDE: usize = usize::MAX;

impl Analysis {
    /// Looks at the nodes of a segment, for steps of so many rows and a device with such matrix units.
    pub fn new(segment: &Segment, caches: &Caches, rows: u32, units: MatrixUnits) -> Self {
        let graph = &*segment.graph;
        let mut readers: HashMap<ValueId, Vec<(usize, usize)>> = HashMap::new();
        for index in segment.nodes.clone() {
            for (place, operand) in graph.nodes[index].inputs.iter().enumerate() {
                if let Operand::Value(value) = operand {
                    readers.entry(*value).or_default().push((index, place));
                }
            }
        }
        for value in &segment.outputs {
            readers.entry(*value).or_default().push((OUTSIDE, 0));
        }
        let mut analysis = Self { readers, absorbed: HashSet::new(), turned: HashMap::new() };
        for index in segment.nodes.clone() {
            if let Some((queries, keys)) = analysis.turned_by(segment, caches, index, |attention, parts| {
                let halves = parts.iter().all(|rows| rows.dtype == DType::F16);
                // A single row is turned and stored by its attention, in whatever format.
                halves || rows == 1 && flash(attention, parts, units).is_some()
            }) {
                analysis.turned.insert(index, (queries, keys));
                analysis.absorbed.extend([queries, keys]);
            }
        }
        analysis
    }

    /// Nodes that read a value, with the place among their inputs.
    pub fn readers(&self, value: ValueId) -> &[(usize, usize)] {
        self.readers.get(&value).map_or(&[], Vec::as_slice)
    }

    /// The only node that reads a value.
    pub fn only_reader(&self, value: ValueId) -> Option<usize> {
        match self.readers(value) {
            [(reader, _)] if *reader != OUTSIDE => Some(*reader),
            _ => None,
        }
    }

    fn turned_by(
        &self,
        segment: &Segment,
        caches: &Caches,
        index: usize,
        stored: impl Fn(&Attention, &[Rows]) -> bool,
    ) -> Option<(usize, usize)> {
        let graph = &*segment.graph;
        let node = &graph.nodes[index];
        let Op::Attention(attention) = &node.op else { return None };
        let stored = stored(attention, caches.parts(attention.state));
        let turned = |place: usize| {
            let Operand::Value(value) = node.inputs[place] else { return None };
            let Op::Rope(rope) = &graph.nodes[value.index()].op else { return None };
            let inside = segment.nodes.contains(&value.index()) && self.only_reader(value) == Some(index);
            let even = extent(graph.value_type(value), 2).is_multiple_of(2);
            (inside && even).then_some((value.index(), rope))
        };
        let ((queries, first), (keys, second)) = (turned(0)?, turned(1)?);
        let factors = |index: usize| graph.nodes[index].inputs.get(2);
        let even = extent(&graph.operand_type(node.inputs[2]), 2).is_multiple_of(2);
        (stored && even && first == second && factors(queries) == factors(keys)).then_some((queries, keys))
    }
}

/// Whether there are kernels for a node.
pub fn supports(graph: &Graph, index: usize) -> bool {
    let node = &graph.nodes[index];
    let value = |place: usize| matches!(node.inputs.get(place), Some(Operand::Value(_)));
    let weight = |place: usize| matches!(node.inputs.get(place), Some(Operand::Weight(_)));
    let vector = |place: usize| node.inputs.get(place).is_none() || weight(place);
    let axis = |ty: &Type| ty.shape.contains(&Dim::Of(Symbol::EncoderTokens));
    if axis(&node.ty) || node.inputs.iter().any(|operand| axis(&graph.operand_type(*operand))) {
        return false;
    }
    match &node.op {
        // Operations and masks of encoders have no kernels yet.
        Op::AddRow(_) | Op::MeanRows(_) | Op::Convolution(_) | Op::GroupNorm(_) | Op::FillColumns(_) => false,
        // Nor have those of DeepSeek-V4 and its kin.
        Op::BlockAttention(_)
        | Op::ChooseByTable(_)
        | Op::CompressBlocks(_)
        | Op::HyperRead(_)
        | Op::HyperWrite(_)
        | Op::NgramRows(_) => false,
        // Nor those of draft heads.
        Op::Features(_) | Op::PreferFeatured(_) => false,
        Op::Rope(rope) => matches!(rope.place, RopePlace::Own | RopePlace::OfTexts { .. }),
        Op::ShortConvolution(convolution) if convolution.dilation != 1 => false,
        Op::Unary(unary) => codes::function(unary.function).is_some(),
        Op::Glu(glu) => codes::function(glu.function).is_some(),
        Op::Attention(attention) => {
            let group = graph.states[attention.state.index()].group();
            matches!(group, CacheGroup::Full | CacheGroup::Window(_))
                && attention.relative.is_none()
                && codes::mask(attention.mask).is_some()
        }
        Op::GatherRows(_) => match node.inputs[..] {
            [Operand::Weight(_), _] => true,
            [Operand::Value(_), Operand::Input(Input::OutputRows)] => {
                node.ty.element == Element::F32 || node.ty.element == Element::I32
            }
            _ => false,
        },
        Op::MatMul(_) => weight(0) && value(1) && vector(2),
        Op::MatMulExperts(_) => weight(0) && value(1) && value(2),
        Op::MatMulHeads(_) => weight(0) && value(1),
        Op::AddExpertBias(_) => weight(1),
        Op::RouteExperts(route) => {
            graph.operand_type(node.inputs[0]).width().is_some_and(|experts| experts <= MOST_EXPERTS)
                && route.groups.is_none_or(|groups| groups.count <= MOST_EXPERTS)
        }
        Op::ExpertWeights(_) => {
            graph.operand_type(node.inputs[0]).width().is_some_and(|experts| experts <= MOST_EXPERTS)
        }
        Op::ShortConvolution(_) => extent(&graph.operand_type(node.inputs[1]), 1) <= MOST_KERNEL,
        _ => true,
    }
}

/// Experts that the kernels have room for.
const MOST_EXPERTS: u32 = 1024;
/// Rows that a convolution's kernel has room for, the current one included.
const MOST_KERNEL: u32 = 17;
