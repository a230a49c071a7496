//! Folders with layers that guess tokens further ahead, named as their publishers name them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use puna_convert::{Conversion, LayersAhead, Options};
use puna_gguf::{File, Value};
use puna_models::{BuildOptions, Purpose};
use serde_json::json;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/convert").join(name)
}

type Tensors = BTreeMap<String, (Vec<u64>, Vec<f32>)>;

fn read(path: &Path) -> Tensors {
    let bytes = fs::read(path).expect("the weights are there");
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&rest[..length]).expect("the header is JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let tensor = |(name, entry): (&String, &serde_json::Value)| {
        let place = &entry["data_offsets"];
        let data = &rest[length + number(&place[0]) as usize..length + number(&place[1]) as usize];
        let shape = entry["shape"].as_array().expect("a list").iter().map(number).collect();
        (name.clone(), (shape, data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    };
    let entries = header.as_object().expect("an object").iter();
    entries.filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, numbers)) in tensors {
        let start = data.len();
        data.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = serde_json::Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(path, bytes).expect("it is written");
}

/// How a publisher names what is around the layer.
enum Names {
    /// The layer follows those of the model; the norm after it has this name.
    After(&'static str),
    /// `mtp.layers.0`, and what is around it beside that.
    Apart,
    /// All in `model.mtp.layers.0`.
    Within,
}

/// A fixture with a copy of one of its layers as one that guesses ahead.
fn with_layer(name: &str, layer: u32, layers: u32, names: &Names) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(fixture(name)).expect("the fixture is there").flatten() {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("it is copied");
    }
    let path = folder.path().join("model.safetensors");
    let mut tensors = read(&path);
    let width = tensors["model.norm.weight"].0[0];
    let prefix = match names {
        Names::After(_) => format!("model.layers.{layers}."),
        Names::Apart => "mtp.layers.0.".into(),
        Names::Within => "model.mtp.layers.0.".into(),
    };
    let own = format!("model.layers.{layer}.");
    let copies: Vec<_> = tensors
        .iter()
        .filter_map(|(name, tensor)| Some((format!("{prefix}{}", name.strip_prefix(&own)?), tensor.clone())))
        .collect();
    tensors.extend(copies);
    let around = match names {
        Names::After(norm) => ["eh_proj", "enorm", "hnorm", norm].map(|name| format!("{prefix}{name}")),
        Names::Within => {
            ["eh_proj", "enorm", "hnorm", "final_layernorm"].map(|name| format!("{prefix}{name}"))
        }
        Names::Apart => {
            ["fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"].map(|name| format!("mtp.{name}"))
        }
    };
    for (place, name) in around.into_iter().enumerate() {
        let shape = if place == 0 { vec![width, 2 * width] } else { vec![width] };
        let count = shape.iter().product::<u64>();
        let numbers = (0..count).map(|index| place as f32 + index as f32 / 1e4).collect();
        tensors.insert(format!("{name}.weight"), (shape, numbers));
    }
    write(&path, &tensors);
    folder
}

fn open(folder: &Path, ahead: LayersAhead) -> File {
    let options = Options { ahead, name: Some("a model".into()), ..Options::default() };
    let conversion = Conversion::open(folder, &options).unwrap_or_else(|error| panic!("{error}"));
    conversion.into_file().expect("the tensors are good")
}

#[rustfmt::skip] // a table
const CASES: &[(&str, u32, u32, Names)] = &[
    ("deepseek2", 1, 2, Names::After("shared_head.norm")),
    ("deepseek32", 1, 2, Names::After("shared_head.norm")),
    ("glm-dsa", 1, 2, Names::After("shared_head.norm")),
    ("glm4moe", 1, 2, Names::After("shared_head.norm")),
    ("cohere2moe", 3, 4, Names::After("shared_head.norm")),
    ("bailingmoe3", 1, 3, Names::After("final_layernorm")),
    ("qwen35", 3, 4, Names::Apart),
    ("qwen3next", 3, 4, Names::Apart),
    ("exaone-moe", 3, 4, Names::Apart),
    ("mimo2", 3, 4, Names::Within),
];

#[test]
fn layers_that_guess_ahead_are_kept_and_can_be_left_out() {
    for (name, layer, layers, names) in CASES {
        let folder = with_layer(name, *layer, *layers, names);
        let file = open(folder.path(), LayersAhead::Kept);
        let architecture = file.metadata.str("general.architecture").expect("it has one");
        let number = |key: &str| file.metadata.u32(&format!("{architecture}.{key}")).expect("a number");
        assert_eq!((number("block_count"), number("nextn_predict_layers")), (layers + 1, 1), "{name}");
        let build = |purpose, last_state| {
            let options = BuildOptions { context: 64, purpose, last_state, ..BuildOptions::default() };
            puna_models::build(&file.metadata, &file.tensors, &options)
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        build(Purpose::Generate, true);
        let graph = build(Purpose::GuessAhead, false);
        let unused = puna_models::unused_tensors(&graph, &file.tensors);
        let own = format!("blk.{layers}.");
        let unused: Vec<_> =
            unused.iter().filter(|name| name.starts_with(&own) && !name.contains(".indexer")).collect();
        assert!(unused.is_empty(), "{name}: {unused:?}");
        // Norms are stored as the difference to 1 where those of the model are.
        let norm = file.tensors.get(&format!("{own}nextn.hnorm.weight")).expect("it is kept");
        let first = f32::from_le_bytes(file.bytes(norm)[..4].try_into().expect("four bytes"));
        assert_eq!(first, if name.starts_with("qwen") { 3.0 } else { 2.0 }, "{name}");

        let (without, plain) =
            (open(folder.path(), LayersAhead::LeftOut), open(&fixture(name), LayersAhead::Kept));
        let keys = |file: &File| -> Vec<(String, Value)> {
            file.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect()
        };
        assert_eq!(keys(&without), keys(&plain), "{name}");
        let tensors = |file: &File| file.tensors.iter().map(|info| info.name.clone()).collect::<Vec<_>>();
        assert_eq!(tensors(&without), tensors(&plain), "{name}");

        // Alone, with what they share with the model.
        let alone = open(folder.path(), LayersAhead::Alone);
        assert_eq!(keys(&alone), keys(&file), "{name}");
        let options = BuildOptions { context: 64, purpose: Purpose::GuessAhead, ..BuildOptions::default() };
        let same = puna_models::build(&alone.metadata, &alone.tensors, &options)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(same.to_string(), graph.to_string(), "{name}");
        let of_model = |name: &&String| name.starts_with("blk.") && !name.starts_with(&own);
        assert_eq!(tensors(&alone).iter().find(of_model), None, "{name}");
    }
}

#[test]
fn a_folder_without_such_layers_has_none_alone() {
    for name in ["llama", "qwen35"] {
        let options = Options { ahead: LayersAhead::Alone, ..Options::default() };
        let error = Conversion::open(&fixture(name), &options).expect_err("it has none").to_string();
        assert!(error.contains("no layers that guess tokens ahead"), "{error}");
    }
}
