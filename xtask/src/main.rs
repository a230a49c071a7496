//! Without arguments: rewrites the pages of `docs/` that are made from tables. `zoo [NAME ...]`: reports on the models of
//! the zoo whose names contain one of these, or on all, and ends with 1 if a check failed.
#![forbid(unsafe_code)]

use std::process::{Command, ExitCode};

use xtask::{files::root, pages};

fn main() -> std::io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        None => {
            std::fs::write(root().join(pages::FLAGS_PAGE), pages::flags_page())?;
            Ok(ExitCode::SUCCESS)
        }
        Some("zoo") => {
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
            let status = Command::new(cargo)
                .args(["run", "--quiet", "--release", "-p", "puna-runtime", "--example", "zoo", "--"])
                .args(&arguments[1..])
                .current_dir(root())
                .status()?;
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(other) => Err(std::io::Error::other(format!("xtask does not know '{other}'; it knows 'zoo'"))),
    }
}
