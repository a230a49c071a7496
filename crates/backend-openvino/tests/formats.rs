//! Formats of cached keys and values: from options and from properties of the plugin, in every place for caches.

use std::sync::{Arc, Mutex};

use puna_backend_openvino::OpenVino;
use puna_conformance::{normalised_squared_error, zoo};
use puna_gguf::File;
use puna_quant::DType;

mod common;
mod sequences;

use sequences::Sequences;

fn file() -> Arc<File> {
    let model = zoo::models().into_iter().find(|model| model.name == "llama-gqa4-tied");
    Arc::new(model.expect("the zoo has it").open())
}

type Started = Option<(OpenVino, Arc<Mutex<Vec<String>>>)>;

/// Starts the back end in one of the places for caches.
type Start = fn(&[(&str, &str)]) -> Started;

fn host(variables: &[(&str, &str)]) -> Started {
    common::start(&[&[common::NO_SHIM], variables].concat())
}

fn in_model(variables: &[(&str, &str)]) -> Started {
    host(&[&[("GGML_OPENVINO_STATEFUL_EXECUTION", "1")], variables].concat())
}

/// Logits of a prompt long enough for a model of its own, and of steps after it.
fn logits(sequences: &mut Sequences) -> Vec<f32> {
    let prompt: Vec<u32> = (0..60).map(|place| place * 7 % 50).collect();
    sequences.generate(&[(0, prompt)], 3).concat().concat()
}

/// What a property says is what the option would have said.
#[test]
fn properties_set_formats_as_options_do() {
    let file = file();
    // What the variables of a model take is only known by the option.
    for (start, knows_bytes) in
        [(host as Start, true), (in_model as Start, false), (common::start_with_shim as Start, true)]
    {
        let found = |properties: &str, cache: DType| {
            let (backend, _) = start(&[("GGML_OPENVINO_PROPERTIES", properties)])?;
            let mut sequences = Sequences::load(&backend, &file, 1, cache);
            Some((logits(&mut sequences), sequences.cache_bytes()))
        };
        let (Some(floats), Some(halves)) = (found("", DType::F32), found("", DType::F16)) else { return };
        assert!(normalised_squared_error(&halves.0, &floats.0) < 1e-3, "without properties");
        for (properties, option, expected) in [
            ("KEY_CACHE_PRECISION=f32,VALUE_CACHE_PRECISION=f32", DType::F16, &floats),
            ("KV_CACHE_PRECISION=f32", DType::F16, &floats),
            ("KV_CACHE_PRECISION=f16", DType::F32, &halves),
        ] {
            let (found, bytes) = found(properties, option).expect("it started before");
            assert!(found == expected.0, "{properties}");
            assert!(bytes == expected.1 || !knows_bytes, "{properties}");
        }
    }
}

#[test]
fn what_pages_cannot_hold_is_named() {
    let file = file();
    for (properties, formats, expected) in [
        ("", [DType::F32, DType::F16], "keys in f32 and values in f16: pages hold both in one format"),
        (
            "KV_CACHE_PRECISION=u8",
            [DType::F16; 2],
            "KV_CACHE_PRECISION=u8: keys and values in pages are f32 or f16",
        ),
    ] {
        let Some((backend, _)) = common::start_with_shim(&[("GGML_OPENVINO_PROPERTIES", properties)]) else {
            return;
        };
        let error = Sequences::try_load(&backend, &file, 1, formats, 64).err().expect("it is refused");
        assert!(error.to_string().contains(expected), "{error}");
        // The host holds what pages do not.
        let Some((backend, _)) = host(&[]) else { return };
        let mut sequences = Sequences::try_load(&backend, &file, 1, formats, 64).expect("it loads");
        sequences.push(&[(0, &[1, 2, 3])]);
    }
}

/// What is saved has the format of the option, whatever it is kept in.
#[test]
fn cells_are_saved_in_the_format_that_was_asked_for() {
    let file = file();
    let narrow = |bytes: &[u8], dtype: DType| -> Vec<u8> {
        let floats = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let halves = floats.map(half::f16::from_f32);
        match dtype {
            DType::F16 => halves.flat_map(half::f16::to_le_bytes).collect(),
            _ => halves.flat_map(|half| half::bf16::from_f32(half.to_f32()).to_le_bytes()).collect(),
        }
    };
    for start in [host as Start, common::start_with_shim as Start] {
        let saved = |properties: &str, cache: DType| {
            let exact =
                format!("INFERENCE_PRECISION_HINT=f32,DYNAMIC_QUANTIZATION_GROUP_SIZE=0,{properties}");
            let (backend, _) = start(&[("GGML_OPENVINO_PROPERTIES", &exact)])?;
            let mut sequences = Sequences::load(&backend, &file, 1, cache);
            sequences.push(&[(0, &[3, 5, 7, 9])]);
            let saved = sequences.saved(4);
            sequences.restore(4, &saved);
            assert!(sequences.saved(4) == saved, "{cache} {properties}");
            Some(saved)
        };
        let Some(floats) = saved("", DType::F32) else { return };
        for (properties, cache) in
            [("", DType::F16), ("", DType::BF16), ("KV_CACHE_PRECISION=f32", DType::F16)]
        {
            let found = saved(properties, cache).expect("it started before");
            assert_eq!(found.len() * 2, floats.len());
            // The cells of the first layer do not depend on what is kept of earlier ones.
            assert!(found == narrow(&floats, cache), "{cache} {properties}");
        }
    }
}
