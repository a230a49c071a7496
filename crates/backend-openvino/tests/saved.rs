//! What is saved of a cache has the model's own order of elements, whatever order it has in the cache, and comes back.

use std::sync::Arc;

use puna_backend::partition::partition;
use puna_backend::reference::Reference;
use puna_backend::{Backend, Boundary, Bounds, CacheOptions, DeviceId, Partition};
use puna_conformance::run::{FileWeights, group_step};
use puna_conformance::{normalised_squared_error, zoo};
use puna_graph::Step;
use puna_models::{BuildOptions, build};
use puna_quant::DType;

mod common;

/// Tokens of the step.
const LENGTH: u32 = 40;

/// A model after a step.
fn ran(backend: &dyn Backend, model: &zoo::ZooModel) -> Box<dyn Partition> {
    let file = Arc::new(model.open());
    let options = BuildOptions { context: 64, ..BuildOptions::default() };
    let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("the model builds"));
    let weights = Arc::new(FileWeights::new(file, graph.clone()));
    let cells = vec![64; graph.groups().len()];
    let caches = CacheOptions { keys: DType::F32, values: DType::F32, sequences: 1, cells };
    let (_, segment) = partition(&graph, |_| 0).remove(0);
    let mut partition =
        backend.load(DeviceId(0), segment, weights, &caches, &mut |_| true).expect("the segment loads");
    let program = partition.compile(Bounds { tokens: LENGTH, outputs: 1 }).expect("the segment compiles");
    let step = Step {
        tokens: (0..LENGTH).map(|token| token * 7 % 50).collect(),
        positions: (0..LENGTH as i32).collect(),
        output_rows: vec![LENGTH - 1],
        groups: graph.groups().into_iter().map(|group| group_step(group, 0, LENGTH)).collect(),
        sequences: std::iter::once(0..LENGTH).collect(),
        ..Step::default()
    };
    partition.run(program, &step, &mut Boundary::default()).expect("the step runs");
    partition
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn caches_are_saved_in_the_models_order() {
    let Some((host, _)) = common::start(&[common::EXACT, common::NO_SHIM]) else { return };
    let Some((pages, _)) = common::start_with_shim(&[common::EXACT]) else { return };
    // Rotations of neighbours, of a part of each head, and of elements half a head apart.
    for name in ["llama-gqa4-tied", "glm4-partial", "qwen3-dense"] {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("the zoo has it");
        let mut right = ran(&Reference, &model);
        let cells: Vec<u32> = (0..LENGTH).collect();
        for backend in [&host, &pages] {
            let mut found = ran(backend, &model);
            for state in right.states().states() {
                // The same, and the same again after the cells moved to other positions.
                for delta in [0, 5] {
                    let moves: Vec<(u32, i32)> = cells.iter().map(|cell| (*cell, delta)).collect();
                    if delta > 0 {
                        right.states().shift(0, &moves).expect("they shift");
                        found.states().shift(0, &moves).expect("they shift");
                    }
                    let saved = right.states().save(state, &cells).expect("it is saved");
                    let ours = found.states().save(state, &cells).expect("it is saved");
                    let error = normalised_squared_error(&floats(&ours), &floats(&saved));
                    assert!(error < 1e-8, "{name} {state:?} shifted by {delta}: {error:.1e}");
                    // What another back end saved comes back as it was.
                    found.states().restore(state, &cells, &saved).expect("it is restored");
                    assert_eq!(found.states().save(state, &cells).expect("it is saved"), saved, "{name}");
                }
                // The next state and back end start from positions that did not move.
                let moves: Vec<(u32, i32)> = cells.iter().map(|cell| (*cell, -5)).collect();
                right.states().shift(0, &moves).expect("they shift");
                found.states().shift(0, &moves).expect("they shift");
            }
        }
    }
}
