//! `llama imatrix`: how much the columns of matrices matter, measured on a text.

mod collect;
pub mod file;
mod statistics;

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::perplexity::{self, Estimate, Plan};
use crate::{interrupt, load, pages};
use collect::Collector;
use file::Sums;
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Work};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Flags of `imatrix`.
pub const SPEC: Spec<Config> = Spec {
    name: "imatrix",
    tool: ToolSet::IMATRIX,
    about: "Measure on a text (-f FILE) how much the columns of matrices matter, for quantize --imatrix; or combine and \
            describe such files (--in-file, --show-statistics)",
    groups: FLAGS,
    positional: None,
};

/// Tokens of a chunk where no flag says otherwise.
const CHUNK: u32 = 512;

/// `llama imatrix`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let mut defaults = Config::default();
    defaults.context.size = CHUNK;
    defaults.prompt.escape = false;
    let Some((config, warnings)) = invocation.parse_over(&SPEC, defaults)? else { return Ok(()) };
    let console = Console::new(&config.log, crate::console::INFORMATION)?;
    warnings.iter().for_each(|warning| console.warn(warning));
    let flags = &config.imatrix;
    let mut before = Sums::default();
    for path in &flags.inputs {
        before.merge(Sums::read(path)?)?;
    }
    if flags.statistics {
        if flags.inputs.is_empty() {
            return Err(invocation.usage("--show-statistics needs --in-file FILE"));
        }
        return pages::print(statistics::table(&before).as_bytes());
    }
    interrupt::install();
    let has_text =
        config.prompt.file.is_some() || config.prompt.text.is_some() || config.prompt.binary_file.is_some();
    if !has_text && !flags.inputs.is_empty() {
        save(&before, &config, None)?;
        console.info(&format!("wrote {} tensors to {}", before.entries.len(), output(&config).display()));
        return Ok(());
    }
    measure(invocation, &config, &console, before)
}

fn output(config: &Config) -> PathBuf {
    config.imatrix.output.clone().unwrap_or_else(|| PathBuf::from("imatrix.gguf"))
}

/// Writes what there is; a snapshot's name tells after which chunk it was made.
fn save(sums: &Sums, config: &Config, snapshot: Option<u32>) -> Result<(), Failure> {
    let mut path = output(config);
    if let Some(chunk) = snapshot {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".at_{chunk}"));
        path = path.with_file_name(name);
    }
    let legacy = match config.imatrix.format.as_deref() {
        Some(format) => format == "dat",
        None => path.extension().is_some_and(|end| end == "dat"),
    };
    if legacy { sums.write_legacy(&path) } else { sums.write_gguf(&path) }
}

fn measure(invocation: &Invocation, config: &Config, console: &Console, before: Sums) -> Result<(), Failure> {
    let flags = &config.imatrix;
    let text = perplexity::text(invocation, config)?;
    let opened = load::open(invocation, config, console, true)?;
    let (tokens, first) = perplexity::tokens(&opened.file.metadata, &text, flags.parse_special, console)?;
    let length = match config.context.size {
        0 => perplexity::trained_context(&opened.file.metadata)?,
        size => size,
    };
    let skipped = flags.from_chunk as usize * length as usize;
    let tokens = tokens.get(skipped..).unwrap_or(&[]).to_vec();
    let plan = Plan::chunks_of(length, tokens, first, config.perplexity.chunks)?;
    let processor = load::processor(&config.cpu);
    let threads = processor.threads;
    let backend = load::backend(&processor, config.device.name.as_deref())?;
    let sequences = plan.sequences(config.context.batch);
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
    let collector: Arc<Mutex<Option<Collector>>> = Arc::default();
    let shared = collector.clone();
    let watch = |graph: &puna_graph::Graph| {
        let collector = Collector::new(graph, flags.process_output);
        let values = collector.values();
        if let Ok(mut place) = shared.lock() {
            *place = Some(collector);
        }
        values
    };
    let mut model =
        load::load_with(&opened.file, &backend, &options, console, &load::extras(config)?, &watch)?;
    let observed = collector.clone();
    model.observe(Box::new(move |values| {
        if let Ok(mut collector) = observed.lock()
            && let Some(collector) = collector.as_mut()
        {
            collector.observe(values);
        }
    }));
    let dataset = config.prompt.file.as_deref().map(Path::display).map(|path| path.to_string());
    let so_far = |chunks: u32| -> Result<Sums, Failure> {
        let mut sums = before.clone();
        let seen = collector.lock().ok().and_then(|collector| collector.as_ref().map(Collector::sums));
        let mut seen = seen.unwrap_or_default();
        (seen.chunks, seen.chunk_size) = (chunks, length);
        seen.datasets.extend(dataset.clone());
        sums.merge(seen)?;
        Ok(sums)
    };
    console.info(&format!("measuring {} chunks of {length} tokens", plan.chunks));
    let mut estimate = Estimate::default();
    let chunks: Vec<usize> = (0..plan.chunks).collect();
    let mut done = 0;
    for group in chunks.chunks(sequences as usize) {
        let begun = Instant::now();
        run_chunks(&mut model, &plan, group, &mut estimate, flags.perplexity, threads)?;
        if group.first() == Some(&0) {
            let seconds = begun.elapsed().as_secs_f64();
            let minutes = seconds * plan.chunks.div_ceil(sequences as usize) as f64 / 60.0;
            console.info(&format!("{seconds:.2} seconds per pass - ETA {minutes:.2} minutes"));
        }
        for _ in group {
            done += 1;
            if flags.output_frequency > 0 && done % flags.output_frequency == 0 {
                save(&so_far(done)?, config, None)?;
            }
            if flags.save_frequency > 0 && done % flags.save_frequency == 0 {
                save(&so_far(done)?, config, Some(done))?;
            }
        }
        if flags.perplexity {
            pages::print(format!("[{done}]{:.4},", estimate.perplexity()).as_bytes())?;
        }
    }
    let sums = so_far(done)?;
    save(&sums, config, None)?;
    if flags.perplexity {
        let error = estimate.error().map(|error| format!(" +/- {error:.5}")).unwrap_or_default();
        pages::print(format!("\nFinal estimate: PPL = {:.4}{error}\n", estimate.perplexity()).as_bytes())?;
    }
    console.info(&format!("wrote {} tensors to {}", sums.entries.len(), output(config).display()));
    Ok(())
}

/// Evaluates chunks side by side, every token with its logits, so that no row of the last layer is left out.
fn run_chunks(
    model: &mut Model,
    plan: &Plan,
    chunks: &[usize],
    estimate: &mut Estimate,
    perplexity: bool,
    threads: usize,
) -> Result<(), Failure> {
    if perplexity {
        let surprises = perplexity::evaluate_all(model, plan, chunks, threads)?;
        surprises.into_iter().flatten().for_each(|surprise| estimate.add(surprise));
        return Ok(());
    }
    for (sequence, chunk) in chunks.iter().enumerate() {
        if interrupt::take() {
            return Err(Failure::Interrupted);
        }
        let sequence = sequence as u32;
        model.clear(sequence);
        let work = vec![Work { sequence, tokens: plan.chunk(*chunk), outputs: OutputRows::All }];
        model.run(&Batch { work })?;
    }
    Ok(())
}
