//! Which crate may name which: the layers of the architecture as a table.

use std::collections::{BTreeMap, BTreeSet};

/// What a crate may name.
pub struct Edges {
    /// The crate.
    pub from: &'static str,
    /// Crates that its product code names.
    pub to: &'static [&'static str],
    /// Crates that only its tests name. Any crate's tests may use [`TEST_SUPPORT`] and what `to` reaches.
    pub tests: &'static [&'static str],
}

/// The crate of test support.
pub const TEST_SUPPORT: &str = "puna-conformance";

const fn row(from: &'static str, to: &'static [&'static str]) -> Edges {
    Edges { from, to, tests: &[] }
}

/// Every crate of the workspace, lowest first. Nothing names a crate of a later row.
pub const EDGES: &[Edges] = &[
    // Useful alone.
    row("puna-quant", &[]),
    row("puna-gguf", &["puna-quant"]),
    row("puna-tokenizer", &["puna-gguf"]),
    row("puna-sampling", &[]),
    Edges {
        from: "puna-grammar",
        to: &[],
        // The vocabularies that masks are tested and measured with.
        tests: &["puna-gguf", "puna-tokenizer"],
    },
    Edges {
        from: "puna-chat",
        to: &[],
        // What calls have to look like is written for these grammars.
        tests: &["puna-grammar"],
    },
    row("puna-hub", &[]),
    row("puna-flags", &["puna-gguf"]),
    // What is computed. Models and back ends meet here.
    row("puna-graph", &["puna-quant"]),
    row("puna-backend", &["puna-graph", "puna-quant"]),
    // Test support comes before all that test with it.
    row("puna-conformance", &["puna-backend", "puna-gguf", "puna-graph", "puna-quant"]),
    row("puna-models", &["puna-gguf", "puna-graph", "puna-quant"]),
    Edges {
        from: "puna-convert",
        to: &["puna-gguf", "puna-quant", "puna-tokenizer"],
        // Converted models have to run.
        tests: &["puna-backend", "puna-models"],
    },
    // Where it is computed.
    Edges {
        from: "puna-backend-cpu",
        to: &["puna-backend", "puna-graph", "puna-quant"],
        // Whole models are its best test.
        tests: &["puna-gguf", "puna-models"],
    },
    row("puna-gpu", &["puna-backend", "puna-graph", "puna-quant"]),
    Edges {
        from: "puna-backend-cuda",
        to: &["puna-backend", "puna-gpu"],
        // As above.
        tests: &["puna-gguf", "puna-graph", "puna-models", "puna-quant"],
    },
    Edges {
        from: "puna-backend-openvino",
        to: &["puna-backend", "puna-graph", "puna-quant"],
        // Whole models are its best test.
        tests: &["puna-gguf", "puna-models"],
    },
    row("puna-backends", &["puna-backend", "puna-backend-cpu", "puna-backend-cuda", "puna-backend-openvino"]),
    // Who asks for it.
    Edges {
        from: "puna-runtime",
        to: &["puna-backend", "puna-gguf", "puna-graph", "puna-models", "puna-quant"],
        // The report on all models of the zoo.
        tests: &["puna-backend-cpu"],
    },
    row("puna-engine", &["puna-grammar", "puna-runtime", "puna-sampling"]),
    Edges {
        from: "puna-server",
        to: &["puna-chat", "puna-engine", "puna-grammar", "puna-sampling", "puna-tokenizer"],
        // Whole models on real back ends.
        tests: &["puna-backend", "puna-backend-cpu"],
    },
    row(
        "puna-llama",
        &[
            "puna-backend",
            "puna-backends",
            "puna-chat",
            "puna-convert",
            "puna-engine",
            "puna-flags",
            "puna-gguf",
            "puna-grammar",
            "puna-graph",
            "puna-hub",
            "puna-models",
            "puna-quant",
            "puna-runtime",
            "puna-sampling",
            "puna-server",
            "puna-tokenizer",
        ],
    ),
    row("xtask", &["puna-chat", "puna-flags", "puna-graph", "puna-models", "puna-quant", "puna-sampling"]),
];

/// Pairs that must not be connected, not even through other crates, with the reason.
pub const NEVER: &[(&str, &str, &str)] = &[
    ("puna-models", "puna-backend", "they meet at the graph"),
    ("puna-graph", "puna-gguf", "a graph knows no files"),
    ("puna-runtime", "puna-backend-cpu", "the runtime takes any back end"),
    ("puna-engine", "puna-backend-cpu", "the engine takes any back end"),
    ("puna-engine", "puna-tokenizer", "the engine knows token ids only"),
    ("puna-engine", "puna-chat", "the engine knows token ids only"),
];

/// Edges of one crate as its manifest has them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Crates of the workspace that product code or build scripts name.
    pub to: BTreeSet<String>,
    /// Crates of the workspace that tests name.
    pub tests: BTreeSet<String>,
}

