//! Libraries that are there but of no use: one line says what is wrong with them.
#![allow(clippy::print_stdout)] // a skipped test says why

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use puna_backend::Backend;
use puna_backend_openvino::OpenVino;
use puna_conformance::run::SingleSequence;
use puna_conformance::zoo;
use puna_models::{BuildOptions, build};
use puna_quant::DType;

mod common;

/// Compiles a library; `None`, with a line that says why, where there is no compiler.
fn library(folder: &Path, name: &str, source: &str) -> Option<PathBuf> {
    let file = folder.join("source.c");
    std::fs::write(&file, source).expect("the source is written");
    let path = folder.join(name);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-o"]).arg(&path).arg(&file);
    match command.status() {
        Ok(status) if status.success() => Some(path),
        other => {
            println!("skipped: {compiler} makes no library: {other:?}");
            None
        }
    }
}

/// What starting says with these variables and no others.
fn refusal(variables: &[(&str, &str)]) -> String {
    let lookup =
        |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let error = OpenVino::new(&lookup, 1, Arc::new(|line: &str| panic!("{line}"))).err();
    error.expect("it is of no use").to_string()
}

#[test]
fn an_old_library_is_refused_with_its_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = "typedef struct { const char *build, *description; } version;
        int ov_get_openvino_version(version *v) { v->build = \"2024.6.0-17404-abc\"; return 0; }
        void ov_version_free(version *v) { v->build = 0; }
        void ov_core_set_properties(void) {}
        void ov_core_compile_model_props(void) {}";
    let Some(path) = library(folder.path(), "libopenvino_c.so.2460", source) else { return };
    let error = refusal(&[("OPENVINO_DIR", &folder.path().to_string_lossy())]);
    let path = path.display();
    let told = format!("{path} is OpenVINO 2024.6.0, which is too old: it lacks ov_get_last_err_msg");
    assert!(error.ends_with(&told), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_library_that_is_missing_is_one_line() {
    // Where the system has one, it is found.
    if OpenVino::new(&|_| None, 1, Arc::new(|_: &str| {})).is_ok() {
        println!("skipped: OpenVINO is where libraries of the system are");
        return;
    }
    let error = refusal(&[]);
    assert!(error.contains("OpenVINO is not installed (pip install openvino"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// Loads a small model.
fn load(backend: &OpenVino) {
    let model = zoo::models().into_iter().find(|model| model.name == "llama-dense").expect("the zoo has it");
    let file = Arc::new(model.open());
    let options = BuildOptions { context: 32, ..BuildOptions::default() };
    let graph = build(&file.metadata, &file.tensors, &options).expect("the model builds");
    SingleSequence::load(backend, file, graph, DType::F32, 32);
}

#[test]
fn a_shim_of_another_version_is_left_out_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((backend, _)) = common::start(&[common::NO_SHIM]) else { return };
    let description = backend.devices()[0].description.clone();
    let own = description.split(' ').nth(1).expect("OpenVINO and its version");
    let begin = &own[..own.len() - 1];
    for (name, version, told) in [
        ("other.so", "2025.1.0", "is for OpenVINO 2025.1.0, not "),
        ("begin.so", begin, &format!("is for OpenVINO {begin}, not {own}; build it again")),
        ("half.so", own, "lacks a function; build it again"),
    ] {
        let source = format!("const char *puna_openvino_version(void) {{ return \"{version}\"; }}");
        let Some(path) = library(folder.path(), name, &source) else { return };
        let path = path.to_string_lossy();
        let Some((backend, lines)) = common::start(&[("PUNA_OPENVINO_SHIM", &path)]) else { return };
        assert!(lines.lock().expect("no panic").is_empty(), "it is said when a model is loaded");
        load(&backend);
        let lines = lines.lock().expect("no panic");
        let said: Vec<&String> = lines.iter().filter(|line| line.contains(told)).collect();
        assert_eq!(said.len(), 1, "{lines:?}");
        assert!(said[0].contains(&*path) && said[0].contains("kept by the host"), "{lines:?}");
    }
}
