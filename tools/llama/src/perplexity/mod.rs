//! `llama perplexity`: how well a model predicts a text.

mod base;
mod choices;
mod divergence;
mod plan;

pub use plan::Plan;

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{files, interrupt, load, pages, prompt};
use puna_flags::{Config, FLAGS, Spec, Tasks, ToolSet};
use puna_graph::{Graph, ValueId};
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Work};
use puna_tokenizer::Tokenizer;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// Flags of `perplexity`.
pub const SPEC: Spec<Config> = Spec {
    name: "perplexity",
    tool: ToolSet::PERPLEXITY,
    about: "Measure how well a model predicts a text (-f FILE), in chunks of the context (-c, 512 unless given); how far its \
            predictions are from recorded ones; or how many tasks with several answers it solves",
    groups: FLAGS,
    positional: None,
};

/// Tokens of a chunk where no flag says otherwise.
const CHUNK: u32 = 512;
/// Bytes of logits in memory at once.
const LOGITS: usize = 128 << 20;

/// `llama perplexity`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let mut defaults = Config::default();
    defaults.context.size = CHUNK;
    defaults.prompt.escape = false;
    let Some((config, warnings)) = invocation.parse_over(&SPEC, defaults)? else { return Ok(()) };
    let console = Console::new(&config.log, crate::console::INFORMATION)?;
    warnings.iter().for_each(|warning| console.warn(warning));
    let flags = &config.perplexity;
    if let Some(kind) = flags.tasks {
        return tasks(invocation, &config, &console, kind);
    }
    if flags.divergence {
        return divergence(invocation, &config, &console);
    }
    if flags.base.is_some() && flags.stride > 0 {
        return Err(
            invocation.usage("--save-all-logits needs chunks that do not overlap, without --ppl-stride")
        );
    }
    let text = text(invocation, &config)?;
    interrupt::install();
    let opened = load::open(invocation, &config, &console, true)?;
    if let Some(base) = &flags.base {
        let texts = config.prompt.file.iter().chain(&config.prompt.binary_file).cloned();
        files::refuse_input(base, &opened.inputs().into_iter().chain(texts).collect::<Vec<_>>())?;
    }
    let (tokens, first) = tokens(&opened.tokenizer(&console)?, &text, false);
    let plan = Plan::new(&config, chunk_length(&opened, &config, &console)?, tokens, first)?;
    let sequences = plan.sequences(config.context.batch);
    let mut model = model(&opened, &config, (plan.length, sequences), &console, &|_| Vec::new())?;
    match &flags.base {
        None => measure(&mut model, &plan, sequences, &config, &console, &mut |_| Ok(())),
        Some(path) => record(&mut model, &plan, sequences, &config, &console, path),
    }
}

/// Loads the model with room for so many chunks of `length` tokens, and with values of its graph to watch.
pub fn model(
    opened: &load::Opened,
    config: &Config,
    (length, sequences): (u32, u32),
    console: &Console,
    watch: &dyn Fn(&Graph) -> Vec<ValueId>,
) -> Result<Model, Failure> {
    let context = length.saturating_mul(sequences);
    let options = ModelOptions { context, ..load::options(config, sequences, 0)? };
    load::watched(opened, config, console, &options, watch)
}

/// Tokens of a chunk: as many as `-c` says, or with 0 as the model was trained with; no more than it has learned positions.
pub fn chunk_length(opened: &load::Opened, config: &Config, console: &Console) -> Result<u32, Failure> {
    let file = &opened.file;
    let estimate = puna_runtime::estimate(&file.metadata, &file.tensors, &load::options(config, 1, 0)?)?;
    if let Some(shorter) = estimate.shorter {
        console.warn(&shorter.to_string());
    }
    Ok(estimate.context)
}

