//! The zoo: tiny models of every architecture, made from a header and a seed, with recorded logits.

use std::path::{Path, PathBuf};

use puna_gguf::File;

/// One model of the zoo.
pub struct ZooModel {
    /// Name of its header, for example `llama-dense`.
    pub name: String,
    /// Prompt of the recorded logits.
    pub tokens: Vec<u32>,
    /// Recorded logits, `[tokens, vocabulary]`.
    pub logits: Vec<f32>,
    /// Recorded greedy continuation.
    pub greedy: Vec<u32>,
    seed: u64,
    header: PathBuf,
}

/// Folders of fixtures: what llama.cpp recorded, and what the specification in numpy gives.
fn folders() -> [PathBuf; 2] {
    ["zoo", "zoo-own"]
        .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name))
}

/// Every model with recorded logits, in the order of the manifests.
pub fn models() -> Vec<ZooModel> {
    folders().iter().flat_map(|folder| models_of(folder)).collect()
}

fn models_of(zoo: &Path) -> Vec<ZooModel> {
    let folder = zoo.join("golden");
    let text = std::fs::read_to_string(folder.join("manifest.json")).expect("the zoo has a manifest");
    let manifest: serde_json::Value = serde_json::from_str(&text).expect("the manifest is JSON");
    let numbers = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let models = manifest["models"].as_object().expect("the manifest lists models");
    models
        .iter()
        .map(|(name, model)| {
            let bytes = std::fs::read(folder.join(format!("{name}.f32"))).expect("a model has logits");
            ZooModel {
                name: name.clone(),
                tokens: numbers(&manifest["tokens"]),
                logits: bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
                greedy: numbers(&model["greedy"]),
                seed: manifest["seed"].as_u64().expect("the manifest has a seed"),
                header: zoo.join("headers").join(format!("{name}.header")),
            }
        })
        .collect()
}

impl ZooModel {
    /// The model file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        fill(&self.header, self.seed)
    }

    /// The file of its header: a GGUF cut at its data section.
    pub fn header(&self) -> &Path {
        &self.header
    }

    /// The model, opened.
    pub fn open(&self) -> File {
        File::from_bytes(self.bytes()).expect("the zoo's files are good")
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> String {
        let header = File::header(&self.header);
        let metadata = header.expect("the zoo's headers are good").metadata;
        metadata.str("general.architecture").expect("a header has an architecture").to_string()
    }

    /// Whether the model has a GELU, whose goldens carry a table in half precision.
    pub fn has_gelu(&self) -> bool {
        GELU.contains(&self.architecture().as_str())
    }

    /// Largest error allowed by the model's activation.
    pub fn tolerance(&self) -> f64 {
        if self.has_gelu() { 1e-6 } else { 1e-8 }
    }
}

/// Architectures with a GELU.
const GELU: &[&str] = &[
    "bloom",
    "codeshell",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gpt2",
    "gptneox",
    "grok",
    "mpt",
    "phi2",
    "pockettts",
    "spark2_5",
    "starcoder",
    "starcoder2",
];

/// A model file from a header (a GGUF cut at its data section) and a seed. Element `i` of tensor `T` is made
/// from `splitmix64(fnv1a64(T) ^ seed·G + (i + 1)·G)` as a number in [-1, 1), scaled by the kind of tensor.
pub fn fill(header: &Path, seed: u64) -> Vec<u8> {
    const ALIGNMENT: usize = 32;
    let parsed = File::header(header).expect("the zoo's headers are good");
    let mut bytes = std::fs::read(header).expect("the header can be read");
    let data = bytes.len().next_multiple_of(ALIGNMENT);
    bytes.resize(data, 0);
    for tensor in parsed.tensors.iter() {
        for index in 0..tensor.elements() {
            bytes.extend_from_slice(&element(&tensor.name, index, seed).to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
    bytes
}

fn element(name: &str, index: u64, seed: u64) -> f32 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let hash = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ byte as u64).wrapping_mul(0x100_0000_01B3));
    let mut z = (hash ^ seed.wrapping_mul(GOLDEN)).wrapping_add((index + 1).wrapping_mul(GOLDEN));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let x = ((z >> 40) as f64 / (1_u64 << 24) as f64 - 0.5) * 2.0;
    let value = if name.contains("rope_freqs") || name.contains("rope_factors") {
        1.5 + 0.4 * x
    } else if name.contains("ssm_a") && !name.contains("alpha") {
        -(0.55 + 0.45 * x)
    } else if name.contains("norm") && name.ends_with(".weight") {
        1.0 + 0.2 * x
    } else {
        0.17 * x
    };
    value as f32
}
