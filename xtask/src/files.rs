//! The repository's text files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One text file.
#[derive(Clone, Debug)]
pub struct TextFile {
    /// Path from the repository's root, with forward slashes.
    pub path: String,
    /// Its contents.
    pub text: String,
}

impl TextFile {
    /// A sample for the tests of checks.
    pub fn sample(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// Folder of the crate that the file belongs to, for example `crates/graph`.
    pub fn crate_folder(&self) -> Option<&str> {
        let depth = match self.path.split('/').next()? {
            "crates" | "tools" => 2,
            "xtask" => 1,
            _ => return None,
        };
        let mut slashes = self.path.match_indices('/').map(|(index, _)| index);
        slashes.nth(depth - 1).map(|end| &self.path[..end])
    }

    /// Whether it is a source file of a library crate: part of the product, no test of its own.
    pub fn is_library_source(&self) -> bool {
        let parts: Vec<&str> = self.path.split('/').collect();
        // The conformance crate is test support: no product crate depends on it.
        parts.len() > 3
            && parts[0] == "crates"
            && parts[1] != "conformance"
            && parts[2] == "src"
            && self.is_rust()
    }

    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every text file that belongs to the repository: what git tracks, or without git what lies in the folder.
pub fn all() -> Vec<TextFile> {
    let root = root();
    let paths = tracked(&root).unwrap_or_else(|| walk(&root));
    let texts = paths.into_iter().filter_map(|path| {
        // Binary files are not UTF-8; deleted ones are still listed.
        let text = std::fs::read_to_string(root.join(&path)).ok()?;
        Some(TextFile { path, text })
    });
    texts.collect()
}

/// The tracked files, or `None` where `folder` is no git checkout.
fn tracked(folder: &Path) -> Option<Vec<String>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(folder).output().ok()?;
    let list = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    // An unpacked archive inside somebody else's repository lists nothing.
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

/// Files under `folder`, without build output, shared material and git's own.
fn walk(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut open = vec![String::new()];
    while let Some(inside) = open.pop() {
        let Ok(entries) = std::fs::read_dir(folder.join(&inside)) else { continue };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if inside.is_empty() { name } else { format!("{inside}/{name}") };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !["target", "shared", ".git"].contains(&path.as_str()) => {
                    open.push(path);
                }
                Ok(kind) if kind.is_file() => paths.push(path),
                _ => (),
            }
        }
    }
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_listings_find_this_file() {
        let walked = walk(&root());
        assert!(walked.iter().any(|path| path == "xtask/src/files.rs"));
        assert!(!walked.iter().any(|path| path.starts_with("target/") || path.starts_with(".git/")));
        for path in tracked(&root()).unwrap_or_default() {
            let exists = root().join(&path).exists();
            assert!(!exists || walked.contains(&path), "{path} is tracked but not found by walking");
        }
    }

    #[test]
    fn a_folder_outside_git_has_no_tracked_files() {
        assert_eq!(tracked(Path::new("/")), None);
    }

    #[test]
    fn files_know_their_crate() {
        for (path, folder, library) in [
            ("crates/graph/src/ops/add.rs", Some("crates/graph"), true),
            ("crates/models/tests/zoo.rs", Some("crates/models"), false),
            ("crates/conformance/src/zoo.rs", Some("crates/conformance"), false),
            ("tools/llama/src/main.rs", Some("tools/llama"), false),
            ("xtask/src/lib.rs", Some("xtask"), false),
            ("README.md", None, false),
        ] {
            let file = TextFile::sample(path, "");
            assert_eq!((file.crate_folder(), file.is_library_source()), (folder, library), "{path}");
        }
    }
}
