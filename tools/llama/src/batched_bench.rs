//! `llama batched-bench`: how fast several sequences are together.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::load;
use puna_flags::{BatchedBench, Config, FLAGS, Spec, ToolSet};
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Work};
use puna_sampling::Random;
use std::io::Write;
use std::time::{Duration, Instant};

/// Flags of `batched-bench`.
pub const SPEC: Spec<Config> = Spec {
    name: "batched-bench",
    tool: ToolSet::BATCHED_BENCH,
    about: "Measure the speed of several sequences together: prompts of -npp tokens, then -ntg tokens of each of -npl \
            sequences; every combination that the context (-c, by default as large as needed) has room for is measured",
    groups: FLAGS,
    positional: None,
};

/// Heading of the table for people, known to scripts.
const HEADING: &str = "\
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
";

/// One combination of lengths and sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    prompt: u32,
    answer: u32,
    sequences: u32,
    shared_prompt: bool,
}

impl Case {
    /// Tokens of the prompts that are evaluated.
    fn prompt_tokens(self) -> u32 {
        self.prompt.saturating_mul(if self.shared_prompt { 1 } else { self.sequences })
    }

    /// Tokens that are generated.
    fn answer_tokens(self) -> u32 {
        self.answer.saturating_mul(self.sequences)
    }

    /// Cells that the combination needs.
    fn cells(self) -> u32 {
        self.prompt_tokens().saturating_add(self.answer_tokens())
    }
}

/// All combinations, the number of sequences changing fastest.
fn cases(bench: &BatchedBench) -> Vec<Case> {
    let mut cases = Vec::new();
    for &prompt in &bench.prompts {
        for &answer in &bench.answers {
            for &sequences in &bench.sequences {
                cases.push(Case { prompt, answer, sequences, shared_prompt: bench.shared_prompt });
            }
        }
    }
    cases
}

