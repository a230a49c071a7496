//! The usual arrangement of a decoder's layers.

use puna_graph::ValueId;

use crate::{Builder, ModelError};

/// Where norms stand and how branches are added.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Residuals {
    /// Whether each branch starts with a norm (`attn_norm` and `feed_forward_norm`).
    pub pre_norms: bool,
    /// Whether each branch ends with one (`post_attention_norm`, `post_ffw_norm`).
    pub post_norms: bool,
    /// Name of the second branch's first norm.
    pub feed_forward_norm: &'static str,
    /// Factor on each branch.
    pub scale: Option<f32>,
}

impl Residuals {
    /// A norm before each branch.
    pub const PRE: Self =
        Self { pre_norms: true, post_norms: false, feed_forward_norm: "ffn_norm", scale: None };
    /// Norms before and after each branch.
    pub const SANDWICH: Self = Self { post_norms: true, ..Self::PRE };
    /// A norm after each branch.
    pub const POST: Self = Self { pre_norms: false, ..Self::SANDWICH };
    /// A norm before each branch, the second named as if it belonged to attention.
    pub const POST_ATTENTION: Self = Self { feed_forward_norm: "post_attention_norm", ..Self::PRE };
}

/// Biases of a decoder's layer norms, for [`Builder::needing`].
pub const NORM_BIASES: &[&str] = &["attn_norm.bias", "ffn_norm.bias", "output_norm.bias"];
/// Biases of its matrices.
pub const MATRIX_BIASES: &[&str] = &["attn_output.bias", "ffn_up.bias", "ffn_down.bias"];
/// An output matrix of its own, instead of the embedding table.
pub const OUTPUT: &[&str] = &["output.weight"];

type Branch<'a, 'm> = dyn FnMut(&mut Builder<'m>, ValueId) -> Result<ValueId, ModelError> + 'a;

impl<'m> Builder<'m> {
    /// Every layer as `x += mixer(x)` and then `x += feed_forward(x)`.
    pub fn decoder(
        &mut self,
        x: ValueId,
        residuals: Residuals,
        mut mixer: impl FnMut(&mut Self, ValueId) -> Result<ValueId, ModelError>,
        mut feed_forward: impl FnMut(&mut Self, ValueId) -> Result<ValueId, ModelError>,
    ) -> Result<ValueId, ModelError> {
        self.each_layer(x, |b, x| {
            let x = b.branch(x, residuals, ["attn_norm", "post_attention_norm"], &mut mixer)?;
            let norms = [residuals.feed_forward_norm, "post_ffw_norm"];
            b.branch(x, residuals, norms, &mut feed_forward)
        })
    }

    fn branch(
        &mut self,
        x: ValueId,
        residuals: Residuals,
        [before, after]: [&'static str; 2],
        branch: &mut Branch<'_, 'm>,
    ) -> Result<ValueId, ModelError> {
        let h = if residuals.pre_norms { self.norm(before, x)? } else { x };
        let mut h = branch(self, h)?;
        if residuals.post_norms {
            h = self.norm(after, h)?;
        }
        if let Some(factor) = residuals.scale {
            h = self.scale(h, factor, "residual_scale")?;
        }
        self.add(x, h)
    }

    /// Every layer as `x += mixer(norm(x)) + feed_forward(norm(x))`, with the same norm for both.
    pub fn parallel_decoder(
        &mut self,
        x: ValueId,
        mut mixer: impl FnMut(&mut Self, ValueId) -> Result<ValueId, ModelError>,
        mut feed_forward: impl FnMut(&mut Self, ValueId) -> Result<ValueId, ModelError>,
    ) -> Result<ValueId, ModelError> {
        self.each_layer(x, |b, x| {
            let h = b.norm("attn_norm", x)?;
            let attended = mixer(b, h)?;
            let fed = feed_forward(b, h)?;
            let x = b.add(x, attended)?;
            b.add(x, fed)
        })
    }
}
