//! Layers of a model's own file that guess tokens ahead, in the tools: a small model by chance with such a layer.

mod common;

use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};

use common::{failure, llama, output, random_model, run};
use puna_gguf::{File, OpenOptions, TensorSpec, Value};
use puna_quant::DType;

const ARCHITECTURE: &str = "hy_v3";
const WIDTH: u64 = 64;

/// The model of [`random_model`] as one of another architecture with a layer that guesses ahead, and the tensors that this
/// layer needs alone.
fn models(folder: &Path) -> [PathBuf; 2] {
    let plain = File::open(&random_model(folder), &OpenOptions::default()).unwrap();
    let mut metadata = puna_gguf::Metadata::new();
    for (key, value) in plain.metadata.iter() {
        metadata.set(key.replace("llama.", &format!("{ARCHITECTURE}.")), value.clone());
    }
    // The tokenizer's kind is named as the architecture was.
    for (key, value) in plain.metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        metadata.set(key.to_owned(), value.clone());
    }
    metadata.set("general.architecture", ARCHITECTURE);
    for (key, number) in [("block_count", 3), ("nextn_predict_layers", 1), ("expert_feed_forward_length", 64)]
    {
        metadata.set(format!("{ARCHITECTURE}.{key}"), Value::U32(number));
    }
    let mut tensors: Vec<(TensorSpec, Vec<u8>)> = Vec::new();
    for info in plain.tensors.iter() {
        let (spec, bytes) = (TensorSpec::from(info), plain.bytes(info).to_vec());
        if let Some(own) = spec.name.strip_prefix("blk.1.") {
            let name = format!("blk.2.{own}");
            tensors.push((TensorSpec { name, ..spec.clone() }, bytes.iter().rev().copied().collect()));
        }
        tensors.push((spec, bytes));
    }
    // Bytes in another order are other numbers, some of which are none.
    for (spec, bytes) in tensors.iter_mut().filter(|(spec, _)| spec.name.starts_with("blk.2.")) {
        let norm = spec.shape.len() == 1;
        for (place, number) in bytes.chunks_exact_mut(4).enumerate() {
            let new = if norm { 1.0 } else { ((place * 37 + 11) % 97) as f32 / 97.0 - 0.5 };
            number.copy_from_slice(&new.to_le_bytes());
        }
    }
    let mut add = |name: String, shape: Vec<u64>, number: &dyn Fn(u64) -> f32| {
        let elements: u64 = shape.iter().product();
        let bytes = (0..elements).flat_map(|place| number(place).to_le_bytes()).collect();
        tensors.push((TensorSpec { name, dtype: DType::F32, shape }, bytes));
    };
    for layer in 0..3 {
        for name in ["attn_q_norm", "attn_k_norm"] {
            add(format!("blk.{layer}.{name}.weight"), vec![16], &|_| 1.0);
        }
    }
    for name in ["enorm", "hnorm"] {
        add(format!("blk.2.nextn.{name}.weight"), vec![WIDTH], &|_| 1.0);
    }
    let by_chance = |place: u64| ((place * 31 + 5) % 89) as f32 / 89.0 - 0.5;
    add("blk.2.nextn.eh_proj.weight".into(), vec![WIDTH, 2 * WIDTH], &by_chance);
    let write = |name: &str, keep: &dyn Fn(&str) -> bool| {
        let kept = tensors.iter().filter(|(spec, _)| keep(&spec.name));
        let kept: Vec<(TensorSpec, &[u8])> =
            kept.map(|(spec, bytes)| (spec.clone(), bytes.as_slice())).collect();
        let path = folder.join(name);
        puna_gguf::write(&path, &metadata, &kept).unwrap();
        path
    };
    let alone = |name: &str| name.starts_with("blk.2.") || name == "output_norm.weight";
    [write("whole.gguf", &|_| true), write("alone.gguf", &alone)]
}

