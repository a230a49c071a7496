//! Faults that users of other engines reported about texts and servers (`reference/known-faults.md` of the design material):
//! each has a test with its number in its name.

use crate::files::TextFile;

/// The numbers: tokenizers, templates and calls, grammars, sampling, server, caches.
const FAULTS: &[&str] = &[
    "t01", "t03", "t05", "t06", "t07", "t09", "t10", "t13", "t14", "t16", "t17", "t19", "t21", "t22", "c01",
    "c03", "c04", "c06", "c07", "c09", "c10", "c11", "c13", "c14", "c16", "c18", "c19", "c20", "c22", "c23",
    "c24", "j01", "j03", "j05", "j06", "j07", "j09", "j10", "j11", "j13", "j14", "j16", "j17", "j19", "s01",
    "s03", "s04", "s05", "s07", "s08", "s10", "s11", "s13", "s14", "s16", "a01", "a02", "a04", "a05", "a06",
    "a08", "a09", "a11", "a12", "a13", "a15", "a16", "a18", "a19", "a21", "k01", "k02", "k04", "k05", "k07",
    "k08", "k10", "k11", "k13", "k14",
];

/// Faults without a test.
pub fn check(files: &[TextFile]) -> Vec<String> {
    let tests: Vec<&str> =
        files.iter().filter(|file| file.is_rust()).flat_map(|file| tests(&file.text)).collect();
    let tested = |fault: &str| tests.iter().any(|name| name.split('_').any(|part| part == fault));
    let missing = FAULTS.iter().filter(|fault| !tested(fault));
    missing.map(|fault| format!("no test has {fault} in its name")).collect()
}

/// Names of the functions that follow `#[test]`.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    source.split("#[test]").skip(1).filter_map(|rest| rest.split("fn ").nth(1)?.split('(').next())
}

#[cfg(test)]
mod tests {
    use super::{FAULTS, check};
    use crate::files::{TextFile, all};

    #[test]
    fn every_fault_has_a_test() {
        crate::assert_clean(check(&all()));
    }

    #[test]
    fn a_missing_test_is_caught() {
        let source = |skipped: &str| {
            let names = FAULTS.iter().filter(|fault| **fault != skipped);
            names
                .map(|fault| format!("#[test]\nfn {fault}_x() {{}}\nfn c24_helper() {{}}\n"))
                .collect::<String>()
        };
        assert_eq!(check(&[TextFile::sample("a.rs", &source(""))]), [""; 0]);
        assert_eq!(check(&[TextFile::sample("a.rs", &source("c24"))]), ["no test has c24 in its name"]);
        assert_eq!(check(&[TextFile::sample("a.md", &source(""))]).len(), FAULTS.len());
    }
}
