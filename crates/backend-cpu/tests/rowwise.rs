//! Row-wise kernels against f64, at every instruction-set level and odd sizes.

use puna_backend_cpu::isa::Features;
use puna_backend_cpu::kernels::activation::{Binary, Unary, binary, unary};
use puna_backend_cpu::kernels::norm::{Norm, NormKind};
use puna_backend_cpu::kernels::rope::{Rope, frequencies};
use puna_backend_cpu::kernels::rows::{Rows, RowsMut};
use puna_graph::ops::RopeKind;

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn levels() -> Vec<(&'static str, Features)> {
    Features::detect().levels()
}

#[track_caller]
fn close(name: &str, got: &[f32], want: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= relative * want.abs() + absolute, "{name}: element {i} is {got}, should be {want}");
    }
}

#[test]
fn functions_are_accurate_over_their_whole_range() {
    let mut x: Vec<f32> = (-120_000..=120_000).map(|i| i as f32 * 1e-3 + 1.3e-5).collect();
    x.extend((-400..0).flat_map(|e| [2f32.powf(e as f32 / 3.0), -(2f32.powf(e as f32 / 3.0))]));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let gelu = |x: f64| x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x));
    let capped = |x: f64| 30.0 * (x / 30.0).tanh();
    type Row<'a> = (Unary, &'a dyn Fn(f64) -> f64, f64);
    // The relative error of e^u includes that of the roundings of u, up to 88 in size: 3 of them in GELU.
    let rows: [Row<'_>; 10] = [
        (Unary::Exp, &f64::exp, 1.5e-7),
        (Unary::Tanh, &f64::tanh, 2e-7),
        (Unary::Sigmoid, &sigmoid, 2.5e-7),
        (Unary::Silu, &|x| x * sigmoid(x), 2.5e-7),
        (Unary::Gelu, &gelu, 2.5e-5),
        (Unary::Relu, &|x| x.max(0.0), 0.0),
        (Unary::ReluSquared, &|x| x.max(0.0) * x.max(0.0), 1e-7),
        (Unary::Softcap { cap: 30.0 }, &capped, 3e-7),
        (Unary::Affine { factor: 1.7, offset: 0.25 }, &|x| x * f64::from(1.7f32) + 0.25, 1e-6),
        (Unary::Clamp { low: -2.0, high: 1.0 }, &|x| x.clamp(-2.0, 1.0), 0.0),
    ];
    for (level, features) in levels() {
        for (function, exact, relative) in rows {
            let mut y = vec![0.0; x.len()];
            let output = &mut RowsMut::new(&mut y, 1, x.len(), x.len());
            unary(features, function, Rows::new(&x, 1, x.len(), x.len()), output, 0..1);
            let name = format!("{level} {function:?}");
            for (&x, &y) in x.iter().zip(&y) {
                let want = exact(f64::from(x));
                if want > f64::from(f32::MAX) {
                    assert_eq!(y, f32::INFINITY, "{name} of {x}");
                } else {
                    // Results near the end of the range may be flushed: e^-x overflows from 88.7 on.
                    let absolute = if matches!(function, Unary::Affine { .. }) { 1e-7 } else { 3e-37 };
                    let error = (f64::from(y) - want).abs();
                    let is_central = x.abs() < 3.0 && function == Unary::Gelu;
                    let relative = if is_central { 2e-6 } else { relative };
                    let bound = relative * want.abs() + absolute;
                    assert!(error <= bound, "{name} of {x:e} is {y:e}, should be {want:e}: {error:e}");
                }
            }
        }
        for function in [Unary::Exp, Unary::Tanh, Unary::Silu, Unary::Gelu] {
            let special = [f32::NAN, f32::INFINITY, -1e30, 0.0];
            let mut y = [7.0; 4];
            unary(features, function, Rows::new(&special, 1, 4, 4), &mut RowsMut::new(&mut y, 1, 4, 4), 0..1);
            assert!(
                y[0].is_nan() && !y[1].is_nan() && y[2].abs() <= 1.0 && y[3].is_finite(),
                "{function:?} {y:?}"
            );
        }
    }
}

