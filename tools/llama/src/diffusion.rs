//! `llama diffusion`: a text by masked diffusion.

use crate::chat::{Conversation, Renderer, Role};
use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{interrupt, load, pages, prompt};
use puna_engine::{DiffusionError, DiffusionOptions, DiffusionOrder, DiffusionSchedule, diffuse};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_gguf::Metadata;
use puna_graph::Op;
use puna_graph::ops::MaskRule;
use puna_runtime::Model;
use puna_sampling::random_seed;
use puna_tokenizer::Tokenizer;

/// Flags of `diffusion`.
pub const SPEC: Spec<Config> = Spec {
    name: "diffusion",
    tool: ToolSet::DIFFUSION,
    about: "Write a text with a diffusion model (Dream, LLaDA, RND1), all places at once; prompt and text have \
            together as many tokens as a step (-ub), or the prompt's and -n more",
    groups: FLAGS,
    positional: None,
};

/// `llama diffusion`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let schedule = schedule(&config).map_err(|text| invocation.usage(text))?;
    let Some(text) = prompt::message(&config)? else {
        return Err(invocation.usage("no prompt: give -p TEXT or -f FILE"));
    };
    interrupt::install();
    let opened = load::open(invocation, &config, &console, true)?;
    let metadata = &opened.file.metadata;
    let tokenizer = opened.tokenizer(&console)?;
    let tokens = prompt_tokens(invocation, &text, metadata, &tokenizer, &config, &console)?;
    let mut model = load::model(&opened, &config, &console, 1, 0)?;
    if !sees_all(&model) {
        let architecture = &model.information().architecture;
        return Err(Failure::Failed(format!(
            "'{architecture}' is no diffusion model: its rows see earlier ones only"
        )));
    }
    let options = options(&config, schedule, metadata, &model, tokens.len())?;
    let _busy = interrupt::busy();
    let canvas = diffuse(&mut model, &tokens, &options, &mut |progress| {
        if config.diffusion.visual {
            let shown = visible(progress.tokens, tokens.len(), options.mask, &tokenizer);
            console.aside(&format!("step {} of {}: {shown}\n", progress.step + 1, progress.steps), true);
        }
        !interrupt::take()
    });
    let canvas = match canvas {
        Err(DiffusionError::Stopped) => return Err(Failure::Interrupted),
        canvas => canvas.map_err(|error| Failure::Failed(error.to_string()))?,
    };
    let special = config.prompt.special;
    let written: Vec<u32> =
        canvas[tokens.len()..].iter().copied().filter(|token| *token != options.mask).collect();
    let end = written.iter().position(|token| {
        !special && tokenizer.vocabulary().end_of_generation_tokens().any(|end| end == *token)
    });
    pages::print(&tokenizer.decode(&written[..end.unwrap_or(written.len())], special))?;
    pages::print(b"\n")
}

/// The schedule that the flags choose; exactly one of the two may be given, and without any it is by time.
fn schedule(config: &Config) -> Result<DiffusionSchedule, &'static str> {
    match (config.diffusion.end, config.diffusion.block_length) {
        (end, 0) => Ok(DiffusionSchedule::Time { end }),
        (0.0, length) => Ok(DiffusionSchedule::Blocks { length }),
        _ => Err("--diffusion-eps and --diffusion-block-length are two schedules: give one of them"),
    }
}

/// The prompt as a message of the model's chat template, if it has one and no flag forbids it.
fn prompt_tokens(
    invocation: &Invocation,
    text: &str,
    metadata: &Metadata,
    tokenizer: &Tokenizer,
    config: &Config,
    console: &Console,
) -> Result<Vec<u32>, Failure> {
    let template = metadata.optional_str("tokenizer.chat_template");
    let given = config.chat.template.is_some() || config.chat.template_file.is_some();
    if !config.chat.conversation.unwrap_or(!matches!(template, Ok(None)) || given) {
        return Ok(tokenizer.encode(text, true, true));
    }
    let template = template.as_ref().copied();
    let renderer = Renderer::choose(invocation, template, tokenizer.vocabulary(), &config.chat, console)?;
    let mut conversation = Conversation::default();
    if let Some(system) = &config.chat.system {
        conversation.set_system(Some(system.clone()));
    }
    conversation.push(Role::User, text.to_owned());
    renderer.tokens(tokenizer, &conversation)
}

/// Whether tokens see later ones of their text.
pub fn sees_all(model: &Model) -> bool {
    let sees = |op: &Op| matches!(op, Op::Attention(attention) if attention.mask == MaskRule::Bidirectional);
    model.graph().nodes.iter().any(|node| sees(&node.op))
}

fn options(
    config: &Config,
    schedule: DiffusionSchedule,
    metadata: &Metadata,
    model: &Model,
    prompt: usize,
) -> Result<DiffusionOptions, Failure> {
    let flags = &config.diffusion;
    let mask = metadata.optional_u32("tokenizer.ggml.mask_token_id")?;
    let mask = mask.ok_or_else(|| Failure::Failed("the model's file names no mask token".into()))?;
    let most = model.options().micro_batch.min(model.options().context);
    let wanted = match config.prompt.predict {
        Some(count @ 0..) => (prompt as u64 + count as u64).min(u64::from(u32::MAX)) as u32,
        _ => most,
    };
    let order = match flags.algorithm {
        0 => DiffusionOrder::Origin,
        1 => DiffusionOrder::Entropy,
        2 => DiffusionOrder::Margin,
        3 => DiffusionOrder::Random,
        _ => DiffusionOrder::Confidence,
    };
    Ok(DiffusionOptions {
        length: wanted,
        steps: flags.steps,
        schedule,
        order,
        order_temperature: flags.order_temperature,
        guidance: flags.guidance,
        noise: flags.noise,
        temperature: config.sampling.temperature,
        top_k: config.sampling.top_k,
        top_p: config.sampling.top_p,
        seed: config.sampling.seed.unwrap_or_else(random_seed),
        mask,
        shifts_logits: metadata.bool_or("diffusion.shift_logits", true)?,
    })
}

/// What a canvas says so far, with a mark for each mask.
fn visible(canvas: &[u32], prompt: usize, mask: u32, tokenizer: &Tokenizer) -> String {
    let parts = canvas[prompt..].chunk_by(|a, b| (*a == mask) == (*b == mask));
    parts
        .map(|part| match part.first() {
            Some(token) if *token == mask => "_".repeat(part.len()),
            _ => String::from_utf8_lossy(&tokenizer.decode(part, false)).into_owned(),
        })
        .collect::<String>()
        .replace('\n', " ")
}
