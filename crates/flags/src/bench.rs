//! Flags of `bench`: every setting is a list, and a test is one combination of them.

use crate::config::ISA_LEVELS;
use crate::flag::{Action, Flag, Group, ToolSet};
use crate::table::{CACHE_TYPES, MOST_THREADS, SPLITS, device_list, override_list, share_list};
use crate::values::{
    Toggle, Whole, at_least, boolean, choice, filled, integer, integers, isa_level, mask, toggle,
};

/// Most values that one list may have, and most tests in one run.
const MOST: usize = 100_000;

/// What the flags of `bench` say.
#[derive(Clone, PartialEq, Debug)]
pub struct Bench {
    /// One list per setting; an empty list stands for the default.
    pub lists: Lists,
    /// Prompt lengths to test.
    pub n_prompt: Vec<u32>,
    /// Generation lengths to test.
    pub n_gen: Vec<u32>,
    /// Pairs of prompt and generation length to test as one.
    pub n_pg: Vec<(u32, u32)>,
    /// Models of the hub, `user/model[:quant]`.
    pub hf_repo: Vec<String>,
    /// Files in them.
    pub hf_file: Vec<String>,
    /// Access token for the hub.
    pub hf_token: Option<String>,
    /// Never use the network.
    pub offline: bool,
    /// Times that each test is measured.
    pub repetitions: u32,
    /// Seconds to wait before each test.
    pub delay: u32,
    /// Format on the standard output.
    pub output: OutputFormat,
    /// Format on the standard error.
    pub output_err: Option<OutputFormat>,
    /// Print all messages.
    pub verbose: bool,
    /// Say which test is running.
    pub progress: bool,
    /// Measure without a run before.
    pub no_warmup: bool,
    /// How far kernels may go: one of [`ISA_LEVELS`].
    pub isa: &'static str,
    /// Results of a row may not depend on the other rows of a step.
    pub deterministic: bool,
    /// Keep the file's own copy of repacked weights resident.
    pub repack_keep: bool,
    /// Measure how fast memory can be read, and compare generation with it.
    pub bandwidth: bool,
}

impl Default for Bench {
    fn default() -> Self {
        Self {
            lists: Lists::default(),
            n_prompt: Vec::new(),
            n_gen: Vec::new(),
            n_pg: Vec::new(),
            hf_repo: Vec::new(),
            hf_file: Vec::new(),
            hf_token: None,
            offline: false,
            repetitions: 5,
            delay: 0,
            output: OutputFormat::Markdown,
            output_err: None,
            verbose: false,
            progress: false,
            no_warmup: false,
            isa: ISA_LEVELS[0],
            deterministic: false,
            repack_keep: false,
            bandwidth: false,
        }
    }
}

/// Format of the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputFormat {
    /// A table for people.
    Markdown,
    /// Comma-separated values with a header.
    Csv,
    /// One JSON array.
    Json,
    /// One JSON object a line.
    Jsonl,
    /// SQL statements.
    Sql,
}

