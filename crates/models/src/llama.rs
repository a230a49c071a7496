//! Llama 1 to 3, Mistral 7B, Mixtral, SmolLM, Yi and their kin (Touvron et al., arXiv 2302.13971).

use puna_graph::Graph;
use puna_graph::ops::{Function, Gating, MaskRule, RopeKind};

use crate::blocks::AttentionBlock;
use crate::{Architecture, Builder, ModelError};

pub const ARCHITECTURE: Architecture = Architecture { name: "llama", build };

fn build(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let head_dim = b.key_dim()?;
    let rope = b.rope_settings(RopeKind::Interleaved, head_dim, true)?;
    let scale = b.attention_scale()?;
    let sparse = b.expert_count()? > 0;

    let x = b.embed()?;
    let x = b.each_layer(x, |b, x| {
        let h = b.rms_norm("attn_norm", x)?;
        let block = AttentionBlock { rope: Some(&rope), scale, mask: MaskRule::Causal, head_norms: false };
        let h = b.self_attention(h, &block)?;
        let x = b.add(x, h)?;

        let h = b.rms_norm("ffn_norm", x)?;
        let h = match sparse {
            true => b.experts(h, Function::Silu, Gating::Softmax, true)?,
            false => b.feed_forward(h, Function::Silu)?,
        };
        b.add(x, h)
    })?;
    let x = b.rms_norm("output_norm", x)?;
    b.logits(x)
}
