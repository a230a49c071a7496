//! What every model of the zoo has to pass, on the CPU back end.
#![allow(dead_code)] // the report and the tests use a part each

use std::cell::OnceCell;
use std::sync::Arc;

use puna_backend::Backend;
use puna_backend_cpu::isa::Features;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_conformance::zoo::ZooModel;
use puna_conformance::{normalised_squared_error, requantised};
use puna_gguf::File;
use puna_graph::Op;
use puna_graph::ops::MaskRule;
use puna_quant::DType;
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Placement, RuntimeError, Work};

/// One check: its name, and what it says about a model.
pub struct Check {
    /// Heading of its column.
    pub name: &'static str,
    /// For so many models at least it means something: all but those of which every row sees all, that no text can be cut. Those with
    /// recurrent layers, or with positions that are more than a rotation of keys, cannot be shifted either.
    pub least: usize,
    run: fn(&Subject<'_>) -> Outcome,
}

/// What a check found.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It holds; a figure if there is one.
    Pass(String),
    /// It does not, as is known; the figure.
    Known(String),
    /// It does not.
    Fail(String),
    /// It means nothing for this model, and why.
    None(&'static str),
}

/// Every check, in the order of the report's columns.
pub const CHECKS: &[Check] = &[
    Check { name: "one step", least: 184, run: one_step },
    Check { name: "by token", least: 180, run: token_by_token },
    Check { name: "interleaved", least: 184, run: interleaved },
    Check { name: "restored", least: 180, run: restored },
    Check { name: "rolled back", least: 180, run: rolled_back },
    Check { name: "shared", least: 180, run: shared },
    Check { name: "shifted", least: 135, run: shifted },
    Check { name: "greedy", least: 184, run: greedy },
    Check { name: "Q8_0", least: 184, run: quantised },
    Check { name: "its weights", least: 184, run: weights_share },
    Check { name: "Q8_0 fast", least: 184, run: fast },
];

/// Squared error that other sums of a step may make: f32 sums in another order, and nothing else.
pub const SAME: f64 = 1e-10;
/// Squared error of weights of eight bits.
const EIGHT_BITS: f64 = 1e-3;
/// The same with rounded activations, in shares of the weights' part of it: rounding activations to one byte loses about as much as the
/// weights have lost. 2.4 is usual, and 6.9 the most, of a score, which is one number.
const FAST_OF_SHARE: f64 = 10.0;

/// The most where experts are nearly tied, so that any rounding may choose others: the largest are 1.5e-2 where the processor has AMX
/// (BF16 from 24 rows on), and 5.7e-2 elsewhere (one byte; exact arithmetic with bytes in blocks of 32 makes the same of that model).
fn tied_limit() -> f64 {
    if Features::detect().names().contains(&"AMX") { 2e-2 } else { 7e-2 }
}

/// The most that a model of which the weights alone have this error may have with rounded activations.
fn fast_limit(file: &File, share: f64) -> f64 {
    match file.tensors.iter().any(|tensor| tensor.name.contains("_exps.")) {
        true => tied_limit(),
        false => (FAST_OF_SHARE * share).min(tied_limit()),
    }
}

/// A model with the processor it runs on.
pub struct Subject<'a> {
    model: &'a ZooModel,
    cpu: Arc<dyn Backend>,
    file: Arc<File>,
    /// What [`Subject::share`] found.
    share: OnceCell<Option<Result<f64, String>>>,
}

/// The processor with two threads.
pub fn cpu() -> Arc<dyn Backend> {
    Arc::new(Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).expect("threads start"))
}

/// Runs every check on a model.
pub fn check(model: &ZooModel, cpu: &Arc<dyn Backend>) -> Vec<Outcome> {
    let subject = Subject { model, cpu: cpu.clone(), file: Arc::new(model.open()), share: OnceCell::new() };
    CHECKS.iter().map(|check| (check.run)(&subject)).collect()
}