/// One measurement to make.
#[derive(Clone, PartialEq, Debug)]
pub struct Test {
    /// Everything that is set.
    pub settings: Settings,
    /// Tokens of the prompt.
    pub n_prompt: u32,
    /// Tokens generated after it.
    pub n_gen: u32,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr,)*) => {
        /// One list per setting, in the order in which tests are combined: the first one changes most rarely.
        #[derive(Clone, PartialEq, Debug, Default)]
        pub struct Lists {
            $($(#[$doc])* pub $name: Vec<$type>,)*
        }

        /// One value per setting.
        #[derive(Clone, PartialEq, Debug)]
        pub struct Settings {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Lists {
            /// Every combination; an empty list counts as the default value alone.
            fn combinations(&self, defaults: &Settings) -> Result<Vec<Settings>, String> {
                let mut all = vec![defaults.clone()];
                $(
                    if !self.$name.is_empty() {
                        if all.len().saturating_mul(self.$name.len()) > MOST {
                            return Err(format!("more than {MOST} tests"));
                        }
                        let mut next = Vec::with_capacity(all.len() * self.$name.len());
                        for settings in &all {
                            for value in &self.$name {
                                next.push(Settings { $name: value.clone(), ..settings.clone() });
                            }
                        }
                        all = next;
                    }
                )*
                Ok(all)
            }

            /// Names of the settings whose list differs from the default value alone.
            pub fn changed(&self, defaults: &Settings) -> Vec<&'static str> {
                let mut names = Vec::new();
                $(
                    let list = &self.$name;
                    if list.len() > 1 || list.first().is_some_and(|value| *value != defaults.$name) {
                        names.push(stringify!($name));
                    }
                )*
                names
            }
        }
    };
}

settings! {
    /// Model file.
    model: String = String::new(),
    /// MiB to leave free on devices.
    fit_target: u32 = 1024,
    /// Least context that may be chosen.
    fit_min_ctx: u32 = 0,
    /// Layers on devices other than the CPU; -1 is as many as fit.
    n_gpu_layers: i32 = -1,
    /// Layers whose experts stay on the CPU.
    n_cpu_moe: u32 = 0,
    /// How the model is split over devices.
    split_mode: &'static str = "layer",
    /// How the file is read.
    load_mode: &'static str = "auto",
    /// Whether rarely used tensors are read on demand.
    lazy_mode: &'static str = "auto",
    /// First device.
    main_gpu: u32 = 0,
    /// Device, or `auto`.
    devices: String = "auto".to_owned(),
    /// Shares of the devices.
    tensor_split: Vec<f32> = Vec::new(),
    /// Places of tensors by name, separated by semicolons.
    tensor_buft_overrides: String = "none".to_owned(),
    /// No pinned host memory.
    no_host: bool = false,
    /// Convert weights to the kernels' layout.
    repack: bool = true,
    /// Embeddings instead of logits.
    embeddings: bool = false,
    /// Operations stay on the device of their weights.
    no_op_offload: bool = false,
    /// Tokens handed over at once.
    n_batch: u32 = 2048,
    /// Tokens computed at once.
    n_ubatch: u32 = 512,
    /// Number format of cached keys.
    type_k: &'static str = "f16",
    /// Number format of cached values.
    type_v: &'static str = "f16",
    /// Caches stay in host memory.
    no_kv_offload: bool = false,
    /// Flash-style attention: 1 on, 0 off, -1 automatic.
    flash_attn: i32 = -1,
    /// Threads.
    n_threads: u32 = 1,
    /// Processors to use.
    cpu_mask: String = "0x0".to_owned(),
    /// One processor per thread.
    cpu_strict: bool = false,
    /// Tokens in the context before the test.
    n_depth: u32 = 0,
    /// How long idle threads look for work, 0 to 100.
    poll: u32 = 50,
}

impl Bench {
    /// All tests in their order. `defaults` holds the value of each setting without a list.
    pub fn tests(&self, defaults: &Settings) -> Result<Vec<Test>, String> {
        let or = |list: &[u32], default: u32| if list.is_empty() { vec![default] } else { list.to_vec() };
        let prompts = or(&self.n_prompt, 512).into_iter().map(|n| (n, 0));
        let answers = or(&self.n_gen, 128).into_iter().map(|n| (0, n));
        let lengths: Vec<(u32, u32)> = prompts
            .chain(answers)
            .chain(self.n_pg.iter().copied())
            .filter(|lengths| *lengths != (0, 0))
            .collect();
        let all = self.lists.combinations(defaults)?;
        if all.len().saturating_mul(lengths.len()) > MOST {
            return Err(format!("more than {MOST} tests"));
        }
        let tests = all.into_iter().flat_map(|settings| {
            lengths
                .iter()
                .map(move |(n_prompt, n_gen)| Test {
                    settings: settings.clone(),
                    n_prompt: *n_prompt,
                    n_gen: *n_gen,
                })
                .collect::<Vec<_>>()
        });
        Ok(tests.collect())
    }
}

/// What is wrong with a list of numbers that is none.
const RANGES: &str = "expected numbers or ranges FIRST-LAST[+STEP|*FACTOR]";

/// What is wrong with a number of a list: only that it is too large or too small, or that it is none.
fn told(text: &str, reason: String) -> String {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { reason } else { RANGES.to_owned() }
}

/// Whole numbers and ranges `FIRST-LAST[+STEP|*FACTOR]`, separated by commas.
fn ranges<T: Whole>(value: &str) -> Result<Vec<T>, String> {
    let mut all = Vec::new();
    for item in value.split(',') {
        // A leading minus is a sign, not a range.
        let dash = item.char_indices().skip(1).find(|(_, letter)| *letter == '-').map(|(place, _)| place);
        let Some((first, rest)) = dash.and_then(|place| item.split_at_checked(place)) else {
            all.push(integer(item).map_err(|reason| told(item, reason))?);
            continue;
        };
        let rest = rest.get(1..).unwrap_or("");
        let (last, step, factor) = match rest.find(['+', '*']).map(|place| rest.split_at(place)) {
            None => (rest, 1, 1),
            Some((last, step)) if step.starts_with('+') => (last, integer::<i64>(&step[1..])?, 1),
            Some((last, factor)) => (last, 0, integer::<i64>(&factor[1..])?),
        };
        let number = |text| integer::<i64>(text).map_err(|reason| told(text, reason));
        let (mut current, last) = (number(first)?, number(last)?);
        if current > last {
            return Err("the range ends before it begins".into());
        }
        while current <= last {
            all.push(integer(&current.to_string())?);
            let next = current.checked_mul(factor).and_then(|next| next.checked_add(step));
            match next {
                Some(next) if next > current => current = next,
                Some(_) => return Err("the range never ends".into()),
                None => break,
            }
            if all.len() > MOST {
                return Err(format!("more than {MOST} values"));
            }
        }
    }
    Ok(all)
}

fn words(value: &str, known: &[&'static str]) -> Result<Vec<&'static str>, String> {
    value.split(',').map(|word| choice(word, known)).collect()
}

fn booleans(value: &str) -> Result<Vec<bool>, String> {
    value.split(',').map(boolean).collect()
}

fn texts(value: &str) -> Result<Vec<String>, String> {
    value.split(',').map(filled).collect()
}

fn masks(value: &str) -> Result<Vec<String>, String> {
    let masks = texts(value)?;
    masks.iter().try_for_each(|text| mask(text))?;
    Ok(masks)
}

fn pair(value: &str) -> Result<(u32, u32), String> {
    let (prompt, answer) = value.split_once(',').ok_or("expected PROMPT,GENERATION")?;
    Ok((integer(prompt)?, integer(answer)?))
}

fn flash(value: &str) -> Result<Vec<i32>, String> {
    let number = |toggled| match toggled {
        Toggle::On => 1,
        Toggle::Off => 0,
        Toggle::Auto => -1,
    };
    value.split(',').map(|word| toggle(word).map(number)).collect()
}

fn shares(value: &str) -> Result<Vec<Vec<f32>>, String> {
    value.split(',').map(|split| share_list(split, &[';', '/'])).collect()
}

fn format(value: &str) -> Result<OutputFormat, String> {
    Ok(match choice(value, &["md", "csv", "json", "jsonl", "sql"])? {
        "csv" => OutputFormat::Csv,
        "json" => OutputFormat::Json,
        "jsonl" => OutputFormat::Jsonl,
        "sql" => OutputFormat::Sql,
        _ => OutputFormat::Markdown,
    })
}

macro_rules! list {
    ($spellings:literal, $placeholder:literal, $help:literal, $($field:ident).+, $parse:expr) => {
        Flag::value($spellings, $placeholder, $help, |b: &mut Bench, v| {
            b.$($field).+.append(&mut $parse(v)?);
            Ok(())
        })
    };
}

/// A setting without effect: the results name it, but several values would measure the same thing again.
macro_rules! fixed {
    ($spellings:literal, $placeholder:literal, $help:literal, $($field:ident).+, $parse:expr) => {
        Flag::value($spellings, $placeholder, $help, |b: &mut Bench, v| {
            b.$($field).+.append(&mut $parse(v)?);
            match b.$($field).+.len() {
                0 | 1 => Ok(()),
                _ => Err("expected one value only, because it has no effect here".into()),
            }
        })
    };
}

static GENERAL: &[Flag<Bench>] = &[
    Flag::action("-h --help", "Print this help", Action::Help),
    Flag::action("--version", "Print version and build", Action::Version),
    Flag::action("--completion-bash", "Print a completion script for bash", Action::CompletionBash),
    Flag::action("--list-devices", "List the devices that were found", Action::ListDevices),
    Flag::value("-r --repetitions", "N", "Times that each test is measured", |b: &mut Bench, v| {
        b.repetitions = at_least(v, 1)?;
        Ok(())
    })
    .default("5"),
    Flag::value("--delay", "SECONDS", "Wait before each test", |b: &mut Bench, v| {
        b.delay = integer(v)?;
        Ok(())
    })
    .default("0"),
    Flag::value(
        "-o --output",
        "md|csv|json|jsonl|sql",
        "Format on the standard output",
        |b: &mut Bench, v| {
            b.output = format(v)?;
            Ok(())
        },
    )
    .default("md"),
    Flag::value("-oe --output-err", "FORMAT", "Format on the standard error, or none", |b: &mut Bench, v| {
        b.output_err = match choice(v, &["none", "md", "csv", "json", "jsonl", "sql"])? {
            "none" => None,
            known => Some(format(known)?),
        };
        Ok(())
    })
    .default("none"),
    Flag::switch("-v --verbose", "Print all messages", |b: &mut Bench, on| b.verbose = on),
    Flag::switch("--progress", "Say which test is running", |b: &mut Bench, on| b.progress = on),
    Flag::switch("--no-warmup", "Measure without a run before", |b: &mut Bench, on| b.no_warmup = on),
    Flag::value(
        "--isa",
        "auto|scalar|avx2|avxvnni|avx512|amx|neon|dotprod|i8mm",
        "Instruction sets that kernels may use, up to this level",
        |b: &mut Bench, v| {
            b.isa = isa_level(v)?;
            Ok(())
        },
    )
    .default("auto"),
    Flag::switch(
        "--deterministic",
        "Results of a sequence do not depend on what else shares the step",
        |b: &mut Bench, on| b.deterministic = on,
    ),
    Flag::switch(
        "--repack-keep",
        "Keep the file's own copy of repacked weights in memory",
        |b: &mut Bench, on| b.repack_keep = on,
    ),
    Flag::switch(
        "--bandwidth",
        "Measure how fast memory can be read, and which share of it generation reaches",
        |b: &mut Bench, on| b.bandwidth = on,
    ),
    Flag::value("--prio", "-1..3", "Priority of the threads", |_, v| {
        choice(v, &["-1", "0", "1", "2", "3"]).map(drop)
    })
    .inert("the system's priority is kept"),
    Flag::value("--numa", "TYPE", "Memory of several processors", |_, v| {
        choice(v, &["distribute", "isolate", "numactl", "mirror"]).map(drop)
    })
    .inert("the system places the threads"),
    Flag::not_yet("-rpc --rpc", "HOST:PORT,...", "Devices of other machines"),
];

static LISTS: &[Flag<Bench>] = &[
    list!("-m --model", "FILE,...", "Model files", lists.model, texts).env("LLAMA_ARG_MODEL"),
    list!("-hf -hfr --hf-repo", "USER/MODEL[:QUANT],...", "Models of the hub", hf_repo, texts),
    list!("-hff --hf-file", "FILE,...", "Files of them", hf_file, texts),
    Flag::value("-hft --hf-token", "TOKEN", "Access token for the hub", |b: &mut Bench, v| {
        b.hf_token = Some(filled(v)?);
        Ok(())
    })
    .env("HF_TOKEN"),
    Flag::switch("--offline", "Never use the network", |b: &mut Bench, on| b.offline = on)
        .env("LLAMA_ARG_OFFLINE"),
    list!("-p --n-prompt", "N,...", "Prompt lengths; 512 if absent, 0 for no such test", n_prompt, ranges),
    list!("-n --n-gen", "N,...", "Generation lengths; 128 if absent, 0 for no such test", n_gen, ranges),
    Flag::value("-pg", "PROMPT,GENERATION", "Prompt and generation as one test", |b: &mut Bench, v| {
        b.n_pg.push(pair(v)?);
        Ok(())
    }),
    list!(
        "-d --n-depth",
        "N,...",
        "Tokens in the context before the test; 0 if absent",
        lists.n_depth,
        ranges
    ),
    list!("-b --batch-size", "N,...", "Upper limit of -ub; 2048 if absent", lists.n_batch, counts),
    list!("-ub --ubatch-size", "N,...", "Tokens computed at once; 512 if absent", lists.n_ubatch, counts),
    list!(
        "-ctk --cache-type-k",
        "TYPE,...",
        "Number formats of cached keys; f16 if absent",
        lists.type_k,
        cache_types
    ),
    list!(
        "-ctv --cache-type-v",
        "TYPE,...",
        "Number formats of cached values; f16 if absent",
        lists.type_v,
        cache_types
    ),
    list!("-t --threads", "N,...", "Threads; one per physical core if absent", lists.n_threads, threads),
    fixed!(
        "-fa --flash-attn",
        "on|off|auto",
        "Flash-style attention; auto if absent",
        lists.flash_attn,
        flash
    )
    .inert("there is one kind of attention, which is flash-style"),
    fixed!("--poll", "0...100", "How long idle threads look for work; 50 if absent", lists.poll, ranges)
        .inert("the pool chooses by itself"),
    fixed!("-C --cpu-mask", "HEX", "Processors to use", lists.cpu_mask, masks)
        .inert("the system places the threads"),
    fixed!("--cpu-strict", "0|1", "One processor per thread", lists.cpu_strict, booleans)
        .inert("the system places the threads"),
    list!(
        "-lm --load-mode",
        "MODE,...",
        "How the file is read: auto, none, mmap, mlock, mmap+mlock or dio",
        lists.load_mode,
        |v| { words(v, &["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]) }
    ),
    fixed!("-lzm --lazy-mode", "on|off|auto", "Read rarely used tensors on demand", lists.lazy_mode, |v| {
        words(v, &["on", "off", "auto"])
    })
    .inert("a memory map is always read on demand"),
    fixed!("--repack", "0|1", "Convert weights to the layout that kernels read", lists.repack, booleans)
        .inert("they always are"),
    list!(
        "-ngl --n-gpu-layers --gpu-layers",
        "N",
        "Layers on devices other than the CPU, the output counted as one; -1: as many as fit",
        lists.n_gpu_layers,
        layer_counts
    ),
    list!(
        "-dev --device",
        "NAME,...",
        "Devices to measure, one after another; several of one test are separated by /",
        lists.devices,
        devices
    ),
    list!("-ncmoe --n-cpu-moe", "N", "First layers whose experts are on the CPU", lists.n_cpu_moe, ranges),
    list!(
        "-sm --split-mode",
        "none|layer|row|tensor",
        "How the model is split over several devices",
        lists.split_mode,
        |v| { words(v, SPLITS) }
    ),
    list!("-mg --main-gpu", "INDEX", "The device of -sm none", lists.main_gpu, ranges),
    list!("-nkvo --no-kv-offload", "0|1", "Caches are in host memory", lists.no_kv_offload, booleans),
    list!("-ts --tensor-split", "N/N", "Shares of the devices", lists.tensor_split, shares),
    list!(
        "-ot --override-tensor",
        "REGEX=DEVICE;...",
        "Devices of tensors by patterns of names",
        lists.tensor_buft_overrides,
        tensor_places
    ),
    fixed!(
        "-nopo --no-op-offload",
        "0|1",
        "Operations stay with their weights",
        lists.no_op_offload,
        booleans
    )
    .inert("operations run where their weights are"),
    fixed!("--no-host", "0|1", "No pinned host memory", lists.no_host, booleans)
        .inert("weights on the CPU lie in ordinary memory"),
    Flag::value("-embd --embeddings", "0", "Only 0 so far", |b: &mut Bench, v| {
        let all = booleans(v)?;
        if all.contains(&true) {
            return Err("embeddings are not supported yet".into());
        }
        b.lists.embeddings.extend(all);
        Ok(())
    }),
    list!(
        "-fitt --fit-target",
        "MIB",
        "MiB to leave free on devices where -ngl is -1",
        lists.fit_target,
        integers
    ),
    fixed!("-fitc --fit-ctx", "N", "Least context that may be chosen", lists.fit_min_ctx, integers)
        .inert("a test has the context that it needs"),
];

fn counts(value: &str) -> Result<Vec<u32>, String> {
    let all: Vec<u32> = ranges(value)?;
    if all.contains(&0) { Err("expected numbers of at least 1".into()) } else { Ok(all) }
}

fn threads(value: &str) -> Result<Vec<u32>, String> {
    let all = counts(value)?;
    if all.iter().any(|threads| *threads as usize > MOST_THREADS) {
        return Err(format!("expected at most {MOST_THREADS}"));
    }
    Ok(all)
}

/// Devices as they are printed in the results; [`device_list`] reads them again.
fn devices(value: &str) -> Result<Vec<String>, String> {
    value.split(',').map(|names| device_list(names, &['/']).map(|_| names.trim().to_owned())).collect()
}

fn layer_counts(value: &str) -> Result<Vec<i32>, String> {
    let all: Vec<i32> = ranges(value)?;
    if all.iter().any(|count| *count < -1) { Err("expected -1 or more".into()) } else { Ok(all) }
}

/// The patterns of one test, as they are printed; [`override_list`] reads them again.
fn tensor_places(value: &str) -> Result<Vec<String>, String> {
    let each = |item: &str| match item {
        "none" => Ok("none".to_owned()),
        item => override_list(item, ';').map(|_| item.to_owned()),
    };
    value.split(',').map(each).collect()
}

fn cache_types(value: &str) -> Result<Vec<&'static str>, String> {
    words(&value.to_ascii_lowercase(), CACHE_TYPES)
}

/// The flags of `bench`.
pub static FLAGS: &[Group<Bench>] =
    &[Group { heading: "Options", flags: GENERAL }, Group { heading: "Settings (lists)", flags: LISTS }];

/// The command line of `bench`.
pub const SPEC: crate::Spec<Bench> = crate::Spec {
    name: "bench",
    tool: ToolSet::BENCH,
    about: "Measure the speed of prompts and of generation. Settings take several values, separated by commas or \
            by repeating the flag, and ranges FIRST-LAST, FIRST-LAST+STEP and FIRST-LAST*FACTOR; every combination \
            is measured.",
    groups: FLAGS,
    positional: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_expand() {
        for (text, expected) in [
            ("512", vec![512]),
            ("1,2", vec![1, 2]),
            ("1-4", vec![1, 2, 3, 4]),
            ("0-64+32", vec![0, 32, 64]),
            ("128-1024*2,7", vec![128, 256, 512, 1024, 7]),
            ("-1,99", vec![-1, 99]),
        ] {
            assert_eq!(ranges::<i32>(text), Ok(expected), "{text}");
        }
        for wrong in
            ["", "a", "1-", "9-4", "1-9+0", "1-9*1", "1-9+-1", "1,,2", "1-99999999", "0-9*2", "1-9%2"]
        {
            assert!(ranges::<u32>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tests_are_all_combinations_in_order() {
        let mut bench =
            Bench { n_prompt: vec![8, 16], n_gen: vec![0], n_pg: vec![(4, 2)], ..Bench::default() };
        bench.lists.n_threads = vec![1, 2];
        bench.lists.n_batch = vec![32];
        let tests = bench.tests(&Settings::default()).unwrap();
        let seen: Vec<_> =
            tests.iter().map(|test| (test.settings.n_threads, test.n_prompt, test.n_gen)).collect();
        assert_eq!(seen, [(1, 8, 0), (1, 16, 0), (1, 4, 2), (2, 8, 0), (2, 16, 0), (2, 4, 2)]);
        assert!(tests.iter().all(|test| test.settings.n_batch == 32 && test.settings.n_ubatch == 512));
        assert_eq!(bench.lists.changed(&Settings::default()), ["n_batch", "n_threads"]);
        bench.lists.n_depth = (0..1000).collect();
        bench.lists.n_ubatch = (0..100).collect();
        assert!(bench.tests(&Settings::default()).is_err());
    }

    #[test]
    fn without_lists_it_is_pp512_and_tg128() {
        let tests = Bench::default().tests(&Settings::default()).unwrap();
        let seen: Vec<_> = tests.iter().map(|test| (test.n_prompt, test.n_gen)).collect();
        assert_eq!(seen, [(512, 0), (0, 128)]);
    }
}
