//! PLaMo 2: attention and a Mamba with heads in turn, norms around each branch (Preferred Networks,
//! arXiv 2509.04897).

use puna_graph::ops::{Function, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{AttentionBlock, FeedForward, HeadNorms, Residuals, ScanInputs};
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("plamo2", build);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["ssm_dt.bias"]);
    b.require_numbers(&["ssm.group_count"])?;
    let head_dim = b.key_dim()?;
    let rope = Some(b.rope_settings(RopeKind::Split, head_dim, true)?);
    let block = AttentionBlock { rope, norms: HeadNorms::PerHead, ..AttentionBlock::default() };
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::SANDWICH,
        |b, x| match b.has_attention()? {
            true => b.self_attention(x, &block),
            false => mamba(b, x),
        },
        |b, x| b.feed_forward(x, FeedForward::fused(Function::Silu)),
    )?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Mamba 1's projections with Mamba 2's one rate per head.
fn mamba(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let (inner, size) = (b.extent("ssm.inner_size")?, b.extent("ssm.state_size")?);
    let heads = b.extent("ssm.time_step_rank")?;
    if !inner.is_multiple_of(heads) {
        return Err(b.value_error("ssm.inner_size", inner, "a multiple of ssm.time_step_rank"));
    }
    let dim = inner / heads;
    let both = b.linear("ssm_in", x, 2 * inner)?;
    let both = b.split_heads(both, 2 * dim)?;
    let (z, u) = (b.slice(both, 0, dim)?, b.slice(both, dim, dim)?);
    let u = b.join_heads(u)?;
    let u = b.short_convolution("ssm_conv1d", u)?;
    let u = b.unary(Function::Silu, u, "ssm_conv1d")?;
    let of_both = b.said_by("ssm_x.weight", 1).and_then(|claim| claim.beyond(2 * size));
    let rank = [of_both, b.said_by("ssm_dt.weight", 0), b.said_by("ssm_dt_norm.weight", 0)];
    let rank = b.agreed(None, rank)?;
    let projected = b.linear("ssm_x", u, rank + 2 * size)?;
    let (from, to) = (b.slice(projected, 0, size)?, b.slice(projected, size, size)?);
    let steps = b.slice(projected, 2 * size, rank)?;
    let (from, to) = (b.norm("ssm_b_norm", from)?, b.norm("ssm_c_norm", to)?);
    let steps = b.norm("ssm_dt_norm", steps)?;
    let steps = b.linear("ssm_dt", steps, heads)?;
    let steps = b.unary(Function::Softplus, steps, "ssm_dt")?;
    let rates = b.weight("ssm_a", &[heads])?;
    let u = b.split_heads(u, dim)?;
    let (from, to) = (b.split_heads(from, size)?, b.split_heads(to, size)?);
    let y = b.selective_scan(ScanInputs { u, steps, b: from, c: to }, rates)?;
    let y = b.glu(Function::Silu, z, y)?;
    let y = b.join_heads(y)?;
    let width = b.width(x);
    b.linear("ssm_out", y, width)
}
