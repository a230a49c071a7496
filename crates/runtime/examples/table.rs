//! Experiment: default, deterministic per level and share.
#![allow(clippy::print_stdout)]
#[path = "../tests/support/checks.rs"]
mod checks;
#[path = "../tests/support/embedders.rs"]
mod embedders;
use std::sync::Arc;
use puna_backend::Backend;
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo;
use puna_conformance::normalised_squared_error;
use puna_gguf::File;
use puna_quant::DType;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Placement, Work};

fn error(file: Arc<File>, backend: &Arc<dyn Backend>, model: &zoo::ZooModel) -> f64 {
    let options = ModelOptions { context: 256, sequences: 3, keys: DType::F32, values: DType::F32, only_long_texts: true, ..ModelOptions::default() };
    let mut loaded = Model::load(file, &[backend.clone()], &Placement::default(), &options, &mut |_| true).map_err(|e| e.to_string()).unwrap();
    let work = vec![Work { sequence: 0, tokens: model.tokens.clone(), outputs: OutputRows::All }];
    let out = loaded.run(&Batch::of(work)).map_err(|e| e.to_string()).unwrap();
    let found: Vec<f32> = (0..out.rows.len()).flat_map(|r| out.row(r).to_vec()).collect();
    normalised_squared_error(&found, &model.logits)
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let levels = Features::detect().levels();
    let mut cpus: Vec<(String, Arc<dyn Backend>)> = vec![("share".into(), Arc::new(puna_backend::reference::Reference))];
    for (name, features) in levels.iter().filter(|(n, _)| ["amx", "avx512-bf16", "avx2"].contains(n)).rev() {
        for deterministic in [false, true] {
            cpus.push((format!("{name}{}", if deterministic { "-det" } else { "" }), Arc::new(Cpu::new(CpuOptions { threads: 2, features: *features, deterministic, ..CpuOptions::default() }).unwrap())));
        }
    }
    println!("{:28} {}", "", cpus.iter().map(|(n, _)| format!("{n:>16}")).collect::<String>());
    let is = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(w.as_str()));
    for model in zoo::models() {
        if !is(&model.name) { continue }
        let file = Arc::new(model.open());
        let Some(q) = checks::eight_bits(&file) else { println!("{:28} -", model.name); continue };
        let cells: String = cpus.iter().map(|(_, c)| format!("{:>16.2e}", error(q.clone(), c, &model))).collect();
        println!("{:28} {cells}", model.name);
    }
    for model in zoo::embedding_models() {
        if !is(&model.name) { continue }
        let file = Arc::new(model.open());
        let Some(q) = checks::eight_bits(&file) else { println!("{:28} -", model.name); continue };
        for (kind, right) in &model.recorded {
            let cells: String = cpus.iter().map(|(_, c)| {
                let v = embedders::values(&model, q.clone(), c, kind, right.len()).unwrap();
                format!("{:>16.2e}", normalised_squared_error(&v, right))
            }).collect();
            println!("{:28} {cells}", format!("{} {kind}", model.name));
        }
    }
}