#[test]
fn the_models_own_layer_guesses_and_changes_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let [model, alone] = models(folder.path());
    let (model, alone) = (model.to_str().unwrap(), alone.to_str().unwrap());
    let ask = |more: &[&str]| {
        let plain = ["completion", "-m", model, "-p", "hi hi", "-n", "48", "--temp", "0", "-no-cnv"];
        let found = run(&mut llama(&[&plain, &["--deterministic", "-t", "2"][..], more].concat()));
        assert_eq!(found.code, 0, "{more:?}: {}", found.err);
        found
    };
    let plain = ask(&[]);
    // The layer is not loaded, and that it is there is no fault.
    assert!(plain.err.contains("its layers that guess tokens ahead are not used"), "{}", plain.err);
    assert!(!plain.err.contains("does not use"), "{}", plain.err);
    for more in [
        &["--spec-type", "draft-mtp"][..],
        &["--spec-type", "ngram-cache,draft-mtp", "--spec-draft-n-max", "5"],
        &["-md", alone],
        &["-md", alone, "--spec-type", "draft-mtp"],
        &["-md", model, "--spec-type", "draft-mtp"],
        // A whole model guesses as such unless it is told otherwise.
        &["-md", model],
    ] {
        let found = ask(more);
        assert_eq!(found.out, plain.out, "{more:?}");
        assert!(found.err.contains(" guessed ones right)"), "{more:?}: {}", found.err);
        assert!(!found.err.contains("are not used") || !more.contains(&"draft-mtp"), "{}", found.err);
    }
}

#[test]
fn files_without_such_a_layer_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let [model, alone] = models(folder.path());
    let plain = folder.path().join("random.gguf");
    let [model, alone, plain] = [&model, &alone, &plain].map(|path| path.to_str().unwrap());
    let ask = |model: &str, more: &[&str]| {
        failure(1, &[&["completion", "-m", model, "-p", "hi", "--spec-type"], more].concat())
    };
    let text = ask(plain, &["draft-mtp"]);
    assert!(text.contains("--spec-type draft-mtp") && text.contains("'llama' cannot have"), "{text}");
    let text = ask(model, &["draft-mtp", "--override-kv", "hy_v3.nextn_predict_layers=int:0"]);
    assert!(text.contains("hy_v3.nextn_predict_layers is 0"), "{text}");
    let text = ask(model, &["draft-mtp", "-md", plain]);
    assert!(text.contains("is for --spec-type draft-simple, not draft-mtp"), "{text}");
    let text = ask(model, &["draft-simple", "-md", alone]);
    assert!(text.contains("is for --spec-type draft-mtp, not draft-simple"), "{text}");
    let two = ["completion", "-m", model, "-p", "hi", "--spec-type", "draft-mtp,draft-simple", "-md", alone];
    let text = failure(2, &two);
    assert!(text.contains("draft-mtp and draft-simple: only one kind can have a draft"), "{text}");
}

/// What the line about the loaded model says of its size.
fn loaded(text: &str) -> &str {
    let line =
        text.lines().find(|line| line.contains(" on CPU, context ")).unwrap_or_else(|| panic!("{text}"));
    line.split(" on CPU").next().and_then(|line| line.rsplit(", ").next()).unwrap_or("")
}

#[test]
fn layers_that_are_not_read_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = models(folder.path());
    // The same model without the layer.
    let (whole, without) =
        (File::open(&model, &OpenOptions::default()).unwrap(), folder.path().join("without.gguf"));
    let mut metadata = whole.metadata.clone();
    metadata.set(format!("{ARCHITECTURE}.block_count"), Value::U32(2));
    metadata.set(format!("{ARCHITECTURE}.nextn_predict_layers"), Value::U32(0));
    let kept = whole.tensors.iter().filter(|info| !info.name.starts_with("blk.2."));
    let kept: Vec<(TensorSpec, &[u8])> = kept.map(|info| (info.into(), whole.bytes(info))).collect();
    puna_gguf::write(&without, &metadata, &kept).unwrap();
    let ask = |path: &Path, more: &[&str]| {
        let plain = ["completion", "-m", path.to_str().unwrap(), "-p", "hi", "-n", "2", "-no-cnv"];
        let found = run(&mut llama(&[&plain, more].concat()));
        assert_eq!(found.code, 0, "{}", found.err);
        found.err
    };
    let (with, plain) = (ask(&model, &[]), ask(&without, &[]));
    assert_eq!(loaded(&with), loaded(&plain));
    let guessing = ask(&model, &["--spec-type", "draft-mtp"]);
    assert_eq!(loaded(&guessing), loaded(&plain));
    assert!(guessing.contains("what guesses ahead: "), "{guessing}");
}

