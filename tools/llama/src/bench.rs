//! `llama bench`: runs every combination of the settings and prints the results.

use crate::bench_output::{Machine, ModelFacts, Printer, Row};
use crate::console::{Console, INFORMATION};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::measure::Measuring;
use crate::{bench_output, console, devices, load, source};
use puna_backends::REGISTRY;
use puna_flags::bench::{Bench, OutputFormat, SPEC, Settings, Test};
use puna_flags::{Log, Model, device_list};
use puna_runtime::RuntimeError;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What measuring a test yields.
pub struct Samples {
    /// The model that was measured.
    pub model: ModelFacts,
    /// The devices that ran it.
    pub backend: String,
    /// Nanoseconds of each repetition.
    pub nanoseconds: Vec<u64>,
}

/// Longest text that a cache is for.
const MOST_TOKENS: u64 = 1 << 30;

/// Measures one test; the second argument tells what is going on when `--progress` is given.
type Measure<'a> = &'a mut dyn FnMut(&Test, &dyn Fn(&str)) -> Result<Samples, Failure>;

/// `llama bench`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((mut bench, warnings)) = invocation.parse_over(&SPEC, Bench::default())? else { return Ok(()) };
    let log = Log { verbosity: bench.verbose.then_some(5), ..Log::default() };
    let console = Console::new(&log, INFORMATION)?;
    warnings.iter().for_each(|warning| console.warn(warning));
    add_models(invocation, &mut bench, &console)?;
    let n_threads = u32::try_from(puna_backends::default_threads()).unwrap_or(1);
    let defaults = Settings { n_threads, ..Settings::default() };
    let tests = bench.tests(&defaults).map_err(|error| invocation.usage(error))?;
    if tests.is_empty() && !bench.bandwidth {
        return Err(invocation.usage("nothing to measure: -p and -n are 0 and there is no -pg"));
    }
    for test in &tests {
        let parts = [test.n_prompt, test.n_gen, test.settings.n_depth].map(u64::from);
        if parts.iter().sum::<u64>() > MOST_TOKENS {
            let [prompt, generated, depth] = parts;
            return Err(invocation.usage(format!(
                "a test of {prompt} tokens of prompt, {generated} generated ones and {depth} before them (-p, -n, -d) is too \
                 long: together at most {MOST_TOKENS}"
            )));
        }
    }
    let machine = Machine {
        cpu_info: devices::processor(),
        gpu_info: String::new(),
        backends: backends(&tests)?,
        build_commit: option_env!("PUNA_BUILD_COMMIT").unwrap_or("unknown").to_owned(),
        build_number: option_env!("PUNA_BUILD_NUMBER").and_then(|number| number.parse().ok()).unwrap_or(0),
    };
    let mut measuring = Measuring::new(&tests, &bench, &console);
    let mut measure = |test: &Test, say: &dyn Fn(&str)| measuring.measure(test, say);
    let (out, err) = (&mut std::io::stdout(), &mut std::io::stderr());
    let speeds = run_tests(&bench, &defaults, &machine, &tests, out, err, &mut measure)?;
    if bench.bandwidth {
        // Scripts read the other formats, so there people are told on the side.
        let text = bandwidth(&bench, &speeds)?;
        match bench.output {
            OutputFormat::Markdown => out.write_all(text.as_bytes())?,
            _ => err.write_all(text.as_bytes())?,
        }
    }
    Ok(())
}

/// One generating test: its name, threads, and bytes of weights that it read in a second.
struct Reading {
    name: String,
    threads: u32,
    bytes_per_second: f64,
}

/// What was measured of the memory for each number of threads, and what share of it generation reached.
fn bandwidth(bench: &Bench, readings: &[Reading]) -> Result<String, Failure> {
    /// More than the caches of most processors.
    const BYTES: usize = 768 << 20;
    let mut text = String::from("\n");
    let mut threads: Vec<u32> = readings.iter().map(|reading| reading.threads).collect();
    threads.dedup();
    for threads in threads {
        let features = load::features(bench.isa);
        let time = Duration::from_secs(2);
        let found = puna_backends::read_bandwidth(features, threads as usize, BYTES, time)
            .ok_or_else(|| Failure::Failed(format!("no memory for {BYTES} bytes to read")))?;
        text += &format!(
            "read bandwidth of {threads} threads: {:.1} GB/s ({} streams each)\n",
            found.bytes_per_second / 1e9,
            found.streams
        );
        for reading in readings.iter().filter(|reading| reading.threads == threads) {
            text += &format!(
                "{}: {:.1} GB/s of weights, {:.0} % of it\n",
                reading.name,
                reading.bytes_per_second / 1e9,
                100.0 * reading.bytes_per_second / found.bytes_per_second
            );
        }
    }
    Ok(text)
}

/// Names of the devices that the tests name, which must all be of known kinds.
fn backends(tests: &[Test]) -> Result<String, Failure> {
    let mut names: Vec<String> = Vec::new();
    for test in tests {
        let named = device_list(&test.settings.devices, &['/']).map_err(Failure::Failed)?;
        for name in named.unwrap_or_else(automatic) {
            puna_backends::find(Some(&name)).map_err(RuntimeError::from)?;
            let kind = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).to_owned();
            if !names.contains(&kind) {
                names.push(kind);
            }
        }
    }
    Ok(names.join(","))
}

