//! Model architectures: one function per architecture builds its graph from a file's keys and tensors.
//!
//! Weights are declared by use: the builder checks each against the file's directory where it is used. No
//! architecture knows number formats or devices; a block declares the cache it needs, and the builder alone refuses
//! formats that no weight can have. To add an architecture write one file with one
//! function and add its row to [`ARCHITECTURES`].
#![forbid(unsafe_code)]

mod ahead;
mod blocks;
mod builder;
mod direction;
mod error;
mod purpose;

mod bailing3;
mod bert;
mod chameleon;
mod cohere;
mod deepseek2;
mod deepseek4;
mod dflash;
mod eagle3;
mod exaone;
mod gated;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm;
mod gpt2;
mod granite;
mod grok;
mod hunyuan;
mod hy_v4;
mod kimi;
mod lfm2;
mod llama;
mod llama4;
mod looped;
mod mamba;
mod minimax_01;
mod modern_bert;
mod moe;
mod nemotron_h;
mod olmo;
mod parallel;
mod plamo2;
mod qwen;
mod qwen4exp;
mod qwen_moe;
mod qwen_next;
mod rwkv6;
mod rwkv7;
mod t5;
mod talkie;
mod wavtokenizer;

pub use ahead::Reads;
pub use builder::{Builder, Head, Norm};
pub use error::ModelError;
pub use purpose::{Pooling, Purpose};

use puna_gguf::{Metadata, Tensors};
use puna_graph::{Graph, StateDecl};

/// One architecture.
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Builds the graph.
    pub build: fn(Builder<'_>) -> Result<Graph, ModelError>,
    /// What layers that guess tokens further ahead read, where its files may have any.
    pub guesses_ahead: Option<Reads>,
}

impl Architecture {
    /// An architecture of this name, whose graphs this function builds.
    pub const fn new(name: &'static str, build: fn(Builder<'_>) -> Result<Graph, ModelError>) -> Self {
        Self { name, build, guesses_ahead: None }
    }

    /// The same whose files may have layers that guess tokens further ahead, which read this.
    pub const fn guessing_ahead(self, reads: Reads) -> Self {
        Self { guesses_ahead: Some(reads), ..self }
    }
}

