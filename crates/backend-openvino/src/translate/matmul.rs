//! Products with weights, and look-ups in them.

use std::borrow::Cow;
use std::sync::Arc;

use puna_backend::WeightSource;
use puna_graph::{Graph, Node, Operand, WeightId};

use super::order::HeadOrder;
use super::{Translator, trailing};
use crate::ir::{Element, Port};
use crate::weights::{self, Coding, Part, Use};

/// A tensor to look rows up in.
#[derive(Clone, Copy)]
pub(super) enum Table {
    /// Floats of any width.
    Floats(Port),
    /// Codes `[rows, groups, group]`, scales and perhaps zero points `[rows, groups, 1]`.
    Coded { codes: Port, scales: Port, zeros: Option<Port> },
}

/// Where a tensor's bytes come from.
struct Source {
    weights: Arc<dyn WeightSource>,
    weight: WeightId,
    order: Option<HeadOrder>,
    rows: usize,
}

impl Source {
    /// Its bytes, its rows (of a vector: its elements) in the order in which they are written.
    fn bytes(&self) -> Cow<'_, [u8]> {
        let bytes = self.weights.bytes(self.weight);
        match self.order {
            Some(order) => Cow::Owned(order.apart(bytes, bytes.len() / self.rows.max(1))),
            None => Cow::Borrowed(bytes),
        }
    }
}

/// A tensor's numbers.
pub(super) fn decode(graph: &Graph, weight: WeightId, weights: &dyn WeightSource) -> Vec<f32> {
    let declared = &graph.weights[weight.index()];
    let elements: u64 = declared.shape.iter().map(|extent| *extent as u64).product();
    let mut floats = vec![0.0; elements as usize];
    (declared.dtype.format().decode)(weights.bytes(weight), &mut floats);
    floats
}

