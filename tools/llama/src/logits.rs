//! `llama logits`: a model's logits or embeddings for given tokens, for programs that check it.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{diffusion, files, interrupt, load, pages};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_runtime::{Batch, Model, OutputRows, Outputs, Purpose, Work};

/// Flags of `logits`.
pub const SPEC: Spec<Config> = Spec {
    name: "logits",
    tool: ToolSet::LOGITS,
    about: "Write a model's logits for given tokens (positions x vocabulary, little-endian f32) and print the \
            greedy continuation as a JSON array; with --pooling write embeddings or scores instead, not \
            normalised. Needs no tokenizer in the file.",
    groups: FLAGS,
    positional: None,
};

/// Rows of logits that are in memory at once.
const ROWS: u32 = 128;

/// `llama logits`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((mut config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    if config.logits.tokens.iter().all(Vec::is_empty) {
        return Err(invocation.usage("no tokens: give --tokens ID,ID,..."));
    }
    if config.embedding.pooling.is_some() {
        refuse_for_embeddings(invocation, &config)?;
    }
    interrupt::install();
    let opened = load::open(invocation, &config, &console, true)?;
    config.logits.output.iter().try_for_each(|path| files::refuse_input(path, &opened.inputs()))?;
    let sequences = config.logits.tokens.len() as u32;
    if config.embedding.pooling.is_some() {
        return embed(&opened, &config, &console);
    }
    let reads = !config.logits.decoder_tokens.is_empty();
    let longest = config.logits.tokens.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let rows = config.context.micro_batch.min(config.context.batch).min(ROWS);
    // An encoder reads its input in one step.
    config.context.micro_batch = if reads { rows.max(longest) } else { rows };
    // As llama.cpp computes them with all of the model's context, whatever -c is here.
    let options = load::options(&config, sequences, rows)?;
    let options = puna_runtime::ModelOptions { only_long_texts: true, ..options };
    let mut model = load::model_with(&opened, &config, &console, &options)?;
    if reads != model.has_encoder() {
        return Err(Failure::Failed(if reads {
            "the model has no encoder, so it takes no --decoder-tokens".into()
        } else {
            "the model's encoder reads --tokens: give the decoder some, too (--decoder-tokens ID,ID,...)"
                .into()
        }));
    }
    if reads {
        for (sequence, tokens) in (0..).zip(&config.logits.tokens) {
            model.encode(sequence, tokens)?;
        }
        config.logits.tokens = vec![config.logits.decoder_tokens.clone(); sequences as usize];
    }
    // Nothing is kept of texts whose tokens see later ones, so that each token that follows is alone, as in llama.cpp.
    let alone = options.causal.is_none() && !reads && diffusion::sees_all(&model);
    let greedy = compute(&mut model, &config, rows, alone, &console)?;
    let lists: Vec<String> = greedy
        .iter()
        .map(|ids| format!("[{}]", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")))
        .collect();
    let text = match &lists[..] {
        [single] => format!("{single}\n"),
        several => format!("[{}]\n", several.join(", ")),
    };
    pages::print(text.as_bytes())
}

/// Refuses what means nothing where embeddings are made.
fn refuse_for_embeddings(invocation: &Invocation, config: &Config) -> Result<(), Failure> {
    let given = [
        (config.logits.greedy > 0, "--greedy: no token follows an embedding"),
        (config.logits.step > 0, "--step: each text is in one step as a whole"),
        (!config.logits.decoder_tokens.is_empty(), "--decoder-tokens: embeddings are the encoder's"),
    ];
    match given.iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(invocation.usage(format!("--pooling does not go with {what}"))),
        None => Ok(()),
    }
}

/// Writes embeddings or scores.
fn embed(opened: &load::Opened, config: &Config, console: &Console) -> Result<(), Failure> {
    let texts = &config.logits.tokens;
    let total = texts.iter().map(Vec::len).sum::<usize>() as u32;
    let options = load::options(config, texts.len() as u32, 0)?;
    let options = puna_runtime::ModelOptions {
        purpose: Purpose::Embed(load::pooling(config)),
        micro_batch: options.micro_batch.max(total),
        ..options
    };
    let mut model = load::model_with(opened, config, console, &options)?;
    let rows = model.embed(texts)?;
    if rows.iter().flatten().any(|number| number.is_nan()) {
        console.warn("the model gave embeddings that are not numbers");
    }
    if let Some(path) = &config.logits.output {
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
        files::replace(path, &bytes)?;
    }
    pages::print(b"[]\n")
}

