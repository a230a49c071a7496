//! PLM: latent attention and a squared ReLU (PLM Team, arXiv 2503.12167).

use puna_graph::Graph;
use puna_graph::ops::{Function, RopeKind};

use crate::blocks::{FeedForward, Residuals};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "plm", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let block = b.latent_block(RopeKind::Interleaved)?;
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.latent_attention(x, &block),
        |b, x| b.feed_forward(x, FeedForward::plain(Function::ReluSquared)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}
