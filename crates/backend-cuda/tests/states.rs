//! Cells of a cache as they are saved and restored: in any order, neighbours or not.

mod emulated;

use std::sync::Arc;

use emulated::device;
use puna_backend::partition::partition;
use puna_backend::{CacheOptions, DeviceId};
use puna_conformance::run::FileWeights;
use puna_conformance::zoo;
use puna_models::{BuildOptions, build};
use puna_quant::DType;

/// More than are read at once.
const CELLS: u32 = 1100;

#[test]
fn cells_are_saved_in_any_order() {
    let Some(backend) = device() else { return };
    // A cache of keys and values, and recurrent states beside one.
    for name in ["llama-gqa4-tied", "qwen3next-heads"] {
        let model = zoo::models().into_iter().find(|model| model.name == name).expect("a zoo model");
        let file = Arc::new(model.open());
        let options = BuildOptions { context: 64, ..BuildOptions::default() };
        let graph = Arc::new(build(&file.metadata, &file.tensors, &options).expect("the model builds"));
        let weights = Arc::new(FileWeights::new(file, graph.clone()));
        let cells = vec![CELLS; graph.groups().len()];
        let caches = CacheOptions { keys: DType::F16, values: DType::F16, sequences: 1, cells };
        let (_, segment) = partition(&graph, |_| 0).remove(0);
        let mut partition =
            backend.load(DeviceId(0), segment, weights, &caches, &mut |_| true).expect("the model loads");
        let states = partition.states();
        for state in states.states() {
            let all: Vec<u32> = (0..CELLS).collect();
            let each = states.save(state, &[0]).expect("a cell").len();
            let bytes: Vec<u8> =
                (0..each * all.len()).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            states.restore(state, &all, &bytes).expect("as many bytes as cells have");
            let some = [3, 4, 5, 9, 1, 2, CELLS - 1, 0, 7, 8, 20];
            let wanted: Vec<u8> =
                some.iter().flat_map(|cell| bytes[*cell as usize * each..][..each].iter().copied()).collect();
            assert_eq!(states.save(state, &all).expect("they are there"), bytes, "{name}");
            assert_eq!(states.save(state, &some).expect("they are there"), wanted, "{name}");
            assert_eq!(states.save(state, &[]).expect("nothing"), Vec::<u8>::new());
        }
    }
}
