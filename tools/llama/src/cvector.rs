//! `llama cvector-generator`: directions in which a model's layers differ between two kinds of prompts.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{files, interrupt, load, shards};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_gguf::{Metadata, TensorSpec};
use puna_graph::{Array, Graph, ValueId};
use puna_quant::DType;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Work};
use puna_tokenizer::Tokenizer;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Flags of `cvector-generator`.
pub const SPEC: Spec<Config> = Spec {
    name: "cvector-generator",
    tool: ToolSet::CVECTOR,
    about: "Write a control vector: for each layer the direction in which it differs between prompts of one kind and of \
            another (one prompt in a line, as many in both files)",
    groups: FLAGS,
    positional: None,
};

/// Rows of differences of one layer.
type Rows = Vec<Vec<f32>>;

/// `llama cvector-generator`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let flags = &config.cvector;
    let (Some(positive), Some(negative)) = (&flags.positive, &flags.negative) else {
        return Err(invocation.usage("--positive-file and --negative-file are needed"));
    };
    files::check_output(&output(&config), &[positive.clone(), negative.clone()])?;
    let lines = |path: &PathBuf| -> Result<Vec<String>, Failure> {
        let text = files::read_text(path, files::PROMPT)?;
        Ok(text.lines().filter(|line| !line.is_empty()).map(|line| line.replace("\\n", "\n")).collect())
    };
    let (positive, negative) = (lines(positive)?, lines(negative)?);
    if positive.is_empty() || positive.len() != negative.len() {
        return Err(Failure::Failed(format!(
            "there are {} prompts of one kind and {} of the other; as many are needed",
            positive.len(),
            negative.len()
        )));
    }
    interrupt::install();
    let opened = load::open(invocation, &config, &console, true)?;
    files::refuse_input(&output(&config), &opened.inputs())?;
    let tokenizer = opened.tokenizer(&console)?;
    let pairs: Vec<(Vec<u32>, Vec<u32>)> =
        positive.iter().zip(&negative).map(|(one, other)| pair(&tokenizer, one, other)).collect();
    let longest = pairs.iter().map(|(one, _)| one.len()).max().unwrap_or(1);
    let mut options = load::options(&config, 1, 0)?;
    if (options.context as usize) < longest && options.context != 0 {
        return Err(Failure::Failed(format!(
            "a prompt has {longest} tokens, the context is {} (-c)",
            options.context
        )));
    }
    if options.context == 0 {
        options.context = (longest as u32).max(16);
    }
    let mut observed = Observed::load(&opened, &config, &console, &options)?;
    let mut differences: BTreeMap<u32, Rows> = BTreeMap::new();
    for (number, (one, other)) in pairs.iter().enumerate() {
        let (one_states, other_states) = (observed.states(one)?, observed.states(other)?);
        for (layer, values) in one_states {
            let Some(others) = other_states.get(&layer) else { continue };
            let width = (values.len() / one.len().max(1)).max(1);
            let rows = values.chunks(width).zip(others.chunks(width));
            let differs = |(one, other): (&[f32], &[f32])| {
                let row: Vec<f32> = one.iter().zip(other).map(|(one, other)| one - other).collect();
                // What both prompts begin with says nothing.
                row.iter().any(|x| *x != 0.0).then_some(row)
            };
            differences.entry(layer).or_default().extend(rows.filter_map(differs));
        }
        console.info(&format!("pair {} of {}", number + 1, pairs.len()));
    }
    if differences.iter().all(|(layer, rows)| *layer == 0 || rows.is_empty()) {
        return Err(Failure::Failed(
            "the prompts of both kinds are the same to the model, so there is no direction between them"
                .into(),
        ));
    }
    write(&config, &opened.file.metadata, &differences)?;
    let layers = differences.iter().filter(|(layer, rows)| **layer > 0 && !rows.is_empty()).count();
    console.info(&format!("wrote {layers} layers to {}", output(&config).display()));
    Ok(())
}

/// Two prompts as tokens, the shorter one as long as the other: its last token stands for what is missing.
fn pair(tokenizer: &Tokenizer, one: &str, other: &str) -> (Vec<u32>, Vec<u32>) {
    let (mut one, mut other) = (tokenizer.encode(one, true, true), tokenizer.encode(other, true, true));
    let length = one.len().max(other.len());
    for tokens in [&mut one, &mut other] {
        let last = tokens.last().copied().unwrap_or(0);
        tokens.resize(length, last);
    }
    (one, other)
}

/// A model that tells what its layers hand on.
struct Observed {
    model: Model,
    /// For each layer the rows of the last step, one after another.
    seen: Arc<Mutex<BTreeMap<u32, Vec<f32>>>>,
}

