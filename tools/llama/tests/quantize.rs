//! `quantize` and `gguf-split` on small files: what is written, and that nothing is when something is wrong.

mod common;

use common::{failure, llama, run};
use puna_gguf::{Array, File, Metadata, OpenOptions, TensorSpec, Value};
use puna_quant::{DType, decode_row};
use std::path::{Path, PathBuf};

const NAMES: [&str; 6] = [
    "token_embd.weight",
    "output.weight",
    "blk.0.attn_v.weight",
    "blk.0.ffn_down.weight",
    "blk.1.ffn_down.weight",
    "blk.0.attn_norm.weight",
];

fn element(tensor: usize, index: usize) -> f32 {
    ((index * 7919 + tensor * 104_729) as f32 * 0.37).sin() * 0.1
}

/// A file with matrices of 4 rows of 512 elements, and one vector.
fn model(folder: &Path, change: impl Fn(usize, usize, f32) -> f32) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("general.file_type", Value::U32(0));
    metadata.set("llama.block_count", Value::U32(2));
    metadata.set("llama.attention.head_count", Value::U32(8));
    metadata.set("llama.attention.head_count_kv", Value::Array(Array::U32(vec![2, 4])));
    let tensors: Vec<(TensorSpec, Vec<u8>)> = NAMES
        .iter()
        .enumerate()
        .map(|(number, name)| {
            let shape = if name.ends_with("norm.weight") { vec![512] } else { vec![4, 512] };
            let count: u64 = shape.iter().product();
            let bytes = (0..count as usize)
                .flat_map(|index| change(number, index, element(number, index)).to_le_bytes())
                .collect();
            (TensorSpec { name: (*name).into(), dtype: DType::F32, shape }, bytes)
        })
        .collect();
    let views: Vec<(TensorSpec, &[u8])> =
        tensors.iter().map(|(spec, data)| (spec.clone(), &data[..])).collect();
    let path = folder.join("model.gguf");
    puna_gguf::write(&path, &metadata, &views).unwrap();
    path
}

fn plain(_: usize, _: usize, value: f32) -> f32 {
    value
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn open(path: &Path) -> File {
    File::open(path, &OpenOptions::default()).unwrap()
}

/// Runs a tool and expects success.
fn done(arguments: &[&str]) -> String {
    let found = run(&mut llama(arguments));
    assert_eq!(found.code, 0, "{arguments:?}: {}", found.err);
    found.out + &found.err
}

#[test]
fn every_type_is_written_and_close_to_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    for (kind, id, most) in [
        ("F16", 1, 1e-4),
        ("BF16", 32, 1e-3),
        ("q8_0", 7, 1e-3),
        ("Q6_K", 18, 3e-3),
        ("Q5_K_M", 17, 6e-3),
        ("15", 15, 0.012),
        ("Q3_K_L", 13, 0.03),
        ("Q2_K", 10, 0.05),
        ("IQ4_XS", 30, 0.02),
        ("IQ3_S", 26, 0.03),
        ("Q4_0", 2, 0.02),
        ("Q5_1", 9, 0.01),
        ("TQ2_0", 37, 0.1),
        ("MXFP4_MOE", 38, 0.02),
    ] {
        let output = folder.path().join("out.gguf");
        done(&["quantize", text(&input), text(&output), kind, "2"]);
        let file = open(&output);
        assert_eq!(file.metadata.u32("general.file_type").unwrap(), id, "{kind}");
        assert_eq!(file.metadata.u32("general.quantization_version").unwrap(), 2);
        for (number, name) in NAMES.iter().enumerate() {
            let tensor = file.tensors.get(name).unwrap();
            let mut found = vec![0.0; tensor.elements() as usize];
            decode_row(tensor.dtype, file.bytes(tensor), &mut found).unwrap();
            let errors = found.iter().enumerate().map(|(index, x)| (x - element(number, index)).powi(2));
            let error = (errors.sum::<f32>() / found.len() as f32).sqrt();
            let limit = if name.ends_with("norm.weight") { 0.0 } else { most };
            assert!(error <= limit, "{kind} {name} ({}): {error}", tensor.dtype);
        }
    }
}