impl Translator<'_> {
    /// A tensor as floats in the shape of its declaration; for vectors and what is added or multiplied.
    pub(super) fn floats(&mut self, weight: WeightId) -> Port {
        if let Some(port) = self.decoded.get(&weight) {
            return *port;
        }
        let shape: Vec<u64> = self.shape(weight);
        let elements: u64 = shape.iter().product();
        let dtype = self.graph.weights[weight.index()].dtype;
        let source = self.source(weight);
        let fill = Box::new(move |out: &mut [u8]| weights::floats(dtype, &source.bytes(), out));
        let offset = self.blob.reserve(4 * elements, Some(weight), fill);
        let port = self.model.constant(Element::F32, &shape, offset, 4 * elements);
        self.decoded.insert(weight, port);
        port
    }

    fn source(&self, weight: WeightId) -> Source {
        let order = self.orders.weights.get(&weight).copied();
        let rows = self.shape(weight).first().map_or(1, |rows| *rows as usize);
        Source { weights: self.weights.clone(), weight, order, rows }
    }

    pub(super) fn shape(&self, weight: WeightId) -> Vec<u64> {
        self.graph.weights[weight.index()].shape.iter().map(|extent| *extent as u64).collect()
    }

    /// A tensor to multiply with, `f32` after a chain of conversions that plugins take into the product.
    pub(super) fn matrix(&mut self, weight: WeightId) -> Port {
        if let Some(port) = self.matrices.get(&weight) {
            return *port;
        }
        let shape = self.shape(weight);
        // What belongs to no layer makes logits.
        let role = if self.graph.weights[weight.index()].layer.is_none() { Use::Output } else { Use::Factor };
        let coding = self.coding(weight, role);
        let port = match coding.float() {
            Some(element) => {
                let port = self.piece(weight, &coding, Part::Codes, element, &shape);
                self.model.decompress(port, Element::F32)
            }
            None => {
                let (grouped, one) = grouped(&shape, coding.group);
                let codes = self.piece(weight, &coding, Part::Codes, coding.element, &grouped);
                // Not marked as decompression: plugins would carry it out, once and for all.
                let mut value = self.model.convert(codes, coding.scales);
                if let Some(element) = coding.zeros {
                    let zeros = self.piece(weight, &coding, Part::Zeros, element, &one);
                    let zeros = self.model.convert(zeros, coding.scales);
                    value = self.arithmetic("Subtract", value, zeros);
                }
                let scales = self.piece(weight, &coding, Part::Scales, coding.scales, &one);
                value = self.multiply(value, scales);
                let shape: Vec<i64> = shape.iter().map(|extent| *extent as i64).collect();
                value = self.reshape(value, &shape);
                self.model.convert(value, Element::F32)
            }
        };
        self.matrices.insert(weight, port);
        port
    }

    fn coding(&self, weight: WeightId, role: Use) -> Coding {
        let declared = &self.graph.weights[weight.index()];
        Coding::of(declared.dtype, *declared.shape.last().unwrap_or(&1) as usize, role, self.choices.kind)
    }

    /// One part of a tensor's coding as a constant; the same part in the same coding is written once.
    fn piece(
        &mut self,
        weight: WeightId,
        coding: &Coding,
        part: Part,
        element: Element,
        shape: &[u64],
    ) -> Port {
        let same = self.pieces.iter().find(|(w, c, p, _)| *w == weight && *p == part && c == coding);
        if let Some((.., port)) = same {
            return *port;
        }
        let bytes = shape.iter().product::<u64>() * element.bits() as u64 / 8;
        let (source, own) = (self.source(weight), coding.clone());
        let fill = Box::new(move |out: &mut [u8]| own.write(part, &source.bytes(), out));
        let offset = self.blob.reserve(bytes, Some(weight), fill);
        let port = self.model.constant(element, shape, offset, bytes);
        self.pieces.push((weight, coding.clone(), part, port));
        port
    }

    pub(super) fn matmul(&mut self, node: &Node) -> Port {
        let weight = self.factor(node, 0);
        let x = self.operand(node, 1);
        let product = self.product_of(x, weight, true);
        match node.inputs.len() {
            3 => {
                let bias = self.operand(node, 2);
                self.add(product, bias)
            }
            _ => product,
        }
    }

    /// What the node multiplies with.
    pub(super) fn factor(&mut self, node: &Node, index: usize) -> Port {
        match node.inputs[index] {
            Operand::Weight(weight) => self.matrix(weight),
            _ => self.operand(node, index),
        }
    }

    pub(super) fn matmul_heads(&mut self, node: &Node) -> Port {
        let weight = self.factor(node, 0);
        let x = self.operand(node, 1);
        let heads_first = self.transpose(x, &[1, 0, 2]);
        let product = self.product_of(heads_first, weight, true);
        self.transpose(product, &[1, 0, 2])
    }

    pub(super) fn gather_rows(&mut self, node: &Node) -> Port {
        let indexes = self.operand(node, 1);
        let rows = match self.operand_type(node, 0).shape.first() {
            Some(puna_graph::Dim::Fixed(rows)) => Some(*rows),
            _ => None,
        };
        // Of a table of the model the last row stands for all beyond; rows of the step are there.
        let indexes = match rows {
            Some(rows) => {
                let last = rows.saturating_sub(1) as i32;
                let last = self.model.small(&mut self.blob, Element::I32, &[1], last.to_le_bytes().to_vec());
                self.arithmetic("Minimum", indexes, last)
            }
            None => indexes,
        };
        let Operand::Weight(weight) = node.inputs[0] else {
            let table = self.operand(node, 0);
            return self.gather(table, indexes, 0, 0);
        };
        match self.table(weight) {
            Table::Floats(table) => {
                let rows = self.gather(table, indexes, 0, 0);
                self.model.convert(rows, Element::F32)
            }
            Table::Coded { codes, scales, zeros } => {
                let [codes, scales] = [codes, scales].map(|table| {
                    let rows = self.gather(table, indexes, 0, 0);
                    self.model.convert(rows, Element::F32)
                });
                let mut value = codes;
                if let Some(zeros) = zeros {
                    let zeros = self.gather(zeros, indexes, 0, 0);
                    let zeros = self.model.convert(zeros, Element::F32);
                    value = self.arithmetic("Subtract", value, zeros);
                }
                value = self.multiply(value, scales);
                let mut shape = vec![0];
                shape.extend(trailing(&node.ty));
                self.reshape(value, &shape)
            }
        }
    }

    fn table(&mut self, weight: WeightId) -> Table {
        if let Some(table) = self.tables.get(&weight) {
            return *table;
        }
        let shape = self.shape(weight);
        let width: u64 = shape[1..].iter().product();
        let coding = self.coding(weight, Use::Table);
        let table = match coding.float() {
            Some(element) => Table::Floats(self.piece(weight, &coding, Part::Codes, element, &shape)),
            None => {
                let (grouped, one) = grouped(&[shape[0], width], coding.group);
                let codes = self.piece(weight, &coding, Part::Codes, coding.element, &grouped);
                let scales = self.piece(weight, &coding, Part::Scales, coding.scales, &one);
                let zeros =
                    coding.zeros.map(|element| self.piece(weight, &coding, Part::Zeros, element, &one));
                Table::Coded { codes, scales, zeros }
            }
        };
        self.tables.insert(weight, table);
        table
    }
}

/// The shape with its last axis cut into groups, and the shape of one number per group.
fn grouped(shape: &[u64], group: usize) -> (Vec<u64>, Vec<u64>) {
    let (width, leading) = shape.split_last().expect("a matrix has axes");
    let mut codes = leading.to_vec();
    codes.extend([width / group as u64, group as u64]);
    let mut one = codes.clone();
    *one.last_mut().expect("it has axes") = 1;
    (codes, one)
}
