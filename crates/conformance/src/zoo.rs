//! The zoo: tiny models of every architecture, made from a header and a seed, with recorded logits.

use std::collections::BTreeMap;
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

/// The folder of what llama.cpp recorded.
fn folder() -> PathBuf {
    let [recorded, _] = folders();
    recorded
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

/// Whether an architecture has a GELU in this file.
fn has_gelu(architecture: &str, header: &Path) -> bool {
    let metadata = || File::header(header).expect("the zoo's headers are good").metadata;
    match architecture {
        "modern-bert" => {
            metadata().str_or("modern-bert.hidden_activation", "gelu").expect("a text") == "gelu"
        }
        // The gate tells them apart.
        "t5" | "t5encoder" => {
            let tensors = File::header(header).expect("the zoo's headers are good").tensors;
            tensors.get("enc.blk.0.ffn_gate.weight").is_some()
        }
        other => GELU.contains(&other),
    }
}

/// Architectures with a GELU.
const GELU: &[&str] = &[
    "bert",
    "bloom",
    "codeshell",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma-embedding",
    "gemma4",
    "gpt2",
    "gptj",
    "gptneox",
    "grok",
    "jina-bert-v2",
    "jina-bert-v3",
    "mpt",
    "nomic-bert-moe",
    "phi2",
    "pockettts",
    "spark2_5",
    "starcoder",
    "starcoder2",
    "wavtokenizer-dec",
];

/// One model of the zoo that makes embeddings or has an encoder.
pub struct EmbeddingModel {
    /// Name of its header.
    pub name: String,
    /// A text alone.
    pub tokens: Vec<u32>,
    /// Several in one batch.
    pub batch: Vec<Vec<u32>>,
    /// Tokens of the decoder, for those that have one.
    pub decoder_tokens: Vec<u32>,
    /// Recorded values by kind (`none`, `mean`, `cls`, `last`, `rank`, `logits`): for pooled kinds a row for the text
    /// alone and one for each of the batch, for `none` a row per token of the same.
    pub recorded: BTreeMap<String, Vec<f32>>,
    /// Columns that the recorded logits have, if not all.
    pub columns: Vec<std::ops::Range<usize>>,
    /// Recorded greedy continuation; empty if there is none.
    pub greedy: Vec<u32>,
    seed: u64,
}

/// Every model of `headers-embedding`, in the order of the manifest.
pub fn embedding_models() -> Vec<EmbeddingModel> {
    let folder = folder().join("golden-embedding");
    let text = std::fs::read_to_string(folder.join("manifest.json")).expect("the zoo has a manifest");
    let manifest: serde_json::Value = serde_json::from_str(&text).expect("the manifest is JSON");
    let numbers = |value: &serde_json::Value| -> Vec<u32> {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let lists = |value: &serde_json::Value| -> Vec<Vec<u32>> {
        value.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(numbers).collect()
    };
    let models = manifest["models"].as_object().expect("the manifest lists models");
    let model = |(name, model): (&String, &serde_json::Value)| {
        let kinds = model["files"].as_object().expect("the manifest lists files").keys();
        let recorded = kinds.map(|kind| {
            let bytes = std::fs::read(folder.join(format!("{name}.{kind}.f32"))).expect("the file is there");
            let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            (kind.clone(), floats.collect())
        });
        EmbeddingModel {
            name: name.clone(),
            tokens: numbers(&manifest["tokens"]),
            batch: lists(&manifest["batch"]),
            decoder_tokens: numbers(&manifest["decoder_tokens"]),
            recorded: recorded.collect(),
            columns: lists(&model["columns"]).iter().map(|c| c[0] as usize..c[1] as usize).collect(),
            greedy: numbers(&model["greedy"]),
            seed: manifest["seed"].as_u64().expect("the manifest has a seed"),
        }
    };
    models.iter().map(model).collect()
}

impl EmbeddingModel {
    /// The file of its header: a GGUF cut at its data section.
    pub fn header(&self) -> PathBuf {
        folder().join("headers-embedding").join(format!("{}.header", self.name))
    }

    /// The model file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        fill(&self.header(), self.seed)
    }

    /// The model, opened.
    pub fn open(&self) -> File {
        File::from_bytes(self.bytes()).expect("the zoo's files are good")
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> String {
        let metadata = File::header(&self.header()).expect("the zoo's headers are good").metadata;
        metadata.str("general.architecture").expect("a header has an architecture").to_string()
    }

    /// Largest error allowed by the model's activation. Classifiers have a GELU where their model has one.
    pub fn tolerance(&self) -> f64 {
        if has_gelu(&self.architecture(), &self.header()) { 1e-6 } else { 1e-8 }
    }

    /// What the encoder and the decoder read for the recorded logits; a decoder alone reads the text.
    pub fn encoder_and_decoder(&self, graph: &puna_graph::Graph) -> (&[u32], &[u32]) {
        match graph.groups().contains(&puna_graph::CacheGroup::Encoder) {
            true => (&self.tokens, &self.decoder_tokens),
            false => (&[], &self.tokens),
        }
    }

    /// The recorded columns of rows of logits.
    pub fn select(&self, logits: &[f32], width: usize) -> Vec<f32> {
        if self.columns.is_empty() {
            return logits.to_vec();
        }
        let row =
            |row: &[f32]| self.columns.iter().flat_map(|c| row[c.clone()].to_vec()).collect::<Vec<f32>>();
        logits.chunks_exact(width).flat_map(row).collect()
    }
}

/// One draft head of the zoo, or a model with a layer that guesses ahead.
pub struct DraftModel {
    /// Name of its header.
    pub name: String,
    /// Tokens of the text.
    pub tokens: Vec<u32>,
    /// Tokens of a block that is drafted after it.
    pub block: Vec<u32>,
    /// Numbers in a row of features.
    pub width: usize,
    /// `[tokens, width]`: states of the model that is drafted for.
    pub features: Vec<f32>,
    /// The best token after the text, or of the block's first row.
    pub best: u32,
    /// What it has to give, by kind: `fused`, `state`, `logits`, `hidden`, `next.logits`.
    pub expected: BTreeMap<String, Vec<f32>>,
    seed: u64,
    headers: PathBuf,
}

/// Every draft head; what they have to give was computed in numpy.
pub fn draft_models() -> Vec<DraftModel> {
    drafts("draft")
}

/// A model for each architecture with layers that guess tokens ahead, with one such layer; what that has to give was computed in
/// numpy. They have neither blocks nor features of their own.
pub fn ahead_models() -> Vec<DraftModel> {
    drafts("ahead")
}

fn drafts(kind: &str) -> Vec<DraftModel> {
    let [_, own] = folders();
    let (folder, headers) = (own.join(format!("golden-{kind}")), own.join(format!("headers-{kind}")));
    let text = std::fs::read_to_string(folder.join("manifest.json")).expect("the drafts have a manifest");
    let manifest: serde_json::Value = serde_json::from_str(&text).expect("the manifest is JSON");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let numbers = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().into_iter().flatten().map(|id| number(id) as u32).collect()
    };
    let (tokens, seed) = (numbers(&manifest["tokens"]), number(&manifest["seed"]));
    let models = manifest["models"].as_object().expect("the manifest lists models");
    let model = |(name, model): (&String, &serde_json::Value)| {
        let width = model.get("features").map_or(0, number) as usize;
        let element = |index: usize| 6.0 * element("features", index as u64, seed);
        let kinds = model["kinds"].as_array().expect("the manifest lists kinds");
        let expected = kinds.iter().filter_map(serde_json::Value::as_str).map(|kind| {
            let bytes = std::fs::read(folder.join(format!("{name}.{kind}.f32"))).expect("the file is there");
            let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            (kind.to_owned(), floats.collect())
        });
        DraftModel {
            name: name.clone(),
            tokens: tokens.clone(),
            block: numbers(&manifest["block"]),
            width,
            features: (0..tokens.len() * width).map(element).collect(),
            best: number(&model["best"]) as u32,
            expected: expected.collect(),
            seed,
            headers: headers.clone(),
        }
    };
    models.iter().map(model).collect()
}

impl DraftModel {
    /// The file of its header: a GGUF cut at its data section.
    pub fn header(&self) -> PathBuf {
        self.headers.join(format!("{}.header", self.name))
    }

    /// The model, opened.
    pub fn open(&self) -> File {
        File::from_bytes(fill(&self.header(), self.seed)).expect("the zoo's files are good")
    }

    /// `general.architecture`.
    pub fn architecture(&self) -> String {
        let metadata = File::header(&self.header()).expect("the zoo's headers are good").metadata;
        metadata.str("general.architecture").expect("a header has an architecture").to_string()
    }
}

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

pub(crate) fn element(name: &str, index: u64, seed: u64) -> f32 {
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
