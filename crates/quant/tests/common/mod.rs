//! Reading of fixtures.
#![allow(dead_code)] // each test file uses a part

use puna_quant::DType;
use std::path::PathBuf;

/// Number of elements in `quant/input.f32`.
pub const ELEMENTS: usize = 8 * 1024;

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("fixture {name}: {error}"))
}

pub fn floats(name: &str) -> Vec<f32> {
    let bytes = bytes(name);
    assert_eq!(bytes.len() % 4, 0, "{name}");
    bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect()
}

/// Format and suffix (such as `q` or `qi.f32`) of the files in a fixture folder that are named after a format.
pub fn files(folder: &str) -> Vec<(DType, String)> {
    let mut files: Vec<_> = std::fs::read_dir(path(folder))
        .expect("fixture folder")
        .map(|entry| entry.expect("fixture").file_name().into_string().expect("name"))
        .filter_map(|name| {
            let (stem, suffix) = name.split_once('.')?;
            Some((DType::from_name(stem)?, suffix.to_owned()))
        })
        .collect();
    files.sort();
    files
}

/// Fixture name of a format, in capitals.
pub fn stem(dtype: DType) -> String {
    dtype.name().to_uppercase()
}

pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let format = dtype.format();
    let mut out = vec![7.0; bytes.len() / format.bytes * format.block];
    puna_quant::decode_row(dtype, bytes, &mut out).expect("whole blocks");
    out
}

pub fn encode(dtype: DType, elements: &[f32]) -> Vec<u8> {
    let size = dtype.bytes_for(elements.len() as u64).expect("whole blocks");
    let mut out = vec![0xaa; size as usize];
    puna_quant::encode_row(dtype, elements, &mut out).expect("encoder and whole blocks");
    out
}

/// Root mean square of the difference.
pub fn root_mean_square_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let sum: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

/// Fails at the first element whose bits differ; all NaNs are one.
pub fn assert_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}: number of elements");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{what}: element {i} is {found:e}, expected {expected:e}");
    }
}
