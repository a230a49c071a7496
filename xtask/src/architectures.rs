//! Files of architectures: short, a family each, and about nothing but the model.

use crate::files::TextFile;

/// Most lines of an architecture's file.
pub const MOST_LINES: usize = 200;

/// Fewest: what is shorter differs from another in a setting, and belongs into its family's file.
pub const LEAST_LINES: usize = 40;

/// What only blocks and the builder may know: number formats, caches, back ends.
const FOREIGN: &[&str] = &[
    "DType",
    "StateDecl",
    "CacheGroup",
    "puna_quant",
    "puna_backend",
    "cache",
    "device",
    "CPU",
    "GPU",
    "CUDA",
];

/// Files with a row of the table of architectures that are too long, too short or know too much.
pub fn check(files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    let folder = "crates/models/src/";
    for file in files {
        let name = file.path.strip_prefix(folder).filter(|name| !name.contains('/'));
        if name.is_none() || !file.text.contains(": Architecture =") {
            continue;
        }
        let lines = file.text.lines().count();
        if !(LEAST_LINES..=MOST_LINES).contains(&lines) {
            faults.push(format!("{} has {lines} lines, not {LEAST_LINES} to {MOST_LINES}", file.path));
        }
        let named = FOREIGN.iter().filter(|word| file.text.contains(*word));
        faults.extend(named.map(|word| format!("{} names {word}", file.path)));
    }
    faults
}

/// Pages that say how many architectures there are: path, and what stands before and after the number.
const COUNTS: &[(&str, &str, &str)] =
    &[("README.md", "Architectures: ", " of them"), ("CHANGELOG.md", "Runs ", " architectures")];

/// Pages that say another number.
pub fn check_counts(files: &[TextFile], count: usize) -> Vec<String> {
    let is_right =
        |path: &str, said: &str| files.iter().any(|file| file.path == path && file.text.contains(said));
    let said = COUNTS.iter().map(|(path, before, after)| (path, format!("{before}{count}{after}")));
    said.filter(|(path, said)| !is_right(path, said))
        .map(|(path, said)| format!("{path} does not say: {said}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_short_and_about_the_model() {
        crate::assert_clean(check(&crate::files::all()));
    }

    #[test]
    fn pages_say_how_many_there_are() {
        crate::assert_clean(check_counts(&crate::files::all(), puna_models::ARCHITECTURES.len()));
        let readme = TextFile::sample("README.md", "- Architectures: 7 of them, each checked");
        assert_eq!(check_counts(&[readme], 7), ["CHANGELOG.md does not say: Runs 7 architectures"]);
        let changelog = TextFile::sample("CHANGELOG.md", "- Runs 8 architectures on");
        assert_eq!(check_counts(&[changelog], 7).len(), 2);
    }

    #[test]
    fn a_long_short_or_knowing_file_is_caught() {
        let file = |text: &str| [TextFile::sample("crates/models/src/a.rs", text)];
        let row = ["pub const A: Architecture = x;\n", &"\n".repeat(LEAST_LINES - 1)].concat();
        assert_eq!(check(&file(&row)), [""; 0]);
        assert_eq!(check(&file(&row[..row.len() - 1])).len(), 1);
        assert_eq!(check(&file(&[&row, &*"\n".repeat(MOST_LINES)].concat())).len(), 1);
        assert_eq!(check(&file(&[&row, "use puna_quant::DType;"].concat())).len(), 2);
        assert_eq!(check(&file(&[&row, "// kept in the cache of a device"].concat())).len(), 2);
        assert_eq!(check(&file("use puna_quant::DType;")), [""; 0]);
        let block = TextFile::sample("crates/models/src/blocks/a.rs", &[&row, "DType"].concat());
        assert_eq!(check(&[block]), [""; 0]);
    }
}