#[test]
fn gated_products() {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu = |x: f64| x / (1.0 + (-1.5957691216057308 * (x + 0.044715 * x * x * x)).exp());
    type Row<'a> = (Binary, &'a dyn Fn(f64, f64) -> f64);
    let rows: [Row<'_>; 9] = [
        (Binary::Add, &|a, b| a + b),
        (Binary::Multiply, &|a, b| a * b),
        (Binary::SiluGate, &|a, b| silu(a) * b),
        (Binary::GeluGate, &|a, b| gelu(a) * b),
        (Binary::ReluGate, &|a, b| a.max(0.0) * b),
        (Binary::SigmoidGate, &|a, b| b / (1.0 + (-a).exp())),
        (Binary::OaiGate { alpha: 1.702, limit: 7.0 }, &|a, b| {
            let (g, u) = (a.min(7.0), b.clamp(-7.0, 7.0));
            g / (1.0 + (-f64::from(1.702f32) * g).exp()) * (u + 1.0)
        }),
        (Binary::SiluGateLimitedBefore { limit: 3.0 }, &|a, b| silu(a.min(3.0)) * b.clamp(-3.0, 3.0)),
        (Binary::SiluGateLimitedAfter { limit: 3.0 }, &|a, b| silu(a).min(3.0) * b.clamp(-3.0, 3.0)),
    ];
    for (level, features) in levels() {
        for (function, exact) in rows {
            for width in [1, 2, 7, 16, 33, 130] {
                let tokens = 5;
                let stride = width + 3;
                let a: Vec<f32> = random(1, tokens * stride).iter().map(|x| x * 10.0).collect();
                let b: Vec<f32> = random(2, tokens * stride).iter().map(|x| x * 10.0).collect();
                let mut y = vec![-9.0; tokens * stride];
                let (rows_a, rows_b) =
                    (Rows::new(&a, tokens, width, stride), Rows::new(&b, tokens, width, stride));
                binary(
                    features,
                    function,
                    rows_a,
                    rows_b,
                    &mut RowsMut::new(&mut y, tokens, width, stride),
                    1..4,
                );
                for i in 0..tokens * stride {
                    let is_inside = (1..4).contains(&(i / stride)) && i % stride < width;
                    let want = if is_inside { exact(a[i].into(), b[i].into()) } else { -9.0 };
                    close(&format!("{level} {function:?} {width}"), &[y[i]], &[want], 3e-6, 1e-6);
                }
            }
        }
    }
}

#[test]
fn norms() {
    for (level, features) in levels() {
        for (kind, width, groups) in [NormKind::Rms, NormKind::Layer].into_iter().flat_map(|kind| {
            [1, 3, 16, 33, 64, 130, 1000]
                .into_iter()
                .flat_map(move |dim| [1, 3].map(|groups| (kind, dim * groups, groups)))
        }) {
            let dim = width / groups;
            for (weighted, biased) in [(0, 0), (dim, 0), (width, width), (0, dim)] {
                let tokens = 4;
                let x: Vec<f32> = random(3, tokens * width).iter().map(|x| x * 3.0 + 0.5).collect();
                let (weight, bias) = (random(5, weighted), random(6, biased));
                let norm = Norm {
                    kind,
                    epsilon: 1e-5,
                    groups,
                    weight: (weighted > 0).then_some(&weight),
                    bias: (biased > 0).then_some(&bias),
                };
                let exact = |x: &[f32]| -> Vec<f64> {
                    let mut out = Vec::new();
                    for (group, x) in x.chunks(dim).enumerate() {
                        let n = dim as f64;
                        let shift = if kind == NormKind::Layer {
                            x.iter().map(|&x| f64::from(x)).sum::<f64>() / n
                        } else {
                            0.0
                        };
                        let squares = x.iter().map(|&x| (f64::from(x) - shift).powi(2)).sum::<f64>();
                        let divisor = (squares / n + f64::from(1e-5f32)).sqrt();
                        for (i, &x) in x.iter().enumerate() {
                            let at = |data: &[f32], otherwise: f64| match data.len() {
                                0 => otherwise,
                                length if length == dim => f64::from(data[i]),
                                _ => f64::from(data[group % groups * dim + i]),
                            };
                            out.push((f64::from(x) - shift) / divisor * at(&weight, 1.0) + at(&bias, 0.0));
                        }
                    }
                    out
                };
                let name = format!("{level} {kind:?} {groups} x {dim}");
                let rows = Rows::new(&x, tokens, width, width);
                let mut y = vec![0.0; tokens * width];
                norm.run(features, rows, &mut RowsMut::new(&mut y, tokens, width, width), 0..tokens);
                close(&name, &y, &exact(&x), 5e-7, 1e-6);

                // One row at a time gives the same bits.
                let mut single = vec![0.0; tokens * width];
                for row in 0..tokens {
                    norm.run(
                        features,
                        rows,
                        &mut RowsMut::new(&mut single, tokens, width, width),
                        row..row + 1,
                    );
                }
                assert_eq!(y, single);
            }
        }
    }
}

