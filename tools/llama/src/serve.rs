//! `llama serve`: a model for many clients at once, over HTTP.

use crate::chat::template::Renderer;
use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::speculation::Guessing;
use crate::{constraint, early, file_types, files, interrupt, load, models, pages, recommended, session};
use puna_engine::{Aids, DiskCache, Engine, EngineOptions, UNLIMITED};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_runtime::{Model, ModelOptions, OutputRows, Pooling, Purpose};
use puna_server::{
    AdapterFacts, AuditOptions, Defaults, Embeds, Facts, Options, Reasoning, Report, Reports, Residence,
    Served, Server, ServerError, Stopper, Tls, Warnings,
};
use puna_tokenizer::Tokenizer;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
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

/// The server that a router may ask to end.
static ROUTED: OnceLock<Stopper> = OnceLock::new();

/// `llama serve`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    interrupt::install_ctrl_c();
    if !config.server.routed {
        return serve(invocation, &config, console, None);
    }
    // Whoever reads these lines has gone if they cannot be printed; the standard input tells that, too.
    let reports = Reports::to(|report| pages::print(format!("{}\n", report.line()).as_bytes()).is_ok());
    std::thread::spawn(|| {
        // An error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        match ROUTED.get() {
            Some(stopper) => stopper.stop(),
            // While it loads there is nothing to put in order.
            None => std::process::exit(0),
        }
    });
    let result = serve(invocation, &config, console, Some(reports.clone()));
    // The router writes what it hears; once is enough.
    result.map_err(|failure| {
        reports.say(&Report::Failed(failure.message()));
        Failure::Told
    })
}

fn serve(
    invocation: &Invocation,
    config: &Config,
    console: Console,
    routed: Option<Reports>,
) -> Result<(), Failure> {
    let about = config.server.alias.clone().filter(|_| routed.is_some());
    let console = Arc::new(console.about(about));
    let mut options = options(invocation, config)?;
    early::check(invocation, config)?;
    let hearing = console.clone();
    options.warnings = Warnings::to(move |message| hearing.warn(message));
    options.routed = routed;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let server = if models::wanted(config) {
        Server::start_many(models::offer(invocation, config)?, options)?
    } else {
        let (served, slot_bytes) = served(invocation, config, &console)?;
        options.slot_bytes = slot_bytes;
        Server::start(served, options)?
    };
    // From here on the server hears the signals itself.
    let _busy = interrupt::busy();
    // This is the only server of this process.
    let _ = ROUTED.set(server.stopper());
    pages::print(format!("listening on {scheme}://{}\n", server.address()).as_bytes())?;
    Ok(server.serve_until_signal()?)
}

/// Loads the model that the flags name, for what guesses ahead.
fn model(
    opened: &load::Opened,
    config: &Config,
    console: &Console,
    guessing: &mut Guessing,
    parallel: u32,
) -> Result<Model, Failure> {
    match config.embedding.serve || config.embedding.serve_ranks {
        true => {
            if guessing.is_on() {
                console.warn("nothing is guessed ahead (--spec-type, -md): the model makes no text");
                *guessing = Guessing::none();
            }
            embedder(opened, config, console, parallel)
        }
        false => {
            let options = guessing.options(config, opened, parallel);
            let options = options.or_else(|failure| {
                *guessing = without_guesses(failure, config, console)?;
                guessing.options(config, opened, parallel)
            })?;
            let mut model = load::switchable(opened, config, console, &options)?;
            if config.server.adapters_off {
                let off = vec![0.0; model.adapters().len()];
                model.set_adapters(&off)?;
            }
            Ok(model)
        }
    }
}

/// What is to guess does not suit this model. Of many models, which share their flags, such a one is served without.
fn without_guesses(failure: Failure, config: &Config, console: &Console) -> Result<Guessing, Failure> {
    if !config.server.routed {
        return Err(failure);
    }
    console.warn(&format!("nothing is guessed ahead for this model: {}", failure.message()));
    Ok(Guessing::none())
}