#[test]
fn mixtures_and_wishes_decide_about_formats() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let output = folder.path().join("out.gguf");
    let formats = |flags: &[&str], kind: &str| -> Vec<DType> {
        done(&[&["quantize"], flags, &[text(&input), text(&output), kind]].concat());
        let file = open(&output);
        NAMES.iter().map(|name| file.tensors.get(name).unwrap().dtype).collect()
    };
    use DType::{F32, Q2_K, Q3_K, Q4_K, Q6_K, Q8_0};
    assert_eq!(formats(&[], "Q2_K"), [Q2_K, Q6_K, Q4_K, Q3_K, Q3_K, F32]);
    assert_eq!(formats(&["--pure"], "Q4_K"), [Q4_K, Q4_K, Q4_K, Q4_K, Q4_K, F32]);
    let flags =
        ["--tensor-type", "blk\\.1=q8_0", "--output-tensor-type", "Q3_K", "--token-embedding-type", "f32"];
    assert_eq!(formats(&flags, "Q2_K"), [F32, Q3_K, Q4_K, Q3_K, Q8_0, F32]);
    assert_eq!(formats(&["--leave-output-tensor"], "Q2_K")[1], F32);
}

/// A file of eight layers with two matrices each, but without the fifth's network.
fn eight_layers(folder: &Path) -> PathBuf {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", Value::U32(8));
    metadata.set("llama.attention.head_count", Value::U32(8));
    metadata.set("llama.attention.head_count_kv", Value::U32(4));
    let bytes: Vec<u8> = (0..4 * 512).flat_map(|index| element(0, index).to_le_bytes()).collect();
    let names = (0..8)
        .flat_map(|layer| ["attn_v", "ffn_down"].map(|name| (layer, format!("blk.{layer}.{name}.weight"))));
    let names = names.map(|(_, name)| name).filter(|name| name != "blk.4.ffn_down.weight");
    let spec = |name| TensorSpec { name, dtype: DType::F32, shape: vec![4, 512] };
    let tensors: Vec<(TensorSpec, &[u8])> = names.map(|name| (spec(name), &bytes[..])).collect();
    let path = folder.join("eight.gguf");
    puna_gguf::write(&path, &metadata, &tensors).unwrap();
    path
}

/// What llama-quantize (llama.cpp) makes of the same file with the same flags.
#[test]
fn mixtures_count_what_is_left_and_what_no_flag_decides() {
    let folder = tempfile::tempdir().unwrap();
    let input = eight_layers(folder.path());
    let output = folder.path().join("out.gguf");
    // For each layer the last digit of the format of values, then of the network.
    let formats = |flags: &[&str]| -> String {
        let said = done(&[&["quantize"], flags, &[text(&input), text(&output), "Q4_K_M"]].concat());
        assert!(!said.contains("matches no tensor"), "{said}");
        let file = open(&output);
        let of = |name: String| {
            file.tensors.get(&name).map_or("-".into(), |tensor| tensor.dtype.to_string()[1..2].to_owned())
        };
        let count = file.metadata.u32("llama.block_count").unwrap();
        (0..count)
            .map(|layer| {
                ["attn_v", "ffn_down"].map(|name| of(format!("blk.{layer}.{name}.weight"))).concat() + " "
            })
            .collect()
    };
    assert_eq!(formats(&[]), "66 44 44 66 4- 44 64 66 ");
    assert_eq!(formats(&["--prune-layers", "1,2"]), "46 44 6- 44 46 64 ");
    let flags = ["--tensor-type", "blk.0.attn_v=q8_0", "--tensor-type", "blk.1.ffn_DOWN=Q8_0"];
    assert_eq!(formats(&flags), "86 68 44 44 6- 46 44 64 ");
}

#[test]
fn patterns_without_tensors_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let output = folder.path().join("out.gguf");
    let said = done(&["quantize", "--tensor-type", "atn_v=Q8_0", text(&input), text(&output), "Q4_K"]);
    assert!(said.contains("--tensor-type \"atn_v\" matches no tensor"), "{said}");
}

#[test]
fn overrides_are_written_unless_they_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let output = folder.path().join("out.gguf");
    done(&["quantize", "--override-kv", "general.file_type=int:0", text(&input), text(&output), "Q8_0"]);
    assert_eq!(open(&output).metadata.u32("general.file_type").unwrap(), 0);
    std::fs::remove_file(&output).unwrap();
    for (wrong, part) in [
        ("general.architecture=str:zzz", "is no known architecture"),
        ("llama.block_count=int:0", "llama.block_count is 0, it must be from 1 to 512"),
        ("llama.block_count=int:4294967295", "llama.block_count is 4294967295"),
    ] {
        let arguments =
            ["quantize", "--override-kv", wrong, text(&input), text(&output), "Q8_0", "--log-disable"];
        let found = failure(1, &arguments);
        assert!(found.contains(part), "{wrong}: {found}");
    }
    assert_eq!(files(folder.path()), ["model.gguf"]);
}

