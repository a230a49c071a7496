//! Grok 1 and 2: bounded scores, norms around each branch, experts beside a dense network.

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, RopeKind};

use crate::blocks::{AttentionBlock, Experts};
use crate::{Architecture, Builder, Head, ModelError};

pub const ARCHITECTURE: Architecture = Architecture::new("grok", build);

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut rope = b.rope_settings(RopeKind::Split, b.key_dim()?, false)?;
    if let Some(yarn) = &mut rope.rope.yarn {
        yarn.beta_fast = b.f32_or("rope.scaling.yarn_beta_fast", 8.0)?;
    }
    let block = AttentionBlock {
        rope: Some(rope),
        scale: Some(b.f32_or("attention.output_scale", 0.088_388_35)?),
        soft_cap: Some(b.f32_or("attn_logit_softcapping", 30.0)?).filter(|cap| *cap != 0.0),
        ..Default::default()
    };
    let head = Head {
        scale: Some(b.f32_or("logit_scale", 0.577_350_26)?),
        soft_cap: b.applied_f32("final_logit_softcapping")?,
        ..Head::default()
    };
    let experts = Experts { activation: Function::Gelu.into(), ..Experts::new(Gating::Softmax, true) };

    let x = b.embed()?;
    let x = b.scale(x, b.f32_or("embedding_scale", 78.383_67)?, "embed_scale")?;
    let x = b.each_layer(x, |b, x| {
        let h = b.norm("attn_norm", x)?;
        let h = b.self_attention(h, &block)?;
        let h = b.norm("attn_output_norm", h)?;
        let x = b.add(x, h)?;

        let h = b.norm("ffn_norm", x)?;
        let mut y = b.experts(h, &experts)?;
        if b.has_any(&["ffn_gate", "ffn_up", "ffn_down"]) {
            let dense = b.feed_forward(h, Function::Gelu)?;
            let sum = b.add(y, dense)?;
            y = b.scale(sum, std::f32::consts::FRAC_1_SQRT_2, "ffn_mean")?;
        }
        let after = match b.either("layer_output_norm.weight", "post_ffw_norm.weight")? {
            true => "layer_output_norm",
            false => "post_ffw_norm",
        };
        let y = b.norm(after, y)?;
        b.add(x, y)
    })?;
    let x = b.norm("output_norm", x)?;
    b.logits_with(x, head)
}
