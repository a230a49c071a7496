//! Which models `llama serve` offers when it serves many: those of a folder, and those of an INI file with flags for
//! each; and how the process of one is started.

use crate::failure::Failure;
use crate::files;
use crate::invocation::Invocation;
use crate::serve::SPEC;
use puna_flags::Config;
use puna_server::{Entry, Offer};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a model's process may take to end if nothing else is said.
const STOP_TIME: Duration = Duration::from_secs(10);

/// Flags of the router itself, which its models' processes do not get.
const OWN: &[&str] = &[
    "alias",
    "allow-unauthenticated",
    "api-key",
    "api-key-file",
    "api-keys",
    "api-prefix",
    "cors-origins",
    "host",
    "log-file",
    "models-autoload",
    "models-dir",
    "models-max",
    "models-preset",
    "no-models-autoload",
    "port",
    "routed",
    "ssl-cert-file",
    "ssl-key-file",
];

/// Flags that say which model it is.
const SOURCES: &[&str] = &["model", "hf-repo", "model-url"];

/// Whether the flags ask for many models.
pub fn wanted(config: &Config) -> bool {
    config.server.models_folder.is_some() || config.server.models_preset.is_some()
}

/// What the flags offer.
pub fn offer(invocation: &Invocation, config: &Config) -> Result<Offer, Failure> {
    let (server, model) = (&config.server, &config.model);
    if model.path.is_some() || model.hf_repo.is_some() || model.url.is_some() {
        return Err(invocation.usage("give either one model or --models-dir and --models-preset"));
    }
    let plain = SPEC.plain(&invocation.arguments).map_err(|error| invocation.usage(error))?;
    let own: Vec<String> = plain.into_iter().filter(|argument| !OWN.contains(&name(argument))).collect();
    let (folder, preset) = (server.models_folder.clone(), server.models_preset.clone());
    let list = move || entries(folder.as_deref(), preset.as_deref(), &own);
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("the program does not find itself: {error}")))?;
    Ok(Offer {
        list: Box::new(list),
        start: Box::new(move |entry, key| command(&program, entry, key)),
        most: server.models_most,
        autoload: server.models_autoload,
    })
}

/// The name of an argument of the form `--name=value`.
fn name(argument: &str) -> &str {
    argument.split('=').next().unwrap_or("").trim_start_matches('-')
}