impl Subject<'_> {
    fn load_file(&self, file: Arc<File>) -> Result<Model, String> {
        self.load_on(file, &self.cpu)
    }

    fn load_on(&self, file: Arc<File>, backend: &Arc<dyn Backend>) -> Result<Model, String> {
        let options = ModelOptions {
            // No more than three sequences of the model with fewest learned positions, 64.
            context: 192,
            sequences: 3,
            keys: DType::F32,
            values: DType::F32,
            // As the logits were recorded.
            only_long_texts: true,
            ..ModelOptions::default()
        };
        let backends = [backend.clone()];
        let loaded = Model::load(file, &backends, &Placement::default(), &options, &mut |_| true);
        loaded.map_err(|error| error.to_string())
    }

    fn load(&self) -> Result<Model, String> {
        self.load_file(self.file.clone())
    }

    /// The error with weights of eight bits and exact arithmetic, as the evaluator does not round activations; none without such
    /// weights.
    fn share(&self) -> Option<Result<f64, String>> {
        let evaluator: Arc<dyn Backend> = Arc::new(puna_backend::reference::Reference);
        self.share.get_or_init(|| with_eight_bits(self, &evaluator)).clone()
    }

    /// Logits in a row.
    fn width(&self) -> usize {
        self.model.logits.len() / self.model.tokens.len()
    }
}

/// Whether rows see later ones, so that a prompt cannot be cut.
fn sees_later_rows(model: &Model) -> bool {
    let sees = |op: &Op| matches!(op, Op::Attention(attention) if attention.mask == MaskRule::Bidirectional);
    model.graph().nodes.iter().any(|node| sees(&node.op))
}

fn rows(model: &mut Model, work: &[(u32, &[u32])]) -> Result<Vec<Vec<f32>>, String> {
    let work = work.iter().map(|(sequence, tokens)| Work {
        sequence: *sequence,
        tokens: tokens.to_vec(),
        outputs: OutputRows::All,
    });
    let outputs = model.run(&Batch::of(work.collect())).map_err(|error| error.to_string())?;
    Ok((0..outputs.rows.len()).map(|row| outputs.row(row).to_vec()).collect())
}

/// Whether an error is small enough.
pub fn outcome(result: Result<f64, String>, most: f64) -> Outcome {
    match result {
        Ok(error) if error <= most => Outcome::Pass(format!("{error:.1e}")),
        Ok(error) => Outcome::Fail(format!("{error:.1e}")),
        Err(error) => Outcome::Fail(error),
    }
}

fn one_step(subject: &Subject<'_>) -> Outcome {
    let found = subject.load().and_then(|mut model| {
        let found = rows(&mut model, &[(0, &subject.model.tokens)])?.concat();
        Ok(normalised_squared_error(&found, &subject.model.logits))
    });
    outcome(found, subject.model.tolerance())
}

const NO_CUT: Outcome = Outcome::None("every row sees all");

fn token_by_token(subject: &Subject<'_>) -> Outcome {
    let mut model = match subject.load() {
        Ok(model) if sees_later_rows(&model) => return NO_CUT,
        Ok(model) => model,
        Err(error) => return Outcome::Fail(error),
    };
    let found = rows(&mut model, &[(0, &subject.model.tokens)]).and_then(|whole| {
        let steps =
            subject.model.tokens.iter().map(|token| Ok(rows(&mut model, &[(1, &[*token])])?.concat()));
        let steps: Vec<f32> = steps.collect::<Result<Vec<_>, String>>()?.concat();
        Ok(normalised_squared_error(&steps, &whole.concat()))
    });
    outcome(found, SAME)
}

/// Two sequences of which the second is the first's tokens backwards, in batches of both, against a run of each.
fn interleaved(subject: &Subject<'_>) -> Outcome {
    let tokens = &subject.model.tokens;
    let backwards: Vec<u32> = tokens.iter().rev().copied().collect();
    let found = subject.load().and_then(|mut model| {
        let cut = if sees_later_rows(&model) { tokens.len() } else { tokens.len() / 3 };
        let mut alone = rows(&mut model, &[(0, tokens)])?;
        model.clear(0);
        alone.extend(rows(&mut model, &[(0, &backwards)])?);
        let mut both = [Vec::new(), Vec::new()];
        for (first, second) in tokens.chunks(cut).zip(backwards.chunks(cut)) {
            let mut found = rows(&mut model, &[(1, first), (2, second)])?;
            both[1].extend(found.split_off(first.len()));
            both[0].extend(found);
        }
        Ok(normalised_squared_error(&both.concat().concat(), &alone.concat()))
    });
    outcome(found, SAME)
}

