//! `llama serve`: a model for many clients at once, over HTTP.

use crate::chat::template::Renderer;
use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{file_types, files, interrupt, load, pages, recommended, session};
use puna_engine::{Engine, EngineOptions, UNLIMITED};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_server::{Defaults, Facts, Options, Served, Server, ServerError};
use puna_tokenizer::Tokenizer;
use std::time::Duration;

/// Flags of `serve`.
pub const SPEC: Spec<Config> = Spec {
    name: "serve",
    tool: ToolSet::SERVE,
    about: "Serve a model over HTTP: the protocols of llama.cpp's server, OpenAI and Anthropic",
    groups: FLAGS,
    positional: None,
};

/// Requests answered at once if no flag says otherwise.
const PARALLEL: u32 = 4;

/// `llama serve`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    interrupt::install();
    let options = options(&config)?;
    let served = served(invocation, &config, &console)?;
    // From here on the server hears the signals itself.
    let _busy = interrupt::busy();
    let server = Server::start(served, options)?;
    pages::print(format!("listening on http://{}\n", server.address()).as_bytes())?;
    Ok(server.serve_until_signal()?)
}

/// Loads the model and starts its engine.
fn served(invocation: &Invocation, config: &Config, console: &Console) -> Result<Served, Failure> {
    session::check_sampling(invocation, &config.sampling)?;
    let opened = load::open(invocation, config, console, true)?;
    let metadata = &opened.file.metadata;
    let tokenizer = Tokenizer::from_metadata(metadata)?
        .ok_or_else(|| Failure::Failed(format!("{} has no tokenizer", opened.path.display())))?;
    tokenizer.warnings().iter().for_each(|warning| console.warn(warning));
    let template = metadata.optional_str("tokenizer.chat_template");
    let renderer =
        Renderer::choose(template.as_ref().copied(), tokenizer.vocabulary(), &config.chat, console)?;
    let parallel = config.server.parallel.unwrap_or(PARALLEL);
    let model = load::model(&opened, config, console, parallel, parallel)?;
    session::warn_of_shift(&model, config, console);
    let information = model.information().clone();

    let mut sampling =
        session::parameters(&recommended::sampling(invocation, &SPEC, config, metadata, console)?);
    let within = |token: &u32| *token < information.vocabulary;
    sampling.suppress = tokenizer.vocabulary().suppress_tokens().iter().copied().filter(within).collect();
    sampling.validate(information.vocabulary as usize).map_err(|error| Failure::Failed(error.to_string()))?;
    let defaults = Defaults {
        sampling,
        seed: config.sampling.seed,
        predict: config.prompt.predict.unwrap_or(UNLIMITED),
        keep: config.context.keep,
        ignore_end: config.sampling.ignore_eos,
        reuse: config.server.cache_prompt,
        template_values: renderer.values,
        prefill: config.server.prefill,
    };
    let file_name = || opened.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let facts = Facts {
        name: config.server.alias.clone().or_else(file_name).unwrap_or_default(),
        path: opened.path.display().to_string(),
        file_type: file_types::description(&opened.file),
        architecture: information.architecture,
        context_train: information.context_train,
        embedding: information.embedding,
        parameters: information.parameters,
        bytes: information.file_bytes,
        build: format!("puna-{}", env!("CARGO_PKG_VERSION")),
    };
    let options =
        EngineOptions { step_tokens: model.options().micro_batch, context_shift: config.context.shift };
    let engine = Engine::start(model, options).map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(Served { engine, tokenizer, template: renderer.template, facts, defaults })
}

/// How to serve, as the flags say.
fn options(config: &Config) -> Result<Options, Failure> {
    let server = &config.server;
    let mut api_keys = server.api_keys.clone();
    if let Some(path) = &server.api_key_file {
        let text = files::read_text(path, files::SMALL)?;
        api_keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        if api_keys.is_empty() {
            // Without this an empty file would open the server to everybody.
            return Err(Failure::Failed(format!("{} has no keys", path.display())));
        }
    }
    if let Some(folder) = &server.slot_folder
        && !folder.is_dir()
    {
        return Err(Failure::Failed(format!("--slot-save-path: {} is no folder", folder.display())));
    }
    Ok(Options {
        host: server.host.clone(),
        port: server.port,
        prefix: server.prefix.clone(),
        api_keys,
        allow_unauthenticated: server.allow_unauthenticated,
        origins: server.origins.clone(),
        metrics: server.metrics,
        slots: server.slots,
        properties: server.properties,
        slot_folder: server.slot_folder.clone(),
        queue: server.queue,
        body_bytes: (server.body_mebibytes as usize).saturating_mul(1 << 20),
        body_time: Duration::from_secs(u64::from(server.timeout)),
        ping: u64::try_from(server.ping).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs),
        ..Options::default()
    })
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        Self::Failed(error.to_string())
    }
}
