//! `llama perplexity`: how well a model predicts a text.

mod base;
mod choices;
mod divergence;

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{files, interrupt, load, pages, prompt};
use puna_flags::{Config, FLAGS, Spec, Tasks, ToolSet};
use puna_gguf::Metadata;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Work};
use puna_tokenizer::Tokenizer;
use std::io::{Read, Write};
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
    let text = text(invocation, &config)?;
    interrupt::install();
    let opened = load::open(invocation, &config, &console, true)?;
    let (tokens, first) = tokens(&opened.file.metadata, &text, false, &console)?;
    let length = match config.context.size {
        0 => trained_context(&opened.file.metadata)?,
        size => size,
    };
    let plan = Plan::new(&config, length, tokens, first)?;
    let sequences = plan.sequences(config.context.batch);
    let (mut model, threads) = model(&opened, &config, plan.length, sequences, &console)?;
    let Some(path) = &flags.base else {
        return measure(&mut model, &plan, sequences, &config, threads, &console, &mut |_| Ok(()));
    };
    if flags.stride > 0 {
        return Err(
            invocation.usage("--save-all-logits needs chunks that do not overlap, without --ppl-stride")
        );
    }
    record(&mut model, &plan, sequences, &config, threads, &console, path)
}

/// Loads the model with room for so many chunks; also returns the number of threads.
fn model(
    opened: &load::Opened,
    config: &Config,
    length: u32,
    sequences: u32,
    console: &Console,
) -> Result<(Model, usize), Failure> {
    let processor = load::processor(&config.cpu);
    let threads = processor.threads;
    let backend = load::backend(&processor, config.device.name.as_deref())?;
    let options = ModelOptions {
        context: length.saturating_mul(sequences),
        sequences,
        micro_batch: config.context.micro_batch.min(config.context.batch),
        outputs: 0,
        keys: load::cache_format(config.context.type_k)?,
        values: load::cache_format(config.context.type_v)?,
        full_window_cache: config.context.full_window,
        ..ModelOptions::default()
    };
    let extras = load::extras(config)?;
    let model = load::load_with(&opened.file, &backend, &options, console, &extras, &|_| Vec::new())?;
    Ok((model, threads))
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
    let tokenizer = tokenizer(&opened.file.metadata, console)?;
    let length = match config.context.size {
        0 => trained_context(&opened.file.metadata)?,
        size => size,
    };
    let (mut model, threads) = model(&opened, config, length, 1, console)?;
    choices::run(&mut model, &tokenizer, &chosen, threads, console)
}

