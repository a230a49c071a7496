//! Operations that carry a state from token to token.
//!
//! The rows of a step are those of `spans` sequences, equally many each: `[spans · rows, …]` is seen as
//! `[spans, rows, …]`, and an iteration goes over the second axis.

use puna_graph::ops::{GatedDeltaRule, GatedLinearAttention, KeyHeads};
use puna_graph::{Dim, Node, StateId};

use super::tools::arithmetic;
use super::{Feed, Product, Translator, trailing};
use crate::ir::{Element, Iteration, Model, Port, Way};

/// The body of an iteration in the making.
struct Body {
    model: Model,
}

impl Body {
    fn parameter(&mut self, shape: &[i64]) -> Port {
        let mut extents = vec![None];
        extents.extend(shape.iter().map(|extent| Some(*extent as u64)));
        self.model.parameter("", Element::F32, &extents)
    }

    fn multiply(&mut self, a: Port, b: Port) -> Port {
        arithmetic(&mut self.model, "Multiply", a, b)
    }

    fn add(&mut self, a: Port, b: Port) -> Port {
        arithmetic(&mut self.model, "Add", a, b)
    }

    fn subtract(&mut self, a: Port, b: Port) -> Port {
        arithmetic(&mut self.model, "Subtract", a, b)
    }

    fn exp(&mut self, x: Port) -> Port {
        self.model.op("Exp", "opset1", &[], &[x], Element::F32)
    }
}

