//! The measuring loop of `bench`: tokens through a model, and how long they take.

use crate::bench::Samples;
use crate::bench_output::ModelFacts;
use crate::console::Console;
use crate::failure::Failure;
use crate::{file_types, interrupt, load, placement};
use puna_backends::Options;
use puna_flags::bench::{Bench, Settings, Test};
use puna_flags::{Device, Layers, device_list, override_list};
use puna_gguf::{File, OpenOptions};
use puna_runtime::{Batch, Model, ModelOptions, OutputRows, Work};
use puna_sampling::Random;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Measures tests one after another; the model stays loaded while only the lengths change.
pub struct Measuring<'a> {
    tests: &'a [Test],
    bench: &'a Bench,
    console: &'a Console,
    loaded: Option<Loaded>,
}

struct Loaded {
    /// The settings it was loaded with, lengths aside.
    settings: Settings,
    backend: String,
    model: Model,
    facts: ModelFacts,
    vocabulary: u32,
}

impl<'a> Measuring<'a> {
    /// For these tests.
    pub fn new(tests: &'a [Test], bench: &'a Bench, console: &'a Console) -> Self {
        interrupt::install();
        Self { tests, bench, console, loaded: None }
    }

    /// Runs one test; `say` hears what is going on.
    pub fn measure(&mut self, test: &Test, say: &dyn Fn(&str)) -> Result<Samples, Failure> {
        let settings = without_lengths(&test.settings);
        if self.loaded.as_ref().is_none_or(|loaded| loaded.settings != settings) {
            // The old model makes room first.
            self.loaded = None;
            self.loaded = Some(self.load(settings)?);
        }
        let Some(loaded) = &mut self.loaded else { return Err(Failure::Failed("no model".into())) };
        let (prompt, answer, depth) = (test.n_prompt, test.n_gen, test.settings.n_depth);
        let tokens = u64::from(prompt) + u64::from(answer) + u64::from(depth);
        if let Some(positions) = loaded.model.information().positions.filter(|most| tokens > u64::from(*most))
        {
            return Err(Failure::Failed(format!(
                "a test of {prompt} tokens of prompt, {answer} generated ones and {depth} before them (-p, -n, -d) is too \
                 long: the model has learned {positions} positions"
            )));
        }
        let mut run = Run { loaded, test, random: Random::new(0, 0) };
        if !self.bench.no_warmup {
            say("warmup");
            run.warm_up()?;
        }
        let mut nanoseconds = Vec::new();
        for repetition in 1..=self.bench.repetitions {
            say(&format!("run {repetition}/{}", self.bench.repetitions));
            run.fill_to_depth()?;
            let start = Instant::now();
            run.prompt(test.n_prompt)?;
            run.generate(test.n_gen)?;
            nanoseconds.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(Samples { model: loaded.facts.clone(), backend: loaded.backend.clone(), nanoseconds })
    }

    fn load(&self, settings: Settings) -> Result<Loaded, Failure> {
        let mode = settings.load_mode;
        let options = OpenOptions {
            mmap: !matches!(mode, "none" | "mlock" | "dio"),
            mlock: matches!(mode, "mlock" | "mmap+mlock"),
            ..OpenOptions::default()
        };
        let file = Arc::new(load::file(Path::new(&settings.model), &options, self.console)?);
        let processor = Options {
            threads: settings.n_threads as usize,
            features: load::features(self.bench.isa),
            deterministic: self.bench.deterministic,
            repack_keep: self.bench.repack_keep,
            ..load::backend_options()
        };
        let wish = device(&settings)?;
        let devices = placement::devices(&processor, &wish, &file.tensors, self.console)?;
        let options = ModelOptions {
            context: self.context(&settings),
            sequences: 1,
            micro_batch: settings.n_ubatch.min(settings.n_batch),
            outputs: 1,
            keys: load::cache_format(settings.type_k)?,
            values: load::cache_format(settings.type_v)?,
            ..ModelOptions::default()
        };
        let model = load::load(&file, &devices, &options, self.console)?;
        let facts = ModelFacts {
            description: file_types::description(&file),
            size: model.information().file_bytes,
            n_params: model.information().parameters,
            token_bytes: token_bytes(&file),
        };
        let vocabulary = model.information().vocabulary;
        let names = load::device_names(model.plan());
        let digits = |letter: char| letter.is_ascii_digit();
        let mut kinds: Vec<&str> =
            names.split([',', '+']).map(|name| name.trim().trim_end_matches(digits)).collect();
        kinds.dedup();
        let backend = kinds.join(",");
        Ok(Loaded { settings, backend, model, facts, vocabulary })
    }

    /// Cells for the longest of the tests with these settings.
    fn context(&self, settings: &Settings) -> u32 {
        let alike = self.tests.iter().filter(|test| without_lengths(&test.settings) == *settings);
        let lengths = alike.map(|test| {
            test.settings.n_depth.saturating_add(test.n_prompt).saturating_add(test.n_gen).max(1)
        });
        lengths.max().unwrap_or(1)
    }
}

/// What a test says about devices.
fn device(settings: &Settings) -> Result<Device, Failure> {
    let overrides = match settings.tensor_buft_overrides.as_str() {
        "none" => Ok(Vec::new()),
        patterns => override_list(patterns, ';'),
    };
    let names = device_list(&settings.devices, &['/']).map_err(Failure::Failed)?;
    let layers = match u32::try_from(settings.n_gpu_layers) {
        Ok(count) => Layers::Count(count),
        Err(_) => Layers::Fitting,
    };
    Ok(Device {
        names,
        layers,
        split: settings.split_mode,
        shares: settings.tensor_split.clone(),
        main: settings.main_gpu,
        overrides: overrides.map_err(Failure::Failed)?,
        cpu_moe: settings.n_cpu_moe,
        kv_offload: !settings.no_kv_offload,
        fit_target: vec![settings.fit_target],
        ..Device::default()
    })
}

/// Bytes of the tensors that one token reads whole: all but tables of which it reads a row, and experts.
fn token_bytes(file: &File) -> u64 {
    let untied = file.tensors.get("output.weight").is_some();
    let is_table = |name: &str| match name {
        "token_embd.weight" => untied,
        _ => {
            name.contains("_exps.") || matches!(name, "position_embd.weight" | "per_layer_token_embd.weight")
        }
    };
    file.tensors.iter().filter(|tensor| !is_table(&tensor.name)).map(|tensor| tensor.byte_len()).sum()
}

fn without_lengths(settings: &Settings) -> Settings {
    Settings { n_depth: 0, ..settings.clone() }
}

/// One test on its model.
struct Run<'a> {
    loaded: &'a mut Loaded,
    test: &'a Test,
    random: Random,
}

