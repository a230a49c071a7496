//! Microsoft's Phi models.

use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{Decoder, FeedForward};
use crate::{Architecture, Norm};

/// Phi 1.5 and 2 (arXiv 2309.05463): layer norms, both branches read the same norm.
pub const PHI2: Architecture = Architecture { name: "phi2", build: super::falcon::parallel };

/// Phi 3, 3.5 and 4, Phi 4 mini (arXiv 2404.14219): LongRoPE, gate and value in one matrix. Windows that some
/// files name are not applied.
pub const PHI3: Architecture = Architecture {
    name: "phi3",
    build: |b| {
        let decoder = Decoder::new(RopeKind::Split).with_factors();
        decoder.with_network(FeedForward::fused(Function::Silu)).build(b)
    },
};

/// Phi 3.5 with experts. Its norms are layer norms where the file has their epsilon; files of other converters lack it,
/// and are computed as llama.cpp does, with RMS norms and a bias.
pub const PHIMOE: Architecture = Architecture {
    name: "phimoe",
    build: |mut b| {
        const EPSILON: &str = "attention.layer_norm_epsilon";
        if b.has_key(EPSILON) {
            let epsilon = b.positive_f32(EPSILON)?;
            b.set_norm_kind(Norm::Layer(epsilon));
        }
        let decoder = Decoder::new(RopeKind::Split).with_factors();
        decoder.build(b)
    },
};
