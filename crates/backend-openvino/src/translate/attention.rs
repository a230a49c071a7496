//! Attention over keys and values of earlier steps and of this one.

use puna_graph::ops::{Attention, MaskRule, alibi_slope};
use puna_graph::{Node, Operand, StateId};

use super::{CacheForm, Feed, Product, Translator, trailing};
use crate::ir::{Element, Port};

/// Heads and widths of one attention.
struct Heads {
    kv_heads: i64,
    /// Query heads that share a key head.
    shared: i64,
    key_dim: i64,
    value_dim: i64,
}

impl Translator<'_> {
    pub(super) fn attention(&mut self, node: &Node, op: &Attention) -> Port {
        let (queries, keys, values) = (self.operand(node, 0), self.operand(node, 1), self.operand(node, 2));
        let (query, key, value) = (
            trailing(&self.operand_type(node, 0)),
            trailing(&self.operand_type(node, 1)),
            trailing(&self.operand_type(node, 2)),
        );
        let heads = Heads {
            kv_heads: key[0],
            shared: query[0] / key[0].max(1),
            key_dim: query[1],
            value_dim: value[1],
        };
        if self.choices.form == CacheForm::Paged && is_pageable(op) {
            return self.paged_attention(node, op, &heads, [queries, keys, values]);
        }
        self.host_attention(node, op, heads, [queries, keys, values])
    }

    /// A layer that only stands for paged attention: the shim replaces it, guided by its name.
    fn paged_attention(&mut self, node: &Node, op: &Attention, heads: &Heads, inputs: [Port; 3]) -> Port {
        let Heads { kv_heads, shared, key_dim, value_dim } = heads;
        let width = kv_heads * shared * value_dim;
        let rows = [width / value_dim * key_dim, kv_heads * key_dim, kv_heads * value_dim];
        let flat: Vec<Port> =
            inputs.into_iter().zip(rows).map(|(port, width)| self.reshape(port, &[0, width])).collect();
        let all = self.concat(&flat, 1);
        let place = self.slice(all, 0, width, 1);
        let query_heads = (kv_heads * shared) as u32;
        let slopes: Vec<f32> = match op.alibi_max_bias {
            Some(bias) => (0..query_heads).map(|head| alibi_slope(bias, head, query_heads) as f32).collect(),
            None => Vec::new(),
        };
        let sinks = match node.inputs.get(3) {
            Some(Operand::Weight(weight)) => self.decode(*weight),
            _ => Vec::new(),
        };
        let window = match op.mask {
            MaskRule::Window(length) => length,
            _ => 0,
        };
        let name = format!(
            "paged|state={}|group={}|kv_heads={kv_heads}|key_dim={key_dim}|value_dim={value_dim}|window={window}|\
             scale={}|alibi={}|sinks={}",
            op.state.0,
            self.group(op.state),
            digits(&[op.scale]),
            digits(&slopes),
            digits(&sinks),
        );
        self.model.name_layer(place, &name);
        self.page(op.state);
        place
    }

    /// Notes the parameters that the shim will add.
    fn page(&mut self, state: StateId) {
        let group = self.group(state);
        let feeds = [
            Feed::KeyBlocks(state),
            Feed::ValueBlocks(state),
            Feed::PastLengths { group },
            Feed::RunBegins,
            Feed::BlockIndexes { group },
            Feed::BlockBegins { group },
            Feed::LongestRun { group },
        ];
        for feed in feeds {
            if !self.added.contains(&feed) {
                self.added.push(feed);
            }
        }
    }

    /// Scores against the cells of earlier steps and against this step's rows are computed apart, so that nothing of
    /// the cache is copied, and meet in the softmax.
    fn host_attention(&mut self, node: &Node, op: &Attention, heads: Heads, inputs: [Port; 3]) -> Port {
        let Heads { kv_heads, shared, key_dim, value_dim } = heads;
        let [queries, keys, values] = inputs;
        let state = op.state;
        let (past_keys, past_values) = (self.past_of(state, true), self.past_of(state, false));
        self.product(Product::NewKeys(state), keys);
        self.product(Product::NewValues(state), values);
        let queries = self.times(queries, op.scale);
        let queries = self.reshape(queries, &[0, kv_heads, shared, key_dim]);
        let queries = self.transpose(queries, &[1, 2, 0, 3]);
        let queries = self.reshape(queries, &[kv_heads, -1, key_dim]);
        let [keys, values] = [keys, values].map(|x| self.transpose(x, &[1, 0, 2]));
        let old = self.product_of(queries, past_keys, true);
        let new = self.product_of(queries, keys, true);
        let scores = self.concat(&[old, new], -1);
        let shape = self.scores_shape(kv_heads, shared, inputs[0], scores);
        let scores = self.reshape_to(scores, shape);
        let shares = self.shares(node, op, scores, kv_heads, shared);
        let shares = self.merge_heads(shares, kv_heads);
        let cells = self.extent_of(past_keys, 1);
        let rest = self.integers(&[-1]);
        let lengths = self.concat(&[cells, rest], 0);
        let axis = self.integer(2);
        let parts =
            self.model.op_many("VariadicSplit", "opset1", &[], &[shares, axis, lengths], &[Element::F32; 2]);
        let old = self.product_of(parts[0], past_values, false);
        let new = self.product_of(parts[1], values, false);
        let sum = self.add(old, new);
        let shape = self.scores_shape(kv_heads, shared, inputs[0], sum);
        let sum = self.reshape_to(sum, shape);
        let rows_first = self.transpose(sum, &[2, 0, 1, 3]);
        self.reshape(rows_first, &[0, kv_heads * shared * value_dim])
    }

    fn past_of(&mut self, state: StateId, keys: bool) -> Port {
        let port = self.feed(if keys { Feed::PastKeys(state) } else { Feed::PastValues(state) });
        self.model.convert(port, Element::F32)
    }

    /// `[kv_heads, shared, rows, width]` as a list, with the rows of `queries` and the width of `x`.
    fn scores_shape(&mut self, kv_heads: i64, shared: i64, queries: Port, x: Port) -> Port {
        let (rows, width) = (self.extent_of(queries, 0), self.extent_of(x, 2));
        let heads = self.integers(&[kv_heads, shared]);
        self.concat(&[heads, rows, width], 0)
    }

    /// `[kv_heads, shared, rows, width]` to `[kv_heads, shared · rows, width]`.
    fn merge_heads(&mut self, x: Port, kv_heads: i64) -> Port {
        let width = self.extent_of(x, 3);
        let heads = self.integers(&[kv_heads, -1]);
        let shape = self.concat(&[heads, width], 0);
        self.reshape_to(x, shape)
    }

    /// From scores `[kv_heads, shared, rows, cells]` to the share that each cell has.
    fn shares(&mut self, node: &Node, op: &Attention, scores: Port, kv_heads: i64, shared: i64) -> Port {
        let mut scores = scores;
        if let Some(cap) = op.soft_cap {
            scores = self.capped(scores, cap);
        }
        let group = self.group(op.state);
        if let Some(max_bias) = op.alibi_max_bias {
            let heads = (kv_heads * shared) as u32;
            let slopes: Vec<f32> = (0..heads).map(|head| alibi_slope(max_bias, head, heads) as f32).collect();
            let slopes = self.floats_constant(&[kv_heads as u64, shared as u64, 1, 1], &slopes);
            let distances = self.feed(Feed::Distances { group });
            let bias = self.multiply(slopes, distances);
            scores = self.add(scores, bias);
        }
        let mask = self.feed(Feed::Mask { group, rule: op.mask });
        scores = self.add(scores, mask);
        if node.inputs.len() < 4 {
            return self.softmax(scores, -1);
        }
        let sinks = self.operand(node, 3);
        let sinks = self.reshape(sinks, &[kv_heads, shared, 1, 1]);
        let most = self.reduce("ReduceMax", scores, -1, true);
        let most = self.arithmetic("Maximum", most, sinks);
        let [weights, sink] = [scores, sinks].map(|x| {
            let below = self.arithmetic("Subtract", x, most);
            self.unary("Exp", "opset1", below)
        });
        let total = self.reduce("ReduceSum", weights, -1, true);
        let total = self.add(total, sink);
        self.arithmetic("Divide", weights, total)
    }
}

/// Whether the operation over paged caches computes this.
pub fn is_pageable(op: &Attention) -> bool {
    op.soft_cap.is_none() && matches!(op.mask, MaskRule::Causal | MaskRule::Window(_))
}

/// Floats as the hexadecimal digits of their bits.
fn digits(values: &[f32]) -> String {
    values.iter().map(|value| format!("{:08x}", value.to_bits())).collect::<Vec<_>>().join(":")
}
