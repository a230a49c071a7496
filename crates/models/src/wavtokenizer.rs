//! WavTokenizer's decoder (arXiv 2408.16532): from sound codes to spectra, by convolutions to both sides.

use puna_graph::ops::{Convolution, Function, GroupNorm, MatMul};
use puna_graph::{Graph, Input, ValueId};

use crate::blocks::Attending;
use crate::{Architecture, Builder, ModelError};

/// WavTokenizer, the decoder. Each row of its result is a frame of the spectrum.
pub const ARCHITECTURE: Architecture = Architecture { name: "wavtokenizer-dec", build };

/// Layers of the first part: convolutions, attention in the middle, a norm at the end.
const ATTENTION: u32 = 2;
const LAST: u32 = 5;

/// Biases of what may lack them elsewhere.
const BIASES: &[&str] =
    &["token_embd_norm.bias", "norm.bias", "pw1.bias", "pw2.bias", "output_norm.bias", "output.bias"];

fn build(b: Builder<'_>) -> Result<Graph, ModelError> {
    let mut b = b.needing(BIASES);
    b.require_numbers(&["posnet.embedding_length", "posnet.block_count"])?;
    b.require_numbers(&["convnext.embedding_length", "convnext.block_count"])?;
    b.require_numbers(&["attention.group_norm_groups"])?;
    b.only_embeds()?;
    let x = b.embed_input(Input::Tokens, "features_length")?;
    let x = convolution(&mut b, x, "conv1d")?;
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
        let h = convolution(b, x, "dw")?;
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

/// A convolution with its bias.
fn convolution(b: &mut Builder<'_>, x: ValueId, name: &'static str) -> Result<ValueId, ModelError> {
    let file_name = format!("{name}.weight");
    let shape = b.shape_of(&file_name)?;
    let results = shape.first().copied().unwrap_or(0);
    let kernel = b.weight(&file_name, &shape)?;
    let h = b.push(Convolution, vec![x.into(), kernel], name)?;
    let bias = b.weight(&format!("{name}.bias"), &[results])?;
    b.add(h, bias)
}

fn group_norm(b: &mut Builder<'_>, x: ValueId, name: &'static str) -> Result<ValueId, ModelError> {
    let groups = b.u32_or("attention.group_norm_groups", 1)?;
    let epsilon = b.positive_f32("attention.group_norm_epsilon")?;
    let width = b.width(x);
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
    convolution(b, h, name)
}

/// One head over the full width.
fn attend(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let width = b.width(x);
    let h = group_norm(b, x, "attn_norm")?;
    let mut part = |name| {
        let part = convolution(b, h, name)?;
        b.split_heads(part, width)
    };
    let parts = [part("attn_q")?, part("attn_k")?, part("attn_v")?];
    let h = b.attend_as(Attending::Encoder, parts, 1.0 / (width as f32).sqrt(), None)?;
    let h = convolution(b, h, "attn_output")?;
    b.add(h, x)
}
