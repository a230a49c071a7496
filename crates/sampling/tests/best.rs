//! The highest logits of a row, as many as a chain says suffice, give what the whole row gives: tokens, draws, errors.

use puna_sampling::{BestLogits, Chain, Parameters, Random, SamplingError, parse_names};

/// What a back end gives of a row: its best tokens in order with their logits, and the first that is not finite upwards.
struct Best {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    not_finite: Option<(u32, f32)>,
}

impl Best {
    fn of(row: &[f32], count: usize) -> Self {
        let bad = (0..).zip(row).find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY);
        let mut tokens: Vec<u32> = (0..row.len() as u32).collect();
        if bad.is_none() {
            tokens.sort_by(|a, b| row[*b as usize].partial_cmp(&row[*a as usize]).expect("numbers"));
        }
        tokens.truncate(count);
        let logits = tokens.iter().map(|token| row[*token as usize]).collect();
        Self { tokens, logits, not_finite: bad.map(|(token, logit)| (token, *logit)) }
    }

    fn logits(&self) -> BestLogits<'_> {
        BestLogits { tokens: &self.tokens, logits: &self.logits, not_finite: self.not_finite }
    }
}

/// Rows of one kind each: of many values, of few (ties), with much ruled out, around zero with both its signs.
fn row(kind: usize, width: usize, random: &mut Random) -> Vec<f32> {
    (0..width)
        .map(|_| {
            let x = random.next_f64() as f32;
            match kind {
                0 => x * 20.0 - 10.0,
                1 => (x * 4.0).floor() - 2.0,
                2 if x < 0.97 => f32::NEG_INFINITY,
                2 => x * 100.0,
                3 if x < 0.3 => -0.0,
                3 if x < 0.6 => 0.0,
                _ => -x,
            }
        })
        .collect()
}

fn settings() -> Vec<(Parameters, bool)> {
    let base = Parameters::default;
    let order = |names: &str| parse_names(names).expect("samplers");
    let bias = vec![(3, -4.0), (5, f32::NEG_INFINITY), (3, -1.0), (9, 0.0)];
    let all = Parameters {
        repeat_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: 0.2,
        dry_multiplier: 0.8,
        suppress: vec![7, 8],
        logit_bias: bias.clone(),
        ..base()
    };
    vec![
        // With whether the highest logits suffice.
        (base(), true),
        (Parameters::greedy(), true),
        (Parameters { suppress: vec![1, 2], ..Parameters::greedy() }, true),
        (Parameters { samplers: Vec::new(), ..Parameters::greedy() }, true),
        (Parameters { repeat_penalty: 1.2, ..Parameters::greedy() }, true),
        (Parameters { top_k: 1, ..base() }, true),
        (Parameters { top_k: 5, temperature: 1.7, top_p: 0.9, min_p: 0.0, ..base() }, true),
        (Parameters { typical_p: 0.8, xtc_probability: 0.5, dynatemp_range: 0.3, ..base() }, true),
        (Parameters { min_keep: 3, top_k: 2, top_p: 0.1, ..base() }, true),
        (Parameters { logit_bias: bias, ..base() }, true),
        (all.clone(), true),
        (Parameters { temperature: 0.0, ..all.clone() }, true),
        (Parameters { penalty_last_n: -1, dry_penalty_last_n: -1, ..all }, true),
        (
            Parameters {
                samplers: order("top_k;penalties;temperature;top_p"),
                repeat_penalty: 0.8,
                ..base()
            },
            true,
        ),
        (Parameters { samplers: order("top_k;adaptive_p"), adaptive_target: 0.4, ..base() }, true),
        (Parameters { repeat_penalty: 0.9, ..base() }, false),
        (Parameters { presence_penalty: -0.1, ..base() }, false),
        (Parameters { logit_bias: vec![(3, 0.5)], ..base() }, false),
        (Parameters { top_k: 0, ..base() }, false),
        (Parameters { top_n_sigma: 1.0, ..base() }, false),
        (Parameters { mirostat: 2, ..base() }, false),
        (Parameters { mirostat: 1, ..Parameters::greedy() }, false),
        (Parameters { dry_multiplier: -0.5, ..base() }, false),
        (Parameters { samplers: order("temperature;top_k"), ..base() }, false),
        (Parameters { samplers: order("top_p"), ..base() }, false),
    ]
}

#[test]
fn the_highest_give_what_the_whole_row_gives() {
    const WIDTH: usize = 500;
    for (index, (parameters, suffices)) in settings().into_iter().enumerate() {
        let mut random = Random::new(index as u64, 7);
        let mut whole = Chain::new(&parameters, WIDTH).expect("a chain");
        let mut few = Chain::new(&parameters, WIDTH).expect("a chain");
        for step in 0..200 {
            let row = row(step % 4, WIDTH, &mut random);
            let count = few.suffices(0);
            assert_eq!(count.is_some(), suffices, "setting {index}");
            let Some(count) = count else { break };
            let (right, found) = (whole.sample(&row, None), few.sample_best(&Best::of(&row, count).logits()));
            assert_eq!(found, right, "setting {index}, step {step}, {count} logits");
            let token = match right {
                Ok(token) => {
                    let right = whole.log_probabilities(token, 4);
                    assert_eq!(few.log_probabilities(token, 4), right, "setting {index}, step {step}");
                    token
                }
                Err(error) => {
                    assert_eq!(error, SamplingError::NoCandidate);
                    step as u32
                }
            };
            // Few different tokens, so that texts repeat themselves.
            let accepted = if step % 3 == 0 { token } else { token % 11 };
            whole.accept(accepted);
            few.accept(accepted);
        }
    }
}

#[test]
fn what_is_not_finite_is_the_same_error() {
    for parameters in [Parameters::default(), Parameters::greedy()] {
        for row in [
            vec![1.0, f32::NAN, f32::INFINITY],
            vec![0.0, 1.0, f32::INFINITY],
            vec![f32::NEG_INFINITY; 3],
            vec![],
        ] {
            let chain = || Chain::new(&parameters, 3).expect("a chain");
            let right = chain().sample(&row, None).expect_err("an error").to_string();
            let found = chain().sample_best(&Best::of(&row, 2).logits()).expect_err("an error").to_string();
            assert_eq!(found, right);
        }
    }
}

#[test]
fn guessed_tokens_are_counted_in_advance() {
    let parameters = Parameters { repeat_penalty: 1.5, ..Parameters::default() };
    let mut chain = Chain::new(&parameters, 100).expect("a chain");
    assert_eq!((chain.suffices(0), chain.suffices(4)), (Some(40), Some(44)));
    (0..4).for_each(|token| chain.accept(token));
    assert_eq!(chain.suffices(0), Some(44));
    assert_eq!(Chain::new(&Parameters::greedy(), 100).expect("a chain").suffices(9), Some(1));
}
