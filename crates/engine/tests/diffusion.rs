//! Diffusion of zoo models on the evaluator, against the same loop written with numpy over logits in float64.

use std::sync::Arc;

use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::zoo;
use puna_engine::{
    DiffusionError, DiffusionOptions, DiffusionOrder, DiffusionSchedule, diffuse, diffuse_with,
};
use puna_runtime::{Model, ModelOptions, Placement};

fn options() -> DiffusionOptions {
    DiffusionOptions {
        length: 24,
        steps: 8,
        schedule: DiffusionSchedule::Time { end: 0.0 },
        order: DiffusionOrder::Confidence,
        order_temperature: 0.0,
        guidance: 0.0,
        noise: false,
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        seed: 1,
        mask: 3,
        shifts_logits: false,
    }
}

fn load(name: &str) -> (Model, Vec<u32>) {
    let zoo = zoo::models().into_iter().find(|model| model.name == name).expect("the zoo has it");
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Reference)];
    let options = ModelOptions { context: 64, ..ModelOptions::default() };
    let loaded = Model::load(Arc::new(zoo.open()), &backends, &Placement::default(), &options, &mut |_| true);
    (loaded.expect("loads"), zoo.tokens)
}

#[test]
fn the_best_tokens_equal_those_of_a_plain_loop() {
    let blocks = |length| DiffusionSchedule::Blocks { length };
    let dream = DiffusionOptions {
        steps: 9,
        order: DiffusionOrder::Entropy,
        mask: 5,
        shifts_logits: true,
        ..options()
    };
    let guided =
        DiffusionOptions { schedule: blocks(4), order: DiffusionOrder::Margin, guidance: 0.5, ..options() };
    let late = DiffusionOptions {
        steps: 7,
        schedule: DiffusionSchedule::Time { end: 0.05 },
        order: DiffusionOrder::Margin,
        shifts_logits: true,
        ..options()
    };
    let cases: [(&str, usize, DiffusionOptions, [u32; 24]); 5] = [
        (
            "llada-dense",
            8,
            options(),
            [
                120, 80, 87, 114, 74, 99, 106, 28, 115, 87, 87, 87, 87, 87, 49, 87, 87, 87, 76, 76, 76, 76,
                76, 87,
            ],
        ),
        (
            "llada-dense",
            8,
            DiffusionOptions { schedule: blocks(8), ..options() },
            [
                120, 80, 87, 114, 74, 99, 106, 28, 52, 87, 87, 87, 87, 87, 87, 87, 53, 103, 119, 76, 76, 76,
                76, 76,
            ],
        ),
        (
            "dream-dense",
            6,
            dream,
            [
                120, 80, 87, 114, 74, 99, 37, 123, 73, 18, 10, 123, 123, 123, 21, 123, 106, 78, 111, 101, 50,
                37, 109, 10,
            ],
        ),
        (
            "llada-moe-moe",
            8,
            guided,
            [
                120, 80, 87, 114, 74, 99, 106, 28, 10, 10, 10, 10, 71, 71, 120, 120, 76, 3, 3, 3, 40, 127,
                31, 31,
            ],
        ),
        (
            "rnd1-moe",
            8,
            late,
            [
                120, 80, 87, 114, 74, 99, 106, 28, 52, 10, 10, 120, 60, 32, 52, 10, 33, 76, 76, 60, 120, 60,
                58, 6,
            ],
        ),
    ];
    for (name, prompt, options, expected) in cases {
        let (mut model, tokens) = load(name);
        let mut steps = 0;
        let found = diffuse(&mut model, &tokens[..prompt], &options, &mut |progress| {
            steps += 1;
            assert_eq!(progress.tokens[..prompt], tokens[..prompt], "the prompt stays");
            progress.step < progress.steps
        });
        assert_eq!(found.expect("runs"), expected, "{name} {options:?}");
        assert!(steps <= options.steps);
    }
}

/// Logits of a made-up model: of each place something else, and never the mask.
fn made_up(canvas: &[u32]) -> Result<Vec<f32>, DiffusionError> {
    let logit = |place: usize, token: usize| match token {
        15 => -100.0,
        _ => ((place * 31 + token * 17 + 5) % 23) as f32 / 6.0,
    };
    Ok((0..canvas.len()).flat_map(|place| (0..16).map(move |token| logit(place, token))).collect())
}

#[test]
fn equal_seeds_draw_equal_tokens_and_others_other_ones() {
    let orders = [
        DiffusionOrder::Origin,
        DiffusionOrder::Entropy,
        DiffusionOrder::Margin,
        DiffusionOrder::Random,
        DiffusionOrder::Confidence,
    ];
    for order in orders {
        for noise in [false, true] {
            let run = |seed| {
                let options = DiffusionOptions {
                    order,
                    noise,
                    seed,
                    temperature: 0.9,
                    order_temperature: 0.5,
                    top_k: 9,
                    top_p: 0.95,
                    mask: 15,
                    ..options()
                };
                diffuse_with(&[1, 2, 3], &options, 16, &mut made_up, &mut |_| true).expect("runs")
            };
            assert_eq!(run(7), run(7), "{order:?}");
            let others: Vec<Vec<u32>> = (0..8).map(run).collect();
            assert!(others.iter().any(|other| *other != others[0]), "{order:?}: seeds change nothing");
            assert_eq!(others[0][..3], [1, 2, 3]);
        }
    }
}

#[test]
fn every_step_fills_its_share() {
    let left = |options: &DiffusionOptions| {
        let mut counts = Vec::new();
        let done = diffuse_with(&[1; 4], options, 16, &mut made_up, &mut |progress| {
            counts.push(progress.tokens.iter().filter(|token| **token == 15).count());
            true
        });
        counts.push(done.expect("runs").iter().filter(|token| **token == 15).count());
        counts
    };
    let by_block = DiffusionOptions {
        steps: 6,
        mask: 15,
        order: DiffusionOrder::Random,
        schedule: DiffusionSchedule::Blocks { length: 10 },
        ..options()
    };
    // Twenty places in two blocks of three steps: 4, 3, 3 of each.
    assert_eq!(left(&by_block), [20, 16, 13, 10, 6, 3, 0]);
    let by_time = DiffusionOptions { steps: 4, schedule: DiffusionSchedule::Time { end: 0.0 }, ..by_block };
    assert_eq!(left(&by_time), [20, 15, 10, 5, 0]);
}

#[test]
fn options_that_make_no_sense_are_named() {
    let refused = |change: &dyn Fn(&mut DiffusionOptions), part: &str| {
        let mut options = options();
        change(&mut options);
        let error = diffuse_with(&[1; 4], &options, 16, &mut made_up, &mut |_| true).expect_err("is refused");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(&|options| options.length = 4, "the length is 4");
    refused(&|options| options.steps = 0, "the number of steps is 0");
    refused(&|options| options.schedule = DiffusionSchedule::Time { end: 1.0 }, "the last time is 1");
    refused(
        &|options| options.schedule = DiffusionSchedule::Blocks { length: 0 },
        "the length of a block is 0",
    );
    let stopped = diffuse_with(&[1; 4], &options(), 16, &mut made_up, &mut |_| false);
    assert!(matches!(stopped, Err(DiffusionError::Stopped)));
    let (mut model, tokens) = load("llada-dense");
    for (options, part) in [
        (DiffusionOptions { length: 65, ..options() }, "the length is 65"),
        (DiffusionOptions { mask: 128, ..options() }, "the mask token is 128"),
    ] {
        let error = diffuse(&mut model, &tokens[..4], &options, &mut |_| true).expect_err("is refused");
        assert!(error.to_string().contains(part), "{error}");
    }
}
