//! Attention over keys and values of earlier steps and of this one.

use std::collections::HashMap;

use puna_graph::ops::{Attention, MaskRule, alibi_slope};
use puna_graph::{Dim, Graph, Node, Op, Operand, StateId};

use super::{CacheForm, Feed, Product, Translator, decode, trailing};
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
        let inputs = [queries, keys, values];
        let simple = op.soft_cap.is_none() && node.inputs.len() < 4;
        match self.choices.form {
            CacheForm::Paged if is_pageable_state(self.graph, op.state) => {
                self.paged_attention(node, op, &heads, inputs)
            }
            CacheForm::Stateful if self.graph.states[op.state.index()].group().is_kept() => {
                let [keys, values] = self.appended(op.state, &heads, [keys, values]);
                match simple && !self.choices.manual_attention {
                    true => self.stateful_attention(op, &heads, queries, keys, values),
                    false => {
                        let [keys, values] = [keys, values].map(|x| self.squeeze(x, 0));
                        self.manual_attention(node, op, &heads, queries, &[(keys, values)])
                    }
                }
            }
            CacheForm::Host | CacheForm::Paged | CacheForm::Stateful => {
                let past = (self.past_of(op.state, true), self.past_of(op.state, false));
                self.product(Product::NewKeys(op.state), keys);
                self.product(Product::NewValues(op.state), values);
                let [keys, values] = [keys, values].map(|x| self.transpose(x, &[1, 0, 2]));
                if self.choices.manual_attention || !simple {
                    return self.manual_attention(node, op, &heads, queries, &[past, (keys, values)]);
                }
                let keys = self.concat(&[past.0, keys], 1);
                let values = self.concat(&[past.1, values], 1);
                self.shared_attention(op, &heads, queries, keys, values)
            }
        }
    }

    /// Attention over a variable of its own, whose result only goes back there. A plugin that finds attention and a variable, or
    /// paged attention, takes a model for one of language: then it multiplies with F16 and BF16 as they are, instead of turning
    /// them into F32 for good.
    pub(super) fn mark_as_language_model(&mut self) {
        let zero = self.floats_constant(&[1, 1, 1, 1], &[0.0]);
        let x = self.variable("mark", "1,1,1,1", zero);
        let x = self.times(x, 0.5);
        let causal = [("causal", "false".to_owned())];
        let x = self.model.op("ScaledDotProductAttention", "opset13", &causal, &[x; 3], Element::F32);
        self.model.assign("mark", x);
    }

    /// What a variable of floats holds; at first it is what `first` is.
    fn variable(&mut self, name: &str, shape: &str, first: Port) -> Port {
        let attributes = [
            ("variable_id", name.to_owned()),
            ("variable_type", Element::F32.name().to_owned()),
            ("variable_shape", shape.to_owned()),
        ];
        self.model.op("ReadValue", "opset6", &attributes, &[first], Element::F32)
    }

    /// Keys and values of all steps, `[1, kv_heads, cells, width]`, in variables that this step's are appended to.
    fn appended(&mut self, state: StateId, heads: &Heads, new: [Port; 2]) -> [Port; 2] {
        if let Some(found) = self.variables.get(&state) {
            return *found;
        }
        let same = self.integer(0);
        let same = self.reshape(same, &[1]);
        let parts = [("keys", heads.key_dim), ("values", heads.value_dim)];
        let mut all = new;
        for (port, (part, width)) in all.iter_mut().zip(parts) {
            let rows = self.transpose(*port, &[1, 0, 2]);
            let rows = self.unsqueeze(rows, 0);
            let variable = format!("{part}.{}", state.0);
            let shape = format!("1,{},?,{width}", heads.kv_heads);
            let empty = self.floats_constant(&[1, heads.kv_heads as u64, 0, width as u64], &[]);
            let past = self.variable(&variable, &shape, empty);
            // Plugins look for this look-up, which changes nothing.
            let past = self.gather(past, same, 0, 0);
            let appended = self.concat(&[past, rows], 2);
            self.model.assign(&variable, appended);
            *port = appended;
        }
        self.variables.insert(state, all);
        all
    }

    /// The form that plugins make one operation of, together with the variables.
    fn stateful_attention(
        &mut self,
        op: &Attention,
        heads: &Heads,
        queries: Port,
        keys: Port,
        values: Port,
    ) -> Port {
        let Heads { kv_heads, shared, key_dim, value_dim } = *heads;
        let all_heads = kv_heads * shared;
        let queries = self.transpose(queries, &[1, 0, 2]);
        let queries = self.unsqueeze(queries, 0);
        let [keys, values] = [(keys, key_dim), (values, value_dim)].map(|(port, width)| {
            if shared == 1 {
                return port;
            }
            let port = self.unsqueeze(port, 2);
            let cells = self.extent_of(port, 3);
            let (before, after) = (self.integers(&[1, kv_heads, shared]), self.integers(&[width]));
            let shape = self.concat(&[before, cells, after], 0);
            let mode = [("mode", "bidirectional".to_owned())];
            let port = self.model.op("Broadcast", "opset3", &mode, &[port, shape], Element::F32);
            self.reshape(port, &[1, all_heads, -1, width])
        });
        let group = self.group(op.state);
        let mut mask = self.feed(Feed::Mask { group, rule: op.mask });
        if let Some(bias) = self.alibi(op, group, &[all_heads as u64, 1, 1]) {
            mask = self.add(bias, mask);
            mask = self.unsqueeze(mask, 0);
        } else {
            mask = self.unsqueeze(mask, 0);
            mask = self.unsqueeze(mask, 0);
        }
        let scale = self.floats_constant(&[], &[op.scale]);
        let causal = [("causal", "false".to_owned())];
        let inputs = [queries, keys, values, mask, scale];
        let sum = self.model.op("ScaledDotProductAttention", "opset13", &causal, &inputs, Element::F32);
        let rows_first = self.transpose(sum, &[0, 2, 1, 3]);
        self.reshape(rows_first, &[-1, all_heads * value_dim])
    }

    /// Query heads that share a key head count as rows, so that no key is copied for them.
    fn shared_attention(
        &mut self,
        op: &Attention,
        heads: &Heads,
        queries: Port,
        keys: Port,
        values: Port,
    ) -> Port {
        let Heads { kv_heads, shared, key_dim, value_dim } = *heads;
        let rows = queries;
        let queries = self.reshape(queries, &[0, kv_heads, shared, key_dim]);
        let queries = self.transpose(queries, &[1, 2, 0, 3]);
        let queries = self.reshape(queries, &[1, kv_heads, -1, key_dim]);
        let [keys, values] = [keys, values].map(|x| self.unsqueeze(x, 0));
        let group = self.group(op.state);
        let mut mask = self.feed(Feed::Mask { group, rule: op.mask });
        if let Some(bias) = self.alibi(op, group, &[kv_heads as u64, shared as u64, 1, 1]) {
            mask = self.add(bias, mask);
            mask = self.merge_heads(mask, kv_heads);
            mask = self.unsqueeze(mask, 0);
        } else {
            mask = self.repeated_mask(group, op.mask, mask, shared);
        }
        let scale = self.floats_constant(&[], &[op.scale]);
        let causal = [("causal", "false".to_owned())];
        let inputs = [queries, keys, values, mask, scale];
        let sum = self.model.op("ScaledDotProductAttention", "opset13", &causal, &inputs, Element::F32);
        let sum = self.squeeze(sum, 0);
        let shape = self.scores_shape(kv_heads, shared, rows, sum);
        let sum = self.reshape_to(sum, shape);
        let rows_first = self.transpose(sum, &[2, 0, 1, 3]);
        self.reshape(rows_first, &[0, kv_heads * shared * value_dim])
    }

    /// The mask once for each of the heads that share a key head, `[1, 1, shared · rows, cells]`.
    fn repeated_mask(&mut self, group: usize, rule: MaskRule, mask: Port, shared: i64) -> Port {
        if let Some((.., port)) = self.masks.iter().find(|(g, r, s, _)| (*g, *r, *s) == (group, rule, shared))
        {
            return *port;
        }
        let copies = vec![mask; shared as usize];
        let mut port = if shared > 1 { self.concat(&copies, 0) } else { mask };
        port = self.unsqueeze(port, 0);
        port = self.unsqueeze(port, 0);
        self.masks.push((group, rule, shared, port));
        port
    }

    /// Slopes of this shape times distances, if the attention has them.
    fn alibi(&mut self, op: &Attention, group: usize, shape: &[u64]) -> Option<Port> {
        let max_bias = op.alibi_max_bias?;
        let heads = shape.iter().product::<u64>() as u32;
        let slopes: Vec<f32> = (0..heads).map(|head| alibi_slope(max_bias, head, heads) as f32).collect();
        let slopes = self.floats_constant(shape, &slopes);
        let distances = self.feed(Feed::Distances { group });
        Some(self.multiply(slopes, distances))
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
            Some(Operand::Weight(weight)) => decode(self.graph, *weight, self.weights.as_ref()),
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

    /// Products and a softmax. Scores against several parts of keys, `[kv_heads, cells, width]` each, are computed
    /// apart, so that nothing of a cache is copied, and meet in the softmax.
    fn manual_attention(
        &mut self,
        node: &Node,
        op: &Attention,
        heads: &Heads,
        queries: Port,
        parts: &[(Port, Port)],
    ) -> Port {
        let Heads { kv_heads, shared, key_dim, value_dim } = *heads;
        let rows = queries;
        let queries = self.times(queries, op.scale);
        let queries = self.reshape(queries, &[0, kv_heads, shared, key_dim]);
        let queries = self.transpose(queries, &[1, 2, 0, 3]);
        let queries = self.reshape(queries, &[kv_heads, -1, key_dim]);
        let scores: Vec<Port> = parts.iter().map(|(keys, _)| self.product_of(queries, *keys, true)).collect();
        let scores = if scores.len() > 1 { self.concat(&scores, -1) } else { scores[0] };
        let shape = self.scores_shape(kv_heads, shared, rows, scores);
        let scores = self.reshape_to(scores, shape);
        let shares = self.shares(node, op, scores, kv_heads, shared);
        let shares = self.merge_heads(shares, kv_heads);
        let shares = match parts {
            [(first, _), _] => {
                let cells = self.extent_of(*first, 1);
                let rest = self.integers(&[-1]);
                let lengths = self.concat(&[cells, rest], 0);
                let axis = self.integer(2);
                let inputs = [shares, axis, lengths];
                self.model.op_many("VariadicSplit", "opset1", &[], &inputs, &[Element::F32; 2])
            }
            _ => vec![shares],
        };
        let sums: Vec<Port> = shares
            .into_iter()
            .zip(parts)
            .map(|(shares, (_, values))| self.product_of(shares, *values, false))
            .collect();
        let sum = sums.into_iter().reduce(|a, b| self.add(a, b)).expect("there is at least one part");
        let shape = self.scores_shape(kv_heads, shared, rows, sum);
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
        if let Some(bias) = self.alibi(op, group, &[kv_heads as u64, shared as u64, 1, 1]) {
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

/// Whether the operation over paged caches computes all attention over this state. The CPU plugin makes its kernels for
/// the query heads and widths of the first such layer and uses them for all others, so only layers that have those of most
/// can share them.
pub fn is_pageable_state(graph: &Graph, state: StateId) -> bool {
    let own = page_extents(graph, state);
    let mut counts: HashMap<[Dim; 3], usize> = HashMap::new();
    for other in 0..graph.states.len() {
        if let Some(extents) = page_extents(graph, StateId(other as u32)) {
            *counts.entry(extents).or_default() += 1;
        }
    }
    let most = counts.values().copied().max();
    // Of extents that are as frequent, those of the first layer.
    let first = (0..graph.states.len()).find_map(|other| {
        page_extents(graph, StateId(other as u32)).filter(|extents| counts.get(extents).copied() == most)
    });
    own.is_some() && own == first
}

/// Query heads and widths of keys and values of all attention over a state, if pages can hold it.
fn page_extents(graph: &Graph, state: StateId) -> Option<[Dim; 3]> {
    if !graph.states[state.index()].group().is_kept() {
        return None;
    }
    let mut found = None;
    for node in &graph.nodes {
        let Op::Attention(op) = &node.op else { continue };
        if op.state != state {
            continue;
        }
        if op.soft_cap.is_some() || !matches!(op.mask, MaskRule::Causal | MaskRule::Window(_)) {
            return None;
        }
        let [queries, _, values] = [0, 1, 2].map(|index| graph.operand_type(node.inputs[index]).shape);
        let extents = [*queries.get(1)?, *queries.get(2)?, *values.get(2)?];
        if found.is_some_and(|found| found != extents) {
            return None;
        }
        found = Some(extents);
    }
    found
}

/// Floats as the hexadecimal digits of their bits.
fn digits(values: &[f32]) -> String {
    values.iter().map(|value| format!("{:08x}", value.to_bits())).collect::<Vec<_>>().join(":")
}