fn command(program: &Path, entry: &Entry, key: &str) -> Command {
    let mut command = Command::new(program);
    // A link called `llama-serve` is that tool already.
    let stem = program.file_stem().and_then(|stem| stem.to_str()).unwrap_or("");
    if !stem.starts_with("llama-") {
        command.arg("serve");
    }
    for flag in SPEC.flags().filter(|flag| OWN.contains(&flag.name()) || SOURCES.contains(&flag.name())) {
        if let Some(variable) = flag.env {
            command.env_remove(variable).env_remove(variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_"));
        }
    }
    command.args(&entry.arguments).arg(format!("--alias={}", entry.name));
    // Other users can see arguments, but not the environment.
    command.args(["--routed", "--host=127.0.0.1", "--port=0"]).env("LLAMA_API_KEY", key);
    command
}

/// The models of a folder and of an INI file; `own` are the router's own flags, which win.
fn entries(folder: Option<&Path>, preset: Option<&Path>, own: &[String]) -> Result<Vec<Entry>, String> {
    let mut entries = folder.map(in_folder).transpose()?.unwrap_or_default();
    let mut common = Vec::new();
    if let Some(path) = preset {
        let text = files::read_text(path, files::SMALL).map_err(|failure| failure.message())?;
        let fault = |reason: String| format!("{}: {reason}", path.display());
        for section in sections(&text).map_err(fault)? {
            if section.name == "*" {
                common = settings(&section).map_err(fault)?.arguments;
            } else {
                apply(&mut entries, &section).map_err(fault)?;
            }
        }
    }
    for entry in &mut entries {
        let (source, rest): (Vec<String>, Vec<String>) =
            entry.arguments.drain(..).partition(|argument| SOURCES.contains(&name(argument)));
        let common = common.iter().filter(|argument| !SOURCES.contains(&name(argument)));
        entry.arguments = source.into_iter().chain(common.cloned()).chain(rest).chain(own.to_vec()).collect();
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn entry(name: &str) -> Entry {
    Entry {
        name: name.to_owned(),
        aliases: Vec::new(),
        path: None,
        bytes: 0,
        arguments: Vec::new(),
        at_start: false,
        stop_time: STOP_TIME,
    }
}

/// The models of a folder: files, and folders with a file or with what `llama convert` reads.
fn in_folder(folder: &Path) -> Result<Vec<Entry>, String> {
    let fault = |error: std::io::Error| format!("--models-dir: {}: {error}", folder.display());
    let mut entries = Vec::new();
    for found in std::fs::read_dir(folder).map_err(fault)? {
        let path = found.map_err(fault)?.path();
        let Some(label) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
            continue;
        };
        if label.starts_with('.') {
            continue;
        }
        let (label, files) = if path.is_dir() {
            let mut files: Vec<PathBuf> =
                std::fs::read_dir(&path).map_err(fault)?.flatten().map(|found| found.path()).collect();
            files.retain(|path| model_name(path).is_some());
            files.sort();
            if files.is_empty() && path.join("config.json").is_file() {
                files.push(path);
            }
            (label, files)
        } else {
            let Some(label) = model_name(&path) else { continue };
            (label, vec![path])
        };
        let Some(first) = files.first() else { continue };
        let bytes = std::fs::metadata(first).map_or(0, |data| data.len());
        entries.push(Entry {
            bytes,
            arguments: vec![format!("--model={}", first.display())],
            path: Some(first.clone()),
            ..entry(&label)
        });
    }
    Ok(entries)
}

/// The name of a model by its file; nothing for files that are no model, or not the first part of one.
fn model_name(path: &Path) -> Option<String> {
    if path.extension()? != "gguf" {
        return None;
    }
    let stem = path.file_stem()?.to_str()?;
    if stem.starts_with("mmproj") {
        return None;
    }
    // `name-00001-of-00003`.
    let number = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let part = stem.rsplit_once("-of-").and_then(|(rest, count)| {
        number(count)?;
        let (name, index) = rest.rsplit_once('-')?;
        Some((name, number(index)?))
    });
    match part {
        Some((name, 1)) => Some(name.to_owned()),
        Some(_) => None,
        None => Some(stem.to_owned()),
    }
}

/// A section of an INI file.
struct Section {
    name: String,
    /// Keys and values with their lines.
    pairs: Vec<(String, String, usize)>,
}

/// The sections of an INI file. What stands before the first one is about the file.
fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (line, number) = (line.trim(), index + 1);
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let name = name.trim();
            if name.is_empty() || sections.iter().any(|section| section.name == name) {
                return Err(format!("line {number}: the section '{name}' is there already or has no name"));
            }
            sections.push(Section { name: name.to_owned(), pairs: Vec::new() });
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(format!("line {number}: expected [NAME] or KEY = VALUE"));
        };
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        match sections.last_mut() {
            Some(section) => section.pairs.push((key, value, number)),
            None if key == "version" && value == "1" => {}
            None => return Err(format!("line {number}: expected a section, or version = 1, before {key}")),
        }
    }
    Ok(sections)
}

/// What a section says.
#[derive(Default)]
struct Settings {
    aliases: Vec<String>,
    arguments: Vec<String>,
    at_start: bool,
    stop_time: Option<Duration>,
}

fn settings(section: &Section) -> Result<Settings, String> {
    let mut settings = Settings::default();
    for (key, value, line) in &section.pairs {
        let fault = |reason: String| format!("line {line}: {reason}");
        match key.as_str() {
            "load-on-startup" => {
                settings.at_start = match value.as_str() {
                    "true" | "1" | "on" => true,
                    "false" | "0" | "off" => false,
                    _ => return Err(fault(format!("{key} is '{value}', expected true or false"))),
                }
            }
            "stop-timeout" => {
                let seconds = value.parse().ok().filter(|seconds| (0..=86_400).contains(seconds));
                let wrong = || fault(format!("{key} is '{value}', expected seconds"));
                settings.stop_time = Some(Duration::from_secs(seconds.ok_or_else(wrong)?));
            }
            "a" | "alias" | "LLAMA_ARG_ALIAS" => {
                settings.aliases.extend(value.split(',').map(|alias| alias.trim().to_owned()));
            }
            key => {
                let argument = SPEC.setting(key, value).map_err(|error| fault(error.to_string()))?;
                if let Some(argument) = argument {
                    if OWN.contains(&name(&argument)) {
                        return Err(fault(format!("{key} is a flag of the router")));
                    }
                    settings.arguments.push(argument);
                }
            }
        }
    }
    Ok(settings)
}