/// Writes the logits of the prompts, one sequence after another, and returns the continuations, whose tokens see nothing
/// else if they are `alone`.
fn compute(
    model: &mut Model,
    config: &Config,
    rows: u32,
    alone: bool,
    console: &Console,
) -> Result<Vec<Vec<u32>>, Failure> {
    let logits = &config.logits;
    let context = model.information().context as usize;
    // The last generated token is not evaluated.
    let generated = (logits.greedy as usize).saturating_sub(1);
    let longest = logits.tokens.iter().map(Vec::len).max().unwrap_or(0);
    let total = logits.tokens.iter().map(|tokens| tokens.len() + generated).sum::<usize>();
    if total > context {
        let sequences = match logits.tokens.len() {
            1 => String::new(),
            count => format!(" in each of {count} sequences"),
        };
        return Err(Failure::Failed(format!(
            "{longest} tokens and {} to generate{sequences} do not fit into a context of {context}; a larger one is needed (-c)",
            logits.greedy
        )));
    }
    let step = if logits.step == 0 { rows } else { logits.step.min(rows) } as usize;
    let mut last = vec![Vec::new(); logits.tokens.len()];
    match &logits.output {
        Some(path) => {
            let mut file = files::Replacement::create(path)?;
            evaluate(model, &logits.tokens, step, &mut last, &mut |bytes| file.write(bytes))?;
            file.finish()?;
        }
        None => evaluate(model, &logits.tokens, step, &mut last, &mut |_| Ok(()))?,
    }
    let mut greedy = vec![Vec::new(); logits.tokens.len()];
    for round in 0..logits.greedy {
        let mut work = Vec::new();
        for ((sequence, last), greedy) in (0..).zip(&last).zip(&mut greedy) {
            if alone {
                model.clear(sequence);
            }
            let Some(token) = best(last) else {
                return Err(Failure::Failed("the model gave logits that are not numbers".into()));
            };
            greedy.push(token);
            work.push(Work { sequence, tokens: vec![token], outputs: OutputRows::Last });
        }
        if round + 1 < logits.greedy {
            let outputs = run_step(model, work)?;
            for (sequence, last) in (0..).zip(&mut last) {
                *last = outputs.last(sequence).unwrap_or_default().to_vec();
            }
        }
    }
    if last.iter().flatten().any(|logit| logit.is_nan()) {
        console.warn("the model gave logits that are not numbers");
    }
    Ok(greedy)
}

/// Evaluates sequences in steps, one token of each in turn, hands the rows of one sequence after another to `write` and
/// leaves the last ones in `last`.
fn evaluate(
    model: &mut Model,
    sequences: &[Vec<u32>],
    step: usize,
    last: &mut [Vec<f32>],
    write: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let bytes = |logits: &[f32]| logits.iter().flat_map(|logit| logit.to_le_bytes()).collect::<Vec<u8>>();
    // Rows of later sequences wait until those before are written.
    let mut waiting: Vec<Vec<f32>> = vec![Vec::new(); sequences.len()];
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let width = (step / sequences.len()).max(1);
    for start in (0..longest).step_by(width) {
        let mut work = Vec::new();
        for index in start..(start + width).min(longest) {
            for (sequence, tokens) in (0..).zip(sequences) {
                let token = tokens.get(index).map(|token| vec![*token]);
                work.extend(token.map(|tokens| Work { sequence, tokens, outputs: OutputRows::All }));
            }
        }
        if let [only] = sequences {
            let tokens = only[start..(start + width).min(longest)].to_vec();
            work = vec![Work { sequence: 0, tokens, outputs: OutputRows::All }];
        }
        let outputs = run_step(model, work)?;
        for (index, row) in outputs.rows.iter().enumerate() {
            let sequence = row.sequence as usize;
            let logits = outputs.row(index);
            if sequence == 0 {
                write(&bytes(logits))?;
            } else {
                waiting[sequence].extend_from_slice(logits);
            }
            last[sequence] = logits.to_vec();
        }
    }
    waiting.iter().try_for_each(|logits| write(&bytes(logits)))
}

fn run_step(model: &mut Model, work: Vec<Work>) -> Result<Outputs, Failure> {
    Ok(model.run(&Batch::of(work))?)
}

/// The token with the highest logit, the lowest one of equals; none if a logit is not a number.
fn best(logits: &[f32]) -> Option<u32> {
    if logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    let highest = logits.iter().copied().reduce(f32::max)?;
    logits.iter().position(|logit| *logit == highest).map(|token| token as u32)
}
