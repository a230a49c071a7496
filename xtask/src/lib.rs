//! Checks of the repository itself, run as tests: `cargo test --release -p xtask`.
//!
//! A check is a file with one function from the repository's files to the list of its faults, a test that the
//! repository has none, and a test that a bad sample is caught. `cargo run -p xtask` rewrites the pages of
//! `docs/` that are made from tables.
#![forbid(unsafe_code)]

pub mod agreement;
pub mod architectures;
pub mod edges;
pub mod faults;
pub mod files;
pub mod hygiene;
pub mod library_rules;
pub mod manifests;
pub mod pages;
pub mod rust_text;
pub mod size;
pub mod unsafe_code;

/// Fails a test with one line per fault.
pub fn assert_clean(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
