//! ChatGLM 3 and GLM-4 (arXiv 2406.12793): gate and value in one matrix.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{Decoder, FeedForward, Residuals};
use crate::{Architecture, Builder, ModelError};

/// ChatGLM 3 and GLM-4 before 0414.
pub const CHATGLM: Architecture = Architecture { name: "chatglm", build: |b| glm(b, Residuals::PRE) };
/// GLM-4-0414 and GLM-4.1V, text: norms around each branch.
pub const GLM4: Architecture = Architecture { name: "glm4", build: |b| glm(b, Residuals::SANDWICH) };

fn glm(b: Builder<'_>, residuals: Residuals) -> Result<Graph, ModelError> {
    // The vision models rotate by sections of split halves; text positions are the same in each section.
    let kind = match b.has_key("rope.dimension_sections") {
        true => RopeKind::Split,
        false => RopeKind::Interleaved,
    };
    let decoder = Decoder::new(kind).with_residuals(residuals);
    decoder.with_network(FeedForward::fused(Function::Silu)).build(b)
}
