//! The reference evaluator: every node in order, by its definition. It is slow, keeps all values, and is what
//! back ends are compared with.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::ops::OpDef;
use crate::{Array, Graph, GroupStep, Operand, StateDecl, StateId, Step, ValueId, WeightId};

/// Decoded weights.
pub trait Weights {
    /// The tensor as floats, in the shape of its declaration.
    fn decode(&self, weight: WeightId) -> Arc<Array>;
}

/// Contents of one state.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// `[cells, kv_heads, key_dim]`
    pub keys: Vec<f32>,
    /// `[cells, kv_heads, value_dim]`
    pub values: Vec<f32>,
    /// `[cells, elements]` of a recurrent state.
    pub recurrent: Vec<f32>,
}

impl Memory {
    /// Room for `cells` cells of this state.
    pub fn new(state: &StateDecl, cells: usize) -> Self {
        match state {
            StateDecl::KeyValue { kv_heads, key_dim, value_dim, .. } => {
                let floats = |width: &u32| vec![0.0; cells * *kv_heads as usize * *width as usize];
                Self { keys: floats(key_dim), values: floats(value_dim), recurrent: Vec::new() }
            }
            StateDecl::Recurrent { elements, .. } => {
                Self { recurrent: vec![0.0; cells * *elements as usize], ..Self::default() }
            }
        }
    }

    /// Stores the rows of one token in a cell.
    pub fn write(&mut self, cell: usize, keys: &[f32], values: &[f32]) {
        self.keys[cell * keys.len()..][..keys.len()].copy_from_slice(keys);
        self.values[cell * values.len()..][..values.len()].copy_from_slice(values);
    }
}

/// What an operation may touch besides its inputs.
pub struct Context<'a> {
    /// The graph, for states and groups.
    pub graph: &'a Graph,
    /// Data of the step.
    pub step: &'a Step,
    /// One entry per state of the graph.
    pub memory: &'a mut [Memory],
}

impl Context<'_> {
    /// The step's data for the cache group of a state.
    pub fn group(&self, state: StateId) -> &GroupStep {
        let group = self.graph.states[state.index()].group();
        let index = self.graph.groups().iter().position(|other| *other == group);
        &self.step.groups[index.expect("the state's group is one of the graph's")]
    }

    /// Runs a recurrence: for each span of the step `update` gets its rows and the state that it starts from,
    /// of `elements` numbers, and leaves there the state that it ends with.
    pub fn each_span(
        &mut self,
        state: StateId,
        elements: usize,
        mut update: impl FnMut(Range<usize>, &mut [f32]),
    ) {
        let group = self.group(state).clone();
        let memory = &mut self.memory[state.index()].recurrent;
        for span in &group.spans {
            let rows = span.tokens.start as usize..span.tokens.end as usize;
            let Some(last) = rows.end.checked_sub(1).filter(|_| !rows.is_empty()) else { continue };
            let mut carried = match span.cells.first() {
                Some(cell) => memory[cell.start as usize * elements..][..elements].to_vec(),
                None => vec![0.0; elements],
            };
            update(rows, &mut carried);
            memory[group.write_cells[last] as usize * elements..][..elements].copy_from_slice(&carried);
        }
    }
}

/// Runs the nodes of `range`, reading earlier results from `values` and adding the new ones.
pub fn run(
    range: Range<usize>,
    weights: &dyn Weights,
    context: &mut Context<'_>,
    values: &mut HashMap<ValueId, Array>,
) {
    let graph = context.graph;
    for index in range {
        let node = &graph.nodes[index];
        // Weights and step inputs are made on the fly; values are borrowed.
        let owned: Vec<Option<Arc<Array>>> = node
            .inputs
            .iter()
            .map(|operand| match operand {
                Operand::Value(_) => None,
                Operand::Weight(weight) => Some(weights.decode(*weight)),
                Operand::Input(input) => {
                    let data = context.step.input(*input);
                    Some(Arc::new(Array::i32(vec![data.len()], data)))
                }
            })
            .collect();
        let inputs: Vec<&Array> = node
            .inputs
            .iter()
            .zip(&owned)
            .map(|(operand, owned)| match (operand, owned) {
                (_, Some(array)) => array.as_ref(),
                (Operand::Value(value), None) => &values[value],
                _ => unreachable!("only values are borrowed"),
            })
            .collect();
        let result = node.op.evaluate(&inputs, context);
        values.insert(ValueId(index as u32), result);
    }
}
