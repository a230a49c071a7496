//! `llama run`: a model by its name, once or as a chat.

use crate::chat::Chat;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::prompt;
use crate::session::Session;
use puna_engine::UNLIMITED;
use puna_flags::{Config, FLAGS, Model, Positional, Spec, ToolSet};
use std::path::{Path, PathBuf};

/// Flags of `run`.
pub const SPEC: Spec<Config> = Spec {
    name: "run",
    tool: ToolSet::RUN,
    about: "Run a model by its name, once or as a chat",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "MODEL [PROMPT]",
        help: "A file, USER/MODEL[:QUANT] of the hub, or an address; then the prompt",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// `llama run`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((mut config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let mut words = std::mem::take(&mut config.positional).into_iter();
    let model = &config.model;
    if model.path.is_none()
        && model.hf_repo.is_none()
        && model.url.is_none()
        && let Some(name) = words.next()
    {
        place(&name, &mut config.model);
    }
    let words = words.collect::<Vec<_>>().join(" ");
    let first = match prompt::message(&config)? {
        Some(first) if words.is_empty() => Some(first),
        Some(_) => return Err(invocation.usage("two prompts: one after the model, one by a flag")),
        None => Some(words).filter(|words| !words.is_empty()),
    };
    config.chat.single_turn |= first.is_some();
    let session = Session::start(invocation, &SPEC, &config, &console, UNLIMITED)?;
    Chat::new(invocation, &session, &config, &console)?.run(first)
}

/// Says where the model of this name comes from.
fn place(name: &str, model: &mut Model) {
    let repository =
        ["hf://", "huggingface://", "hf.co/"].iter().find_map(|prefix| name.strip_prefix(prefix));
    if let Some(path) = name.strip_prefix("file://") {
        model.path = Some(PathBuf::from(path));
    } else if let Some(repository) = repository {
        model.hf_repo = Some(repository.to_string());
    } else if name.starts_with("http://") || name.starts_with("https://") {
        model.url = Some(name.to_string());
    } else if !Path::new(name).exists() && name.split('/').count() == 2 && !name.ends_with(".gguf") {
        model.hf_repo = Some(name.to_string());
    } else {
        model.path = Some(PathBuf::from(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_where_the_model_is() {
        let placed = |name: &str| {
            let mut model = Model::default();
            place(name, &mut model);
            (model.path, model.hf_repo, model.url)
        };
        let text = |text: &str| Some(text.to_string());
        for name in ["hf://user/model:Q8_0", "huggingface://user/model:Q8_0", "user/model:Q8_0"] {
            assert_eq!(placed(name), (None, text("user/model:Q8_0"), None));
        }
        assert_eq!(placed("https://host/m.gguf"), (None, None, text("https://host/m.gguf")));
        for name in ["file://a/b.gguf", "a/b.gguf"] {
            assert_eq!(placed(name), (Some("a/b.gguf".into()), None, None));
        }
        assert_eq!(placed("/models/b"), (Some("/models/b".into()), None, None));
        assert_eq!(placed(env!("CARGO_MANIFEST_DIR")), (Some(env!("CARGO_MANIFEST_DIR").into()), None, None));
    }
}