/// Reads the answer of `cargo metadata --no-deps --format-version 1`.
pub fn from_metadata(json: &str) -> Result<BTreeMap<String, Found>, String> {
    let metadata: serde_json::Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("there are no packages")?;
    let mut found = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().ok_or("a package has no name")?;
        let mut edges = Found::default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let target = dependency["name"].as_str().unwrap_or("");
            // Dependencies within the workspace have a path.
            if dependency["path"].is_string() {
                let is_test = dependency["kind"].as_str() == Some("dev");
                let side = if is_test { &mut edges.tests } else { &mut edges.to };
                side.insert(target.to_owned());
            }
        }
        found.insert(name.to_owned(), edges);
    }
    Ok(found)
}

/// Compares the table with the manifests, and both with the rules.
pub fn check(table: &[Edges], found: &BTreeMap<String, Found>) -> Vec<String> {
    let mut faults = Vec::new();
    for name in found.keys() {
        if !table.iter().any(|row| row.from == name) {
            faults.push(format!("{name} has no row in xtask/src/edges.rs"));
        }
    }
    for (index, row) in table.iter().enumerate() {
        let Some(found) = found.get(row.from) else {
            faults.push(format!("{} has a row in xtask/src/edges.rs but does not exist", row.from));
            continue;
        };
        let allowed: BTreeSet<String> = row.to.iter().map(|name| name.to_string()).collect();
        for name in found.to.difference(&allowed) {
            faults.push(format!("{} may not name {name}", row.from));
        }
        for name in allowed.difference(&found.to) {
            faults.push(format!("{} does not name {name} any more: remove it from its row", row.from));
        }
        for name in row.to {
            if !table[..index].iter().any(|earlier| earlier.from == *name) {
                faults.push(format!("{} names {name}, which is no earlier row", row.from));
            }
        }
        let reached = reach(table, row.from);
        for name in &found.tests {
            let fine =
                name == TEST_SUPPORT || row.tests.contains(&name.as_str()) || reached.contains(name.as_str());
            if !fine {
                faults.push(format!("tests of {} may not name {name}", row.from));
            }
        }
        if reached.contains(TEST_SUPPORT) {
            faults.push(format!("{} depends on {TEST_SUPPORT}, which is for tests only", row.from));
        }
        for (from, to, reason) in NEVER {
            if *from == row.from && reached.contains(to) {
                faults.push(format!("{from} reaches {to}: {reason}"));
            }
        }
    }
    faults
}

/// Every crate that `from` names, directly or not.
fn reach<'t>(table: &'t [Edges], from: &'t str) -> BTreeSet<&'t str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for row in table.iter().filter(|row| row.from == name) {
            open.extend(row.to.iter().filter(|target| reached.insert(**target)));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_name_only_what_they_may() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let output = std::process::Command::new(cargo)
            .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
            .current_dir(crate::files::root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json = String::from_utf8(output.stdout).expect("metadata is text");
        crate::assert_clean(check(EDGES, &from_metadata(&json).expect("metadata is understood")));
    }

    const METADATA: &str = r#"{"packages": [
        {"name": "low", "dependencies": [{"name": "half", "path": null, "kind": null}]},
        {"name": "high", "dependencies": [
            {"name": "low", "path": "/x/low", "kind": null},
            {"name": "puna-conformance", "path": "/x/c", "kind": "dev"}]}
    ]}"#;

    fn faults(table: &[Edges], json: &str) -> Vec<String> {
        check(table, &from_metadata(json).expect("the sample is good"))
    }

    #[test]
    fn the_sample_is_clean() {
        assert_eq!(faults(&[row("low", &[]), row("high", &["low"])], METADATA), [""; 0]);
    }

    #[test]
    fn wrong_edges_are_caught() {
        let caught = |table: &[Edges], json: &str, words: &str| {
            let faults = faults(table, json);
            assert!(faults.iter().any(|fault| fault.contains(words)), "{words}: {faults:?}");
        };
        caught(&[row("low", &[]), row("high", &[])], METADATA, "high may not name low");
        caught(&[row("high", &["low"]), row("low", &[])], METADATA, "no earlier row");
        caught(&[row("low", &[])], METADATA, "high has no row");
        caught(&[row("low", &[]), row("high", &["low"]), row("gone", &[])], METADATA, "does not exist");
        caught(&[row("low", &[]), row("mid", &[]), row("high", &["low", "mid"])], METADATA, "any more");
        let dev = METADATA.replace("\"dev\"", "null");
        caught(&[row("low", &[]), row("high", &["low"])], &dev, "may not name puna-conformance");
        let other = METADATA.replace("puna-conformance", "other");
        caught(&[row("low", &[]), row("high", &["low"])], &other, "tests of high may not name other");
    }

    #[test]
    fn a_forbidden_detour_is_caught() {
        let table =
            [row("puna-backend", &[]), row("detour", &["puna-backend"]), row("puna-models", &["detour"])];
        let found = table
            .iter()
            .map(|row| {
                let to = row.to.iter().map(|name| name.to_string()).collect();
                (row.from.to_owned(), Found { to, tests: BTreeSet::new() })
            })
            .collect();
        assert_eq!(check(&table, &found), ["puna-models reaches puna-backend: they meet at the graph"]);
    }
}