/// Tasks with several answers from the file of `-f`.
fn tasks(invocation: &Invocation, config: &Config, console: &Console, kind: Tasks) -> Result<(), Failure> {
    let path = config.prompt.binary_file.as_ref().or(config.prompt.file.as_ref());
    let path = path.ok_or_else(|| invocation.usage("the tasks come from a file: give -f FILE"))?;
    let found = match kind {
        Tasks::HellaSwag => choices::hellaswag(&files::read_text(path, files::PROMPT)?)?,
        Tasks::WinoGrande => choices::winogrande(&files::read_text(path, files::PROMPT)?)?,
        Tasks::MultipleChoice => choices::multiple_choice(&files::read(path, files::PROMPT)?)?,
    };
    let flags = &config.perplexity;
    let count = match kind {
        Tasks::HellaSwag => flags.hellaswag_tasks,
        Tasks::WinoGrande => flags.winogrande_tasks,
        Tasks::MultipleChoice => flags.multiple_choice_tasks,
    };
    let chosen = choices::choose(found, count as usize);
    interrupt::install();
    let opened = load::open(invocation, config, console, true)?;
    let tokenizer = opened.tokenizer(console)?;
    let length = chunk_length(&opened, config, console)?;
    let mut model = model(&opened, config, (length, 1), console, &|_| Vec::new())?;
    choices::run(&mut model, &tokenizer, &chosen, load::processor(&config.cpu).threads, console)
}

/// Measures and records all predictions that count.
fn record(
    model: &mut Model,
    plan: &Plan,
    sequences: u32,
    config: &Config,
    console: &Console,
    path: &Path,
) -> Result<(), Failure> {
    let all = plan.chunks * plan.length as usize;
    let head = base::Head {
        length: plan.length,
        vocabulary: model.information().vocabulary,
        chunks: plan.chunks as u32,
        tokens: plan.tokens.get(..all).unwrap_or(&[]).to_vec(),
    };
    let mut file = files::Replacement::create(path)?;
    file.write(&head.bytes())?;
    let mut bytes = Vec::new();
    let mut write = |logits: &[f32]| {
        bytes.clear();
        let width = head.vocabulary.max(1) as usize;
        logits.chunks(width).for_each(|row| base::encode(row, &mut bytes));
        file.write(&bytes)
    };
    measure(model, plan, sequences, config, console, &mut write)?;
    file.finish()
}

/// Compares with recorded predictions.
fn divergence(invocation: &Invocation, config: &Config, console: &Console) -> Result<(), Failure> {
    let path = config.perplexity.base.as_ref();
    let path = path.ok_or_else(|| invocation.usage("--kl-divergence needs --kl-divergence-base FILE"))?;
    let named = |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
    let mut file = std::fs::File::open(path).map_err(named)?;
    let head = base::Head::read(path, &mut file)?;
    let mut file = std::io::BufReader::with_capacity(1 << 20, file);
    interrupt::install();
    let opened = load::open(invocation, config, console, true)?;
    let (_, first) = tokens(&opened.tokenizer(console)?, "", false);
    let threads = load::processor(&config.cpu).threads;
    let mut model = model(&opened, config, (head.length, 1), console, &|_| Vec::new())?;
    let found = model.information().vocabulary;
    if found != head.vocabulary || head.tokens.iter().any(|token| *token >= found) {
        return Err(Failure::Failed(format!(
            "{} has a vocabulary of {}, the model one of {found}",
            path.display(),
            head.vocabulary
        )));
    }
    let plan = Plan::chunks_of(head.length, head.tokens, first, config.perplexity.chunks)?;
    pages::print(divergence::HEADING.as_bytes())?;
    let mut comparison = divergence::Comparison::default();
    let mut bytes = Vec::new();
    for chunk in 0..plan.chunks {
        let tokens = plan.chunk(chunk);
        let mut next = plan.scored as usize + 1;
        let mut compared = Vec::new();
        evaluate(&mut model, &plan, &[chunk], false, &mut |_, outputs| {
            let rows = outputs.logits.len() / outputs.width.max(1);
            bytes.resize(rows * base::row_bytes(found), 0);
            file.read_exact(&mut bytes).map_err(named)?;
            let targets = tokens.get(next..next + rows).unwrap_or(&[]);
            compared.extend(divergence::compare_rows(
                &outputs.logits,
                outputs.width,
                &bytes,
                targets,
                threads,
            ));
            next += rows;
            Ok(())
        })?;
        comparison.tokens.extend(compared);
        if comparison.tokens.iter().any(|token| token.surprise.is_nan()) {
            return Err(Failure::Failed(format!("the model gave no numbers in chunk {}", chunk + 1)));
        }
        pages::print(comparison.line(chunk + 1).as_bytes())?;
    }
    pages::print(comparison.report().as_bytes())
}

/// The text to predict. A last line feed of a file does not belong to it.
pub fn text(invocation: &Invocation, config: &Config) -> Result<String, Failure> {
    prompt::given(config)?.ok_or_else(|| invocation.usage("no text: give -f FILE or -p TEXT"))
}

