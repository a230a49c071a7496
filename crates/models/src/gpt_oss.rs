//! gpt-oss (OpenAI, arXiv 2508.10925): attention sinks, windows in every second layer, biased experts.

use puna_graph::Graph;
use puna_graph::ops::{Gating, RopeKind};

use crate::blocks::{Activation, Decoder, Residuals, WindowDefaults, WindowRope};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "gpt-oss", build };

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let windows = WindowDefaults { length: 0, pattern: 2, full_first: false };
    Decoder::new(RopeKind::Split)
        .with_residuals(Residuals::POST_ATTENTION)
        .with_windows(windows, WindowRope::Copied)
        .with_experts(Gating::SoftmaxOfChosen, false)
        .with_activation(Activation::SHIFTED)
        .build(b)
}
