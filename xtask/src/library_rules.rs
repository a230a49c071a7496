//! What library crates leave to the tools, and what only one crate may do.

use crate::files::TextFile;
use crate::rust_text::{RustText, find_word, line_number};
use crate::unsafe_code::is_crate_root;

/// Words that a library's product code may not contain, with the reason.
const FORBIDDEN: &[(&str, &str)] = &[
    ("println!", "libraries do not print"),
    ("eprintln!", "libraries do not print"),
    ("print!", "libraries do not print"),
    ("eprint!", "libraries do not print"),
    ("dbg!", "libraries do not print"),
    ("io::stdout", "libraries do not print"),
    ("io::stderr", "libraries do not print"),
    ("process::exit", "libraries do not end the process"),
    ("process::abort", "libraries do not end the process"),
    ("env::var", "libraries do not read the environment"),
    ("env::var_os", "libraries do not read the environment"),
    ("env::vars", "libraries do not read the environment"),
    ("env::args", "libraries do not read the command line"),
    ("todo!", "nothing is called done before it is"),
    ("unimplemented!", "nothing is called done before it is"),
];

/// The one crate that may be conditional on cargo features.
const FEATURE_CRATE: &str = "crates/backends";

/// Printing, exiting and reading the environment in libraries.
pub fn check_manners(files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_library_source()) {
        let code = RustText::new(&file.text).product_code();
        for (word, reason) in FORBIDDEN {
            for found in find_word(&code, word) {
                faults.push(format!("{}:{}: {word}: {reason}", file.path, line_number(&code, found.start)));
            }
        }
    }
    faults
}

/// Conditions on cargo features outside of the crate that has them.
pub fn check_features(files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files {
        let folder = file.crate_folder();
        if folder.is_none() || folder == Some(FEATURE_CRATE) {
            continue;
        }
        if file.path.ends_with("/Cargo.toml") && file.text.lines().any(|line| line.trim() == "[features]") {
            faults.push(format!("{}: only {FEATURE_CRATE} has features", file.path));
        }
        if !file.is_rust() {
            continue;
        }
        let code = RustText::new(&file.text).code;
        for found in find_word(&code, "feature") {
            let line = line_number(&code, found.start);
            let is_condition =
                code[found.end..].trim_start().starts_with('=') && inside_condition(&code[..found.start]);
            if is_condition {
                faults.push(format!("{}:{line}: cfg(feature) outside of {FEATURE_CRATE}", file.path));
            }
        }
    }
    faults
}

/// Whether code that follows `before` is in the brackets of a `cfg`.
fn inside_condition(before: &str) -> bool {
    let mut closed = 0;
    for (index, byte) in before.bytes().enumerate().rev() {
        match byte {
            b')' => closed += 1,
            b'(' if closed > 0 => closed -= 1,
            b'(' => {
                let word = before[..index].trim_end_matches('!');
                if word.ends_with("cfg") || word.ends_with("cfg_attr") {
                    return true;
                }
            }
            b';' | b'{' | b'}' => return false,
            _ => (),
        }
    }
    false
}

/// Mentions of number formats in files of architectures: formats are a matter of files and back ends.
pub fn check_architectures(files: &[TextFile]) -> Vec<String> {
    /// Files of the crate that are no architecture: the builder declares weights with their formats.
    const BUILDER: &[&str] = &["crates/models/src/builder.rs", "crates/models/src/error.rs"];
    let mut faults = Vec::new();
    for file in
        files.iter().filter(|file| file.crate_folder() == Some("crates/models") && file.is_library_source())
    {
        if BUILDER.contains(&file.path.as_str()) {
            continue;
        }
        let code = RustText::new(&file.text).product_code();
        for word in ["DType", "puna_quant"] {
            for found in find_word(&code, word) {
                let line = line_number(&code, found.start);
                faults.push(format!("{}:{line}: {word}: architectures know no number formats", file.path));
            }
        }
    }
    faults
}

