//! How long the choice of one token takes: `cargo run --release -p puna-sampling --example step_speed`.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use puna_sampling::{Chain, Parameters, Random, parse_names};

fn main() {
    let mut random = Random::new(3, 9);
    // Roughly a model's logits: a bell around 0 and a few that stand out.
    let mut logits: Vec<f32> =
        (0..262_144).map(|_| (0..6).map(|_| random.next_f64() as f32).sum::<f32>() * 4.0 - 12.0).collect();
    (0..20).for_each(|index| logits[index * 9973] = 12.0 + index as f32 * 0.3);
    let base = Parameters::default;
    let allowed: Vec<u32> =
        (0..logits.len() / 32).map(|word| if word % 3 == 0 { u32::MAX } else { 0 }).collect();
    let all = parse_names("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature").unwrap();
    for (name, parameters, mask) in [
        ("default", base(), None),
        ("default, with a grammar", base(), Some(allowed.as_slice())),
        ("greedy", Parameters::greedy(), None),
        ("penalties", Parameters { repeat_penalty: 1.1, ..base() }, None),
        (
            "everything",
            Parameters {
                samplers: all,
                repeat_penalty: 1.1,
                dry_multiplier: 0.8,
                top_n_sigma: 2.0,
                typical_p: 0.9,
                xtc_probability: 0.5,
                dynatemp_range: 0.3,
                ..base()
            },
            None,
        ),
        ("no top-k", Parameters { top_k: 0, ..base() }, None),
        ("mirostat 2", Parameters { mirostat: 2, ..base() }, None),
    ] {
        let mut chain = Chain::new(&parameters, logits.len()).unwrap();
        (0..200).for_each(|token| chain.accept(token * 31 % 50));
        chain.sample(&logits, mask).unwrap();
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let start = Instant::now();
                let token = chain.sample(&logits, mask).unwrap();
                chain.accept(token);
                start.elapsed()
            })
            .collect();
        times.sort();
        println!("{name:24} median {:.0?}, 99% {:.0?}", times[100], times[197]);
    }
}