/// Starts the engine with what helps it.
fn engine(
    opened: &load::Opened,
    config: &Config,
    console: &Console,
    tokenizer: &Tokenizer,
    guessing: Guessing,
    model: Model,
    disk: Option<DiskCache>,
) -> Result<Engine, Failure> {
    let options = EngineOptions {
        step_tokens: model.options().micro_batch,
        context_shift: config.context.shift,
        store_bytes: usize::try_from(config.server.cache_mebibytes)
            .map_or(usize::MAX, |mebibytes| mebibytes.saturating_mul(1 << 20)),
    };
    let aids = Aids {
        proposers: guessing
            .proposers(config, console, opened, tokenizer, model.options().sequences)
            .or_else(|failure| without_guesses(failure, config, console).map(|_| Vec::new()))?,
        disk,
    };
    Engine::start_with(model, options, aids).map_err(|error| Failure::Failed(error.to_string()))
}

/// An engine that sleeps when the flags say so.
fn residence(
    invocation: &Invocation,
    config: &Config,
    console: &Arc<Console>,
    engine: Engine,
    parallel: u32,
) -> Arc<Residence> {
    let Some(seconds) = config.server.sleep else { return Residence::new(engine) };
    let (invocation, config, console) = (invocation.clone(), config.clone(), console.clone());
    let reload = move || {
        let again = || {
            let disk = disk(&config, &console)?;
            let mut guessing = Guessing::open(&invocation, &config, &console)?;
            let opened = load::open(&invocation, &config, &console, true)?;
            let tokenizer = opened.tokenizer(&console)?;
            let model = model(&opened, &config, &console, &mut guessing, parallel)?;
            self::engine(&opened, &config, &console, &tokenizer, guessing, model, disk)
        };
        again().map_err(|failure| failure.message())
    };
    let idle = Duration::from_secs(u64::from(seconds));
    Residence::sleeping(engine, idle, Box::new(reload), Box::new(puna_backends::return_freed_pages))
}