/// Every architecture this engine runs.
pub const ARCHITECTURES: &[Architecture] = &[
    olmo::APERTUS,
    cohere::COMMAND_R,
    cohere::COHERE2,
    cohere::COHERE2MOE,
    llama::DECI,
    exaone::EXAONE4,
    exaone::EXAONE_MOE,
    exaone::MAPLE,
    parallel::FALCON,
    gated::AFMOE,
    gated::MUSE_GLIMMER,
    gated::LAGUNA,
    gated::SPARK2_5,
    gated::STEP35,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma3n::ARCHITECTURE,
    gemma4::ARCHITECTURE,
    glm::CHATGLM,
    glm::GLM4,
    gpt2::GPT2,
    gpt2::STARCODER,
    gpt2::BLOOM,
    gpt2::MPT,
    gpt2::STARCODER2,
    gpt2::CODESHELL,
    gpt2::POCKETTTS,
    gpt2::NEMOTRON,
    gpt2::JAIS2,
    gpt2::JAIS,
    gpt2::REFACT,
    gpt2::GPTNEOX,
    moe::GPT_OSS,
    granite::GRANITE,
    granite::GRANITEMOE,
    granite::MINICPM,
    granite::GRANITE_SWA,
    grok::ARCHITECTURE,
    hunyuan::HUNYUAN_DENSE,
    hunyuan::HUNYUAN_MOE,
    hunyuan::HUNYUAN_VL,
    llama::LLAMA,
    llama::INTERNLM2,
    llama::XVERSE,
    llama::MISTRAL3,
    llama::ARCEE,
    llama::SMOLLM3,
    llama::BAICHUAN,
    llama::MAINCODER,
    llama::LLADA,
    llama::ERNIE4_5,
    llama::ERNIE4_5_MOE,
    llama::DEEPSEEK,
    llama::BAILINGMOE,
    llama::PLAMO3,
    llama4::ARCHITECTURE,
    looped::NANBEIGE,
    looped::HRM_TEXT,
    moe::DBRX,
    moe::ARCTIC,
    moe::GROVEMOE,
    moe::SMALLTHINKER,
    moe::MIMO2,
    olmo::OLMO,
    olmo::OLMO2,
    parallel::PHI2,
    parallel::GPTJ,
    llama::PHI3,
    llama::PHIMOE,
    qwen::QWEN,
    qwen::QWEN2,
    qwen_moe::QWEN2MOE,
    qwen::QWEN2VL,
    qwen::DREAM,
    qwen_moe::DEEPSEEK2_OCR,
    qwen::SEED_OSS,
    qwen::PANGU_EMBEDDED,
    qwen::ORION,
    qwen::COGVLM,
    qwen::PADDLEOCR,
    qwen::BITNET,
    qwen::EXAONE,
    qwen::QWEN3,
    qwen::QWEN3MOE,
    qwen::QWEN3VL,
    qwen::QWEN3VLMOE,
    qwen::QWEN3TTS,
    qwen::MELLUM,
    qwen::LLADA_MOE,
    qwen::RND1,
    qwen::OPENELM,
    qwen_moe::DOTS1,
    qwen_moe::BAILINGMOE2,
    qwen_moe::HY_V3,
    qwen_moe::GLM4MOE,
    qwen_moe::OLMOE,
    qwen_moe::MINIMAX_M2,
    qwen_moe::MINIMAX_M3,
    parallel::STABLELM,
    parallel::PLAMO,
    talkie::ARCHITECTURE,
    // Recurrent, hybrid and latent attention.
    mamba::MAMBA,
    mamba::MAMBA2,
    mamba::FALCON_H1,
    mamba::JAMBA,
    granite::GRANITE_HYBRID,
    nemotron_h::DENSE,
    nemotron_h::EXPERTS,
    plamo2::ARCHITECTURE,
    lfm2::DENSE,
    lfm2::EXPERTS,
    qwen_next::QWEN3_NEXT,
    qwen_next::QWEN35,
    qwen_next::QWEN35_MOE,
    kimi::KIMI_LINEAR,
    minimax_01::ARCHITECTURE,
    bailing3::ARCHITECTURE,
    deepseek2::DEEPSEEK2,
    deepseek2::DEEPSEEK32,
    deepseek2::GLM_DSA,
    deepseek2::MISTRAL4,
    deepseek2::MINICPM3,
    deepseek2::PLM,
    deepseek2::DOTS3NOTE,
    kimi::KIMI_K3,
    deepseek4::ARCHITECTURE,
    glm::GLM5_NEXT,
    hy_v4::ARCHITECTURE,
    qwen4exp::ARCHITECTURE,
    rwkv6::RWKV6,
    rwkv6::RWKV6_QWEN2,
    rwkv7::RWKV7,
    rwkv7::ARWKV7,
    // Encoders and others that make embeddings.
    bert::BERT,
    bert::JINA_BERT_V2,
    bert::JINA_BERT_V3,
    bert::NOMIC_BERT,
    bert::NOMIC_BERT_MOE,
    modern_bert::MODERN_BERT,
    modern_bert::NEO_BERT,
    modern_bert::EUROBERT,
    modern_bert::LLAMA_EMBED,
    modern_bert::GEMMA_EMBEDDING,
    t5::T5,
    t5::T5_ENCODER,
    wavtokenizer::ARCHITECTURE,
    chameleon::ARCHITECTURE,
    // Draft heads.
    eagle3::ARCHITECTURE,
    dflash::ARCHITECTURE,
];

