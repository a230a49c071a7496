//! Every model of the zoo through every check of the report `cargo run -p xtask -- zoo`.

#[path = "support/checks.rs"]
mod checks;
#[path = "support/embedders.rs"]
mod embedders;

use checks::{CHECKS, Outcome};
use puna_conformance::zoo;

#[test]
fn every_sensitive_model_has_its_reason() {
    checks::check_sensitive();
}

#[test]
fn every_embedding_model_passes_every_check() {
    let cpu = checks::cpu();
    let mut faults = Vec::new();
    let models = zoo::embedding_models();
    for model in &models {
        for (name, outcome) in embedders::check(model, &cpu) {
            if let Outcome::Fail(reason) = outcome {
                faults.push(format!("{}, {name}: {reason}", model.name));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(models.len(), 26);
}

#[test]
fn every_model_passes_every_check() {
    let cpu = checks::cpu();
    let mut faults = Vec::new();
    let mut meant = vec![0; CHECKS.len()];
    for model in zoo::models() {
        for (index, outcome) in checks::check(&model, &cpu).into_iter().enumerate() {
            match outcome {
                Outcome::Pass(_) | Outcome::Known(_) => meant[index] += 1,
                Outcome::Fail(reason) => {
                    faults.push(format!("{}, {}: {reason}", model.name, CHECKS[index].name));
                }
                Outcome::None(_) => {}
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    for (check, meant) in CHECKS.iter().zip(meant) {
        println!("{}: {meant} models", check.name);
        assert!(meant >= check.least, "{} means something for {meant} models only", check.name);
    }
}
