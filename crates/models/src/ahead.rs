//! Layers that guess tokens further ahead (`nextn_predict_layers`; multi-token prediction, DeepSeek-AI, arXiv 2412.19437, section
//! 2.2).
//!
//! Such a layer reads the embedding of a token and the model's state at the token before, each normed, and says the token after:
//! `eh_proj · [enorm(embedding), hnorm(state)]`, then a layer like the architecture's own, a norm and the output matrix.
//! What it says further on, it reads its own state. Which architectures have them, their rows say
//! ([`Architecture::guessing_ahead`](crate::Architecture::guessing_ahead)).

/// The state that these layers read of the row before, in the model and in themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// What the last layer hands on.
    BeforeNorm,
    /// What the output matrix reads.
    AfterNorm,
}
