//! Where `unsafe` may be, and that each use says why it is sound.

use crate::files::TextFile;
use crate::rust_text::{RustText, find_word, line_number};

/// The crates that may use it: a memory map, vector instructions, and the functions of a driver.
pub const ALLOWED: &[&str] = &["crates/gguf", "crates/backend-cpu", "crates/backend-cuda"];
/// Single files that may, in crates that otherwise may not: interfaces of C libraries.
pub const ALLOWED_FILES: &[&str] = &[
    "crates/backend-openvino/src/ffi/compiled.rs",
    "crates/backend-openvino/src/ffi/files.rs",
    "crates/backend-openvino/src/ffi/mod.rs",
    "crates/backend-openvino/src/ffi/shim.rs",
];

const FORBID: &str = "#![forbid(unsafe_code)]";
/// What a crate with such a file says instead.
const DENY: &str = "#![deny(unsafe_code)]";

/// Uses of `unsafe` in other crates, crates that do not forbid it, and uses without a SAFETY comment.
pub fn check(files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let folder = file.crate_folder();
        let allowed = folder.is_some_and(|folder| ALLOWED.contains(&folder))
            || ALLOWED_FILES.contains(&file.path.as_str());
        let has_allowed_file = folder
            .is_some_and(|folder| ALLOWED_FILES.iter().any(|path| path.starts_with(&format!("{folder}/"))));
        let lint = if has_allowed_file { DENY } else { FORBID };
        let text = RustText::new(&file.text);
        let stated_once = has_reason_for_all(&text);
        if !allowed && is_crate_root(&file.path) && !text.code.contains(lint) {
            faults.push(format!("{}: {lint} is missing", file.path));
        }
        for word in find_word(&text.code, "unsafe") {
            let line = line_number(&text.code, word.start);
            if !allowed {
                faults.push(format!("{}:{line}: `unsafe` outside of {}", file.path, ALLOWED.join(", ")));
            } else if needs_reason(&text.code[word.end..]) && !stated_once && !has_reason(&text, line) {
                faults.push(format!("{}:{line}: `unsafe` without a SAFETY comment above it", file.path));
            }
        }
    }
    faults
}

/// Whether the compiler starts at this file.
pub fn is_crate_root(path: &str) -> bool {
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs")
}

/// Blocks and implementations state that something holds; functions only demand it of their callers.
fn needs_reason(after: &str) -> bool {
    let after = after.trim_start();
    after.starts_with('{') || after.starts_with("impl")
}

/// Whether the file states one reason for all its blocks: in its description, with the lint switched off.
fn has_reason_for_all(text: &RustText) -> bool {
    let lint_is_off = text.code.contains("#![allow(clippy::undocumented_unsafe_blocks)]");
    lint_is_off && text.comments.lines().any(|line| line.starts_with("//! SAFETY"))
}

/// Whether a SAFETY comment stands on the line of the use or above the statement it is part of.
fn has_reason(text: &RustText, line: usize) -> bool {
    let code: Vec<&str> = text.code.lines().collect();
    let comments: Vec<&str> = text.comments.lines().collect();
    let says_why = |index: usize| comments[index].contains("SAFETY:");
    let mut index = line - 1;
    if says_why(index) {
        return true;
    }
    while index > 0 {
        index -= 1;
        let above = code[index].trim();
        let only_comment = above.is_empty() && !comments[index].trim().is_empty();
        if only_comment && says_why(index) {
            return true;
        }
        let statement_begins = above.is_empty() && !only_comment || above.ends_with([';', '{', '}', ',']);
        if statement_begins {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_where_it_may_be() {
        crate::assert_clean(check(&crate::files::all()));
    }

    fn faults(path: &str, text: &str) -> usize {
        check(&[TextFile::sample(path, text)]).len()
    }

    #[test]
    fn strays_are_caught() {
        assert_eq!(faults("crates/graph/src/array.rs", "// SAFETY: no\nunsafe {}"), 1);
        assert_eq!(faults("crates/graph/src/array.rs", "// unsafe\nlet a = \"unsafe\";"), 0);
        assert_eq!(faults("crates/graph/src/lib.rs", "//! Graph.\n"), 1);
        assert_eq!(faults("crates/graph/src/lib.rs", "//! Graph.\n#![forbid(unsafe_code)]\n"), 0);
        assert_eq!(faults("tools/llama/src/main.rs", "fn main() {}"), 1);
        let reason = "// SAFETY: a.\nlet a = unsafe { b() };";
        assert_eq!(faults("crates/backend-openvino/src/ffi/files.rs", reason), 0);
        assert_eq!(faults("crates/backend-openvino/src/backend.rs", reason), 1);
        assert_eq!(faults("crates/backend-openvino/src/lib.rs", "//! A.\n"), 1);
        assert_eq!(faults("crates/backend-openvino/src/lib.rs", "//! A.\n#![deny(unsafe_code)]\n"), 0);
    }

    #[test]
    fn uses_need_a_reason() {
        let path = "crates/gguf/src/data.rs";
        assert_eq!(faults(path, "fn f() {\n    unsafe { g() }\n}"), 1);
        assert_eq!(faults(path, "fn f() {\n    // SAFETY: g is sound.\n    unsafe { g() }\n}"), 0);
        assert_eq!(faults(path, "// SAFETY: a.\n// More.\n#[inline]\nlet a =\n    unsafe { g() };"), 0);
        assert_eq!(faults(path, "// SAFETY: a.\nlet a = 1;\nlet b = unsafe { g() };"), 1);
        assert_eq!(faults(path, "unsafe impl Send for A {}"), 1);
        assert_eq!(faults(path, "unsafe fn f() {}"), 0);
        let allow = "#![allow(clippy::undocumented_unsafe_blocks)]\nfn f() { unsafe { g() } }";
        assert_eq!(
            faults(path, &format!("//! Vectors.\n//!\n//! SAFETY of all blocks here: a.\n{allow}")),
            0
        );
        assert_eq!(faults(path, &format!("//! Vectors.\n{allow}")), 1);
    }
}