/// A saved sequence goes on as the original does.
fn restored(subject: &Subject<'_>) -> Outcome {
    let tokens = &subject.model.tokens;
    let (first, rest) = tokens.split_at(tokens.len() / 2);
    let found = subject.load().and_then(|mut model| {
        if sees_later_rows(&model) {
            return Ok(None);
        }
        rows(&mut model, &[(0, first)])?;
        let saved = model.save(0, first).map_err(|error| error.to_string())?;
        let whole = rows(&mut model, &[(0, rest)])?.concat();
        let mut other = subject.load()?;
        rows(&mut other, &[(2, rest)])?;
        let kept = other.restore(1, &saved).map_err(|error| error.to_string())?;
        if kept != first {
            return Err("other tokens came back".into());
        }
        let found = rows(&mut other, &[(1, rest)])?.concat();
        Ok(Some(normalised_squared_error(&found, &whole)))
    });
    match found.transpose() {
        Some(found) => outcome(found, SAME),
        None => NO_CUT,
    }
}

/// A sequence goes back as far as its caches allow and on again, while a copy that shares its cells is not touched.
fn rolled_back(subject: &Subject<'_>) -> Outcome {
    let tokens = &subject.model.tokens;
    let (first, rest) = tokens.split_at(tokens.len() / 2);
    let found = subject.load().and_then(|mut model| {
        if sees_later_rows(&model) {
            return Ok(None);
        }
        let mut whole = rows(&mut model, &[(0, first)])?;
        whole.extend(rows(&mut model, &[(0, rest)])?);
        model.copy(0, 1);
        let length = model.longest_truncation(0, tokens.len() as u32 - 2);
        if (length as usize) < first.len() {
            return Err(format!("only back to {length}"));
        }
        model.truncate(0, length).map_err(|error| error.to_string())?;
        let again = rows(&mut model, &[(0, &tokens[length as usize..])])?;
        let mut found = again.concat();
        let mut expected = whole[length as usize..].concat();
        found.extend(rows(&mut model, &[(1, first)])?.concat());
        expected.extend(rows(&mut model, &[(0, first)])?.concat());
        Ok(Some(normalised_squared_error(&found, &expected)))
    });
    match found.transpose() {
        Some(found) => outcome(found, SAME),
        None => NO_CUT,
    }
}

/// Two sequences that share a beginning go on differently in one batch, each as it would alone.
fn shared(subject: &Subject<'_>) -> Outcome {
    let tokens = &subject.model.tokens;
    let (first, rest) = tokens.split_at(tokens.len() / 2);
    let other: Vec<u32> = rest.iter().rev().copied().collect();
    let found = subject.load().and_then(|mut model| {
        if sees_later_rows(&model) {
            return Ok(None);
        }
        let mut alone = Vec::new();
        for end in [rest, &other[..]] {
            model.clear(0);
            rows(&mut model, &[(0, first)])?;
            alone.extend(rows(&mut model, &[(0, end)])?.concat());
        }
        model.clear(0);
        rows(&mut model, &[(1, first)])?;
        model.copy(1, 2);
        let found = rows(&mut model, &[(1, rest), (2, &other)])?.concat();
        Ok(Some(normalised_squared_error(&found, &alone)))
    });
    match found.transpose() {
        Some(found) => outcome(found, SAME),
        None => NO_CUT,
    }
}

/// A context shift gives what it gives on the evaluator; `shift.rs` compares that with a fresh text. Or it is refused, in one
/// line.
fn shifted(subject: &Subject<'_>) -> Outcome {
    let tokens = &subject.model.tokens;
    let (first, rest) = tokens.split_at(tokens.len() / 2);
    let shift = |backend: &Arc<dyn Backend>| -> Result<Option<Vec<f32>>, String> {
        let mut model = subject.load_on(subject.file.clone(), backend)?;
        if sees_later_rows(&model) {
            return Ok(None);
        }
        rows(&mut model, &[(0, first)])?;
        match model.shift(0, 2, 3) {
            Ok(()) => Ok(Some(rows(&mut model, &[(0, rest)])?.concat())),
            Err(error @ (RuntimeError::Recurrent { .. } | RuntimeError::Unshiftable { .. })) => {
                // The sequence is as it was.
                let whole = model.length(0) as usize == first.len() && error.to_string().lines().count() == 1;
                whole.then_some(None).ok_or_else(|| error.to_string())
            }
            Err(other) => Err(other.to_string()),
        }
    };
    let evaluator: Arc<dyn Backend> = Arc::new(puna_backend::reference::Reference);
    match (shift(&subject.cpu), shift(&evaluator)) {
        (Ok(Some(found)), Ok(Some(expected))) => {
            outcome(Ok(normalised_squared_error(&found, &expected)), subject.model.tolerance())
        }
        (Ok(None), Ok(None)) => Outcome::None("it keeps what cannot be moved, or nothing"),
        (Err(error), _) | (_, Err(error)) => Outcome::Fail(error),
        _ => Outcome::Fail("only one back end can".into()),
    }
}