/// `llama batched-bench`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let bench = &config.batched_bench;
    let mut cases = cases(bench);
    if cases.is_empty() {
        return Err(invocation.usage("nothing to measure: give -npp, -ntg and -npl"));
    }
    if config.context.size > 0 {
        let (fit, skipped): (Vec<_>, Vec<_>) =
            cases.into_iter().partition(|case| case.cells() <= config.context.size);
        for case in skipped {
            console.warn(&format!(
                "-npp {} -ntg {} -npl {} needs {} cells, more than the {} of -c: left out",
                case.prompt,
                case.answer,
                case.sequences,
                case.cells(),
                config.context.size
            ));
        }
        cases = fit;
        if cases.is_empty() {
            return Err(
                invocation.usage("nothing to measure: the context (-c) has no room for any combination")
            );
        }
    }
    let most = |of: fn(Case) -> u32| cases.iter().map(|case| of(*case)).max().unwrap_or(1).max(1);
    let (cells, sequences) = (most(Case::cells), most(|case| case.sequences));
    let opened = load::open(invocation, &config, &console, true)?;
    let mut sized = config.clone();
    // One cell more for the warm-up of a case without tokens.
    sized.context.size = config.context.size.max(cells).max(2);
    let mut model = load::model(&opened, &sized, &console, sequences, sequences)?;
    let options = model.options().clone();
    let out = &mut std::io::stdout();
    if !bench.jsonl {
        writeln!(out, "\n{}\n\n{HEADING}", settings(&config, &options)).map_err(Failure::from)?;
    }
    let mut random = Random::new(0, 0);
    for (index, case) in cases.into_iter().enumerate() {
        let mut run = Run { model: &mut model, case, separate: bench.separate, random: &mut random };
        if index == 0 {
            run.warm_up()?;
        }
        let times = run.measure()?;
        let line = if bench.jsonl { json(case, times, &config, &options) } else { row(case, times) };
        out.write_all(line.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// The settings in one line.
fn settings(config: &Config, options: &ModelOptions) -> String {
    let threads = load::processor(&config.cpu).threads;
    format!(
        "main: n_kv_max = {}, n_batch = {}, n_ubatch = {}, flash_attn = 1, is_pp_shared = {}, is_tg_separate = {}, \
         n_gpu_layers = 0, n_threads = {threads}, n_threads_batch = {threads}",
        options.context,
        config.context.batch,
        options.micro_batch,
        u8::from(config.batched_bench.shared_prompt),
        u8::from(config.batched_bench.separate),
    )
}

/// Seconds of the prompts and of the generation.
type Times = [f64; 2];

/// Seconds and tokens in a second: of prompts, of generation, of both.
fn speeds(case: Case, [prompt, answer]: Times) -> [(f64, f64); 3] {
    let speed = |tokens: u32, time: f64| (time, if time > 0.0 { f64::from(tokens) / time } else { 0.0 });
    [
        speed(case.prompt_tokens(), prompt),
        speed(case.answer_tokens(), answer),
        speed(case.cells(), prompt + answer),
    ]
}

fn row(case: Case, times: Times) -> String {
    let mut line =
        format!("|{:6} | {:6} | {:4} | {:6} |", case.prompt, case.answer, case.sequences, case.cells());
    for (time, speed) in speeds(case, times) {
        line += &format!(" {time:8.3} | {speed:8.2} |");
    }
    line + "\n"
}

fn json(case: Case, times: Times, config: &Config, options: &ModelOptions) -> String {
    let threads = load::processor(&config.cpu).threads;
    let [prompt, answer, all] = speeds(case, times);
    let line = serde_json::json!({
        "n_kv_max": options.context, "n_batch": config.context.batch, "n_ubatch": options.micro_batch,
        "flash_attn": 1, "is_pp_shared": u8::from(case.shared_prompt),
        "is_tg_separate": u8::from(config.batched_bench.separate), "n_gpu_layers": 0,
        "n_threads": threads, "n_threads_batch": threads, "pp": case.prompt, "tg": case.answer,
        "pl": case.sequences, "n_kv": case.cells(), "t_pp": prompt.0, "speed_pp": prompt.1,
        "t_tg": answer.0, "speed_tg": answer.1, "t": all.0, "speed": all.1,
    });
    format!("{line}\n")
}

/// One combination on the model.
struct Run<'a> {
    model: &'a mut Model,
    case: Case,
    separate: bool,
    random: &'a mut Random,
}

impl Run<'_> {
    /// A token by chance: the speed must not depend on which.
    fn token(&mut self) -> u32 {
        self.random.next_u32() % self.model.information().vocabulary.max(1)
    }

    fn work(&mut self, sequence: u32, tokens: u32) -> Work {
        let tokens = (0..tokens).map(|_| self.token()).collect();
        Work { sequence, tokens, outputs: OutputRows::Last }
    }

    fn step(&mut self, work: Vec<Work>) -> Result<(), Failure> {
        self.model.run(&Batch::of(work))?;
        Ok(())
    }

    fn clear(&mut self) {
        (0..self.model.options().sequences).for_each(|sequence| self.model.clear(sequence));
    }

    /// Whatever happens only once happens here.
    fn warm_up(&mut self) -> Result<(), Failure> {
        let work = self.work(0, 1);
        self.step(vec![work])
    }

    fn measure(&mut self) -> Result<Times, Failure> {
        self.clear();
        let Case { prompt, answer, sequences, shared_prompt } = self.case;
        let evaluated = if shared_prompt { 1 } else { sequences };
        let start = Instant::now();
        if prompt > 0 {
            let work = (0..evaluated).map(|sequence| self.work(sequence, prompt)).collect();
            self.step(work)?;
            (evaluated..sequences).for_each(|sequence| self.model.copy(0, sequence));
        }
        let prompts = start.elapsed();
        let start = Instant::now();
        if self.separate {
            for sequence in 0..sequences {
                for _ in 0..answer {
                    let work = self.work(sequence, 1);
                    self.step(vec![work])?;
                }
            }
        } else {
            for _ in 0..answer {
                let work = (0..sequences).map(|sequence| self.work(sequence, 1)).collect();
                self.step(work)?;
            }
        }
        Ok([prompts, start.elapsed()].map(|time: Duration| time.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_their_cells_and_their_speeds() {
        let bench = BatchedBench {
            prompts: vec![128, 256],
            answers: vec![32],
            sequences: vec![1, 4],
            ..BatchedBench::default()
        };
        let all = cases(&bench);
        assert_eq!(all.iter().map(|case| case.cells()).collect::<Vec<_>>(), [160, 640, 288, 1152]);
        assert_eq!(speeds(all[1], [2.0, 4.0]).map(|(_, speed)| speed), [256.0, 32.0, 640.0 / 6.0]);
        let shared = Case { shared_prompt: true, ..all[1] };
        assert_eq!((shared.cells(), shared.prompt_tokens(), shared.answer_tokens()), (256, 128, 128));
        let line = row(all[1], [2.0, 4.0]);
        let columns = HEADING.lines().next().unwrap().matches('|').count();
        assert_eq!(line.matches('|').count(), columns);
        assert_eq!(
            line,
            "|   128 |     32 |    4 |    640 |    2.000 |   256.00 |    4.000 |    32.00 |    6.000 |   106.67 |\n"
        );
    }
}
