//! `llama imatrix`: how much the columns of matrices matter, measured on a text.

mod collect;
pub mod file;
mod statistics;

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::perplexity::{self, Estimate, Plan};
use crate::{files, interrupt, load, pages};
use collect::Collector;
use file::Sums;
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_graph::Graph;
use puna_runtime::{Batch, Model, OutputRows, Work};
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
    let texts = config.prompt.file.iter().chain(&config.prompt.binary_file);
    let inputs: Vec<PathBuf> = flags.inputs.iter().chain(texts).cloned().collect();
    files::check_output(&output(&config), &inputs)?;
    if let Some(input) = inputs.iter().find(|input| is_snapshot(input, &config)) {
        return Err(Failure::Failed(format!(
            "{} has the name of a snapshot that --save-frequency may write",
            input.display()
        )));
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

/// The name of the snapshot after this chunk.
fn snapshot(config: &Config, chunk: u32) -> PathBuf {
    let mut name = output(config).into_os_string();
    name.push(format!(".at_{chunk}"));
    PathBuf::from(name)
}

/// Whether the file could be written over by a snapshot.
fn is_snapshot(path: &Path, config: &Config) -> bool {
    let name = path.to_string_lossy();
    let chunk = name.rsplit_once(".at_").and_then(|(_, chunk)| chunk.parse().ok());
    config.imatrix.save_frequency > 0
        && chunk
            .is_some_and(|chunk| files::refuse_input(&snapshot(config, chunk), &[path.to_owned()]).is_err())
}

/// Writes what there is, after this chunk into a snapshot of its own.
fn save(sums: &Sums, config: &Config, chunk: Option<u32>) -> Result<(), Failure> {
    let path = chunk.map_or_else(|| output(config), |chunk| snapshot(config, chunk));
    let legacy = match config.imatrix.format.as_deref() {
        Some(format) => format == "dat",
        None => path.extension().is_some_and(|end| end == "dat"),
    };
    if legacy { sums.write_legacy(&path) } else { sums.write_gguf(&path) }
}

/// Measures the chunks of the text and writes what was seen, together with `before`.
fn measure(invocation: &Invocation, config: &Config, console: &Console, before: Sums) -> Result<(), Failure> {
    let flags = &config.imatrix;
    let text = perplexity::text(invocation, config)?;
    let opened = load::open(invocation, config, console, true)?;
    files::refuse_input(&output(config), &opened.inputs())?;
    let tokenizer = opened.tokenizer(console)?;
    let (tokens, first) = perplexity::tokens(&tokenizer, &text, flags.parse_special);
    let length = perplexity::chunk_length(&opened, config, console)?;
    let tokens = after_chunks(tokens, flags.from_chunk, length)?;
    let plan = Plan::chunks_of(length, tokens, first, config.perplexity.chunks)?;
    let sequences = plan.sequences(config.context.batch);
    let collector: Arc<Mutex<Option<Collector>>> = Arc::default();
    let watch = |graph: &Graph| {
        let collector_of_graph = Collector::new(graph, flags.process_output);
        let values = collector_of_graph.values();
        if let Ok(mut place) = collector.lock() {
            *place = Some(collector_of_graph);
        }
        values
    };
    let mut model = perplexity::model(&opened, config, (length, sequences), console, &watch)?;
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
    let done = run_chunks(&mut model, &plan, sequences, config, console, &so_far)?;
    let sums = so_far(done)?;
    save(&sums, config, None)?;
    console.info(&format!("wrote {} tensors to {}", sums.entries.len(), output(config).display()));
    Ok(())
}

/// The tokens after those of so many chunks of `length` tokens.
fn after_chunks(mut tokens: Vec<u32>, chunks: u32, length: u32) -> Result<Vec<u32>, Failure> {
    let skipped = chunks as usize * length as usize;
    if skipped > 0 && skipped >= tokens.len() {
        return Err(Failure::Failed(format!(
            "the text has {} tokens, of which --from-chunk {chunks} leaves none (chunks of {length}, -c)",
            tokens.len()
        )));
    }
    Ok(tokens.split_off(skipped))
}

/// Runs all chunks, some side by side, saves what `so_far` says as often as the flags ask for, and returns how many
/// chunks there were. Chunks that ran side by side are in the sums together, so files are written between such groups.
fn run_chunks(
    model: &mut Model,
    plan: &Plan,
    sequences: u32,
    config: &Config,
    console: &Console,
    so_far: &dyn Fn(u32) -> Result<Sums, Failure>,
) -> Result<u32, Failure> {
    let flags = &config.imatrix;
    let threads = load::processor(&config.cpu).threads;
    console.info(&format!("measuring {} chunks of {} tokens", plan.chunks, plan.length));
    let mut estimate = Estimate::default();
    let chunks: Vec<usize> = (0..plan.chunks).collect();
    let mut done = 0;
    for group in chunks.chunks(sequences as usize) {
        let begun = Instant::now();
        run_group(model, plan, group, &mut estimate, flags.perplexity, threads)?;
        if done == 0 {
            let seconds = begun.elapsed().as_secs_f64();
            let minutes = seconds * plan.chunks.div_ceil(sequences as usize) as f64 / 60.0;
            console.info(&format!("{seconds:.2} seconds per pass - ETA {minutes:.2} minutes"));
        }
        let before = done;
        done += group.len() as u32;
        let is_due = |every: u32| every > 0 && done / every > before / every;
        if is_due(flags.output_frequency) {
            save(&so_far(done)?, config, None)?;
        }
        if is_due(flags.save_frequency) {
            save(&so_far(done)?, config, Some(done))?;
        }
        if flags.perplexity {
            pages::print(format!("[{done}]{:.4},", estimate.perplexity()).as_bytes())?;
        }
    }
    if flags.perplexity {
        let error = estimate.error().map(|error| format!(" +/- {error:.5}")).unwrap_or_default();
        pages::print(format!("\nFinal estimate: PPL = {:.4}{error}\n", estimate.perplexity()).as_bytes())?;
    }
    Ok(done)
}

/// Evaluates chunks side by side, or without perplexity one after another, every token with its logits, so that no row
/// of the last layer is left out.
fn run_group(
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
    for chunk in chunks {
        model.clear(0);
        let work = vec![Work { sequence: 0, tokens: plan.chunk(*chunk), outputs: OutputRows::All }];
        model.run(&Batch::of(work))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_at_the_beginning_are_left_out() {
        let tokens = || (0..10).collect::<Vec<u32>>();
        assert_eq!(after_chunks(tokens(), 2, 4).expect("two are left"), [8, 9]);
        assert_eq!(after_chunks(tokens(), 0, 4).expect("all are left"), tokens());
        let Err(Failure::Failed(message)) = after_chunks(tokens(), 3, 4) else { panic!("nothing is left") };
        assert!(message.contains("10 tokens") && message.contains("--from-chunk 3"), "{message}");
    }
}