impl Translator<'_> {
    fn integers_in(&mut self, body: &mut Body, values: &[i64]) -> Port {
        let bytes = super::tools::bytes_of_i64(values);
        body.model.small(&mut self.blob, Element::I64, &[values.len() as u64], bytes)
    }

    fn reshape_in(&mut self, body: &mut Body, x: Port, shape: &[i64]) -> Port {
        let shape = self.integers_in(body, shape);
        let attributes = [("special_zero", "true".to_owned())];
        body.model.op("Reshape", "opset1", &attributes, &[x, shape], Element::F32)
    }

    fn sum_in(&mut self, body: &mut Body, x: Port, axis: i64) -> Port {
        let axis = self.integers_in(body, &[axis]);
        body.model.op("ReduceSum", "opset1", &[("keep_dims", "false".to_owned())], &[x, axis], Element::F32)
    }

    /// `[spans · rows, …]` as `[spans, rows, …]`.
    fn by_span(&mut self, x: Port, extents: &[i64]) -> Port {
        let spans = self.feed(Feed::Spans);
        let rest = std::iter::once(-1).chain(extents.iter().copied()).collect::<Vec<_>>();
        let rest = self.integers(&rest);
        let shape = self.concat(&[spans, rest], 0);
        self.reshape_to(x, shape)
    }

    /// `[spans, rows, …]` as `[spans · rows, …]`.
    fn by_row(&mut self, x: Port, extents: &[i64]) -> Port {
        let shape: Vec<i64> = std::iter::once(-1).chain(extents.iter().copied()).collect();
        self.reshape(x, &shape)
    }

    /// The state that the spans start from, `[spans, …]`.
    fn start(&mut self, state: StateId, extents: &[i64]) -> Port {
        let start = self.feed(Feed::Recurrent(state));
        let shape: Vec<i64> = std::iter::once(0).chain(extents.iter().copied()).collect();
        self.reshape(start, &shape)
    }

    /// Keeps the state that the spans end with.
    fn end(&mut self, state: StateId, x: Port, elements: i64) {
        let end = self.reshape(x, &[0, elements]);
        self.product(Product::Recurrent(state), end);
    }

    /// Runs a recurrence. `inputs`: values with their extents after the rows, which the body gets one row at a time as
    /// `[spans, …]`. The body gets the state `[spans, …]` first and returns the next state and the row's result.
    fn recurrence(
        &mut self,
        state: (StateId, &[i64]),
        inputs: &[(Port, Vec<i64>)],
        result: &[i64],
        step: impl FnOnce(&mut Self, &mut Body, Port, &[Port]) -> (Port, Port),
    ) -> Port {
        let (state, extents) = state;
        let start = self.start(state, extents);
        let mut body = Body { model: Model::default() };
        let kept = body.parameter(extents);
        let mut outer = vec![(start, Way::Whole)];
        let mut rows = Vec::new();
        for (port, extents) in inputs {
            outer.push((self.by_span(*port, extents), Way::Sliced(1)));
            let one: Vec<i64> = std::iter::once(1).chain(extents.iter().copied()).collect();
            let row = body.parameter(&one);
            let flat: Vec<i64> = std::iter::once(0).chain(extents.iter().copied()).collect();
            rows.push(self.reshape_in(&mut body, row, &flat));
        }
        let (next, out) = step(self, &mut body, kept, &rows);
        let one: Vec<i64> = [0, 1].into_iter().chain(result.iter().copied()).collect();
        let out = self.reshape_in(&mut body, out, &one);
        body.model.result(next, "");
        body.model.result(out, "");
        let results = vec![(Some(Way::Whole), Some(0)), (Some(Way::Sliced(1)), None)];
        let ports = self.model.iterate(Iteration { body: body.model, inputs: outer, results });
        self.end(state, ports[0], extents.iter().product());
        self.by_row(ports[1], result)
    }

    pub(super) fn short_convolution(&mut self, node: &Node, state: StateId) -> Port {
        let (x, weight) = (self.operand(node, 0), self.operand(node, 1));
        let ty = self.operand_type(node, 1);
        let [Dim::Fixed(channels), Dim::Fixed(kernel)] = ty.shape[..] else { return x };
        let (channels, kernel) = (channels as i64, kernel as i64);
        let rows = self.by_span(x, &[channels]);
        let all = match kernel {
            1 => rows,
            _ => {
                let start = self.start(state, &[kernel - 1, channels]);
                self.concat(&[start, rows], 1)
            }
        };
        // Channels before rows, a filter of one channel each.
        let by_channel = self.transpose(all, &[0, 2, 1]);
        let filters = self.reshape(weight, &[channels, 1, 1, kernel]);
        let attributes = [
            ("strides", "1".to_owned()),
            ("dilations", "1".to_owned()),
            ("pads_begin", "0".to_owned()),
            ("pads_end", "0".to_owned()),
            ("auto_pad", "explicit".to_owned()),
        ];
        let sum =
            self.model.op("GroupConvolution", "opset1", &attributes, &[by_channel, filters], Element::F32);
        let sum = self.transpose(sum, &[0, 2, 1]);
        if kernel > 1 {
            let last = self.slice(all, -(kernel - 1), i64::MAX, 1);
            self.end(state, last, (kernel - 1) * channels);
        }
        let sum = self.by_row(sum, &[channels]);
        match node.inputs.len() {
            3 => {
                let bias = self.operand(node, 2);
                self.add(sum, bias)
            }
            _ => sum,
        }
    }

    pub(super) fn token_shift(&mut self, node: &Node, state: StateId) -> Port {
        let x = self.operand(node, 0);
        let width = trailing(&node.ty)[0];
        let rows = self.by_span(x, &[width]);
        let start = self.start(state, &[1, width]);
        let all = self.concat(&[start, rows], 1);
        let before = self.slice(all, 0, -1, 1);
        let last = self.slice(all, -1, i64::MAX, 1);
        self.end(state, last, width);
        self.by_row(before, &[width])
    }

    pub(super) fn selective_scan(&mut self, node: &Node, state: StateId) -> Port {
        let [u, steps, rates, b, c, skip] = [0, 1, 2, 3, 4, 5].map(|index| self.operand(node, index));
        let extents = trailing(&self.operand_type(node, 0));
        let (heads, dim) = (extents[0], extents[1]);
        let extents = trailing(&self.operand_type(node, 3));
        let (groups, size) = (extents[0], extents[1]);
        let per_head = self.operand_type(node, 2).shape.len() == 1;
        // exp(step · rate), [rows, heads, 1, size or 1]
        let steps = self.reshape(steps, &[0, heads, 1]);
        let rates = self.reshape(rates, &[heads, if per_head { 1 } else { size }]);
        let exponents = self.multiply(steps, rates);
        let width = if per_head { 1 } else { size };
        let [b, c] = [b, c].map(|x| self.spread(x, heads, groups));
        let weighted = self.multiply(u, steps);
        let inputs = [
            (weighted, vec![heads, dim]),
            (exponents, vec![heads, width]),
            (b, vec![heads, size]),
            (c, vec![heads, size]),
        ];
        let scanned = self.recurrence(
            (state, &[heads, dim, size]),
            &inputs,
            &[heads, dim],
            |translator, body, kept, rows| {
                let u = translator.reshape_in(body, rows[0], &[0, heads, dim, 1]);
                let decay = translator.reshape_in(body, rows[1], &[0, heads, 1, width]);
                let b = translator.reshape_in(body, rows[2], &[0, heads, 1, size]);
                let c = translator.reshape_in(body, rows[3], &[0, heads, 1, size]);
                let decay = body.exp(decay);
                let kept = body.multiply(kept, decay);
                let added = body.multiply(u, b);
                let next = body.add(kept, added);
                let read = body.multiply(next, c);
                (next, translator.sum_in(body, read, 3))
            },
        );
        let skip = self.reshape(skip, &[heads, 1]);
        let skipped = self.multiply(u, skip);
        self.add(scanned, skipped)
    }

    /// `[rows, groups, size]` to `[rows, heads, size]`, neighbours sharing a group.
    fn spread(&mut self, x: Port, heads: i64, groups: i64) -> Port {
        if heads == groups {
            return x;
        }
        let places: Vec<i64> = (0..heads).map(|head| head / (heads / groups)).collect();
        let places = self.integers(&places);
        self.gather(x, places, 1, 0)
    }

    pub(super) fn gated_delta_rule(&mut self, node: &Node, op: &GatedDeltaRule) -> Port {
        let [queries, keys, values, decays, rates] = [0, 1, 2, 3, 4].map(|index| self.operand(node, index));
        let extents = trailing(&self.operand_type(node, 1));
        let (key_heads, key_dim) = (extents[0], extents[1]);
        let extents = trailing(&self.operand_type(node, 2));
        let (heads, value_dim) = (extents[0], extents[1]);
        let decay_dim = trailing(&self.operand_type(node, 3))[1];
        let places: Vec<i64> = (0..heads)
            .map(|head| match op.key_heads {
                KeyHeads::Grouped => head / (heads / key_heads),
                KeyHeads::Cyclic => head % key_heads,
            })
            .collect();
        let [queries, keys] = [queries, keys].map(|x| {
            if key_heads == heads {
                return x;
            }
            let places = self.integers(&places);
            self.gather(x, places, 1, 0)
        });
        let queries = self.times(queries, op.scale);
        let inputs = [
            (queries, vec![heads, key_dim]),
            (keys, vec![heads, key_dim]),
            (values, vec![heads, value_dim]),
            (decays, vec![heads, decay_dim]),
            (rates, vec![heads]),
        ];
        self.recurrence(
            (op.state, &[heads, key_dim, value_dim]),
            &inputs,
            &[heads, value_dim],
            |translator, body, kept, rows| {
                let [query, key] =
                    [0, 1].map(|row| translator.reshape_in(body, rows[row], &[0, heads, key_dim, 1]));
                let decay = translator.reshape_in(body, rows[3], &[0, heads, decay_dim, 1]);
                let rate = translator.reshape_in(body, rows[4], &[0, heads, 1]);
                let decay = body.exp(decay);
                let kept = body.multiply(kept, decay);
                let known = body.multiply(kept, key);
                let known = translator.sum_in(body, known, 2);
                let change = body.subtract(rows[2], known);
                let change = body.multiply(change, rate);
                let change = translator.reshape_in(body, change, &[0, heads, 1, value_dim]);
                let added = body.multiply(key, change);
                let next = body.add(kept, added);
                let read = body.multiply(next, query);
                (next, translator.sum_in(body, read, 2))
            },
        )
    }

    pub(super) fn gated_linear_attention(&mut self, node: &Node, op: &GatedLinearAttention) -> Port {
        let [queries, keys, values] = [0, 1, 2].map(|index| self.operand(node, index));
        let extents = trailing(&self.operand_type(node, 1));
        let (heads, key_dim) = (extents[0], extents[1]);
        let value_dim = trailing(&self.operand_type(node, 2))[1];
        let queries = self.times(queries, op.scale);
        let mut inputs = vec![
            (queries, vec![heads, key_dim]),
            (keys, vec![heads, key_dim]),
            (values, vec![heads, value_dim]),
        ];
        let mut next_input = 3;
        if op.head_decays.is_none() {
            inputs.push((self.operand(node, 3), vec![heads, key_dim]));
            next_input = 4;
        }
        // The key that a row reads of itself besides the state.
        let has_bonus = node.inputs.len() > next_input;
        if has_bonus {
            let bonus = self.operand(node, next_input);
            inputs.push((self.multiply(keys, bonus), vec![heads, key_dim]));
        }
        let constant = op.head_decays.clone();
        self.recurrence(
            (op.state, &[heads, key_dim, value_dim]),
            &inputs,
            &[heads, value_dim],
            |translator, body, kept, rows| {
                let columns = |translator: &mut Self, body: &mut Body, row: Port| {
                    translator.reshape_in(body, row, &[0, heads, key_dim, 1])
                };
                let (query, key) = (columns(translator, body, rows[0]), columns(translator, body, rows[1]));
                let value = translator.reshape_in(body, rows[2], &[0, heads, 1, value_dim]);
                let decay = match &constant {
                    Some(decays) => body.model.small(
                        &mut translator.blob,
                        Element::F32,
                        &[heads as u64, 1, 1],
                        super::tools::bytes_of_f32(decays),
                    ),
                    None => columns(translator, body, rows[3]),
                };
                let added = body.multiply(key, value);
                let decayed = body.multiply(kept, decay);
                let next = body.add(decayed, added);
                let read = match has_bonus {
                    true => {
                        let own = columns(translator, body, rows[rows.len() - 1]);
                        let own = body.multiply(own, value);
                        body.add(kept, own)
                    }
                    false => next,
                };
                let read = body.multiply(read, query);
                (next, translator.sum_in(body, read, 2))
            },
        )
    }

    pub(super) fn rwkv7(&mut self, node: &Node, state: StateId) -> Port {
        let all = [0, 1, 2, 3, 4, 5].map(|index| self.operand(node, index));
        let extents = trailing(&node.ty);
        let (heads, dim) = (extents[0], extents[1]);
        let [receptance, decay, key, value, removal, rate] = all;
        let written = self.multiply(removal, rate);
        let inputs = [receptance, decay, key, value, removal, written].map(|port| (port, vec![heads, dim]));
        self.recurrence(
            (state, &[heads, dim, dim]),
            &inputs,
            &[heads, dim],
            |translator, body, kept, rows| {
                let [receptance, decay, key, removal, written] =
                    [0, 1, 2, 4, 5].map(|row| translator.reshape_in(body, rows[row], &[0, heads, 1, dim]));
                let value = translator.reshape_in(body, rows[3], &[0, heads, dim, 1]);
                let removed = body.multiply(kept, removal);
                let removed = translator.sum_in(body, removed, 3);
                let removed = translator.reshape_in(body, removed, &[0, heads, dim, 1]);
                let removed = body.multiply(removed, written);
                let kept = body.multiply(kept, decay);
                let kept = body.subtract(kept, removed);
                let added = body.multiply(value, key);
                let next = body.add(kept, added);
                let read = body.multiply(next, receptance);
                (next, translator.sum_in(body, read, 3))
            },
        )
    }
}
