//! `llama perplexity`: how well a model predicts a text.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{interrupt, load, pages, prompt};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_gguf::Metadata;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Work};
use puna_tokenizer::Tokenizer;
use std::time::Instant;

/// Flags of `perplexity`.
pub const SPEC: Spec<Config> = Spec {
    name: "perplexity",
    tool: ToolSet::PERPLEXITY,
    about: "Measure how well a model predicts a text (-f FILE), in chunks of the context (-c, 512 unless given)",
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
    let text = text(invocation, &config)?;
    interrupt::install();
    let opened = load::open(invocation, &config, &console, true)?;
    let (tokens, first) = tokens(&opened.file.metadata, &text, &console)?;
    let threads = config.cpu.threads.unwrap_or_else(puna_backends::default_threads);
    let backend = load::backend(threads, config.device.name.as_deref())?;
    let length = match config.context.size {
        0 => trained_context(&opened.file.metadata)?,
        size => size,
    };
    let plan = Plan::new(&config, length, tokens, first)?;
    let sequences = plan.sequences(config.context.batch);
    let options = ModelOptions {
        context: plan.length.saturating_mul(sequences),
        sequences,
        micro_batch: config.context.micro_batch.min(config.context.batch),
        outputs: 0,
        keys: load::cache_format(config.context.type_k)?,
        values: load::cache_format(config.context.type_v)?,
        full_window_cache: config.context.full_window,
    };
    let mut model = load::load(&opened.file, &backend, &options, &console)?;
    measure(&mut model, &plan, sequences, &config, threads, &console)
}

/// The text to predict. A last line feed of a file does not belong to it.
fn text(invocation: &Invocation, config: &Config) -> Result<String, Failure> {
    prompt::given(config)?.ok_or_else(|| invocation.usage("no text: give -f FILE or -p TEXT"))
}

/// The tokens of a text, and the one that each chunk shall begin with, if the model wants one.
fn tokens(metadata: &Metadata, text: &str, console: &Console) -> Result<(Vec<u32>, Option<u32>), Failure> {
    let tokenizer = Tokenizer::from_metadata(metadata)?
        .ok_or_else(|| Failure::Failed("the model has no tokenizer".to_owned()))?;
    tokenizer.warnings().iter().for_each(|warning| console.warn(warning));
    let tokens = tokenizer.encode(text, true, false);
    let vocabulary = tokenizer.vocabulary();
    Ok((tokens, vocabulary.bos().filter(|_| vocabulary.add_bos())))
}

fn trained_context(metadata: &Metadata) -> Result<u32, Failure> {
    let architecture = metadata.str("general.architecture")?;
    Ok(metadata.u32(&format!("{architecture}.context_length"))?)
}

/// Which tokens are evaluated and which of them count.
struct Plan {
    tokens: Vec<u32>,
    /// Replaces the first token of each chunk.
    first: Option<u32>,
    /// Tokens of a chunk, at least 2.
    length: u32,
    /// Tokens between the starts of two chunks.
    step: u32,
    /// First row of a chunk whose prediction counts; it has seen this many tokens before it.
    scored: u32,
    chunks: usize,
}

impl Plan {
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
    fn sequences(&self, batch: u32) -> u32 {
        (batch / self.length).clamp(1, u32::try_from(self.chunks.max(1)).unwrap_or(u32::MAX))
    }

    /// Index of a chunk's first token.
    fn start(&self, chunk: usize) -> usize {
        chunk * self.step as usize
    }

    /// The tokens of a chunk as they are given to the model.
    fn chunk(&self, chunk: usize) -> Vec<u32> {
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
struct Estimate {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Estimate {
    fn add(&mut self, surprise: f64) {
        self.count += 1;
        self.sum += surprise;
        self.squares += surprise * surprise;
    }

    fn perplexity(&self) -> f64 {
        (self.sum / self.count as f64).exp()
    }

    /// Standard error of the perplexity; none of fewer than two tokens, or of equals.
    fn error(&self) -> Option<f64> {
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
) -> Result<(), Failure> {
    console.info(&format!(
        "perplexity: calculating perplexity over {} chunks, n_ctx={}, batch_size={}, n_seq={sequences}",
        plan.chunks, plan.length, config.context.batch
    ));
    let mut estimate = Estimate::default();
    let all: Vec<usize> = (0..plan.chunks).collect();
    for group in all.chunks(sequences as usize) {
        let begun = Instant::now();
        let surprises = evaluate(model, plan, group, threads)?;
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

/// Evaluates chunks side by side and returns the surprise of each token that counts, by chunk.
fn evaluate(
    model: &mut Model,
    plan: &Plan,
    chunks: &[usize],
    threads: usize,
) -> Result<Vec<Vec<f64>>, Failure> {
    let tokens: Vec<Vec<u32>> = chunks.iter().map(|chunk| plan.chunk(*chunk)).collect();
    let scored = plan.scored as usize;
    let work = |sequence: usize, tokens: &[u32], outputs| Work {
        sequence: sequence as u32,
        tokens: tokens.to_vec(),
        outputs,
    };
    let before = |(sequence, tokens): (usize, &Vec<u32>)| {
        model_part(tokens, 0..scored).map(|tokens| work(sequence, tokens, OutputRows::None))
    };
    (0..chunks.len()).for_each(|sequence| model.clear(sequence as u32));
    step(model, tokens.iter().enumerate().filter_map(before).collect())?;
    let rows = (LOGITS / (4 * model.information().vocabulary.max(1) as usize)).max(1);
    let mut surprises = vec![Vec::new(); chunks.len()];
    for (sequence, tokens) in tokens.iter().enumerate() {
        // The last token has nothing after it to predict.
        let counted = model_part(tokens, scored..tokens.len().saturating_sub(1)).unwrap_or(&[]);
        let mut next = scored + 1;
        for part in counted.chunks(rows) {
            let outputs = step(model, vec![work(sequence, part, OutputRows::All)])?;
            let targets = tokens.get(next..next + part.len()).unwrap_or(&[]);
            surprises[sequence].extend(surprise_of_rows(&outputs.logits, outputs.width, targets, threads));
            next += part.len();
        }
    }
    Ok(surprises)
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
