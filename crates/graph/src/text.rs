//! The graph as text, one node per line; golden tests compare it.

use std::fmt;

use crate::{Graph, Operand};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            let inputs: Vec<String> = node
                .inputs
                .iter()
                .map(|operand| match operand {
                    Operand::Value(value) => format!("%{}", value.0),
                    Operand::Weight(weight) => {
                        let weight = &self.weights[weight.index()];
                        format!("${}:{}", weight.name, weight.dtype)
                    }
                    Operand::Input(role) => format!("@{role:?}"),
                })
                .collect();
            writeln!(f, "%{index:<4} {:<16} {} = {:?} {}", node.name, node.ty, node.op, inputs.join(", "))?;
        }
        for (index, state) in self.states.iter().enumerate() {
            writeln!(f, "state {index} {state:?}")?;
        }
        for (role, value) in &self.outputs {
            writeln!(f, "output {role:?} %{}", value.0)?;
        }
        Ok(())
    }
}
