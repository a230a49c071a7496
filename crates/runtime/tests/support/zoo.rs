//! The zoo of tiny models: their headers are stored, their weights follow from a formula.

use std::path::PathBuf;
use std::sync::Arc;

use puna_gguf::{File, Header};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Where the zoo is, or why the caller's test is skipped.
pub fn folder() -> Result<PathBuf, String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let places =
        ["../../tests/fixtures/zoo", "../../../shared/fixtures/zoo", "../../../../shared/fixtures/zoo"];
    let found = places.iter().map(|place| root.join(place)).find(|place| place.join("headers").is_dir());
    found.ok_or_else(|| {
        format!("skipped: no folder of zoo headers at any of {places:?} from {}", root.display())
    })
}

/// Numbers in [-1, 1) that depend on a name and a seed (SplitMix64 of the name's FNV-1a hash).
pub fn uniform(name: &str, count: usize, seed: u64) -> Vec<f64> {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for byte in name.bytes() {
        hash = (hash ^ byte as u64).wrapping_mul(0x0100_0000_01B3);
    }
    let start = hash ^ seed.wrapping_mul(GOLDEN);
    (1..=count as u64)
        .map(|index| {
            let z = start.wrapping_add(index.wrapping_mul(GOLDEN));
            let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let z = z ^ (z >> 31);
            ((z >> 40) as f64 / (1_u64 << 24) as f64 - 0.5) * 2.0
        })
        .collect()
}

/// The weights of one tensor.
fn weights(name: &str, count: usize, seed: u64) -> Vec<f32> {
    let formula = |x: f64| {
        if name.contains("rope_freqs") || name.contains("rope_factors") {
            1.5 + 0.4 * x
        } else if name.contains("ssm_a") && !name.contains("alpha") {
            -(0.55 + 0.45 * x)
        } else if name.contains("norm") && name.ends_with(".weight") {
            1.0 + 0.2 * x
        } else {
            0.17 * x
        }
    };
    uniform(name, count, seed).into_iter().map(|x| formula(x) as f32).collect()
}

/// A model of the zoo as an opened file.
pub fn model(folder: &std::path::Path, name: &str, seed: u64) -> Arc<File> {
    let mut bytes = std::fs::read(folder.join(format!("headers/{name}.header"))).expect("reads the header");
    let header = Header::parse(&bytes).expect("parses the header");
    for tensor in header.tensors.iter() {
        let data = weights(&tensor.name, tensor.elements() as usize, seed);
        let start = tensor.file_offset() as usize;
        let end = start + 4 * data.len();
        if bytes.len() < end.next_multiple_of(32) {
            bytes.resize(end.next_multiple_of(32), 0);
        }
        let slots = bytes[start..end].chunks_exact_mut(4);
        slots.zip(data).for_each(|(slot, x)| slot.copy_from_slice(&x.to_le_bytes()));
    }
    Arc::new(File::from_bytes(bytes).expect("opens the filled file"))
}