impl Observed {
    fn load(
        opened: &load::Opened,
        config: &Config,
        console: &Console,
        options: &ModelOptions,
    ) -> Result<Self, Failure> {
        let ends: Mutex<BTreeMap<u32, ValueId>> = Mutex::default();
        let watch = |graph: &Graph| {
            let found = layer_ends(graph);
            let values = found.values().copied().collect();
            if let Ok(mut ends) = ends.lock() {
                *ends = found;
            }
            values
        };
        let mut model = load::watched(opened, config, console, options, &watch)?;
        let watched = ends.into_inner().unwrap_or_default();
        let seen: Arc<Mutex<BTreeMap<u32, Vec<f32>>>> = Arc::default();
        let shared = seen.clone();
        model.observe(Box::new(move |values: &HashMap<ValueId, Array>| {
            let Ok(mut seen) = shared.lock() else { return };
            for (layer, value) in &watched {
                if let Some(array) = values.get(value) {
                    seen.entry(*layer).or_default().extend_from_slice(array.floats());
                }
            }
        }));
        Ok(Self { model, seen })
    }

    /// For each layer its rows for these tokens.
    fn states(&mut self, tokens: &[u32]) -> Result<BTreeMap<u32, Vec<f32>>, Failure> {
        self.model.clear(0);
        let work = vec![Work { sequence: 0, tokens: tokens.to_vec(), outputs: OutputRows::All }];
        self.model.run(&Batch::of(work))?;
        Ok(self.seen.lock().map(|mut seen| std::mem::take(&mut *seen)).unwrap_or_default())
    }
}

/// The last value of each layer.
fn layer_ends(graph: &Graph) -> BTreeMap<u32, ValueId> {
    let layers = graph.nodes.iter().enumerate();
    layers.filter_map(|(index, node)| Some((node.layer?, ValueId(index as u32)))).collect()
}

fn output(config: &Config) -> PathBuf {
    config.cvector.output.clone().unwrap_or_else(|| PathBuf::from("control_vector.gguf"))
}

fn write(config: &Config, model: &Metadata, differences: &BTreeMap<u32, Rows>) -> Result<(), Failure> {
    let mut tensors = Vec::new();
    // Files have no direction for the first layer.
    for (layer, rows) in differences.iter().filter(|(layer, rows)| **layer > 0 && !rows.is_empty()) {
        let vector = match config.cvector.mean {
            true => mean(rows),
            false => principal(rows, config.cvector.iterations),
        };
        let shape = vec![vector.len() as u64];
        let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
        tensors.push((TensorSpec { name: format!("direction.{layer}"), dtype: DType::F32, shape }, bytes));
    }
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "controlvector");
    metadata.set("controlvector.model_hint", model.str_or("general.architecture", "")?);
    metadata.set("controlvector.layer_count", tensors.len() as i32);
    shards::write(&output(config), &metadata, &tensors)
}

/// The mean, of length 1.
fn mean(rows: &[Vec<f32>]) -> Vec<f32> {
    let width = rows.first().map_or(0, Vec::len);
    let mut sum = vec![0.0f64; width];
    for row in rows {
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    unit(sum)
}

/// The direction in which the rows spread most about zero, by repeated multiplication, pointing as their mean does.
fn principal(rows: &[Vec<f32>], iterations: u32) -> Vec<f32> {
    const CLOSE: f64 = 1e-7;
    let mut vector = mean(rows);
    // Opposite differences may cancel out; then any of them is a beginning.
    if vector.iter().all(|x| *x == 0.0) {
        vector =
            rows.first().map(|row| unit(row.iter().map(|x| f64::from(*x)).collect())).unwrap_or_default();
    }
    let begin = vector.clone();
    for _ in 0..iterations {
        let mut next = vec![0.0f64; vector.len()];
        for row in rows {
            let along: f64 = row.iter().zip(&vector).map(|(x, v)| f64::from(*x) * f64::from(*v)).sum();
            next.iter_mut().zip(row).for_each(|(next, x)| *next += along * f64::from(*x));
        }
        let next = unit(next);
        let moved: f64 = next.iter().zip(&vector).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        vector = next;
        if moved.sqrt() < CLOSE {
            break;
        }
    }
    let along: f64 = vector.iter().zip(&begin).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    if along < 0.0 { vector.iter().map(|x| -x).collect() } else { vector }
}

/// Of length 1, unless it is zero.
fn unit(vector: Vec<f64>) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    vector.into_iter().map(|x| (x * scale) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_of_most_spread_is_found() {
        let rows = vec![vec![3.0, 4.1], vec![6.0, 7.9], vec![-0.1, 0.1], vec![3.0, 4.0]];
        let found = principal(&rows, 1000);
        assert!((found[0] - 0.6).abs() < 0.01 && (found[1] - 0.8).abs() < 0.01, "{found:?}");
        assert!((mean(&rows).iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-6);
        let opposite = vec![vec![1.0, 0.0], vec![-1.0, 0.0]];
        assert_eq!(principal(&opposite, 10)[1], 0.0);
        assert!(principal(&[], 10).is_empty());
    }
}