fn greedy(subject: &Subject<'_>) -> Outcome {
    let found = subject.load().and_then(|mut model| {
        let alone = sees_later_rows(&model);
        let mut next = subject.model.tokens.clone();
        let mut found = Vec::new();
        while found.len() < subject.model.greedy.len() {
            // A model without a cache sees the tokens of its step only.
            if alone {
                model.clear(0);
            }
            let logits = rows(&mut model, &[(0, &next)])?.pop().unwrap_or_default();
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
            let best = best.ok_or("there are no logits")? as u32;
            found.push(best);
            next = vec![best];
        }
        Ok(found)
    });
    match found {
        Ok(found) if found == subject.model.greedy => Outcome::Pass(format!("{}", found.len())),
        Ok(found) => {
            let same = found.iter().zip(&subject.model.greedy).take_while(|(a, b)| a == b).count();
            Outcome::Fail(format!("{same} of {}", found.len()))
        }
        Err(error) => Outcome::Fail(error),
    }
}

/// The model with its matrices in blocks of eight bits; none if it has none that fit.
pub fn eight_bits(file: &File) -> Option<Arc<File>> {
    requantised(file, &[DType::Q8_0])
}

/// A model of which exact arithmetic on the weights that [`eight_bits`] makes is further than [`EIGHT_BITS`] from the recorded
/// values, so that no engine can be nearer: the zoo's weights are random numbers, of which eight bits lose most, random layers
/// amplify it, and where experts are nearly tied, others are chosen.
struct Sensitive {
    model: &'static str,
    /// The error of exact arithmetic.
    share: f64,
    /// Of llama.cpp with the same file; none where it cannot run it, or was not measured.
    llama_cpp: Option<f64>,
}

/// How many times the share of its weights the error of such a model may be: 1.09 was the most, and shares are listed with two digits.
const OF_SHARE: f64 = 1.15;

#[rustfmt::skip] // a table
const SENSITIVE: &[Sensitive] = &[
    Sensitive { model: "afmoe-window8", share: 2.4e-3, llama_cpp: None },
    Sensitive { model: "bailingmoe2-groups", share: 1.2e-2, llama_cpp: Some(2.7e-2) },
    Sensitive { model: "bailingmoe3-moe", share: 1.1e-3, llama_cpp: None },
    Sensitive { model: "deepseek2-groups", share: 3.4e-3, llama_cpp: None },
    Sensitive { model: "deepseek4-blocks", share: 1.5e-3, llama_cpp: None },
    Sensitive { model: "dream-dense", share: 1.1e-3, llama_cpp: Some(2.0e-3) },
    Sensitive { model: "gemma3n-dense", share: 1.7e-3, llama_cpp: Some(3.6e-3) },
    Sensitive { model: "gemma4-dense", share: 1.8e-3, llama_cpp: Some(3.0e-3) },
    Sensitive { model: "gemma4-e-dense", share: 1.1e-3, llama_cpp: Some(2.6e-3) },
    Sensitive { model: "gpt-oss-window8", share: 1.4e-2, llama_cpp: Some(1.5e-2) },
    Sensitive { model: "granitehybrid-dense", share: 1.7e-3, llama_cpp: Some(3.4e-3) },
    Sensitive { model: "grovemoe-moe", share: 1.8e-3, llama_cpp: Some(4.7e-3) },
    Sensitive { model: "hrm_text-dense", share: 3.2e-3, llama_cpp: Some(1.2e-2) },
    Sensitive { model: "hy_v4-moe", share: 1.4e-3, llama_cpp: None },
    Sensitive { model: "lfm2moe-top2", share: 8.2e-3, llama_cpp: None },
    Sensitive { model: "llada-dense", share: 1.1e-3, llama_cpp: Some(1.4e-3) },
    Sensitive { model: "llama4-interleave", share: 2.2e-3, llama_cpp: Some(2.7e-3) },
    Sensitive { model: "mamba2-dense", share: 1.1e-3, llama_cpp: Some(2.6e-3) },
    Sensitive { model: "qwen35-heads", share: 3.3e-3, llama_cpp: None },
    Sensitive { model: "qwen3next-heads", share: 1.4e-2, llama_cpp: Some(1.6e-2) },
    Sensitive { model: "rwkv6qwen2-dense", share: 1.0e-3, llama_cpp: None },
    Sensitive { model: "smallthinker-top2", share: 2.2e-3, llama_cpp: Some(7.5e-3) },
    Sensitive { model: "nomic-bert-moe", share: 3.0e-3, llama_cpp: None },
    Sensitive { model: "t5-gated", share: 1.2e-3, llama_cpp: None },
    Sensitive { model: "t5encoder", share: 1.8e-3, llama_cpp: None },
];

