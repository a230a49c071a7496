//! What the peer's samplers made of the same candidates, recorded from its library: probabilities after each.

use puna_sampling::{Candidates, Parameters, SAMPLERS};

const WEIGHTS: [f32; 7] = [0.02, 0.3, 0.05, 0.2, 0.1, 0.25, 0.08];

#[track_caller]
fn check(name: &str, parameters: &Parameters, expected: &[(u32, f32)]) {
    let logits: Vec<f32> = WEIGHTS.iter().map(|weight| weight.ln()).collect();
    let mut candidates = Candidates::new(&logits).unwrap();
    let spec = SAMPLERS.iter().find(|spec| spec.name == name).unwrap();
    (spec.build)(parameters).unwrap().apply(&mut candidates);
    candidates.normalise();
    let mut found: Vec<(u32, f32)> =
        candidates.items().iter().map(|item| (item.token, item.probability)).collect();
    found.sort_by_key(|(token, _)| *token);
    let mut expected = expected.to_vec();
    expected.sort_by_key(|(token, _)| *token);
    assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
    for ((token, found), (wanted, expected)) in found.into_iter().zip(expected) {
        assert!(
            token == wanted && (found - expected).abs() < 2e-6,
            "{name}: {token} {found}, {wanted} {expected}"
        );
    }
}

#[test]
fn dynamic_temperature() {
    let base =
        Parameters { temperature: 0.8, dynatemp_range: 0.5, dynatemp_exponent: 1.3, ..Parameters::default() };
    check(
        "temperature",
        &base,
        &[(1, 0.282665), (5, 0.240634), (3, 0.1976), (4, 0.107147), (6, 0.087985), (2, 0.0581), (0, 0.02587)],
    );
    check(
        "temperature",
        &Parameters { temperature: 0.3, dynatemp_exponent: 0.7, ..base },
        &[
            (1, 0.352299),
            (5, 0.273948),
            (3, 0.201355),
            (4, 0.077382),
            (6, 0.056877),
            (2, 0.029738),
            (0, 0.0084),
        ],
    );
}

#[test]
fn adaptive_p() {
    check(
        "adaptive_p",
        &Parameters { adaptive_target: 0.15, adaptive_decay: 0.9, ..Parameters::default() },
        &[
            (0, 0.076059),
            (1, 0.053246),
            (2, 0.122517),
            (3, 0.222181),
            (4, 0.222181),
            (5, 0.122517),
            (6, 0.181299),
        ],
    );
}

#[test]
fn what_is_kept() {
    // Weights of what the peer kept, made to sum to one.
    let kept = |tokens: &[u32]| -> Vec<(u32, f32)> {
        let sum: f32 = tokens.iter().map(|token| WEIGHTS[*token as usize]).sum();
        tokens.iter().map(|token| (*token, WEIGHTS[*token as usize] / sum)).collect()
    };
    let base = Parameters::default;
    check("top_n_sigma", &Parameters { top_n_sigma: 0.8, ..base() }, &kept(&[1, 3, 5]));
    check("typ_p", &Parameters { typical_p: 0.6, ..base() }, &kept(&[3, 5, 1]));
    check("typ_p", &Parameters { typical_p: 0.9, ..base() }, &kept(&[3, 5, 1, 4, 6]));
    check(
        "xtc",
        &Parameters { xtc_probability: 1.0, xtc_threshold: 0.15, ..base() },
        &kept(&[3, 4, 6, 2, 0]),
    );
}