#[test]
fn rope() {
    let positions = [0, 1, 17, 4095, 1_000_000];
    for (level, features) in levels() {
        for kind in [RopeKind::Interleaved, RopeKind::Split] {
            for (head_dim, dims, offset) in [(2, 2, 0), (64, 64, 0), (70, 38, 0), (192, 64, 128), (130, 6, 4)]
            {
                for heads in [1, 3] {
                    let rope = Rope { kind, dims, offset, head_dim };
                    let factors: Vec<f32> = random(7, dims / 2).iter().map(|x| 1.5 + x).collect();
                    let frequencies = frequencies(10000.0, dims, Some(&factors));
                    let tokens = positions.len();
                    let width = rope.table_width();
                    let mut table = vec![0.0; tokens * width];
                    for range in [0..2, 2..tokens] {
                        let table = &mut RowsMut::new(&mut table, tokens, width, width);
                        rope.fill_table(&frequencies, 1.1, &positions, table, range);
                    }
                    let x = random(8, tokens * heads * head_dim);
                    let row = heads * head_dim;
                    let mut want: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                    for (token, &position) in positions.iter().enumerate() {
                        for head in 0..heads {
                            let start = token * row + head * head_dim + offset;
                            for pair in 0..dims / 2 {
                                let exponent = -2.0 * pair as f64 / dims as f64;
                                let angle =
                                    f64::from(position) * 10000f64.powf(exponent) / f64::from(factors[pair]);
                                let (i, j) = match kind {
                                    RopeKind::Interleaved => (start + 2 * pair, start + 2 * pair + 1),
                                    RopeKind::Split => (start + pair, start + pair + dims / 2),
                                };
                                let (a, b) = (f64::from(x[i]), f64::from(x[j]));
                                want[i] = 1.1 * (a * angle.cos() - b * angle.sin());
                                want[j] = 1.1 * (a * angle.sin() + b * angle.cos());
                            }
                        }
                    }
                    let name = format!("{level} {rope:?}");
                    let table = Rows::new(&table, tokens, width, width);
                    let mut y = vec![0.0; x.len()];
                    let rows = Rows::new(&x, tokens, row, row);
                    rope.run(features, table, rows, &mut RowsMut::new(&mut y, tokens, row, row), 0..tokens);
                    close(&name, &y, &want, 3e-7, 3e-7);
                    // In place.
                    let mut y = x.clone();
                    let pointer = y.as_mut_ptr();
                    // SAFETY: both views are of `y`, which nothing else uses meanwhile.
                    let (rows, mut out) = unsafe {
                        (
                            Rows::from_raw(pointer, tokens, row, row),
                            RowsMut::from_raw(pointer, tokens, row, row),
                        )
                    };
                    rope.run(features, table, rows, &mut out, 0..tokens);
                    close(&name, &y, &want, 3e-7, 3e-7);
                }
            }
        }
    }
}
