//! Which values of a graph are the inputs of which matrices, and the sums over their rows.

use super::file::{Entry, Sums};
use puna_graph::{Array, Graph, Op, Operand, ValueId};
use std::collections::{BTreeMap, HashMap};

/// How rows meet matrices.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Meeting {
    /// All rows, one matrix.
    All,
    /// Row `i` meets matrix `i % matrices`.
    ByHead,
    /// Rows meet the experts in this value.
    Chosen(ValueId),
}

/// One value that matrices read.
#[derive(Clone, PartialEq, Debug)]
struct Watched {
    value: ValueId,
    meeting: Meeting,
    matrices: usize,
    /// Tensors that read it.
    names: Vec<String>,
}

/// What is watched of a graph, and what was seen.
pub struct Collector {
    watched: Vec<Watched>,
    /// Sums and counts of each.
    seen: Vec<(Vec<f64>, Vec<u64>)>,
}

impl Collector {
    /// Watches the inputs of all matrices; those of the output only if `output`.
    pub fn new(graph: &Graph, output: bool) -> Self {
        let mut watched: Vec<Watched> = Vec::new();
        for node in &graph.nodes {
            let (Some(Operand::Weight(weight)), Some(Operand::Value(value))) =
                (node.inputs.first(), node.inputs.get(1))
            else {
                continue;
            };
            let Some(weight) = graph.weights.get(weight.index()) else { continue };
            let matrices = weight.shape.first().copied().unwrap_or(1) as usize;
            let (meeting, matrices) = match (&node.op, node.inputs.get(2)) {
                (Op::MatMul(_), _) => (Meeting::All, 1),
                (Op::MatMulHeads(_), _) => (Meeting::ByHead, matrices),
                (Op::MatMulExperts(_), Some(Operand::Value(chosen))) => (Meeting::Chosen(*chosen), matrices),
                _ => continue,
            };
            let of_output = weight.name == "output.weight" || weight.name == "token_embd.weight";
            if of_output && !output {
                continue;
            }
            let same = |other: &&mut Watched| other.value == *value && other.meeting == meeting;
            match watched.iter_mut().find(same) {
                Some(other) => other.names.push(weight.name.clone()),
                None => {
                    let names = vec![weight.name.clone()];
                    watched.push(Watched { value: *value, meeting, matrices, names });
                }
            }
        }
        let seen = watched.iter().map(|watched| (Vec::new(), vec![0; watched.matrices])).collect();
        Self { watched, seen }
    }

    /// The values to watch.
    pub fn values(&self) -> Vec<ValueId> {
        let mut values = Vec::new();
        for watched in &self.watched {
            values.push(watched.value);
            if let Meeting::Chosen(chosen) = watched.meeting {
                values.push(chosen);
            }
        }
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Adds the rows of a step.
    pub fn observe(&mut self, values: &HashMap<ValueId, Array>) {
        for (watched, (sums, counts)) in self.watched.iter().zip(&mut self.seen) {
            let Some(array) = values.get(&watched.value) else { continue };
            let width = array.width();
            sums.resize(width * watched.matrices, 0.0);
            let mut add = |matrix: usize, row: &[f32]| {
                let (Some(count), Some(sums)) =
                    (counts.get_mut(matrix), sums.get_mut(matrix * width..(matrix + 1) * width))
                else {
                    return;
                };
                *count += 1;
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            };
            match watched.meeting {
                Meeting::All => array.rows().for_each(|row| add(0, row)),
                Meeting::ByHead => {
                    array.rows().enumerate().for_each(|(index, row)| add(index % watched.matrices, row));
                }
                Meeting::Chosen(chosen) => {
                    let Some(chosen) = values.get(&chosen) else { continue };
                    let used = chosen.width().max(1);
                    // Experts read one row for each token, or one for each choice.
                    let rows: Vec<&[f32]> = array.rows().collect();
                    let for_each_choice = rows.len() == chosen.integers().len();
                    for (index, expert) in chosen.integers().iter().enumerate() {
                        let row = if for_each_choice { index } else { index / used };
                        if let (Ok(expert), Some(row)) = (usize::try_from(*expert), rows.get(row)) {
                            add(expert, row);
                        }
                    }
                }
            }
        }
    }

    /// Everything so far.
    pub fn sums(&self) -> Sums {
        let mut entries = BTreeMap::new();
        for (watched, (sums, counts)) in self.watched.iter().zip(&self.seen) {
            if sums.is_empty() {
                continue;
            }
            let entry = Entry {
                sums: sums.iter().map(|sum| *sum as f32).collect(),
                counts: counts.iter().map(|count| *count as f32).collect(),
            };
            entries.extend(watched.names.iter().map(|name| (name.clone(), entry.clone())));
        }
        Sums { entries, ..Sums::default() }
    }
}