/// The tokens of a text, and the one that each chunk shall begin with, if the model wants one.
pub fn tokens(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> (Vec<u32>, Option<u32>) {
    let vocabulary = tokenizer.vocabulary();
    let first = vocabulary.bos().filter(|_| vocabulary.add_bos());
    (tokenizer.encode(text, true, parse_special), first)
}

/// Mean and spread of the negative logarithms of probabilities.
#[derive(Default)]
pub struct Estimate {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Estimate {
    pub fn add(&mut self, surprise: f64) {
        self.count += 1;
        self.sum += surprise;
        self.squares += surprise * surprise;
    }

    pub fn perplexity(&self) -> f64 {
        (self.sum / self.count as f64).exp()
    }

    /// Standard error of the perplexity; none of fewer than two tokens, or of equals.
    pub fn error(&self) -> Option<f64> {
        let count = self.count as f64;
        let mean = self.sum / count;
        let variance = self.squares / count - mean * mean;
        (self.count > 1 && variance > 0.0).then(|| (variance / (count - 1.0)).sqrt() * self.perplexity())
    }
}

fn measure(
    model: &mut Model,
    plan: &Plan,
    sequences: u32,
    config: &Config,
    console: &Console,
    write: &mut dyn FnMut(&[f32]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    console.info(&format!(
        "perplexity: calculating perplexity over {} chunks, n_ctx={}, batch_size={}, n_seq={sequences}",
        plan.chunks, plan.length, config.context.batch
    ));
    let threads = load::processor(&config.cpu).threads;
    let mut estimate = Estimate::default();
    let all: Vec<usize> = (0..plan.chunks).collect();
    for group in all.chunks(sequences as usize) {
        let begun = Instant::now();
        let surprises = surprises(model, plan, group, threads, false, write)?;
        if group.first() == Some(&0) {
            let seconds = begun.elapsed().as_secs_f64();
            let passes = plan.chunks.div_ceil(sequences as usize);
            let minutes = seconds * passes as f64 / 60.0;
            console.info(&format!("perplexity: {seconds:.2} seconds per pass - ETA {minutes:.2} minutes"));
        }
        let mut text = String::new();
        for (chunk, surprises) in group.iter().zip(surprises) {
            surprises.into_iter().for_each(|surprise| estimate.add(surprise));
            if estimate.sum.is_nan() {
                return Err(Failure::Failed(format!("the model gave no numbers in chunk {}", chunk + 1)));
            }
            let value = estimate.perplexity();
            text += &match config.perplexity.output_type {
                0 => format!("[{}]{value:.4},", chunk + 1),
                _ => format!("{:8}  {value:.4}\n", plan.start(*chunk)),
            };
        }
        pages::print(text.as_bytes())?;
    }
    let error = estimate.error().map(|error| format!(" +/- {error:.5}")).unwrap_or_default();
    pages::print(format!("\nFinal estimate: PPL = {:.4}{error}\n", estimate.perplexity()).as_bytes())
}

/// The surprise of each token that counts, by chunk, every row being evaluated.
pub fn evaluate_all(
    model: &mut Model,
    plan: &Plan,
    chunks: &[usize],
    threads: usize,
) -> Result<Vec<Vec<f64>>, Failure> {
    surprises(model, plan, chunks, threads, true, &mut |_| Ok(()))
}

/// The surprise of each token that counts, by chunk; `write` gets their logits.
fn surprises(
    model: &mut Model,
    plan: &Plan,
    chunks: &[usize],
    threads: usize,
    all: bool,
    write: &mut dyn FnMut(&[f32]) -> Result<(), Failure>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let tokens: Vec<Vec<u32>> = chunks.iter().map(|chunk| plan.chunk(*chunk)).collect();
    let mut surprises = vec![Vec::new(); chunks.len()];
    evaluate(model, plan, chunks, all, &mut |sequence, outputs| {
        let (Some(tokens), Some(surprises)) = (tokens.get(sequence), surprises.get_mut(sequence)) else {
            return Ok(());
        };
        let next = plan.scored as usize + 1 + surprises.len();
        let rows = outputs.logits.len() / outputs.width.max(1);
        let targets = tokens.get(next..next + rows).unwrap_or(&[]);
        surprises.extend(surprise_of_rows(&outputs.logits, outputs.width, targets, threads));
        write(&outputs.logits)
    })?;
    Ok(surprises)
}

/// Evaluates chunks side by side and hands on the logits of the rows that count, a part of a chunk at a time. With
/// `all` no row is spared its last layer, as far as it goes on to others.
fn evaluate(
    model: &mut Model,
    plan: &Plan,
    chunks: &[usize],
    all: bool,
    take: &mut dyn FnMut(usize, &puna_runtime::Outputs) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let tokens: Vec<Vec<u32>> = chunks.iter().map(|chunk| plan.chunk(*chunk)).collect();
    let scored = plan.scored as usize;
    let work = |sequence: usize, tokens: &[u32], outputs| Work {
        sequence: sequence as u32,
        tokens: tokens.to_vec(),
        outputs,
    };
    let before = if all { OutputRows::All } else { OutputRows::None };
    (0..chunks.len()).for_each(|sequence| model.clear(sequence as u32));
    let rows = (LOGITS / (4 * model.information().vocabulary.max(1) as usize)).max(1);
    for part in (0..scored).step_by(rows) {
        let end = if all { scored.min(part + rows) } else { scored };
        let begin = |(sequence, tokens): (usize, &Vec<u32>)| {
            model_part(tokens, part..end).map(|tokens| work(sequence, tokens, before))
        };
        step(model, tokens.iter().enumerate().filter_map(begin).collect())?;
        if !all {
            break;
        }
    }
    for (sequence, tokens) in tokens.iter().enumerate() {
        // The last token has nothing after it to predict.
        let last = tokens.len().saturating_sub(1);
        for part in model_part(tokens, scored..last).unwrap_or(&[]).chunks(rows) {
            let outputs = step(model, vec![work(sequence, part, OutputRows::All)])?;
            take(sequence, &outputs)?;
        }
        if all && let Some(part) = model_part(tokens, last..tokens.len()) {
            step(model, vec![work(sequence, part, OutputRows::All)])?;
        }
    }
    Ok(())
}

fn model_part(tokens: &[u32], range: std::ops::Range<usize>) -> Option<&[u32]> {
    tokens.get(range).filter(|part| !part.is_empty())
}

fn step(model: &mut Model, work: Vec<Work>) -> Result<puna_runtime::Outputs, Failure> {
    Ok(model.run(&Batch::of(work))?)
}

/// Surprise of each row's target, the rows spread over threads.
fn surprise_of_rows(logits: &[f32], width: usize, targets: &[u32], threads: usize) -> Vec<f64> {
    let share = targets.len().div_ceil(threads.max(1)).max(1);
    let mut surprises = vec![0.0; targets.len()];
    std::thread::scope(|scope| {
        let parts = surprises.chunks_mut(share).zip(targets.chunks(share)).zip(logits.chunks(share * width));
        for ((surprises, targets), logits) in parts {
            scope.spawn(move || {
                for ((surprise, target), row) in surprises.iter_mut().zip(targets).zip(logits.chunks(width)) {
                    *surprise = surprise_of(row, *target);
                }
            });
        }
    });
    surprises
}

/// Negative logarithm of the probability of `target`; NaN if there is no such probability.
fn surprise_of(logits: &[f32], target: u32) -> f64 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - highest).exp())).sum();
    let logit = logits.get(target as usize).copied().unwrap_or(f32::NAN);
    sum.ln() - f64::from(logit - highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_surprise_by_the_logarithm_of_their_number() {
        let logits = [1e4f32; 8];
        for threads in [1, 2, 7] {
            for surprise in surprise_of_rows(&logits, 4, &[0, 3], threads) {
                assert!((surprise - 4f64.ln()).abs() < 1e-12, "{surprise}");
            }
        }
        assert!(surprise_of(&[0.0, f32::NAN], 0).is_nan());
        assert!(surprise_of(&[0.0, 1.0], 2).is_nan());
    }

    #[test]
    fn the_error_is_that_of_the_mean() {
        let mut estimate = Estimate::default();
        [1.0, 3.0].into_iter().for_each(|surprise| estimate.add(surprise));
        assert!((estimate.perplexity() - 2f64.exp()).abs() < 1e-12);
        assert!((estimate.error().unwrap() - 2f64.exp()).abs() < 1e-12);
        let mut equal = Estimate::default();
        [1.0, 1.0].into_iter().for_each(|surprise| equal.add(surprise));
        assert_eq!(equal.error(), None);
    }
}
