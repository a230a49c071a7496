//! What goes into a translated segment and what comes out of it.

use std::collections::HashMap;
use std::sync::Arc;

use puna_backend::{Segment, WeightSource};
use puna_graph::{Input, Op, StateDecl, StateId, ValueId};

use super::{Feed, Product, RopeTable, rope};

/// Parameters and results of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Interface {
    /// Its parameters, in order; those that the shim adds come last.
    pub feeds: Vec<Feed>,
    /// Its results, in order.
    pub products: Vec<Product>,
    /// Rotations that feeds refer to.
    pub ropes: Vec<RopeTable>,
}

impl Interface {
    /// The interface whose names these are, so that a compiled model of a segment can be used without a translation.
    /// `None` if a name is none that a translation of this segment gives, or comes twice.
    pub fn named(
        segment: &Segment,
        weights: &Arc<dyn WeightSource>,
        feeds: &[String],
        products: &[String],
    ) -> Option<Self> {
        let ropes = rope::tables(&segment.graph, segment.nodes.clone(), weights.as_ref());
        let possible = possible_feeds(segment, ropes.len()).into_iter().map(|feed| (feed.name(), feed));
        let feeds = all_named(feeds, possible.collect())?;
        let possible = possible_products(segment).into_iter().map(|product| (product.name(), product));
        let products = all_named(products, possible.collect())?;
        Some(Self { feeds, products, ropes })
    }
}

/// What has these names, each of which may come once.
fn all_named<T>(names: &[String], mut possible: HashMap<String, T>) -> Option<Vec<T>> {
    names.iter().map(|name| possible.remove(name)).collect()
}

/// Every parameter that some translation of the segment has.
fn possible_feeds(segment: &Segment, ropes: usize) -> Vec<Feed> {
    let graph = &segment.graph;
    let inputs = [Input::Tokens, Input::Positions, Input::OutputRows, Input::EncoderTokens];
    let mut all: Vec<Feed> = inputs.into_iter().map(Feed::Step).collect();
    all.extend([Feed::Spans, Feed::RunBegins]);
    all.extend((0..segment.nodes.start).map(|node| Feed::Value(ValueId(node as u32))));
    all.extend((0..ropes).flat_map(|table| [Feed::Cosines(table), Feed::Sines(table)]));
    let groups = graph.groups();
    for group in 0..groups.len() {
        let of_group = [
            Feed::Distances { group },
            Feed::PastLengths { group },
            Feed::BlockIndexes { group },
            Feed::BlockBegins { group },
            Feed::LongestRun { group },
        ];
        all.extend(of_group);
    }
    for state in (0..graph.states.len()).map(|state| StateId(state as u32)) {
        let of_state = [
            Feed::PastKeys(state),
            Feed::PastValues(state),
            Feed::Recurrent(state),
            Feed::KeyBlocks(state),
            Feed::ValueBlocks(state),
        ];
        all.extend(of_state);
    }
    for node in &graph.nodes[segment.nodes.clone()] {
        match &node.op {
            Op::PositionScale(op) => all.push(Feed::PositionScale(*op)),
            Op::Attention(op) => {
                let own = graph.states[op.state.index()].group();
                let group = groups.iter().position(|group| *group == own).unwrap_or(0);
                all.push(Feed::Mask { group, rule: op.mask });
            }
            _ => {}
        }
    }
    all
}

/// Every result that some translation of the segment has.
fn possible_products(segment: &Segment) -> Vec<Product> {
    let mut all: Vec<Product> = segment.outputs.iter().map(|output| Product::Value(*output)).collect();
    for (index, declared) in segment.graph.states.iter().enumerate() {
        let state = StateId(index as u32);
        match declared {
            StateDecl::KeyValue { .. } => all.extend([Product::NewKeys(state), Product::NewValues(state)]),
            StateDecl::Recurrent { .. } => all.push(Product::Recurrent(state)),
        }
    }
    all
}
