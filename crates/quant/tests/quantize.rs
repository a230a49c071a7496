//! Careful encoders: errors against the peer's, and hostile rows.

mod common;

use common::{bytes, decode, floats, stem};
use puna_quant::{DType, FORMATS, Format, QuantError, quantize_rows, validate_rows};

fn encoders() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter().filter(|format| format.quantize.is_some())
}

fn quantize(dtype: DType, elements: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let size = dtype.bytes_for(elements.len() as u64).expect("whole blocks");
    let mut out = vec![0xaa; size as usize];
    quantize_rows(dtype, elements, importance, &mut out).unwrap_or_else(|error| panic!("{dtype}: {error}"));
    out
}

/// Root of the weighted mean of squared errors.
fn error(found: &[f32], expected: &[f32], importance: &[f32]) -> f64 {
    let (mut sum, mut weight) = (0.0, 0.0);
    for ((a, b), w) in found.iter().zip(expected).zip(importance.iter().cycle()) {
        sum += f64::from(*w) * (f64::from(*a) - f64::from(*b)).powi(2);
        weight += f64::from(*w);
    }
    (sum / weight).sqrt()
}

#[test]
fn errors_are_at_most_those_of_the_peer() {
    let input = floats("quant/input.f32");
    let importance = floats("quant/importance.f32");
    let table: serde_json::Value = serde_json::from_slice(&bytes("quant/table.json")).expect("JSON");
    let mut faults = Vec::new();
    let mut seen = 0;
    for format in encoders() {
        let row = &table["types"][stem(format.dtype)];
        let plain = error(&decode(format.dtype, &quantize(format.dtype, &input, None)), &input, &[1.0]);
        let weighted = quantize(format.dtype, &input, Some(&importance));
        let weighted = error(&decode(format.dtype, &weighted), &input, &importance);
        for (kind, found, key) in [("plain", plain, "q_rmse"), ("weighted", weighted, "qi_rmse")] {
            let Some(limit) = row[key].as_f64() else { continue };
            seen += 1;
            println!("{:8} {kind:8} {found:.6} of {limit:.6}: {:.4}", format.name, found / limit);
            // The recorded errors are rounded to single precision.
            if found > limit * (1.0 + 1e-6) {
                faults.push(format!("{} {kind}: {found} > {limit}", format.name));
            }
        }
    }
    assert!(seen > 0);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn hostile_rows_give_finite_scales() {
    let ramp: Vec<f32> = (0..512).map(|i| (i as f32 * 0.7).sin() * 0.1).collect();
    let with = |index: usize, value: f32| {
        let mut row = ramp.clone();
        row[index] = value;
        row
    };
    let rows = [
        vec![0.0; 512],
        vec![-0.0; 512],
        vec![1.0; 512],
        vec![-3.5; 512],
        vec![1e-40; 512],
        vec![f32::MAX; 512],
        ramp.iter().map(|x| x * 1e-38).collect(),
        ramp.iter().map(|x| x * 1e-20).collect(),
        ramp.iter().map(|x| x * 1e6).collect(),
        ramp.iter().map(|x| x + 1000.0).collect(),
        with(5, 1e30),
        with(300, -1e30),
        with(300, f32::MIN),
        with(0, f32::from_bits(1)),
    ];
    let mut half = vec![1.0; 512];
    half[..256].fill(0.0);
    let mut wide = vec![1e-30; 512];
    wide[7] = 1e30;
    let importances = [
        vec![0.0; 512],
        half,
        wide,
        vec![-1.0; 512],
        vec![f32::NAN; 512],
        vec![f32::INFINITY; 512],
        (0..512).map(|i| if i % 2 == 0 { 0.0 } else { 1e20 }).collect(),
    ];
    for format in encoders() {
        for (index, row) in rows.iter().enumerate() {
            for importance in importances.iter().map(|all| Some(all.as_slice())).chain([None]) {
                let mut out = vec![0xaa; format.dtype.bytes_for(512).unwrap() as usize];
                match quantize_rows(format.dtype, row, importance, &mut out) {
                    Ok(()) => assert_eq!(validate_rows(format.dtype, &out), Ok(())),
                    // Half precision ends at 65504, which is the number itself and not a scale.
                    Err(QuantError::NotFinite { dtype: DType::F16 | DType::BF16, .. }) => {}
                    Err(error) => panic!("{} row {index}: {error}", format.name),
                }
                let decoded = decode(format.dtype, &out);
                if row.iter().all(|x| *x == 0.0) {
                    assert!(decoded.iter().all(|x| *x == 0.0), "{} row {index}", format.name);
                }
            }
        }
    }
}

#[test]
fn elements_without_importance_still_keep_near_their_value() {
    let row: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).cos()).collect();
    let importance: Vec<f32> = (0..256).map(|i| if i % 16 < 8 { 0.0 } else { 1.0 }).collect();
    for format in encoders().filter(|format| format.bytes * 8 >= 4 * format.block) {
        let decoded = decode(format.dtype, &quantize(format.dtype, &row, Some(&importance)));
        let worst = decoded.iter().zip(&row).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
        assert!(worst < 0.25, "{}: {worst}", format.name);
    }
}

#[test]
fn wrong_rows_are_refused() {
    for format in encoders() {
        let (dtype, block) = (format.dtype, format.block.max(32));
        let mut out = vec![0; dtype.bytes_for(block as u64).unwrap() as usize];
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut row = vec![1.0; block];
            row[block - 1] = value;
            let found = quantize_rows(dtype, &row, None, &mut out);
            assert!(
                matches!(found, Err(QuantError::Element { index, .. }) if index == block - 1),
                "{found:?}"
            );
        }
        let found = quantize_rows(dtype, &vec![1.0; block], Some(&vec![1.0; block - 1]), &mut out);
        assert!(matches!(found, Err(QuantError::ImportanceCount { .. })), "{found:?}");
        let found = quantize_rows(dtype, &vec![1.0; block], Some(&[]), &mut out);
        assert!(matches!(found, Err(QuantError::ImportanceCount { .. })), "{found:?}");
        let last = out.len() - 1;
        let found = quantize_rows(dtype, &vec![1.0; block], None, &mut out[..last]);
        assert!(matches!(found, Err(QuantError::ByteCount { .. })), "{found:?}");
    }
}
