//! WavTokenizer's decoder (arXiv 2408.16532): from sound codes to spectra, by convolutions to both sides.

use puna_graph::ops::{Convolution, Function, GroupNorm, MatMul};
use puna_graph::{Graph, Input, ValueId};

use crate::blocks::Attending;
use crate::{Architecture, Builder, ModelError};

/// WavTokenizer, the decoder. Each row of its result is a frame of the spectrum.
pub const ARCHITECTURE: Architecture = Architecture::new("wavtokenizer-dec", build);

/// Layers of the first part: convolutions, attention in the middle, a norm at the end.
const ATTENTION: u32 = 2;
const LAST: u32 = 5;

/// Width of the second part.
const WIDTH: &str = "convnext.embedding_length";

/// Tokens that the first convolution and those of each channel alone see, and those of the first part's layers.
const FIRST_TAPS: u32 = 7;
const TAPS: u32 = 3;

/// Biases of what may lack them elsewhere.
const BIASES: &[&str] =
    &["token_embd_norm.bias", "norm.bias", "pw1.bias", "pw2.bias", "output_norm.bias", "output.bias"];

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(BIASES).with_other_outputs();
    b.require_numbers(&["posnet.block_count", "convnext.block_count", "attention.group_norm_groups"])?;
    let inner = b.extent("posnet.embedding_length")?;
    if b.extent(WIDTH)? != inner {
        return Err(b.value_error(WIDTH, b.extent(WIDTH)?, "as posnet.embedding_length"));
    }
    b.only_embeds()?;
    let x = b.embed_input(Input::Tokens, "features_length")?;
    let x = convolution(&mut b, x, "conv1d", inner, FIRST_TAPS)?;
    let layers = b.layers_or("posnet.block_count")?;
    if layers != LAST + 1 {
        return Err(b.value_error("posnet.block_count", layers, "6"));
    }
    let x = b.each_layer_of("posnet", layers, x, |b, x| match b.layer() {
        ATTENTION => attend(b, x),
        LAST => group_norm(b, x, "attn_norm"),
        _ => {
            let h = activated_convolution(b, x, "norm1", "conv1")?;
            let h = activated_convolution(b, h, "norm2", "conv2")?;
            b.add(h, x)
        }
    })?;
    let x = b.norm("token_embd_norm", x)?;
    let layers = b.layers_or("convnext.block_count")?;
    let hidden = b.hidden_width()?;
    let x = b.each_layer_of("convnext", layers, x, |b, x| {
        let width = b.width(x);
        let h = convolution_of(b, x, "dw", [width, 1, FIRST_TAPS])?;
        let h = b.norm("norm", h)?;
        let h = b.linear("pw1", h, hidden)?;
        let h = b.unary(Function::Gelu, h, "ffn_act")?;
        let h = b.linear("pw2", h, width)?;
        let gamma = b.weight("gamma.weight", &[width])?;
        let h = b.mul(h, gamma, "gamma")?;
        b.add(h, x)
    })?;
    let x = b.norm("output_norm", x)?;
    let width = b.width_or("embedding_length", 0)?;
    let weight = b.global_weight("output.weight", &[width, b.width(x)])?;
    let mut inputs = vec![weight, x.into()];
    inputs.extend(b.optional_global_weight("output.bias", &[width])?);
    let x = b.push(MatMul, inputs, "output")?;
    b.encoded(x)
}

/// A convolution over all channels, by so many taps.
fn convolution(
    b: &mut Builder<'_>,
    x: ValueId,
    name: &'static str,
    results: u32,
    taps: u32,
) -> Result<ValueId, ModelError> {
    let channels = b.width(x);
    convolution_of(b, x, name, [results, channels, taps])
}

/// A convolution with its bias.
fn convolution_of(
    b: &mut Builder<'_>,
    x: ValueId,
    name: &'static str,
    shape: [u32; 3],
) -> Result<ValueId, ModelError> {
    let kernel = b.weight(&format!("{name}.weight"), &shape)?;
    let h = b.push(Convolution, vec![x.into(), kernel], name)?;
    let bias = b.weight(&format!("{name}.bias"), &shape[..1])?;
    b.add(h, bias)
}

fn group_norm(b: &mut Builder<'_>, x: ValueId, name: &'static str) -> Result<ValueId, ModelError> {
    const GROUPS: &str = "attention.group_norm_groups";
    let (groups, width) = (b.extent(GROUPS)?, b.width(x));
    if !width.is_multiple_of(groups) {
        return Err(b.value_error(GROUPS, groups, "a divisor of posnet.embedding_length"));
    }
    let epsilon = b.positive_f32("attention.group_norm_epsilon")?;
    let h = b.push(GroupNorm { groups, epsilon }, vec![x.into()], name)?;
    let weight = b.weight(&format!("{name}.weight"), &[width])?;
    let h = b.mul(h, weight, name)?;
    let bias = b.weight(&format!("{name}.bias"), &[width])?;
    b.add(h, bias)
}

fn activated_convolution(
    b: &mut Builder<'_>,
    x: ValueId,
    norm: &'static str,
    name: &'static str,
) -> Result<ValueId, ModelError> {
    let h = group_norm(b, x, norm)?;
    let h = b.unary(Function::Silu, h, norm)?;
    convolution(b, h, name, b.width(x), TAPS)
}

/// One head over the full width.
fn attend(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let width = b.width(x);
    let h = group_norm(b, x, "attn_norm")?;
    let mut part = |name| {
        let part = convolution(b, h, name, width, 1)?;
        b.split_heads(part, width)
    };
    let parts = [part("attn_q")?, part("attn_k")?, part("attn_v")?];
    let h = b.attend_as(Attending::Encoder, parts, 1.0 / (width as f32).sqrt(), None)?;
    let h = convolution(b, h, "attn_output", width, 1)?;
    b.add(h, x)
}