impl Run<'_> {
    /// A token by chance: the speed must not depend on which.
    fn token(&mut self) -> u32 {
        self.random.next_u32() % self.loaded.vocabulary.max(1)
    }

    fn step(&mut self, tokens: Vec<u32>) -> Result<(), Failure> {
        let work = vec![Work { sequence: 0, tokens, outputs: OutputRows::Last }];
        self.loaded.model.run(&Batch::of(work))?;
        Ok(())
    }

    fn prompt(&mut self, count: u32) -> Result<(), Failure> {
        let mut left = count;
        while left > 0 {
            let part = left.min(self.test.settings.n_batch.max(1));
            let tokens = (0..part).map(|_| self.token()).collect();
            self.step(tokens)?;
            left -= part;
        }
        Ok(())
    }

    fn generate(&mut self, count: u32) -> Result<(), Failure> {
        for _ in 0..count {
            let token = self.token();
            self.step(vec![token])?;
        }
        Ok(())
    }

    /// Whatever happens only once happens here.
    fn warm_up(&mut self) -> Result<(), Failure> {
        self.loaded.model.clear(0);
        self.prompt(self.test.n_prompt)?;
        self.generate(self.test.n_gen.min(1))
    }

    /// Leaves exactly the tokens that the test starts from, evaluating them only if they are not there.
    fn fill_to_depth(&mut self) -> Result<(), Failure> {
        let depth = self.test.settings.n_depth;
        let model = &mut self.loaded.model;
        if depth > 0 && model.length(0) >= depth && model.truncate(0, depth).is_ok() {
            return Ok(());
        }
        model.clear(0);
        self.prompt(depth)
    }
}