/// Measures and records all predictions that count.
fn record(
    model: &mut Model,
    plan: &Plan,
    sequences: u32,
    config: &Config,
    threads: usize,
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
    let mut failure = None;
    let written = files::replace(path, |file| {
        head.write(file)?;
        let mut bytes = Vec::new();
        let mut write = |logits: &[f32]| {
            bytes.clear();
            let width = head.vocabulary.max(1) as usize;
            logits.chunks(width).for_each(|row| base::encode(row, &mut bytes));
            Ok(file.write_all(&bytes)?)
        };
        measure(model, plan, sequences, config, threads, console, &mut write).map_err(|error| {
            let text = format!("{error:?}");
            failure = Some(error);
            std::io::Error::other(text)
        })
    });
    // The model's own error says more than that the file could not be written.
    failure.map_or(written, Err)
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
    let tokenizer = tokenizer(&opened.file.metadata, console)?;
    let vocabulary = tokenizer.vocabulary();
    let first = vocabulary.bos().filter(|_| vocabulary.add_bos());
    let (mut model, threads) = model(&opened, config, head.length, 1, console)?;
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

fn tokenizer(metadata: &Metadata, console: &Console) -> Result<Tokenizer, Failure> {
    let tokenizer = Tokenizer::from_metadata(metadata)?
        .ok_or_else(|| Failure::Failed("the model has no tokenizer".to_owned()))?;
    tokenizer.warnings().iter().for_each(|warning| console.warn(warning));
    Ok(tokenizer)
}

/// The tokens of a text, and the one that each chunk shall begin with, if the model wants one.
pub fn tokens(
    metadata: &Metadata,
    text: &str,
    parse_special: bool,
    console: &Console,
) -> Result<(Vec<u32>, Option<u32>), Failure> {
    let tokenizer = tokenizer(metadata, console)?;
    let tokens = tokenizer.encode(text, true, parse_special);
    let vocabulary = tokenizer.vocabulary();
    Ok((tokens, vocabulary.bos().filter(|_| vocabulary.add_bos())))
}

pub fn trained_context(metadata: &Metadata) -> Result<u32, Failure> {
    let architecture = metadata.str("general.architecture")?;
    Ok(metadata.u32(&format!("{architecture}.context_length"))?)
}

/// Which tokens are evaluated and which of them count.
pub struct Plan {
    tokens: Vec<u32>,
    /// Replaces the first token of each chunk.
    first: Option<u32>,
    /// Tokens of a chunk, at least 2.
    length: u32,
    /// Tokens between the starts of two chunks.
    step: u32,
    /// First row of a chunk whose prediction counts; it has seen this many tokens before it.
    scored: u32,
    pub chunks: usize,
}

impl Plan {
    /// Chunks of this length that do not overlap, as many as are whole, at most `most` unless that is negative.
    pub fn chunks_of(length: u32, tokens: Vec<u32>, first: Option<u32>, most: i32) -> Result<Self, Failure> {
        let chunks = tokens.len() / length.max(1) as usize;
        if length < 2 || chunks == 0 {
            return Err(Failure::Failed(format!(
                "the text has {} tokens, which is no whole chunk of {length} (-c)",
                tokens.len()
            )));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(Self { tokens, first, length, step: length, scored: length / 2, chunks: chunks.min(most) })
    }

    fn new(config: &Config, length: u32, tokens: Vec<u32>, first: Option<u32>) -> Result<Self, Failure> {
        let failed = |text: String| Err(Failure::Failed(text));
        let stride = config.perplexity.stride;
        let length = length.saturating_add(stride / 2);
        if length < 2 || stride >= length {
            return failed(format!("a chunk of {length} tokens is too short for a stride of {stride}"));
        }
        let (whole, count) = (length as usize, tokens.len());
        let (step, scored, chunks) = if stride == 0 {
            if count < 2 * whole {
                return failed(format!(
                    "the text has {count} tokens, but a context of {length} (-c) needs at least {}",
                    2 * whole
                ));
            }
            (length, length / 2, count / whole)
        } else {
            if count <= whole {
                return failed(format!("the text has {count} tokens, but more than {length} are needed"));
            }
            (stride, length - stride - 1, (count - whole).div_ceil(stride as usize))
        };
        let most = usize::try_from(config.perplexity.chunks).unwrap_or(usize::MAX);
        Ok(Self { tokens, first, length, step, scored, chunks: chunks.min(most) })
    }

    /// Chunks that are evaluated side by side.
    pub fn sequences(&self, batch: u32) -> u32 {
        (batch / self.length).clamp(1, u32::try_from(self.chunks.max(1)).unwrap_or(u32::MAX))
    }

    /// Index of a chunk's first token.
    fn start(&self, chunk: usize) -> usize {
        chunk * self.step as usize
    }

    /// The tokens of a chunk as they are given to the model.
    pub fn chunk(&self, chunk: usize) -> Vec<u32> {
        let start = self.start(chunk);
        let end = (start + self.length as usize).min(self.tokens.len());
        let mut tokens = self.tokens.get(start..end).unwrap_or(&[]).to_vec();
        if let (Some(token), Some(first)) = (tokens.first_mut(), self.first) {
            *token = first;
        }
        tokens
    }
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
    threads: usize,
    console: &Console,
    write: &mut dyn FnMut(&[f32]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    console.info(&format!(
        "perplexity: calculating perplexity over {} chunks, n_ctx={}, batch_size={}, n_seq={sequences}",
        plan.chunks, plan.length, config.context.batch
    ));
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
    Ok(model.run(&Batch { work })?)
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

    fn plan(length: u32, stride: u32, tokens: u32, chunks: i32) -> Result<Plan, Failure> {
        let mut config = Config::default();
        (config.perplexity.stride, config.perplexity.chunks) = (stride, chunks);
        Plan::new(&config, length, (0..tokens).collect(), Some(99))
    }

    #[test]
    fn chunks_follow_one_another_or_overlap() {
        let whole = plan(4, 0, 11, -1).unwrap();
        assert_eq!((whole.chunks, whole.scored, whole.step), (2, 2, 4));
        assert_eq!(whole.chunk(1), [99, 5, 6, 7]);
        assert_eq!(plan(4, 0, 11, 1).unwrap().chunks, 1);
        assert_eq!((whole.sequences(2048), whole.sequences(7), whole.sequences(1)), (2, 1, 1));
        let strided = plan(4, 2, 11, -1).unwrap();
        assert_eq!((strided.length, strided.chunks, strided.scored, strided.step), (5, 3, 2, 2));
        assert_eq!(strided.chunk(2), [99, 5, 6, 7, 8]);
        for (length, stride, tokens) in [(4, 0, 7), (4, 2, 5), (1, 0, 9), (0, 0, 9), (4, 9, 99)] {
            assert!(plan(length, stride, tokens, -1).is_err(), "{length} {stride} {tokens}");
        }
    }

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