/// A running server and where it listens; what it tells goes to this file.
fn serve(arguments: &[&str], told: &Path) -> (std::process::Child, String) {
    let errors = std::fs::File::create(told).unwrap();
    let mut command = llama(&[&["serve", "-c", "256", "--port", "0", "-t", "1"], arguments].concat());
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(errors).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
    (child, address.to_owned())
}

fn post(address: &str, path: &str, body: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn of_many_models_those_without_such_a_layer_are_served_without() {
    let folder = tempfile::tempdir().unwrap();
    models(folder.path());
    std::fs::remove_file(folder.path().join("alone.gguf")).unwrap();
    let told = folder.path().join("told");
    let path = folder.path().to_str().unwrap();
    let (mut child, address) = serve(&["--models-dir", path, "--spec-type", "draft-mtp"], &told);
    for name in ["random", "whole"] {
        let body = format!(
            "{{\"model\":\"{name}\",\"prompt\":\"hi hi\",\"n_predict\":24,\"temperature\":0,\"ignore_eos\":true}}"
        );
        let answer = post(&address, "/completion", &body);
        assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("\"tokens_predicted\":24"), "{answer}");
        assert_eq!(answer.contains("draft_n"), name == "whole", "{answer}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let told = std::fs::read_to_string(told).unwrap();
    let warned: Vec<&str> = told.lines().filter(|line| line.contains("nothing is guessed ahead")).collect();
    assert_eq!(warned.len(), 1, "{told}");
    assert!(warned[0].contains("random") && warned[0].contains("'llama' cannot have"), "{told}");
}

#[test]
fn who_makes_embeddings_is_told_that_nothing_is_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = models(folder.path());
    let told = folder.path().join("told");
    let arguments = ["-m", model.to_str().unwrap(), "--embeddings", "--spec-type", "draft-mtp"];
    let (mut child, address) = serve(&arguments, &told);
    let answer = post(&address, "/embedding", "{\"content\":\"hi\"}");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    child.kill().unwrap();
    child.wait().unwrap();
    let told = std::fs::read_to_string(told).unwrap();
    assert_eq!(told.lines().filter(|line| line.contains("nothing is guessed ahead")).count(), 1, "{told}");
}

#[test]
fn info_shows_the_layers() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = models(folder.path());
    let model = model.to_str().unwrap();
    let text = output(&["info", model]);
    let line = text.lines().find(|line| line.starts_with("guesses ahead")).unwrap_or("");
    assert!(line.ends_with("with the last layer (--spec-type draft-mtp)"), "{text}");
    assert!(text.contains("blk.2.nextn.eh_proj.weight"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&output(&["info", model, "--json"])).unwrap();
    assert_eq!(json["layers_ahead"], 1);
    // What the layer needs is no part of what the model needs.
    let plain = output(&["info", folder.path().join("random.gguf").to_str().unwrap()]);
    assert!(!plain.contains("guesses ahead"), "{plain}");
}

#[test]
fn q11_layers_that_guess_ahead_are_quantized_like_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let [model, _] = models(folder.path());
    for kind in ["q4_0", "q4_k_m"] {
        let path = folder.path().join(format!("{kind}.gguf"));
        let (from, to) = (model.to_str().unwrap(), path.to_str().unwrap());
        let made = run(&mut llama(&["quantize", from, to, kind]));
        assert_eq!(made.code, 0, "{}", made.err);
        let file = File::open(&path, &OpenOptions::default()).unwrap();
        let joins = file.tensors.get("blk.2.nextn.eh_proj.weight").unwrap();
        assert!(joins.dtype != DType::F32, "{}", joins.dtype);
        assert_eq!(file.tensors.get("blk.2.nextn.enorm.weight").unwrap().dtype, DType::F32);
        let ask = |more: &[&str]| {
            let plain = ["completion", "-m", to, "-p", "hi", "-n", "24", "--temp", "0", "-no-cnv"];
            let found = run(&mut llama(&[&plain, &["--deterministic"][..], more].concat()));
            assert_eq!(found.code, 0, "{}", found.err);
            found.out
        };
        assert_eq!(ask(&["--spec-type", "draft-mtp"]), ask(&[]));
    }
}
