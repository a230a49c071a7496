//! Architectures whose files may have layers that guess tokens further ahead (`nextn_predict_layers`; multi-token prediction,
//! DeepSeek-AI, arXiv 2412.19437, section 2.2).
//!
//! Such a layer reads the embedding of a token and the model's state at the token before, each normed, and says the token after:
//! `eh_proj · [enorm(embedding), hnorm(state)]`, then a layer like the architecture's own, a norm and the output matrix.
//! What it says further on, it reads its own state.

/// The state that these layers read of the row before, in the model and in themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// What the last layer hands on.
    BeforeNorm,
    /// What the output matrix reads.
    AfterNorm,
}

/// The architectures by name.
pub const AHEAD: &[(&str, Reads)] = &[
    ("bailingmoe2", Reads::AfterNorm),
    ("bailingmoe3", Reads::AfterNorm),
    ("cohere2moe", Reads::AfterNorm),
    ("deepseek2", Reads::AfterNorm),
    ("deepseek32", Reads::AfterNorm),
    ("exaone-moe", Reads::AfterNorm),
    ("glm-dsa", Reads::AfterNorm),
    ("glm4moe", Reads::AfterNorm),
    ("hy_v3", Reads::AfterNorm),
    ("mimo2", Reads::BeforeNorm),
    ("nemotron_h_moe", Reads::AfterNorm),
    ("qwen35", Reads::AfterNorm),
    ("qwen35moe", Reads::AfterNorm),
    ("qwen3next", Reads::AfterNorm),
    ("step35", Reads::BeforeNorm),
];

/// What these layers of an architecture read; none if none are known.
pub fn reads(architecture: &str) -> Option<Reads> {
    AHEAD.iter().find(|(name, _)| *name == architecture).map(|(_, reads)| *reads)
}
