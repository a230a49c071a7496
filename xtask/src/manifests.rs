//! Manifests: every dependency and every allowed lint has a reason, and versions are in one place.

use crate::files::TextFile;

/// Faults of the root manifest and of the crates' manifests.
pub fn check(files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path == "Cargo.toml") {
        check_root(&file.text, &mut faults);
        check_uses(&file.text, files, &mut faults);
    }
    let members = files.iter().filter(|file| file.crate_folder().is_some());
    for file in members.filter(|file| file.path.ends_with("/Cargo.toml")) {
        check_member(file, &mut faults);
    }
    faults
}

/// Lines of a manifest that set a key, with their section, the line before them and their number from 1.
fn rows(text: &str) -> impl Iterator<Item = (&str, &str, &str, usize)> {
    let mut section = "";
    let mut before = "";
    text.lines().enumerate().filter_map(move |(index, line)| {
        let above = std::mem::replace(&mut before, line);
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            return None;
        }
        (line.contains('=') && !line.starts_with(['#', ' '])).then_some((section, above, line, index + 1))
    })
}

fn check_root(text: &str, faults: &mut Vec<String>) {
    for (section, above, line, number) in rows(text) {
        let has_reason = above.starts_with("# ") || line.contains(" # ");
        let name = line.split('=').next().unwrap_or("").trim();
        if section == "workspace.dependencies" && !line.contains("path =") && !has_reason {
            faults.push(format!("Cargo.toml:{number}: {name} has no comment that says what it is for"));
        }
        let allowed = section.starts_with("workspace.lints") && line.contains("\"allow\"");
        if allowed && !has_reason {
            faults.push(format!("Cargo.toml:{number}: {name} is allowed without a reason"));
        }
    }
}

/// Dependencies that no crate has.
fn check_uses(root: &str, files: &[TextFile], faults: &mut Vec<String>) {
    let members: Vec<&TextFile> = files
        .iter()
        .filter(|file| file.crate_folder().is_some() && file.path.ends_with("/Cargo.toml"))
        .collect();
    for (_, _, line, number) in rows(root).filter(|(section, ..)| *section == "workspace.dependencies") {
        let name = line.split('=').next().unwrap_or("").trim();
        let is_use = |line: &str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(".workspace") || rest.starts_with(" ="))
        };
        if !members.iter().any(|member| member.text.lines().any(is_use)) {
            faults.push(format!("Cargo.toml:{number}: no crate uses {name}"));
        }
    }
}

fn check_member(file: &TextFile, faults: &mut Vec<String>) {
    for (section, _, line, number) in rows(&file.text) {
        if section.ends_with("dependencies") && !line.contains("workspace = true") {
            faults.push(format!("{}:{number}: versions and paths belong in the root manifest", file.path));
        }
    }
    if !file.text.contains("[lints]\nworkspace = true") {
        faults.push(format!("{}: it does not take the workspace's lints", file.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_give_reasons() {
        crate::assert_clean(check(&crate::files::all()));
    }

    fn faults(path: &str, text: &str) -> usize {
        check(&[TextFile::sample(path, text)]).len()
    }

    #[test]
    fn missing_reasons_are_caught() {
        let member = TextFile::sample(
            "crates/c/Cargo.toml",
            "[lints]\nworkspace = true\n[dependencies]\na.workspace = true\n",
        );
        let root = |text: &str| check(&[TextFile::sample("Cargo.toml", text), member.clone()]).len();
        assert_eq!(root("[workspace.dependencies]\na = \"1\"\n"), 1);
        assert_eq!(root("[workspace.dependencies]\n# Why.\na = \"1\"\n"), 0);
        assert_eq!(root("[workspace.dependencies]\na = \"1\" # Why.\n"), 0);
        assert_eq!(root("[workspace.dependencies]\na = { path = \"crates/a\" }\n"), 0);
        assert_eq!(root("[workspace.dependencies]\n# Why.\nb = \"1\"\n"), 1, "nobody uses it");
        assert_eq!(root("[workspace.lints.rust]\nx = \"allow\"\ny = \"warn\"\n"), 1);
        assert_eq!(root("[workspace.lints.rust]\nx = \"allow\" # why\n"), 0);
    }

    #[test]
    fn stray_versions_are_caught() {
        let member = |text: &str| faults("crates/a/Cargo.toml", text);
        let lints = "[lints]\nworkspace = true\n";
        assert_eq!(member(&format!("{lints}[dependencies]\nb.workspace = true\n")), 0);
        assert_eq!(member(&format!("{lints}[dev-dependencies]\nb = \"1\"\n")), 1);
        assert_eq!(member("[dependencies]\n"), 1);
    }
}