/// Crates whose root does not begin with a description.
pub fn check_descriptions(files: &[TextFile]) -> Vec<String> {
    let roots = files.iter().filter(|file| file.crate_folder().is_some() && is_crate_root(&file.path));
    roots
        .filter(|file| {
            let first = file.text.lines().next().unwrap_or("");
            let sentence = first.strip_prefix("//! ").unwrap_or("");
            sentence.split_whitespace().count() < 3
        })
        .map(|file| format!("{}: the first line must say in a `//!` sentence what the crate is", file.path))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::all;

    #[test]
    fn libraries_do_not_print_exit_or_read_the_environment() {
        crate::assert_clean(check_manners(&all()));
    }

    #[test]
    fn features_are_in_one_crate() {
        crate::assert_clean(check_features(&all()));
    }

    #[test]
    fn architectures_know_no_number_formats() {
        crate::assert_clean(check_architectures(&all()));
        let faults = |path: &str, text: &str| check_architectures(&[TextFile::sample(path, text)]).len();
        assert_eq!(faults("crates/models/src/llama.rs", "fn f(d: puna_quant::DType) {}"), 2);
        assert_eq!(faults("crates/models/src/llama.rs", "// DType\nfn f() {}"), 0);
        assert_eq!(faults("crates/models/src/builder.rs", "fn f(d: DType) {}"), 0);
        assert_eq!(faults("crates/graph/src/graph.rs", "fn f(d: DType) {}"), 0);
    }

    #[test]
    fn every_crate_says_what_it_is() {
        crate::assert_clean(check_descriptions(&all()));
    }

    #[test]
    fn bad_manners_are_caught() {
        let faults = |path: &str, text: &str| check_manners(&[TextFile::sample(path, text)]).len();
        let library = "crates/graph/src/graph.rs";
        for text in [
            "fn f() { println!(\"a\") }",
            "fn f() { dbg!(1); }",
            "fn f() { std::process::exit(1) }",
            "fn f() { std::env::var(\"HOME\").ok(); }",
            "fn f() { writeln!(std::io::stderr(), \"a\").ok(); }",
        ] {
            assert_eq!(faults(library, text), 1, "{text}");
            assert_eq!(faults("tools/llama/src/main.rs", text), 0, "{text}");
            assert_eq!(faults("crates/graph/tests/all.rs", text), 0, "{text}");
        }
        assert_eq!(faults(library, "/// println!(\"a\")\nconst A: &str = \"println!\";"), 0);
        assert_eq!(faults(library, "#[cfg(test)]\nmod tests { fn f() { println!() } }"), 0);
        assert_eq!(faults(library, "const A: &str = env!(\"CARGO_PKG_VERSION\");"), 0);
    }

    #[test]
    fn stray_features_are_caught() {
        let faults = |path: &str, text: &str| check_features(&[TextFile::sample(path, text)]).len();
        for text in
            ["#[cfg(feature = \"cuda\")]", "#[cfg(not(feature=\"cuda\"))]", "if cfg!(feature = \"a\") {}"]
        {
            assert_eq!(faults("crates/runtime/src/lib.rs", text), 1, "{text}");
            assert_eq!(faults("crates/backends/src/lib.rs", text), 0, "{text}");
        }
        assert_eq!(faults("crates/runtime/Cargo.toml", "[features]\na = []"), 1);
        assert_eq!(
            faults("crates/runtime/src/lib.rs", "#[cfg(target_feature = \"avx2\")] let feature = \"a\";"),
            0
        );
    }

    #[test]
    fn missing_descriptions_are_caught() {
        for (text, count) in [("//! runtime\n", 1), ("fn f() {}", 1), ("//! What a model is.\n", 0)] {
            assert_eq!(check_descriptions(&[TextFile::sample("crates/a/src/lib.rs", text)]).len(), count);
        }
    }
}
