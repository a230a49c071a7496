//! One line per model of the zoo: what each check found. Arguments are parts of names; without any all models run.
//! Ends with 1 if a check failed; what is known to be beyond a limit is marked `!` and does not count.

#![allow(clippy::print_stdout)] // a report is printed

#[path = "../tests/support/checks.rs"]
mod checks;
#[path = "../tests/support/embedders.rs"]
mod embedders;

use std::process::ExitCode;

use checks::{CHECKS, Outcome};
use puna_conformance::zoo;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let cpu = checks::cpu();
    let heading: String = CHECKS.iter().map(|check| format!(" {:>11}", check.name)).collect();
    println!("{:28}{heading}  state", "model");
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let mut tally = Tally::default();
    for model in zoo::models().into_iter().filter(|model| is_wanted(&model.name)) {
        let outcomes = checks::check(&model, &cpu);
        let cells: String = outcomes.iter().map(|outcome| format!(" {:>11}", cell(outcome))).collect();
        println!("{:28}{cells}  {}", model.name, tally.count(&outcomes));
    }
    println!("\n{:28} each kind of pooling or logits, and the other checks", "embedding model");
    for model in zoo::embedding_models().into_iter().filter(|model| is_wanted(&model.name)) {
        let (names, outcomes): (Vec<String>, Vec<Outcome>) =
            embedders::check(&model, &cpu).into_iter().unzip();
        let cells = names.iter().zip(&outcomes).map(|(name, outcome)| format!("  {name} {}", cell(outcome)));
        println!("{:28}{}  {}", model.name, cells.collect::<String>(), tally.count(&outcomes));
    }
    let Tally { models, known, failed } = tally;
    println!("{models} models, {failed} failed, {known} known to be beyond a limit (!)");
    ExitCode::from(u8::from(failed > 0 || models == 0))
}

/// Models by what was found.
#[derive(Default)]
struct Tally {
    models: usize,
    known: usize,
    failed: usize,
}

impl Tally {
    /// Counts a model; its state as a word.
    fn count(&mut self, outcomes: &[Outcome]) -> &'static str {
        let failed = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Fail(_)));
        let known = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Known(_)));
        self.models += 1;
        self.known += usize::from(known);
        self.failed += usize::from(failed);
        if failed { "FAIL" } else { "PASS" }
    }
}

fn cell(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Pass(figure) => figure.clone(),
        Outcome::Known(figure) => format!("! {figure}"),
        Outcome::Fail(reason) => format!("FAIL {reason}"),
        Outcome::None(_) => "-".into(),
    }
}
