//! `llama pull` and `llama list`: models into the cache folder, and what it holds.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{console, pages, source};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};

/// Flags of `pull`.
pub const PULL: Spec<Config> = Spec {
    name: "pull",
    tool: ToolSet::PULL,
    about: "Download a model into the cache folder and print the paths of its files; without a name the starter model",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "USER/MODEL:QUANT",
        help: "Model of the hub, like -hf",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// Flags of `list`.
pub const LIST: Spec<Config> = Spec {
    name: "list",
    tool: ToolSet::LIST,
    about: "List the models in the cache folder",
    groups: FLAGS,
    positional: None,
};

/// `llama pull`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((mut config, console)) = invocation.parse(&PULL)? else { return Ok(()) };
    match config.positional.as_slice() {
        [] => {}
        [name] if config.model.hf_repo.is_none() => config.model.hf_repo = Some(name.clone()),
        _ => return Err(invocation.usage("expected one model")),
    }
    let paths = source::files(invocation, &config.model, &console)?;
    let lines: Vec<String> = paths.iter().map(|path| format!("{}\n", path.display())).collect();
    pages::print(lines.concat().as_bytes())
}

/// `llama list`.
pub fn list(invocation: &Invocation) -> Result<(), Failure> {
    match invocation.parse(&LIST)? {
        Some((config, _)) => print_cached(&config),
        None => Ok(()),
    }
}

/// Prints what the cache folder holds.
pub fn print_cached(config: &Config) -> Result<(), Failure> {
    let models = source::hub(&config.model)?.cached();
    if config.json {
        let rows: Vec<_> = models
            .iter()
            .map(|model| serde_json::json!({"name": model.name, "path": model.path, "size": model.size}))
            .collect();
        return pages::print(format!("{:#}\n", serde_json::Value::from(rows)).as_bytes());
    }
    let mut text = format!("number of models in cache: {}\n", models.len());
    for (index, model) in models.iter().enumerate() {
        text.push_str(&format!(
            "{:4}. {} ({})\n",
            index + 1,
            console::printable(&model.name, 300),
            console::size(model.size)
        ));
    }
    pages::print(text.as_bytes())
}