/// What a graph depends on besides the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BuildOptions {
    /// Cells that one sequence may use: whether texts can get longer than LongRoPE's original context.
    pub context: u32,
    /// Whether every text counts as long where that makes a difference (LongRoPE), whatever its length: as if each filled the
    /// context that the model was made for.
    pub only_long_texts: bool,
    /// What the graph is for.
    pub purpose: Purpose,
    /// Whether a row sees later ones of its sequence (false) or not (true); `None` for what the file says. It sees
    /// them only within one step, so nothing is kept from step to step.
    pub causal: Option<bool>,
    /// Whether every row's last state leaves the model ([`puna_graph::Output::LastState`]), for layers that guess tokens
    /// further ahead.
    pub last_state: bool,
}

/// Builds the graph of a model file.
///
/// Errors name the architecture, key or tensor at fault.
pub fn build(metadata: &Metadata, tensors: &Tensors, options: &BuildOptions) -> Result<Graph, ModelError> {
    let name = metadata.str("general.architecture")?;
    let architecture = find(name)?;
    let mut graph = (architecture.build)(Builder::new(architecture, metadata, tensors, options)?)?;
    if let Some(causal) = options.causal {
        direction::check(&graph, name, causal)?;
    }
    puna_graph::passes::move_output_rows_up(&mut graph);
    if options.purpose == Purpose::GuessAhead {
        number_from_zero(&mut graph);
    }
    Ok(graph)
}

/// Counts the layers of a graph that has not the first ones from 0.
fn number_from_zero(graph: &mut Graph) {
    let of_nodes = graph.nodes.iter().filter_map(|node| node.layer);
    let Some(first) = of_nodes.min() else { return };
    let shift = |layer: &mut u32| *layer = layer.saturating_sub(first);
    graph.nodes.iter_mut().filter_map(|node| node.layer.as_mut()).for_each(shift);
    graph.weights.iter_mut().filter_map(|weight| weight.layer.as_mut()).for_each(shift);
    for state in &mut graph.states {
        let (StateDecl::KeyValue { layer, .. } | StateDecl::Recurrent { layer, .. }) = state;
        shift(layer);
    }
}

/// Whether files of this architecture may have layers that guess tokens further ahead.
pub fn guesses_ahead(architecture: &str) -> bool {
    ARCHITECTURES.iter().any(|row| row.name == architecture && row.guesses_ahead.is_some())
}

/// The architecture of this name; the error has the names that are nearest.
pub fn find(name: &str) -> Result<&'static Architecture, ModelError> {
    ARCHITECTURES.iter().find(|row| row.name == name).ok_or_else(|| ModelError::UnknownArchitecture {
        name: name.chars().take(64).collect(),
        nearest: nearest(name),
    })
}

/// The three known architectures whose names look most like `name`: by the pairs of neighbouring letters that they
/// share (Dice's coefficient).
fn nearest(name: &str) -> Vec<&'static str> {
    let pairs = |text: &str| {
        let letters: Vec<char> =
            text.chars().take(64).filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
        letters.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
    };
    let wanted = pairs(name);
    let likeness = |row: &Architecture| {
        let mut left = pairs(row.name);
        let total = (left.len() + wanted.len()).max(1);
        let shared = wanted.iter().filter(|pair| {
            let found = left.iter().position(|other| other == *pair);
            found.map(|index| left.swap_remove(index)).is_some()
        });
        (2000 * shared.count() / total, row.name)
    };
    let mut ranked: Vec<(usize, &'static str)> = ARCHITECTURES.iter().map(likeness).collect();
    ranked.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    ranked.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Names of tensors in the file that the graph does not use, in file order; worth a warning.
pub fn unused_tensors<'t>(graph: &Graph, tensors: &'t Tensors) -> Vec<&'t str> {
    let used: std::collections::HashSet<&str> =
        graph.weights.iter().map(|weight| weight.name.as_str()).collect();
    tensors.iter().map(|tensor| tensor.name.as_str()).filter(|name| !used.contains(name)).collect()
}
