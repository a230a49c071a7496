//! Faults that users of other engines reported, where they concern sampling alone. The tests are named after their
//! numbers; those that need a server or an engine are with these.

use puna_sampling::{Chain, Parameters, SamplingError, log_probabilities, parse_names};

const LOGITS: [f32; 6] = [0.1, 2.0, -1.0, 1.9, 0.5, 1.0];

fn sample(parameters: &Parameters, history: &[u32], logits: &[f32]) -> Result<u32, SamplingError> {
    let mut chain = Chain::new(parameters, logits.len().max(1))?;
    history.iter().for_each(|token| chain.accept(*token));
    chain.sample(logits, None)
}

#[test]
fn s05_penalties_take_effect() {
    let history = [1, 1, 1];
    assert_eq!(sample(&Parameters::greedy(), &history, &LOGITS), Ok(1));
    for changed in [
        Parameters { repeat_penalty: 3.0, ..Parameters::greedy() },
        Parameters { presence_penalty: 50.0, ..Parameters::greedy() },
        Parameters { frequency_penalty: 10.0, ..Parameters::greedy() },
    ] {
        assert_eq!(sample(&changed, &history, &LOGITS), Ok(3));
    }
}

#[test]
fn s07_any_window_and_history() {
    for penalty_last_n in [0, -1, 1, 1_000_000_000] {
        for history in [&[][..], &[3], &[1, 1, 3]] {
            let parameters = Parameters { penalty_last_n, repeat_penalty: 100.0, ..Parameters::greedy() };
            let found = sample(&parameters, history, &LOGITS).unwrap();
            // A window of one sees the last token only.
            let expected = match (penalty_last_n, history) {
                (0, _) | (_, []) | (1, _) => 1,
                (_, [3]) => 1,
                _ => 5,
            };
            assert_eq!(found, expected, "{penalty_last_n} {history:?}");
        }
    }
}

#[test]
fn s08_temperature_0_leaves_other_samplers_on() {
    // Documented: the samplers act, then the best of what they left is chosen. XTC drops 1 and leaves 3, the
    // least probable of those above its threshold.
    for samplers in ["xtc", "xtc;temperature"] {
        let samplers = parse_names(samplers).unwrap();
        let parameters =
            Parameters { samplers, xtc_probability: 1.0, xtc_threshold: 0.2, ..Parameters::greedy() };
        assert_eq!(sample(&parameters, &[], &LOGITS), Ok(3));
    }
}

#[test]
fn s10_rows_that_are_no_numbers_are_errors() {
    let all = [
        Parameters::default(),
        Parameters::greedy(),
        Parameters { mirostat: 1, ..Parameters::default() },
        Parameters { mirostat: 2, ..Parameters::default() },
        Parameters {
            samplers: parse_names("adaptive_p").unwrap(),
            adaptive_target: 0.5,
            ..Parameters::default()
        },
        Parameters {
            top_k: 0,
            top_n_sigma: 1.0,
            xtc_probability: 1.0,
            dynatemp_range: 0.5,
            ..Parameters::default()
        },
    ];
    for parameters in &all {
        for row in [[f32::NAN; 3], [f32::NEG_INFINITY; 3], [0.0, f32::INFINITY, 0.0], [0.0, 1.0, f32::NAN]] {
            let mut chain = Chain::new(parameters, 3).unwrap();
            assert!(chain.sample(&row, None).is_err(), "{row:?}");
            assert!(chain.sample(&[0.0, 1.0, f32::NEG_INFINITY], None).is_ok());
        }
        // A grammar that allows nothing that is left.
        let mut chain = Chain::new(parameters, 3).unwrap();
        assert_eq!(chain.sample(&[0.0, 1.0, 2.0], Some(&[0])), Err(SamplingError::NoCandidate));
        assert_eq!(chain.sample(&[0.0, 1.0, 2.0], Some(&[1])), Ok(0));
    }
}

#[test]
fn s14_log_probabilities_before_and_after_samplers() {
    let total: f64 = LOGITS.iter().map(|logit| f64::from(*logit).exp()).sum();
    let expected = (f64::from(LOGITS[1]).exp() / total).ln();
    for temperature in [0.0, 2.0] {
        let mut chain = Chain::new(&Parameters { temperature, ..Parameters::default() }, 6).unwrap();
        chain.sample(&LOGITS, None).unwrap();
        let before = log_probabilities(&LOGITS, 1, 6).unwrap();
        assert!((f64::from(before.chosen) - expected).abs() < 1e-3);
        let sum: f64 = before.top.iter().map(|(_, value)| f64::from(*value).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5);
        // After: at temperature 0 one candidate is left.
        let after = chain.log_probabilities(1, 6);
        let sum: f64 = after.top.iter().map(|(_, value)| f64::from(*value).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{after:?}");
        assert_eq!(after.top.len() == 1, temperature == 0.0);
    }
    // Two of three equal ones: one half each.
    let mut chain = Chain::new(&Parameters { top_k: 2, ..Parameters::default() }, 3).unwrap();
    chain.sample(&[1.0, 1.0, 1.0], None).unwrap();
    let after = chain.log_probabilities(2, 3);
    assert_eq!(after.chosen, f32::NEG_INFINITY);
    assert!(after.top.iter().all(|(_, value)| (value - 0.5f32.ln()).abs() < 1e-6));
}

#[test]
fn s16_chains_share_nothing() {
    let penalised = Parameters { repeat_penalty: 2.0, ..Parameters::greedy() };
    let both = |first: &Parameters, second: &Parameters| {
        let mut chains = [Chain::new(first, 6).unwrap(), Chain::new(second, 6).unwrap()];
        let mut texts = [Vec::new(), Vec::new()];
        for _ in 0..6 {
            for (chain, text) in chains.iter_mut().zip(&mut texts) {
                let token = chain.sample(&LOGITS, None).unwrap();
                chain.accept(token);
                text.push(token);
            }
        }
        texts
    };
    let [a, b] = both(&penalised, &Parameters::greedy());
    let [d, c] = both(&Parameters::greedy(), &penalised);
    assert_eq!((&a, &b), (&c, &d));
    assert_eq!(b, [1; 6]);
    assert_ne!(a, b);
}