#[test]
fn layers_are_pruned_and_metadata_follows() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let output = folder.path().join("out.gguf");
    let flags = ["--prune-layers", "0", "--override-kv", "llama.context_length=int:77,a.b=bool:true"];
    done(&[&["quantize"], &flags[..], &[text(&input), text(&output), "Q8_0"]].concat());
    let file = open(&output);
    assert_eq!(file.metadata.u32("llama.block_count").unwrap(), 1);
    assert_eq!(file.metadata.get("llama.attention.head_count_kv"), Some(&Value::from(vec![4u32])));
    assert_eq!(file.metadata.get("llama.context_length"), Some(&Value::U32(77)));
    let names: Vec<&str> = file.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["output.weight", "token_embd.weight", "blk.0.ffn_down.weight"]);
}

#[test]
fn what_is_wrong_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let nan =
        |tensor: usize, index: usize, value: f32| if (tensor, index) == (3, 600) { f32::NAN } else { value };
    let input = model(folder.path(), nan);
    let output = folder.path().join("out.gguf");
    let (from, to) = (text(&input), text(&output));
    let found = failure(1, &["quantize", from, to, "Q4_K_M", "--log-disable"]);
    assert!(found.contains("blk.0.ffn_down.weight, row 1") && found.contains("NaN"), "{found}");
    for (arguments, part) in [
        (&[from, to, "IQ2_XXS"][..], "needs importance"),
        (&[from, from, "Q8_0"], "is the input itself"),
        (&[from, to, "Q8_0", "--imatrix", from], "general.type is not imatrix"),
        (&[from, to, "Q8_0", "--prune-layers", "2"], "there is no layer 2"),
        (&[from, to, "Q8_0", "--prune-layers", "0,1"], "--prune-layers leaves none of 2 layers"),
        (&["no-such-file", to, "Q8_0"], "no-such-file"),
        (&[from, "no-such-folder/out.gguf", "Q8_0"], "no-such-folder"),
    ] {
        let found = failure(1, &[&["quantize"], arguments, &["--log-disable"]].concat());
        assert!(found.contains(part), "{arguments:?}: {found}");
    }
    for arguments in [&[from, to, "Q9"][..], &[from], &[from, "Q8"], &[from, to, "Q8_0", "x"]] {
        failure(2, &[&["quantize"], arguments].concat());
    }
    let bytes = std::fs::read(&input).unwrap();
    std::fs::write(&input, &bytes[..bytes.len() - 100]).unwrap();
    failure(1, &["quantize", from, to, "Q8_0", "--log-disable"]);
    assert_eq!(files(folder.path()), ["model.gguf"]);
}

#[test]
fn a_dry_run_writes_nothing_and_names_substitutes() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let found = done(&["quantize", "--dry-run", text(&input), "Q2_K"]);
    assert!(
        found.contains("blk.0.attn_v.weight") && found.contains("(q4_K)") && found.contains("quant size")
    );
    assert_eq!(files(folder.path()), ["model.gguf"]);
}

#[test]
fn quantised_input_is_refused_unless_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let (small, smaller) = (folder.path().join("small.gguf"), folder.path().join("smaller.gguf"));
    done(&["quantize", text(&input), text(&small), "Q8_0"]);
    let found = failure(1, &["quantize", text(&small), text(&smaller), "Q4_0", "--log-disable"]);
    assert!(found.contains("is q8_0 already"), "{found}");
    done(&["quantize", "--allow-requantize", text(&small), text(&smaller), "Q4_0"]);
    done(&["quantize", text(&small), text(&smaller), "COPY"]);
    assert_eq!(open(&small).tensors.len(), open(&smaller).tensors.len());
}

