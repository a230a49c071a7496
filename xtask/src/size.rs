//! Length of source files.

use crate::files::TextFile;

/// Most lines of a Rust file: more is more than one idea.
pub const MOST_LINES: usize = 800;

/// Files that may be longer because they are nothing but rows of data.
pub const DATA_TABLES: &[&str] = &[];

/// Rust files that are too long, and rows of [`DATA_TABLES`] that are not needed.
pub fn check(files: &[TextFile], data_tables: &[&str]) -> Vec<String> {
    let long: Vec<(&str, usize)> = files
        .iter()
        .filter(|file| file.is_rust())
        .map(|file| (file.path.as_str(), file.text.lines().count()))
        .filter(|(_, lines)| *lines > MOST_LINES)
        .collect();
    let too_long = long
        .iter()
        .filter(|(path, _)| !data_tables.contains(path))
        .map(|(path, lines)| format!("{path} has {lines} lines, more than {MOST_LINES}"));
    let needless = data_tables
        .iter()
        .filter(|table| !long.iter().any(|(path, _)| path == *table))
        .map(|table| format!("{table} is listed as a long data table but is none"));
    too_long.chain(needless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_too_long() {
        crate::assert_clean(check(&crate::files::all(), DATA_TABLES));
    }

    #[test]
    fn a_long_file_is_caught() {
        let long = [TextFile::sample("crates/a/src/b.rs", &"\n".repeat(MOST_LINES + 1))];
        assert_eq!(check(&long, &[]).len(), 1);
        assert_eq!(check(&long, &["crates/a/src/b.rs"]).len(), 0);
        assert_eq!(check(&[], &["crates/a/src/b.rs"]).len(), 1);
    }
}
