//! What all translations build with.

use super::Translator;
use crate::ir::{Element, Model, Port};

/// Integers as the bytes of a constant.
pub(super) fn bytes_of_i64(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Floats as the bytes of a constant.
pub(super) fn bytes_of_f32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Translator<'_> {
    pub(super) fn floats_constant(&mut self, shape: &[u64], values: &[f32]) -> Port {
        self.model.small(&mut self.blob, Element::F32, shape, bytes_of_f32(values))
    }

    pub(super) fn number(&mut self, value: f32) -> Port {
        self.floats_constant(&[1], &[value])
    }

    pub(super) fn integers(&mut self, values: &[i64]) -> Port {
        self.model.small(&mut self.blob, Element::I64, &[values.len() as u64], bytes_of_i64(values))
    }

    /// A single integer without axes.
    pub(super) fn integer(&mut self, value: i64) -> Port {
        self.model.small(&mut self.blob, Element::I64, &[], bytes_of_i64(&[value]))
    }

    pub(super) fn arithmetic(&mut self, kind: &'static str, a: Port, b: Port) -> Port {
        arithmetic(&mut self.model, kind, a, b)
    }

    pub(super) fn add(&mut self, a: Port, b: Port) -> Port {
        self.arithmetic("Add", a, b)
    }

    pub(super) fn multiply(&mut self, a: Port, b: Port) -> Port {
        self.arithmetic("Multiply", a, b)
    }

    pub(super) fn times(&mut self, a: Port, factor: f32) -> Port {
        if factor == 1.0 {
            return a;
        }
        let factor = self.number(factor);
        self.multiply(a, factor)
    }

    pub(super) fn unary(&mut self, kind: &'static str, opset: &'static str, x: Port) -> Port {
        let element = self.model.element(x);
        self.model.op(kind, opset, &[], &[x], element)
    }

    /// Other extents; 0 keeps the extent in its place, -1 is what remains.
    pub(super) fn reshape(&mut self, x: Port, shape: &[i64]) -> Port {
        let shape = self.integers(shape);
        self.reshape_to(x, shape)
    }

    pub(super) fn reshape_to(&mut self, x: Port, shape: Port) -> Port {
        let element = self.model.element(x);
        self.model.op("Reshape", "opset1", &[("special_zero", "true".to_owned())], &[x, shape], element)
    }

    pub(super) fn transpose(&mut self, x: Port, order: &[i64]) -> Port {
        let order = self.integers(order);
        let element = self.model.element(x);
        self.model.op("Transpose", "opset1", &[], &[x, order], element)
    }

    pub(super) fn unsqueeze(&mut self, x: Port, axis: i64) -> Port {
        let axis = self.integers(&[axis]);
        let element = self.model.element(x);
        self.model.op("Unsqueeze", "opset1", &[], &[x, axis], element)
    }

    pub(super) fn concat(&mut self, parts: &[Port], axis: i64) -> Port {
        let element = self.model.element(parts[0]);
        self.model.op("Concat", "opset1", &[("axis", axis.to_string())], parts, element)
    }

    /// Consecutive parts of an axis.
    pub(super) fn split(&mut self, x: Port, lengths: &[i64], axis: i64) -> Vec<Port> {
        let (axis, parts) = (self.integer(axis), self.integers(lengths));
        let elements = vec![self.model.element(x); lengths.len()];
        self.model.op_many("VariadicSplit", "opset1", &[], &[x, axis, parts], &elements)
    }

    pub(super) fn squeeze(&mut self, x: Port, axis: i64) -> Port {
        let axis = self.integers(&[axis]);
        let element = self.model.element(x);
        self.model.op("Squeeze", "opset1", &[], &[x, axis], element)
    }

    /// Elements `start..end` of an axis.
    pub(super) fn slice(&mut self, x: Port, start: i64, end: i64, axis: i64) -> Port {
        let [start, end, step, axis] = [start, end, 1, axis].map(|value| self.integers(&[value]));
        let element = self.model.element(x);
        self.model.op("Slice", "opset8", &[], &[x, start, end, step, axis], element)
    }

    pub(super) fn reduce(&mut self, kind: &'static str, x: Port, axis: i64, keep: bool) -> Port {
        let axis = self.integers(&[axis]);
        let element = self.model.element(x);
        self.model.op(kind, "opset1", &[("keep_dims", keep.to_string())], &[x, axis], element)
    }

    pub(super) fn product_of(&mut self, a: Port, b: Port, transpose_b: bool) -> Port {
        let attributes = [("transpose_a", "false".to_owned()), ("transpose_b", transpose_b.to_string())];
        self.model.op("MatMul", "opset1", &attributes, &[a, b], Element::F32)
    }

    pub(super) fn softmax(&mut self, x: Port, axis: i64) -> Port {
        self.model.op("SoftMax", "opset8", &[("axis", axis.to_string())], &[x], Element::F32)
    }

    pub(super) fn gather(&mut self, data: Port, indexes: Port, axis: i64, batch_axes: i64) -> Port {
        // A look-up row by row ends the process inside of OpenVINO 2026.4.1 where extents are fixed and there is one row;
        // but then it is a plain one.
        let (indexes, batch_axes) = match self.choices.tokens {
            Some(1) if batch_axes == 1 => (self.reshape(indexes, &[-1]), 0),
            _ => (indexes, batch_axes),
        };
        let axis = self.integer(axis);
        let element = self.model.element(data);
        self.model.op(
            "Gather",
            "opset8",
            &[("batch_dims", batch_axes.to_string())],
            &[data, indexes, axis],
            element,
        )
    }

    /// One extent of a value, as a list of one `i64`.
    pub(super) fn extent_of(&mut self, x: Port, axis: i64) -> Port {
        let shape =
            self.model.op("ShapeOf", "opset3", &[("output_type", "i64".to_owned())], &[x], Element::I64);
        let axis = self.integers(&[axis]);
        self.gather(shape, axis, 0, 0)
    }
}

/// A binary operation with broadcasting as of NumPy.
pub(super) fn arithmetic(model: &mut Model, kind: &'static str, a: Port, b: Port) -> Port {
    let element = model.element(a);
    model.op(kind, "opset1", &[("auto_broadcast", "numpy".to_owned())], &[a, b], element)
}
