//! One line per model of the zoo: what each check found. Arguments are parts of names; without any all models run.
//! Ends with 1 if a check failed; what is known to be beyond a limit is marked `!` and does not count.

#![allow(clippy::print_stdout)] // a report is printed

#[path = "../tests/support/checks.rs"]
mod checks;

use std::process::ExitCode;

use checks::{CHECKS, Outcome};
use puna_conformance::zoo;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let cpu = checks::cpu();
    let heading: String = CHECKS.iter().map(|check| format!(" {:>11}", check.name)).collect();
    println!("{:28}{heading}  state", "model");
    let (mut models, mut known, mut failed) = (0, 0, 0);
    for model in zoo::models() {
        if !wanted.is_empty() && !wanted.iter().any(|part| model.name.contains(part.as_str())) {
            continue;
        }
        let outcomes = checks::check(&model, &cpu);
        let cell = |outcome: &Outcome| match outcome {
            Outcome::Pass(figure) => format!(" {figure:>11}"),
            Outcome::Known(figure) => format!(" {:>11}", format!("! {figure}")),
            Outcome::Fail(reason) => format!(" {:>11}", format!("FAIL {reason}")),
            Outcome::None(_) => format!(" {:>11}", "-"),
        };
        let fine = !outcomes.iter().any(|outcome| matches!(outcome, Outcome::Fail(_)));
        let cells: String = outcomes.iter().map(cell).collect();
        println!("{:28}{cells}  {}", model.name, if fine { "PASS" } else { "FAIL" });
        let is_known = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Known(_)));
        (models, known) = (models + 1, known + usize::from(is_known));
        failed += usize::from(!fine);
    }
    println!("{models} models, {failed} failed, {known} known to be beyond a limit (!)");
    ExitCode::from(u8::from(failed > 0 || models == 0))
}