/// Names of the devices that are used when none is named.
fn automatic() -> Vec<String> {
    let options = load::backend_options();
    let started =
        REGISTRY.iter().filter(|entry| entry.automatic).filter_map(|entry| (entry.start)(&options).ok());
    let names: Vec<String> =
        started.flat_map(|backend| backend.devices()).map(|device| device.name).collect();
    if names.is_empty() { vec!["CPU".to_owned()] } else { names }
}

/// Adds the files of models of the hub; without any model the starter model.
fn add_models(invocation: &Invocation, bench: &mut Bench, console: &Console) -> Result<(), Failure> {
    let mut file = bench.hf_file.iter();
    for repository in &bench.hf_repo {
        let model = Model {
            hf_repo: Some(repository.clone()),
            hf_file: file.next().cloned(),
            hf_token: bench.hf_token.clone(),
            offline: bench.offline,
            ..Model::default()
        };
        let path = source::model(invocation, &model, console, false)?;
        bench.lists.model.push(path.to_string_lossy().into_owned());
    }
    if bench.lists.model.is_empty() {
        let model = Model { offline: bench.offline, ..Model::default() };
        let path: PathBuf = source::model(invocation, &model, console, true)?;
        bench.lists.model.push(path.to_string_lossy().into_owned());
    }
    // Not only when its turn comes.
    match bench.lists.model.iter().find(|path| !Path::new(path).exists()) {
        Some(path) => Err(Failure::Failed(format!("{path}: there is no such file"))),
        None => Ok(()),
    }
}

/// Measures all tests and prints each as soon as it is done.
fn run_tests(
    bench: &Bench,
    defaults: &Settings,
    machine: &Machine,
    tests: &[Test],
    out: &mut dyn Write,
    err: &mut dyn Write,
    measure: Measure<'_>,
) -> Result<Vec<Reading>, Failure> {
    let mut readings = Vec::new();
    let printer = |format| Printer::new(format, bench, defaults, machine);
    let mut main = printer(bench.output);
    let mut second = bench.output_err.map(printer);
    let mut header = Some(main.header());
    if let Some(second) = &second {
        err.write_all(second.header().as_bytes())?;
    }
    for (index, test) in tests.iter().enumerate() {
        let say = |what: &str| {
            if bench.progress {
                console::plain(&format!("llama-bench: benchmark {}/{}: {what}", index + 1, tests.len()));
            }
        };
        say("starting");
        std::thread::sleep(Duration::from_secs(bench.delay.into()));
        let test_time = utc(SystemTime::now());
        let samples = measure(test, &say)?;
        // The header waits for the first result, so that a failure prints nothing on the standard output.
        if let Some(header) = header.take() {
            out.write_all(header.as_bytes())?;
        }
        let row = Row {
            machine: Machine { backends: samples.backend, ..machine.clone() },
            model: samples.model,
            test: test.clone(),
            test_time,
            samples_ns: samples.nanoseconds,
        };
        if row.test.n_prompt == 0 {
            readings.push(Reading {
                name: format!("{} {}", row.model.description, row.test_name()),
                threads: row.test.settings.n_threads,
                bytes_per_second: row.model.token_bytes as f64 * bench_output::mean(&row.tokens_per_second()),
            });
        }
        out.write_all(main.row(&row).as_bytes())?;
        out.flush()?;
        if let Some(second) = &mut second {
            err.write_all(second.row(&row).as_bytes())?;
        }
    }
    out.write_all((header.unwrap_or_default() + &main.footer()).as_bytes())?;
    if let Some(second) = &second {
        err.write_all(second.footer().as_bytes())?;
    }
    Ok(readings)
}

/// A time in UTC as `2026-01-31T12:00:00Z`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn rows_are_printed_in_both_formats_and_failures_end_the_run() {
        let bench = Bench {
            n_prompt: vec![8],
            n_gen: vec![4],
            output: OutputFormat::Jsonl,
            output_err: Some(OutputFormat::Csv),
            ..Bench::default()
        };
        let defaults = Settings::default();
        let tests = bench.tests(&defaults).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut seen = Vec::new();
        let mut measure = |test: &Test, _: &dyn Fn(&str)| {
            seen.push((test.n_prompt, test.n_gen));
            Ok(Samples {
                model: ModelFacts::default(),
                backend: "CPU".into(),
                nanoseconds: vec![1_000_000; 5],
            })
        };
        run_tests(&bench, &defaults, &Machine::default(), &tests, &mut out, &mut err, &mut measure).unwrap();
        assert_eq!(seen, [(8, 0), (0, 4)]);
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 2);
        assert_eq!(String::from_utf8(err).unwrap().lines().count(), 3);
        let mut out = Vec::new();
        let mut fail = |_: &Test, _: &dyn Fn(&str)| Err(Failure::Failed("no".into()));
        let result =
            run_tests(&bench, &defaults, &Machine::default(), &tests, &mut out, &mut Vec::new(), &mut fail);
        assert!(matches!(result, Err(Failure::Failed(_))));
        assert!(out.is_empty());
    }
}
