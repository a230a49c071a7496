//! Every zoo model of a known architecture against its recorded logits, on the evaluator.

use std::collections::HashMap;
use std::sync::Arc;

use puna_conformance::run::group_step;
use puna_conformance::{normalised_squared_error, zoo};
use puna_graph::evaluate::{Context, Memory, Weights, run};
use puna_graph::ops::Function;
use puna_graph::{Array, Graph, Op, Output, Step, WeightId};
use puna_models::{ARCHITECTURES, BuildOptions, build};

struct FileWeights<'a> {
    file: &'a puna_gguf::File,
    graph: &'a Graph,
}

impl Weights for FileWeights<'_> {
    fn decode(&self, weight: WeightId) -> Arc<Array> {
        let declared = &self.graph.weights[weight.index()];
        let bytes = self.file.bytes(self.file.tensors.get(&declared.name).expect("declared weights exist"));
        let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Arc::new(Array::f32(declared.shape.iter().map(|n| *n as usize).collect(), floats))
    }
}

fn has_gelu(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| match &node.op {
        Op::Unary(unary) => unary.function == Function::Gelu,
        Op::Glu(glu) => glu.function == Function::Gelu,
        _ => false,
    })
}

/// The whole prompt in one step, every row an output.
fn logits(model: &zoo::ZooModel) -> Result<Vec<f32>, puna_models::ModelError> {
    let file = model.open();
    let graph = build(
        &file.metadata,
        &file.tensors,
        &BuildOptions { context: 256, only_long_texts: true, ..BuildOptions::default() },
    )?;
    let rows = model.tokens.len() as u32;
    let step = Step {
        tokens: model.tokens.clone(),
        positions: (0..rows as i32).collect(),
        output_rows: (0..rows).collect(),
        groups: graph.groups().into_iter().map(|group| group_step(group, 0, rows)).collect(),
        sequences: std::iter::once(0..rows).collect(),
        ..Step::default()
    };
    let mut memory: Vec<Memory> =
        graph.states.iter().map(|state| Memory::new(state, rows as usize)).collect();
    let mut values = HashMap::new();
    let weights = FileWeights { file: &file, graph: &graph };
    let mut context = Context { graph: &graph, step: &step, memory: &mut memory };
    run(0..graph.nodes.len(), &weights, &mut context, &mut values);
    let logits = values.remove(&graph.output(Output::Logits).expect("the model has logits"));
    assert_eq!(has_gelu(&graph), model.has_gelu(), "{} and the table of GELU models", model.name);
    Ok(logits.expect("evaluated").into_floats())
}

#[test]
fn logits_equal_the_recorded_ones() {
    let mut tested = Vec::new();
    let mut faults = Vec::new();
    for model in zoo::models() {
        let architecture = model.architecture();
        if !ARCHITECTURES.iter().any(|row| row.name == architecture) {
            continue;
        }
        let line = match logits(&model) {
            Ok(logits) => {
                let error = normalised_squared_error(&logits, &model.logits);
                (error.is_nan() || error > model.tolerance(), format!("{} {error:.2e}", model.name))
            }
            Err(error) => (true, format!("{}: {error}", model.name)),
        };
        println!("{}", line.1);
        if line.0 {
            faults.push(line.1);
        }
        tested.push(architecture);
    }
    assert!(faults.is_empty(), "wrong models:\n{}", faults.join("\n"));
    // Tested by `embeddings.rs`, and by the runtime's `drafts.rs`.
    let embedders = zoo::embedding_models();
    let drafts = zoo::draft_models();
    let embedders = embedders.iter().map(|model| model.architecture());
    let others: Vec<String> = embedders.chain(drafts.iter().map(|model| model.architecture())).collect();
    for row in ARCHITECTURES.iter().filter(|row| !others.iter().any(|name| name == row.name)) {
        assert!(tested.iter().any(|name| name == row.name), "no zoo model of {}", row.name);
    }
}

/// Each row of the table in `docs/models.md` has architectures that are there, and tiny models that were checked.
#[test]
fn the_page_of_models_names_what_there_is() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let decoders = zoo::models().into_iter().map(|model| model.name);
    let checked: Vec<String> =
        decoders.chain(zoo::embedding_models().into_iter().map(|model| model.name)).collect();
    let mut rows = 0;
    let table = page.split("\n## ").next().expect("a split has a first piece");
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let quoted = |cell: usize| cells[cell].split('`').skip(1).step_by(2);
        for name in quoted(1) {
            assert!(ARCHITECTURES.iter().any(|row| row.name == name), "no architecture {name}: {row}");
        }
        for name in quoted(2).filter(|name| !name.starts_with("docs/")) {
            assert!(checked.iter().any(|other| other == name), "no tiny model {name}: {row}");
        }
        assert!(quoted(1).next().is_some(), "{row}");
        rows += 1;
    }
    assert!(rows >= 20, "{rows}");
}
