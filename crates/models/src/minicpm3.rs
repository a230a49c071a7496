//! MiniCPM3: latent attention with keys and values of every head, scaled embeddings, residuals and logits.

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::Residuals;
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "minicpm3", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    /// Factor on embeddings.
    const EMBEDDING_SCALE: f32 = 12.0;
    /// Numerator of the factor on branches, over the root of the number of layers.
    const DEPTH_SCALE: f32 = 1.4;
    /// Width at which logits are not scaled.
    const BASE_WIDTH: f32 = 256.0;
    let block = b.latent_block(RopeKind::Split)?;
    let residuals = Residuals { scale: Some(DEPTH_SCALE / (b.layers() as f32).sqrt()), ..Residuals::PRE };
    let x = b.embed()?;
    let x = b.scale(x, EMBEDDING_SCALE, "embedding_scale")?;
    let x = b.decoder(
        x,
        residuals,
        |b, x| b.latent_attention(x, &block),
        |b, x| b.feed_forward(x, Function::Silu),
    )?;
    let x = b.norm("output_norm", x)?;
    let width = b.width(x) as f32;
    let x = b.scale(x, BASE_WIDTH / width, "output_scale")?;
    b.logits(x)
}