/// Loads the model and starts its engine. Also the largest size of a saved slot in bytes.
fn served(
    invocation: &Invocation,
    config: &Config,
    console: &Arc<Console>,
) -> Result<(Served, u64), Failure> {
    session::check_sampling(invocation, &config.sampling)?;
    // What can be told at once is, and not after a large model has been loaded.
    let mut guessing = Guessing::open(invocation, config, console)?;
    let disk = disk(config, console)?;
    let opened = load::open(invocation, config, console, true)?;
    let metadata = &opened.file.metadata;
    let tokenizer = opened.tokenizer(console)?;
    let template = metadata.optional_str("tokenizer.chat_template");
    let of_file = template.as_ref().copied();
    let renderer = Renderer::choose(invocation, of_file, tokenizer.vocabulary(), &config.chat, console)?;
    let parallel = config.server.parallel.unwrap_or(PARALLEL);
    let grammar = config.sampling.grammar.as_ref();
    let grammar = constraint::grammar(invocation, grammar, || puna_server::grammar_tokens(&tokenizer))?;
    let embedding = &config.embedding;
    let model = model(&opened, config, console, &mut guessing, parallel)?;
    let ranks = embedding.serve_ranks || load::pooling_of(config, metadata)? == Pooling::Rank;
    let embeds = model.embedded_rows().map(|rows| Embeds {
        width: model.information().width as usize,
        per_token: rows == OutputRows::All,
        ranks,
        normalize: embedding.normalize,
    });
    session::warn_of_shift(&model, config, console);
    let information = model.information().clone();

    let recommended = recommended::sampling(invocation, &SPEC, config, metadata, console)?;
    let defaults = Defaults {
        sampling: session::parameters(&recommended, &tokenizer, information.vocabulary)?,
        dry_breakers: session::breakers(&recommended),
        grammar,
        seed: config.sampling.seed,
        predict: config.prompt.predict.unwrap_or(UNLIMITED),
        keep: config.context.keep,
        ignore_end: config.sampling.ignore_eos,
        reuse: config.server.cache_prompt,
        move_parts: config.server.cache_reuse as usize,
        template_values: renderer.values,
        reasoning: Reasoning::from_name(config.chat.reasoning_format).unwrap_or(Reasoning::Apart),
        reasoning_budget: config.chat.reasoning_budget.map(|tokens| tokens as usize),
        reasoning_budget_message: config.chat.reasoning_budget_message.clone(),
        prefill: config.server.prefill,
        infill: config.context.batch as usize,
        suffix_first: config.server.suffix_first,
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
    let switchable = !model.adapters().is_empty();
    if config.server.adapters_off && !switchable {
        let reason = "needs adapters (--lora), a model that makes text and the processor (-dev CPU)";
        return Err(Failure::Failed(format!("--lora-init-without-apply {reason}")));
    }
    let adapters = config.model.adapters.iter().map(|(path, scale)| AdapterFacts {
        path: path.display().to_string(),
        scale: if config.server.adapters_off { 0.0 } else { *scale },
    });
    let adapters = adapters.collect();
    // All caches in their largest form, and a few numbers for each position.
    let caches: u64 = model.memory().iter().map(|memory| memory.caches).sum();
    let slot_bytes = caches.saturating_mul(2) + 64 * u64::from(model.information().context) + (1 << 20);
    let engine = self::engine(&opened, config, console, &tokenizer, guessing, model, disk)?;
    let engine = residence(invocation, config, console, engine, parallel);
    Ok((
        Served {
            engine,
            tokenizer,
            template: renderer.template,
            facts,
            defaults,
            embeds,
            adapters,
            switchable,
        },
        slot_bytes,
    ))
}

/// The folder in which what slots hold outlives the program.
fn disk(config: &Config, console: &Arc<Console>) -> Result<Option<DiskCache>, Failure> {
    let server = &config.server;
    let limit = u64::from(server.cache_folder_mebibytes) << 20;
    // Equal answers, cold and warm, also beside a server that shares the folder and computes as is fastest.
    let way = if config.cpu.deterministic { "deterministic" } else { "" };
    let open = |folder: &PathBuf| {
        let console = console.clone();
        DiskCache::open(folder, limit, Box::new(move |line| console.warn(line)))
            .map(|cache| cache.computed(way))
    };
    server.cache_folder.as_ref().map(open).transpose().map_err(|error| Failure::Failed(error.to_string()))
}

/// Loads a model that makes embeddings or ranks. Texts that see themselves as a whole are as long as a step, so that is
/// as long as a batch.
fn embedder(
    opened: &load::Opened,
    config: &Config,
    console: &Console,
    parallel: u32,
) -> Result<Model, Failure> {
    let pooling = match config.embedding.serve_ranks {
        true => Some(Pooling::Rank),
        false => load::pooling(config),
    };
    let options = load::options(config, parallel, 0)?;
    let micro_batch = options.micro_batch.max(config.context.batch);
    let options = ModelOptions { purpose: Purpose::Embed(pooling), micro_batch, ..options };
    load::model_with(opened, config, console, &options)
}

/// How to serve, as the flags say.
fn options(invocation: &Invocation, config: &Config) -> Result<Options, Failure> {
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
    let tls = match (server.tls_key.clone(), server.tls_certificate.clone()) {
        (None, None) => None,
        (Some(key), Some(certificate)) => Some(Tls { key, certificate }),
        // The environment named one of them: without this the server would not be as private as was meant.
        _ => return Err(invocation.usage("TLS needs --ssl-key-file and --ssl-cert-file")),
    };
    let audit = server.audit_log.clone().map(|file| {
        let (rules, prompts) = (server.audit_rules.clone(), server.audit_prompts);
        AuditOptions { file, rules, prompts }
    });
    Ok(Options {
        host: server.host.clone(),
        port: server.port,
        prefix: server.prefix.clone(),
        api_keys,
        key_file: server.key_file.clone(),
        audit,
        allow_unauthenticated: server.allow_unauthenticated,
        origins: server.origins.clone(),
        metrics: server.metrics,
        slots: server.slots,
        properties: server.properties,
        page: server.page,
        tls,
        slot_folder: server.slot_folder.clone(),
        queue: server.queue,
        body_bytes: (server.body_mebibytes as usize).saturating_mul(1 << 20),
        body_time: Duration::from_secs(u64::from(server.timeout)),
        write_time: Duration::from_secs(u64::from(server.timeout)),
        ping: u64::try_from(server.ping).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs),
        ..Options::default()
    })
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        Self::Failed(error.to_string())
    }
}
