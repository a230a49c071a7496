//! Nemotron-H: each layer is Mamba 2, attention without positions, or a feed-forward network (NVIDIA,
//! arXiv 2504.03624); Nemotron 3 has experts that may work in a narrower space.

use puna_graph::ops::{Function, Gating};
use puna_graph::{Graph, ValueId};

use crate::Norm;
use crate::blocks::{AttentionBlock, Experts, FeedForward};
use crate::{Architecture, Builder, ModelError, Reads};

pub const DENSE: Architecture = Architecture::new("nemotron_h", build);
pub const EXPERTS: Architecture = Architecture::new("nemotron_h_moe", build).guessing_ahead(Reads::AfterNorm);

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(&["exp_probs_b.bias", "ssm_norm.weight"]);
    b.set_norm_kind(Norm::Rms(b.positive_f32("attention.layer_norm_epsilon")?));
    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = if b.has_any(&["ssm_in", "ssm_conv1d", "ssm_out"]) {
            b.mamba2(h)?
        } else if b.has_any(&["attn_q", "attn_k", "attn_v", "attn_output"]) {
            b.self_attention(h, &AttentionBlock::default())?
        } else {
            network(b, h)?
        };
        let x = b.add(x, h)?;
        if !b.guesses_ahead() {
            return Ok(x);
        }
        // A layer that guesses ahead is attention and network in one.
        let h = b.norm("post_attention_norm", x)?;
        let h = network(b, h)?;
        b.add(x, h)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// The router and the shared expert read the full width, the experts a narrower one if there is one.
fn network(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    const FUNCTION: Function = Function::ReluSquared;
    if !b.has_experts() {
        return b.feed_forward(x, FeedForward::plain(FUNCTION));
    }
    let experts = Experts {
        gated: false,
        activation: FUNCTION.into(),
        router_input: Some(x),
        ..Experts::new(Gating::Sigmoid, false)
    };
    let narrow = b.has_any(&["ffn_latent_down", "ffn_latent_up"]);
    let mut h = x;
    if narrow {
        let width = b.narrow_width("moe_latent_size", ["ffn_latent_down.weight", "ffn_latent_up.weight"])?;
        h = b.linear("ffn_latent_down", x, width)?;
    }
    h = b.experts(h, &experts)?;
    if narrow {
        let width = b.width(x);
        h = b.linear("ffn_latent_up", h, width)?;
    }
    let shared = b.shared_network(x, &experts)?;
    b.add(h, shared)
}
