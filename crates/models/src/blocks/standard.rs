//! A whole decoder from settings, for the many architectures whose layers are all alike.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, MaskRule, RopeKind};

use super::{
    Activation, AttentionBlock, Experts, FeedForward, HeadNorms, Residuals, WindowDefaults, WindowRope,
};
use crate::{Builder, Head, ModelError};

/// A decoder whose layers differ at most in their window, their widths and in having experts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decoder {
    /// Pairing of rotated elements; none for no rotation.
    pub rope: Option<RopeKind>,
    /// Whether `rope_freqs` and `rope_factors_*` are applied.
    pub rope_factors: bool,
    /// Attention; its rotation and mask are set by layer unless there is neither rotation nor window.
    pub attention: AttentionBlock,
    /// Norms.
    pub residuals: Residuals,
    /// Network of dense layers.
    pub network: FeedForward,
    /// Experts of layers that have a router.
    pub experts: Experts,
    /// Factor on embeddings.
    pub embedding_scale: Option<f32>,
    /// Windows, and how their layers rotate.
    pub windows: Option<(WindowDefaults, WindowRope)>,
    /// Whether windows reach to both sides.
    pub symmetric_windows: bool,
    /// What follows the output matrix.
    pub head: Head,
}

impl Decoder {
    /// Pre-norm layers with SwiGLU networks or with experts by normalised softmax.
    pub fn new(rope: impl Into<Option<RopeKind>>) -> Self {
        Self {
            rope: rope.into(),
            rope_factors: false,
            attention: AttentionBlock::default(),
            residuals: Residuals::PRE,
            network: FeedForward::gated(Function::Silu),
            experts: Experts::new(Gating::Softmax, true),
            embedding_scale: None,
            windows: None,
            symmetric_windows: false,
            head: Head::default(),
        }
    }

    /// With `rope_freqs` and `rope_factors_*`.
    pub fn with_factors(self) -> Self {
        Self { rope_factors: true, ..self }
    }

    /// With norms of queries and keys.
    pub fn with_norms(mut self, norms: HeadNorms) -> Self {
        self.attention.norms = norms;
        self
    }

    /// With these experts.
    pub fn with_experts(self, gating: impl Into<Option<Gating>>, normalise: bool) -> Self {
        Self { experts: Experts::new(gating, normalise), ..self }
    }

    /// With this network in dense layers.
    pub fn with_network(self, network: FeedForward) -> Self {
        Self { network, ..self }
    }

    /// With this activation in dense layers, experts and shared experts.
    pub fn with_activation(mut self, activation: impl Into<Activation>) -> Self {
        let activation = activation.into();
        self.network.activation = activation;
        self.experts.activation = activation;
        self
    }

    /// With norms at these places.
    pub fn with_residuals(self, residuals: Residuals) -> Self {
        Self { residuals, ..self }
    }

    /// With window layers.
    pub fn with_windows(self, defaults: WindowDefaults, rope: WindowRope) -> Self {
        Self { windows: Some((defaults, rope)), ..self }
    }

    /// The graph.
    pub fn build(&self, mut b: Builder<'_>) -> Result<Graph, ModelError> {
        let rope = match self.rope {
            Some(kind) => Some(b.rope_settings(kind, b.key_dim()?, self.rope_factors)?),
            None => None,
        };
        let windows = match self.windows {
            Some((defaults, kind)) => {
                let rope = rope.map(|rope| b.window_rope(&rope, kind)).transpose()?;
                Some((b.windows(defaults)?, rope))
            }
            None => None,
        };
        let mut x = b.embed()?;
        if let Some(factor) = self.embedding_scale {
            x = b.scale(x, factor, "embed_scale")?;
        }
        let x = b.decoder(
            x,
            self.residuals,
            |b, x| {
                let mut block = AttentionBlock { rope, ..self.attention };
                if let Some((windows, window_rope)) = &windows {
                    if windows.limits(b.layer()) {
                        block.rope = *window_rope;
                    }
                    block.mask = match windows.mask(b.layer()) {
                        MaskRule::Window(length) if self.symmetric_windows => {
                            MaskRule::SymmetricWindow(length)
                        }
                        mask => mask,
                    };
                }
                b.self_attention(x, &block)
            },
            |b, x| b.dense_or_experts(x, self.network, &self.experts),
        )?;
        let x = b.norm("output_norm", x)?;
        b.logits_with(x, self.head)
    }
}
