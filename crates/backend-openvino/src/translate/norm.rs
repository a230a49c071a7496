//! Normalisation of rows.

use puna_graph::Node;

use super::Translator;
use crate::ir::{Element, Port};

impl Translator<'_> {
    pub(super) fn rms_norm(&mut self, node: &Node, epsilon: f32) -> Port {
        let x = self.operand(node, 0);
        // The form that plugins make one operation of.
        let two = self.number(2.0);
        let square = self.arithmetic("Power", x, two);
        let mean = self.reduce("ReduceMean", square, -1, true);
        let epsilon = self.number(epsilon);
        let sum = self.add(mean, epsilon);
        let root = self.unary("Sqrt", "opset1", sum);
        let one = self.number(1.0);
        let inverse = self.arithmetic("Divide", one, root);
        let normal = self.multiply(x, inverse);
        self.weighted(node, normal)
    }

    pub(super) fn layer_norm(&mut self, node: &Node, epsilon: f32) -> Port {
        let x = self.operand(node, 0);
        let axes = self.integers(&[-1]);
        let attributes = [
            ("normalize_variance", "true".to_owned()),
            ("eps", format!("{epsilon:e}")),
            ("eps_mode", "inside_sqrt".to_owned()),
        ];
        let normal = self.model.op("MVN", "opset6", &attributes, &[x, axes], Element::F32);
        self.weighted(node, normal)
    }

    /// Times the second input, plus the third, as far as they are there.
    fn weighted(&mut self, node: &Node, x: Port) -> Port {
        let mut x = x;
        for (index, kind) in [(1, "Multiply"), (2, "Add")] {
            if index < node.inputs.len() {
                let vector = self.operand(node, index);
                x = self.arithmetic(kind, x, vector);
            }
        }
        x
    }

    pub(super) fn match_norm(&mut self, node: &Node) -> Port {
        let (x, reference) = (self.operand(node, 0), self.operand(node, 1));
        let [length, wanted] = [x, reference].map(|x| {
            let square = self.multiply(x, x);
            let sum = self.reduce("ReduceSum", square, -1, true);
            self.unary("Sqrt", "opset1", sum)
        });
        // A row of zeros stays zero: its factor is large but finite.
        let least = self.number(f32::MIN_POSITIVE);
        let length = self.arithmetic("Maximum", length, least);
        let factor = self.arithmetic("Divide", wanted, length);
        self.multiply(x, factor)
    }

    pub(super) fn gaussian_cut(&mut self, node: &Node, deviations: f32) -> Port {
        let x = self.operand(node, 0);
        let width = self.operand_type(node, 0).width().unwrap_or(1) as f32;
        let mean = self.reduce("ReduceMean", x, -1, true);
        let centred = self.arithmetic("Subtract", x, mean);
        let square = self.multiply(centred, centred);
        let sum = self.reduce("ReduceSum", square, -1, true);
        let variance = self.times(sum, 1.0 / (width - 1.0).max(1.0));
        let deviation = self.unary("Sqrt", "opset1", variance);
        let cut = self.times(deviation, deviations);
        let rest = self.arithmetic("Subtract", centred, cut);
        self.unary("ReLU", "opset1", rest)
    }
}
