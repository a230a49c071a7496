//! What no file may mention, links that lead somewhere, and the commands that CI takes from the README.

use crate::files::{TextFile, root};

/// Folders of one machine and hosts of package registries. Spelled in halves, so that this file has none.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a folder of one machine"),
    (concat!("/ro", "ot/"), "a folder of one machine"),
    (concat!("/ho", "me/"), "a folder of one machine"),
    (concat!("crates", ".io"), "a package registry"),
    (concat!("py", "pi.org"), "a package registry"),
    (concat!("python", "hosted.org"), "a package registry"),
    (concat!("npm", "js.org"), "a package registry"),
    (concat!("deb.", "debian.org"), "a package registry"),
];

/// The lock file names the registry that cargo uses by default, and must.
const LOCK_FILE: &str = "Cargo.lock";

/// Mentions of machines' folders and of package registries.
pub fn check_mentions(files: &[TextFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path != LOCK_FILE) {
        for (index, line) in file.text.lines().enumerate() {
            for (word, what) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
                faults.push(format!("{}:{}: {word} is {what}", file.path, index + 1));
            }
        }
    }
    faults
}

/// Registries in the lock file other than cargo's default.
pub fn check_lock_file(files: &[TextFile]) -> Vec<String> {
    let default = concat!("registry+https://github.com/rust-lang/crates", ".io-index");
    let lock = files.iter().filter(|file| file.path == LOCK_FILE);
    let sources = lock.flat_map(|file| file.text.lines()).filter_map(|line| line.strip_prefix("source = "));
    sources
        .filter(|source| source.trim_matches('"') != default)
        .map(|source| format!("{LOCK_FILE}: {source} is not cargo's default registry"))
        .collect()
}

/// Relative links of Markdown files that lead nowhere.
pub fn check_links(files: &[TextFile], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (start, _) in file.text.match_indices("](") {
            let target = file.text[start + 2..].split(')').next().unwrap_or("");
            let target = target.split('#').next().unwrap_or("");
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = if folder.is_empty() { target.to_owned() } else { format!("{folder}/{target}") };
            if !exists(&path) {
                faults.push(format!("{}: the link to {target} leads nowhere", file.path));
            }
        }
    }
    faults
}

/// The command that follows a marker comment in the README, as `.ci/run` takes it.
pub fn readme_command<'t>(readme: &'t str, marker: &str) -> Result<&'t str, String> {
    let comment = format!("<!-- ci: {marker} -->\n```sh\n");
    let mut blocks = readme.match_indices(&comment).map(|(start, _)| &readme[start + comment.len()..]);
    let (Some(block), None) = (blocks.next(), blocks.next()) else {
        return Err(format!("README.md needs one block after the comment ci: {marker}"));
    };
    let command = block.split("\n```").next().unwrap_or("");
    match command.contains('\n') || command.trim().is_empty() {
        true => Err(format!("the block after the comment ci: {marker} must be one command")),
        false => Ok(command),
    }
}

/// The markers of the two commands.
pub const README_MARKERS: &[&str] = &["first command", "test command"];

/// Whether a path from the repository's root exists.
pub fn exists(path: &str) -> bool {
    root().join(path).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::all;

    #[test]
    fn no_machine_or_registry_is_mentioned() {
        crate::assert_clean(check_mentions(&all()));
        crate::assert_clean(check_lock_file(&all()));
    }

    #[test]
    fn links_lead_somewhere() {
        crate::assert_clean(check_links(&all(), exists));
    }

    #[test]
    fn ci_runs_what_the_readme_says() {
        let files = all();
        let text = |path: &str| {
            files.iter().find(|file| file.path == path).map(|file| file.text.as_str()).unwrap_or_default()
        };
        for marker in README_MARKERS {
            readme_command(text("README.md"), marker).unwrap();
            let asks = format!("readme_command \"{marker}\"");
            assert!(text(".ci/run").contains(&asks), ".ci/run does not run the {marker}");
        }
    }

    #[test]
    fn mentions_are_caught() {
        for (word, _) in FORBIDDEN {
            let text = format!("see {word}x\n");
            assert_eq!(check_mentions(&[TextFile::sample("docs/a.md", &text)]).len(), 1, "{word}");
        }
        let lock = "source = \"registry+https://mirror.example/index\"\n";
        assert_eq!(check_lock_file(&[TextFile::sample(LOCK_FILE, lock)]).len(), 1);
    }

    #[test]
    fn dead_links_are_caught() {
        let file =
            [TextFile::sample("docs/a.md", "[b](b.md) [c](../c.md#d) [e](https://example.org) [f](#g)")];
        assert_eq!(check_links(&file, |path| path == "docs/b.md" || path == "docs/../c.md").len(), 0);
        assert_eq!(check_links(&file, |_| false).len(), 2);
    }

    #[test]
    fn commands_are_found() {
        let readme =
            "a\n<!-- ci: test command -->\n```sh\ncargo test\n```\n<!-- ci: two -->\n```sh\na\nb\n```\n";
        assert_eq!(readme_command(readme, "test command"), Ok("cargo test"));
        assert!(readme_command(readme, "two").is_err());
        assert!(readme_command(readme, "none").is_err());
        assert!(readme_command(&readme.repeat(2), "test command").is_err());
    }
}
