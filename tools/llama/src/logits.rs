//! `llama logits`: a model's logits for given tokens, for programs that check it.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{files, interrupt, load, pages};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_runtime::{Batch, Model, OutputRows, Outputs, Work};
use std::io::{self, Write};

/// Flags of `logits`.
pub const SPEC: Spec<Config> = Spec {
    name: "logits",
    tool: ToolSet::LOGITS,
    about: "Write a model's logits for given tokens (positions x vocabulary, little-endian f32) and print the \
            greedy continuation as a JSON array. Needs no tokenizer in the file.",
    groups: FLAGS,
    positional: None,
};

/// Rows of logits that are in memory at once.
const ROWS: u32 = 128;

/// `llama logits`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((mut config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    if config.logits.tokens.is_empty() {
        return Err(invocation.usage("no tokens: give --tokens ID,ID,..."));
    }
    let rows = config.context.micro_batch.min(config.context.batch).min(ROWS);
    config.context.micro_batch = rows;
    interrupt::install();
    let opened = load::open(invocation, &config, &console, true)?;
    let mut model = load::model(&opened, &config, &console, 1, 0)?;
    let greedy = compute(&mut model, &config, rows, &console)?;
    let ids: Vec<String> = greedy.iter().map(u32::to_string).collect();
    pages::print(format!("[{}]\n", ids.join(", ")).as_bytes())
}

/// Writes the logits of the prompt and returns the continuation.
fn compute(model: &mut Model, config: &Config, rows: u32, console: &Console) -> Result<Vec<u32>, Failure> {
    let logits = &config.logits;
    let context = model.information().context as usize;
    // The last generated token is not evaluated.
    let needed = logits.tokens.len() + (logits.greedy as usize).saturating_sub(1);
    if needed > context {
        return Err(Failure::Failed(format!(
            "{} tokens and {} to generate do not fit into a context of {context}; a larger one is needed (-c)",
            logits.tokens.len(),
            logits.greedy
        )));
    }
    let step = if logits.step == 0 { rows } else { logits.step.min(rows) } as usize;
    let mut last = Vec::new();
    match &logits.output {
        Some(path) => {
            let mut failure = None;
            let written = files::replace(path, |file| {
                evaluate(model, &logits.tokens, step, &mut last, file).map_err(|error| {
                    let text = format!("{error:?}");
                    failure = Some(error);
                    io::Error::other(text)
                })
            });
            // The model's own error says more than that the file could not be written.
            match (failure, written) {
                (Some(failure), _) => return Err(failure),
                (None, written) => written?,
            }
        }
        None => evaluate(model, &logits.tokens, step, &mut last, &mut io::sink())?,
    }
    let mut greedy = Vec::new();
    while greedy.len() < logits.greedy as usize {
        let Some(token) = best(&last) else {
            return Err(Failure::Failed("the model gave logits that are not numbers".into()));
        };
        greedy.push(token);
        if greedy.len() < logits.greedy as usize {
            last = run_step(model, &[token], OutputRows::Last)?.logits;
        }
    }
    if last.iter().any(|logit| logit.is_nan()) {
        console.warn("the model gave logits that are not numbers");
    }
    Ok(greedy)
}

/// Evaluates tokens in steps, writes all rows and leaves the last one in `last`.
fn evaluate(
    model: &mut Model,
    tokens: &[u32],
    step: usize,
    last: &mut Vec<f32>,
    file: &mut dyn Write,
) -> Result<(), Failure> {
    for part in tokens.chunks(step) {
        let outputs = run_step(model, part, OutputRows::All)?;
        for logit in &outputs.logits {
            file.write_all(&logit.to_le_bytes())?;
        }
        *last = outputs.row(part.len() - 1).to_vec();
    }
    Ok(())
}

fn run_step(model: &mut Model, tokens: &[u32], outputs: OutputRows) -> Result<Outputs, Failure> {
    let work = vec![Work { sequence: 0, tokens: tokens.to_vec(), outputs }];
    Ok(model.run(&Batch { work })?)
}

/// The token with the highest logit, the lowest one of equals; none if a logit is not a number.
fn best(logits: &[f32]) -> Option<u32> {
    if logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    let highest = logits.iter().copied().reduce(f32::max)?;
    logits.iter().position(|logit| *logit == highest).map(|token| token as u32)
}