/// What the table says does not contradict itself.
pub fn check_sensitive() {
    for Sensitive { model, share, llama_cpp } in SENSITIVE {
        assert!(*share >= EIGHT_BITS, "{model}: exact arithmetic would do");
        assert!(llama_cpp.is_none_or(|peer| *share <= peer), "{model}: llama.cpp is better");
    }
}

/// The processor with each row computed as it would be alone. It multiplies by weights of eight bits with
/// activations of two bytes; more rows of a step would otherwise be multiplied faster and less exactly.
pub fn alone() -> Arc<dyn Backend> {
    let options = CpuOptions { threads: 2, deterministic: true, ..CpuOptions::default() };
    Arc::new(Cpu::new(options).expect("threads start"))
}

/// What exact arithmetic makes of the weights in eight bits: the part of the error that no engine can avoid.
fn weights_share(subject: &Subject<'_>) -> Outcome {
    match subject.share() {
        Some(found) => as_recorded(&subject.model.name, found),
        None => NOTHING,
    }
}

/// The weights' share: what the table says of a listed model, and within the limit of another, so that the list cannot go stale.
pub fn as_recorded(name: &str, found: Result<f64, String>) -> Outcome {
    let listed = SENSITIVE.iter().find(|row| row.model == name).map(|row| row.share);
    match (found, listed) {
        (Ok(error), Some(listed)) if !(0.9 * listed..=1.1 * listed).contains(&error) => {
            Outcome::Fail(format!("{error:.1e}, listed {listed:.1e}"))
        }
        (Ok(error), Some(_)) => Outcome::Known(format!("{error:.1e}")),
        (found, None) => outcome(found, EIGHT_BITS),
        (Err(error), _) => Outcome::Fail(error),
    }
}

/// What weights of eight bits say where there are none.
pub const NOTHING: Outcome = Outcome::None("no matrix has whole blocks");

/// The error with weights of eight bits, if there are any.
fn with_eight_bits(subject: &Subject<'_>, backend: &Arc<dyn Backend>) -> Option<Result<f64, String>> {
    let file = eight_bits(&subject.file)?;
    Some(subject.load_on(file, backend).and_then(|mut model| {
        let found = rows(&mut model, &[(0, &subject.model.tokens)])?.concat();
        Ok(normalised_squared_error(&found, &subject.model.logits))
    }))
}

fn quantised(subject: &Subject<'_>) -> Outcome {
    match with_eight_bits(subject, &alone()) {
        Some(found) => beside_share(&subject.model.name, found),
        None => NOTHING,
    }
}

/// The error of all rows in one step, whose activations are rounded.
fn fast(subject: &Subject<'_>) -> Outcome {
    match with_eight_bits(subject, &subject.cpu).zip(subject.share()) {
        Some((found, share)) => rounded(&subject.file, found, share),
        None => NOTHING,
    }
}

/// A figure within [`fast_limit`], marked where it is above [`EIGHT_BITS`].
pub fn rounded(file: &File, found: Result<f64, String>, share: Result<f64, String>) -> Outcome {
    let (error, most) = match (found, share) {
        (Ok(error), Ok(share)) => (error, fast_limit(file, share)),
        (Err(error), _) | (_, Err(error)) => return Outcome::Fail(error),
    };
    if error <= EIGHT_BITS.min(most) {
        Outcome::Pass(format!("{error:.1e}"))
    } else if error <= most {
        Outcome::Known(format!("{error:.1e}"))
    } else {
        Outcome::Fail(format!("{error:.1e}, above {most:.1e}"))
    }
}

/// What an error with weights of eight bits means for this model.
pub fn beside_share(name: &str, found: Result<f64, String>) -> Outcome {
    let listed = SENSITIVE.iter().find(|row| row.model == name);
    match (outcome(found.clone(), EIGHT_BITS), listed, found) {
        (Outcome::Fail(figure), Some(row), Ok(error)) if error <= OF_SHARE * row.share => {
            Outcome::Known(figure)
        }
        (outcome, _, _) => outcome,
    }
}