#[test]
fn importance_changes_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let importance = folder.path().join("imatrix.gguf");
    let mut metadata = Metadata::new();
    metadata.set("general.type", "imatrix");
    metadata.set("imatrix.chunk_count", Value::U32(3));
    let sums: Vec<u8> = (0..512).flat_map(|column| (column as f32).to_le_bytes()).collect();
    let counts = 2f32.to_le_bytes();
    let mut tensors = Vec::new();
    for name in NAMES {
        let spec = |end: &str, shape| TensorSpec { name: format!("{name}{end}"), dtype: DType::F32, shape };
        tensors.push((spec(".in_sum2", vec![1, 512]), &sums[..]));
        tensors.push((spec(".counts", vec![1, 1]), &counts[..]));
    }
    puna_gguf::write(&importance, &metadata, &tensors).unwrap();
    let output = folder.path().join("out.gguf");
    for kind in ["IQ2_XXS", "IQ1_S", "IQ1_M", "IQ3_XXS", "Q4_K_M"] {
        done(&["quantize", "--imatrix", text(&importance), text(&input), text(&output), kind]);
        assert_eq!(open(&output).metadata.u32("quantize.imatrix.entries_count").unwrap(), 6);
    }
    let with = std::fs::read(&output).unwrap();
    done(&["quantize", text(&input), text(&output), "Q4_K_M"]);
    assert_ne!(with, std::fs::read(&output).unwrap());
}

#[test]
fn files_are_split_and_merged_without_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let input = model(folder.path(), plain);
    let parts = folder.path().join("parts");
    let plan = done(&["gguf-split", "--dry-run", "--split-max-tensors", "4", text(&input), text(&parts)]);
    assert!(plan.starts_with("n_split: 2\n"), "{plan}");
    assert_eq!(files(folder.path()), ["model.gguf"]);
    done(&["gguf-split", "--split-max-tensors", "4", text(&input), text(&parts)]);
    let names = ["model.gguf", "parts-00001-of-00002.gguf", "parts-00002-of-00002.gguf"];
    assert_eq!(files(folder.path()), names);
    let first = folder.path().join(names[1]);
    let quantized = folder.path().join("q.gguf");
    done(&["quantize", "--keep-split", text(&first), text(&quantized), "Q8_0"]);
    assert_eq!(open(&folder.path().join("q-00001-of-00002.gguf")).tensors.len(), 6);
    let whole = folder.path().join("whole.gguf");
    done(&["gguf-split", "--merge", text(&first), text(&whole)]);
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&input).unwrap());
    failure(1, &["gguf-split", "--merge", text(&first), text(&whole)]);
    failure(1, &["gguf-split", "--merge", text(&input), text(&parts)]);
    std::fs::remove_file(folder.path().join(names[2])).unwrap();
    let missing = failure(1, &["gguf-split", "--merge", text(&first), text(&folder.path().join("x.gguf"))]);
    assert!(missing.contains("00002-of-00002"), "{missing}");
}

#[test]
fn parts_that_stay_apart_are_counted_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", Value::U32(8));
    let bytes: Vec<u8> = (0..512).flat_map(|index| element(0, index).to_le_bytes()).collect();
    let tensor = |layer: u32| TensorSpec {
        name: format!("blk.{layer}.ffn_down.weight"),
        dtype: DType::F32,
        shape: vec![2, 256],
    };
    let tensors: Vec<(TensorSpec, &[u8])> = (0..8).rev().map(|layer| (tensor(layer), &bytes[..])).collect();
    let input = folder.path().join("model.gguf");
    puna_gguf::write(&input, &metadata, &tensors).unwrap();
    let parts = folder.path().join("parts");
    done(&["gguf-split", "--split-max-tensors", "4", text(&input), text(&parts)]);
    let first = folder.path().join("parts-00001-of-00002.gguf");
    // The first and last eighth and every third between have more bits: of the layers, or of the tensors as they come.
    let larger = |path: &Path| -> Vec<u32> {
        let file = open(path);
        let dtype = |layer: &u32| file.tensors.get(&tensor(*layer).name).unwrap().dtype;
        (0..8).filter(|layer| dtype(layer) == DType::Q6_K).collect()
    };
    let output = folder.path().join("q.gguf");
    done(&["quantize", text(&first), text(&output), "Q4_K_M"]);
    assert_eq!(larger(&output), [0, 3, 6, 7]);
    done(&["quantize", "--keep-split", text(&first), text(&output), "Q4_K_M"]);
    assert_eq!(larger(&folder.path().join("q-00001-of-00002.gguf")), [0, 1, 4, 7]);
}
