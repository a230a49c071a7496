//! Threads and where they run.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{boolean, choice, integer, isa_level, mask};

const PLACE: &str = "the system places the threads";

/// More threads than any machine has cores for.
pub(crate) const MOST_THREADS: usize = 4096;

/// A number of threads; -1 and 0 leave it to the program.
fn threads(value: &str) -> Result<Option<usize>, String> {
    let number: i32 = integer(value)?;
    match usize::try_from(number) {
        Ok(number) if number > MOST_THREADS => Err(format!("expected at most {MOST_THREADS}")),
        other => Ok(other.ok().filter(|number| *number > 0)),
    }
}

fn range(value: &str) -> Result<(), String> {
    let ends = value.split_once('-').ok_or("expected FIRST-LAST")?;
    for end in [ends.0, ends.1] {
        if !end.is_empty() {
            integer::<u32>(end)?;
        }
    }
    Ok(())
}

fn zero_or_one(value: &str) -> Result<(), String> {
    boolean(value).map(drop)
}

fn priority(value: &str) -> Result<(), String> {
    choice(value, &["-1", "0", "1", "2", "3"]).map(drop)
}

fn poll(value: &str) -> Result<u32, String> {
    match integer(value)? {
        level @ 0..=100 => Ok(level),
        _ => Err("expected 0 to 100".into()),
    }
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::value(
        "-t --threads",
        "N",
        "Threads for single tokens; -1 means one per physical core",
        |c: &mut Config, v| {
            c.cpu.threads = threads(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_THREADS")
    .default("-1")
    .tools(ToolSet::ENGINE),
    Flag::value(
        "--isa",
        "auto|scalar|avx2|avxvnni|avx512|amx|neon|dotprod|i8mm",
        "Instruction sets that kernels may use, up to this level",
        |c: &mut Config, v| {
            c.cpu.isa = isa_level(v)?;
            Ok(())
        },
    )
    .default("auto")
    .tools(ToolSet::ENGINE.or(ToolSet::DEVICES)),
    Flag::switch(
        "--deterministic",
        "Results of a sequence do not depend on what else shares the step, even where that costs speed",
        |c: &mut Config, on| c.cpu.deterministic = on,
    )
    .tools(ToolSet::ENGINE),
    Flag::switch(
        "--repack-keep",
        "Keep the file's own copy of repacked weights in memory",
        |c: &mut Config, on| c.cpu.repack_keep = on,
    )
    .tools(ToolSet::ENGINE),
    Flag::value("-tb --threads-batch", "N", "Threads for prompts", |_, v| threads(v).map(drop))
        .inert("there is one pool, of --threads")
        .tools(ToolSet::ENGINE),
    Flag::value(
        "--poll",
        "0...100",
        "How long threads without work keep looking for some before they sleep",
        |_, v| poll(v).map(drop),
    )
    .inert("the pool chooses by itself")
    .tools(ToolSet::ENGINE),
    Flag::value("--poll-batch", "0|1", "The same for prompts", |_, v| zero_or_one(v))
        .inert("there is one pool")
        .tools(ToolSet::ENGINE),
    Flag::value("-C --cpu-mask", "HEX", "Processors to use, as a mask", |_, v| mask(v))
        .inert(PLACE)
        .tools(ToolSet::ENGINE),
    Flag::value("-Cr --cpu-range", "FIRST-LAST", "Processors to use", |_, v| range(v))
        .inert(PLACE)
        .tools(ToolSet::ENGINE),
    Flag::value("--cpu-strict", "0|1", "One processor per thread", |_, v| zero_or_one(v))
        .inert(PLACE)
        .tools(ToolSet::ENGINE),
    Flag::value("--prio", "-1..3", "Priority of the threads", |_, v| priority(v))
        .inert("the system's priority is kept")
        .tools(ToolSet::ENGINE),
    Flag::value("-Cb --cpu-mask-batch", "HEX", "Processors for prompts, as a mask", |_, v| mask(v))
        .inert(PLACE)
        .tools(ToolSet::ENGINE),
    Flag::value("-Crb --cpu-range-batch", "FIRST-LAST", "Processors for prompts", |_, v| range(v))
        .inert(PLACE)
        .tools(ToolSet::ENGINE),
    Flag::value("--cpu-strict-batch", "0|1", "One processor per thread for prompts", |_, v| zero_or_one(v))
        .inert(PLACE)
        .tools(ToolSet::ENGINE),
    Flag::value("--prio-batch", "-1..3", "Priority of the threads for prompts", |_, v| priority(v))
        .inert("the system's priority is kept")
        .tools(ToolSet::ENGINE),
    Flag::value("--numa", "TYPE", "Memory of several processors: distribute, isolate or numactl", |_, v| {
        choice(v, &["distribute", "isolate", "numactl", "mirror"]).map(drop)
    })
    .env("LLAMA_ARG_NUMA")
    .inert(PLACE)
    .tools(ToolSet::ENGINE),
];