/// Adds a section's model, or what it says about one that is there.
fn apply(entries: &mut Vec<Entry>, section: &Section) -> Result<(), String> {
    let settings = settings(section)?;
    let known = entries.iter_mut().find(|entry| entry.name == section.name);
    let named = settings.arguments.iter().find(|argument| SOURCES.contains(&name(argument)));
    let added = match (&known, named) {
        (Some(_), _) => None,
        (None, Some(argument)) => {
            let path = argument.strip_prefix("--model=").map(PathBuf::from);
            let bytes = path.as_ref().and_then(|path| Some(std::fs::metadata(path).ok()?.len())).unwrap_or(0);
            Some(Entry { path, bytes, ..entry(&section.name) })
        }
        (None, None) if section.name.contains('/') => {
            Some(Entry { arguments: vec![format!("--hf-repo={}", section.name)], ..entry(&section.name) })
        }
        (None, None) => {
            return Err(format!(
                "section '{}' names no model: give model, hf-repo or model-url",
                section.name
            ));
        }
    };
    let change = |entry: &mut Entry| {
        if named.is_some() {
            // The section's model goes before the folder's.
            entry.arguments.clear();
        }
        entry.aliases = settings.aliases.clone();
        entry.arguments.extend(settings.arguments.iter().cloned());
        entry.at_start = settings.at_start;
        entry.stop_time = settings.stop_time.unwrap_or(STOP_TIME);
    };
    match (known, added) {
        (Some(entry), _) => change(entry),
        (None, Some(mut added)) => {
            change(&mut added);
            entries.push(added);
        }
        (None, None) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_folder_that_are_models() {
        for (file, name) in [
            ("a.gguf", Some("a")),
            ("a b-Q4.gguf", Some("a b-Q4")),
            ("big-00001-of-00003.gguf", Some("big")),
            ("big-00002-of-00003.gguf", None),
            ("x-of-00003.gguf", Some("x-of-00003")),
            ("mmproj-a.gguf", None),
            ("a.bin", None),
            ("gguf", None),
        ] {
            assert_eq!(model_name(Path::new(file)).as_deref(), name, "{file}");
        }
    }

    #[test]
    fn a_folder_and_a_list() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let touch = |name: &str| std::fs::write(at(name), "12345").unwrap();
        for name in ["sub", "empty", "raw"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        for name in
            ["one.gguf", ".hidden.gguf", "note.txt", "sub/b-00002-of-00002.gguf", "sub/b-00001-of-00002.gguf"]
        {
            touch(name);
        }
        touch("sub/mmproj-b.gguf");
        touch("raw/config.json");
        let preset = at("models.ini");
        let text = "version = 1\n; remark\n[*]\nc = 512\nmetrics = true\n\n[one]\nLLAMA_ARG_CTX_SIZE = 64\n\
            alias = uno, eins\nload-on-startup = true\nstop-timeout = 3\n# more\n[user/repo:Q4_K_M]\n[other]\nm = x.gguf\nslots = off\n";
        std::fs::write(&preset, text).unwrap();
        let own = ["--threads=2".to_owned()];
        let found = entries(Some(folder.path()), Some(&preset), &own).unwrap();
        let names: Vec<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["one", "other", "raw", "sub", "user/repo:Q4_K_M"]);
        let model = |name: &str| format!("--model={}", at(name).display());
        let arguments = |index: usize| found[index].arguments.clone();
        assert_eq!(
            arguments(0),
            [&model("one.gguf"), "--ctx-size=512", "--metrics", "--ctx-size=64", "--threads=2"]
        );
        assert_eq!(found[0].aliases, ["uno", "eins"]);
        assert_eq!((found[0].at_start, found[0].stop_time.as_secs(), found[0].bytes), (true, 3, 5));
        assert_eq!(
            arguments(1),
            ["--model=x.gguf", "--ctx-size=512", "--metrics", "--no-slots", "--threads=2"]
        );
        assert_eq!(arguments(2)[0], model("raw"));
        assert_eq!(arguments(3)[0], model("sub/b-00001-of-00002.gguf"));
        assert_eq!(arguments(4)[0], "--hf-repo=user/repo:Q4_K_M");
    }

    #[test]
    fn lists_that_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let preset = folder.path().join("models.ini");
        for (text, part) in [
            ("c = 5", "line 1: expected a section"),
            ("[a]\nnothing", "line 2: expected"),
            ("[a]\nctx-siz = 5", "did you mean"),
            ("[a]\nport = 5", "line 2: port is a flag of the router"),
            ("[a]\nm = x\n[a]", "'a' is there already"),
            ("[a]\nc = 5", "section 'a' names no model"),
            ("[a]\nm = x\nload-on-startup = maybe", "expected true or false"),
            ("[a]\nm = x\nstop-timeout = -1", "expected seconds"),
            ("[a]\nm = x\nmetrics = perhaps", "expected on or off"),
            ("[a]\nm = x\nhelp = 1", "only prints"),
        ] {
            std::fs::write(&preset, text).unwrap();
            let error = entries(None, Some(&preset), &[]).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(entries(None, Some(&folder.path().join("none")), &[]).is_err());
        assert!(entries(Some(&folder.path().join("none")), None, &[]).unwrap_err().contains("--models-dir"));
    }
}
