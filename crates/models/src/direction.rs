//! Whether rows see later ones of their text, where somebody asks for the one or the other.

use puna_graph::ops::{MaskRule, OpDef};
use puna_graph::{CacheGroup, Graph, Op, StateDecl};

use crate::ModelError;

/// Refuses a graph of which a part does not do what was asked for: rows that see earlier ones alone (`causal`), or all.
pub fn check(graph: &Graph, architecture: &str, causal: bool) -> Result<(), ModelError> {
    let what = match causal {
        true if graph.nodes.iter().any(|node| sees_later_rows(graph, &node.op)) => {
            "attention to earlier tokens alone: it has layers whose tokens see all, or those around them"
        }
        false if graph.nodes.iter().any(|node| takes_rows_in_order(graph, &node.op)) => {
            "attention to later tokens: it has layers that take tokens in order"
        }
        _ => return Ok(()),
    };
    Err(ModelError::Unsuitable { architecture: architecture.to_string(), what })
}

/// Rows of an encoder beside a decoder always see all.
fn is_of_an_encoder(graph: &Graph, op: &Op) -> bool {
    let state = op.state().and_then(|state| graph.states.get(state.index()));
    let group = state.map(StateDecl::group);
    matches!(group, Some(CacheGroup::Encoder | CacheGroup::EncoderStep))
}

fn sees_later_rows(graph: &Graph, op: &Op) -> bool {
    match op {
        Op::Attention(attention) => {
            let both = matches!(attention.mask, MaskRule::Bidirectional | MaskRule::SymmetricWindow(_));
            both && !is_of_an_encoder(graph, op)
        }
        Op::Convolution(_) => true,
        _ => false,
    }
}

fn takes_rows_in_order(graph: &Graph, op: &Op) -> bool {
    match op {
        Op::Attention(attention) => {
            let in_order =
                matches!(attention.mask, MaskRule::Causal | MaskRule::Window(_) | MaskRule::Chunked(_));
            in_order && !is_of_an_encoder(graph, op)
        }
        // Recurrences, and blocks of earlier positions.
        other => other.state().is_some(),
    }
}
