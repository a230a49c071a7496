//! Models that run their layers several times; each pass has keys and values of its own.

use puna_graph::ops::{Add, Function, RopeKind};
use puna_graph::{Graph, ValueId};

use crate::blocks::{AttentionBlock, Residuals};
use crate::{Architecture, Builder, ModelError};

/// Most passes over a stack of layers; real models have a handful.
const MOST_PASSES: u32 = 64;

/// Nanbeige: the whole stack runs `num_loops` times.
pub const NANBEIGE: Architecture = Architecture::new("nanbeige", nanbeige);

fn passes(b: &Builder<'_>, key: &str, default: u32) -> Result<u32, ModelError> {
    let passes = b.u32_or(key, default)?;
    match (1..=MOST_PASSES).contains(&passes) {
        true => Ok(passes),
        false => Err(b.value_error(key, passes, "between 1 and 64")),
    }
}

fn nanbeige(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let loops = passes(&b, "num_loops", 1)?;
    let skips_norm = b.bool_or("skip_loop_final_norm", false)?;
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, true)?);
    let mut x = b.embed()?;
    for pass in 1..=loops {
        x = b.decoder(
            x,
            Residuals::PRE,
            |b, x| b.self_attention(x, &AttentionBlock { rope, ..Default::default() }),
            |b, x| b.feed_forward(x, Function::Silu),
        )?;
        if pass < loops && !skips_norm {
            x = b.norm("output_norm", x)?;
        }
    }
    let x = b.norm("output_norm", x)?;
    b.logits(x)
}

/// Hierarchical reasoning (arXiv 2506.21734): a low stack of layers refines its state several times between two
/// passes of the high stack. Norms have no weights.
pub const HRM_TEXT: Architecture = Architecture::new("hrm_text", hrm_text);

fn hrm_text(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    let stack_layers = passes(&b, "hrm.layers_per_stack", 0)?;
    let (high_cycles, low_cycles) = (passes(&b, "hrm.h_cycles", 0)?, passes(&b, "hrm.l_cycles", 0)?);
    if stack_layers * high_cycles * (low_cycles + 1) > 4096 {
        return Err(b.value_error("hrm.h_cycles", high_cycles, "smaller with so many layers and cycles"));
    }
    let rope = Some(b.rope_settings(RopeKind::Split, b.key_dim()?, false)?);
    let block = AttentionBlock { rope, gate: Some(Function::Sigmoid), ..Default::default() };
    let stack = |b: &mut Builder<'_>, mut x: ValueId, first: u32| {
        for layer in first..first + stack_layers {
            x = b.at_layer(layer, |b| {
                let h = b.norm_unweighted(x, "attn_norm")?;
                let h = b.self_attention(h, &block)?;
                let x = b.add(x, h)?;
                let h = b.norm_unweighted(x, "ffn_norm")?;
                let h = b.feed_forward(h, Function::Silu)?;
                b.add(x, h)
            })?;
        }
        b.norm_unweighted(x, "stack_norm")
    };
    let mut high = b.embed()?;
    if let Some(factor) = b.applied_f32("embedding_scale")? {
        high = b.scale(high, factor, "embed_scale")?;
    }
    let initial = b.global_weight("hrm.z_l_init", &[b.width(high)])?;
    let mut low = None;
    for _ in 0..high_cycles {
        for _ in 0..low_cycles {
            let sum = b.push(Add, vec![high.into(), low.map_or(initial, Into::into)], "low_input")?;
            low = Some(stack(&mut b, sum, 0)?);
        }
        let sum = b.push(Add, vec![high.into(), low.map_or(initial, Into::into)], "high_input")?;
        high = stack(&mut b, sum, stack_layers)?;
    }
    b.logits(high)
}
