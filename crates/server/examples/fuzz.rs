//! The targets of `fuzz/` with random inputs, without coverage: `cargo run --release -p puna-server --example fuzz SECONDS
//! [TARGET [SEED]]`. A failure prints the seed of its input; with that seed it is the first one.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

#[path = "../../../fuzz/src/lib.rs"]
mod targets;

/// Longest time for one input.
const LONGEST: Duration = Duration::from_secs(10);
/// Largest memory of the whole program in KiB.
const LARGEST: u64 = 2 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }
}

/// An input: pieces one after the other, sometimes repeated, sometimes with bytes changed.
fn input(pieces: &[&str], random: &mut Random) -> Vec<u8> {
    let mut data = vec![random.below(256) as u8];
    let most = if random.below(8) == 0 { 200 } else { 24 };
    let parts = 1 + random.below(most);
    for _ in 0..parts {
        let piece = pieces[random.below(pieces.len())];
        let times = if random.below(40) == 0 { 1 + random.below(300) } else { 1 };
        (0..times).for_each(|_| data.extend_from_slice(piece.as_bytes()));
        if data.len() > 4096 {
            break;
        }
    }
    if random.below(3) == 0 {
        for _ in 0..random.below(6) {
            let place = random.below(data.len());
            match random.below(3) {
                0 => data[place] = random.below(256) as u8,
                1 => drop(data.remove(place)),
                _ => data.insert(place, random.below(128) as u8),
            }
            if data.is_empty() {
                data.push(0);
            }
        }
    }
    data
}

/// Memory that was used at most, in KiB; 0 where nobody says.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(60);
    let only = arguments.get(1);
    let first: u64 = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut failed = false;
    for (name, run, pieces) in targets::TARGETS {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let start = Instant::now();
        let (mut count, mut slowest) = (0u64, (Duration::ZERO, 0));
        let mut seed = first;
        while start.elapsed() < Duration::from_secs(seconds) {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let mut data = input(pieces, &mut random);
            if !matches!(*name, "output" | "tokenizer") {
                data.remove(0);
            }
            let began = Instant::now();
            if std::panic::catch_unwind(|| run(&data)).is_err() {
                println!("{name}: input {seed} fails: {:?}", String::from_utf8_lossy(&data));
                failed = true;
                break;
            }
            let time = began.elapsed();
            slowest = slowest.max((time, seed));
            if time > LONGEST || memory() > LARGEST {
                println!(
                    "{name}: input {seed} takes {time:?} and {} KiB: {:?}",
                    memory(),
                    String::from_utf8_lossy(&data)
                );
                failed = true;
                break;
            }
            (count, seed) = (count + 1, seed + 1);
        }
        println!(
            "{name}: {count} inputs, the slowest took {:?} (seed {}), {} KiB",
            slowest.0,
            slowest.1,
            memory()
        );
    }
    std::process::exit(i32::from(failed));
}
