//! What recurrent layers share: their states, short convolutions, norms to unit length.

use puna_graph::ops::{RmsNorm, ShortConvolution, TokenShift};
use puna_graph::{StateDecl, StateId, ValueId};

use crate::{Builder, ModelError};

impl Builder<'_> {
    /// Declares a recurrent state of the current layer with these extents.
    pub fn recurrent_state(&mut self, extents: &[u32]) -> Result<StateId, ModelError> {
        const MOST_ELEMENTS: u32 = 1 << 28;
        let elements = extents.iter().try_fold(1_u32, |product, extent| product.checked_mul(*extent));
        match elements.filter(|elements| *elements <= MOST_ELEMENTS) {
            Some(elements) => Ok(self.state(StateDecl::Recurrent { layer: self.layer(), elements })),
            None => {
                Err(self.value_error("ssm.state_size", format!("{extents:?}"), "a state of at most 2^28"))
            }
        }
    }

    /// A required number of the architecture between 1 and 2^20.
    pub fn extent(&self, key: &str) -> Result<u32, ModelError> {
        self.count(key, 1 << 20)
    }

    /// [`Builder::extent`], or `default` if the key is absent.
    pub fn extent_or(&self, key: &str, default: u32) -> Result<u32, ModelError> {
        if self.has_key(key) { self.extent(key) } else { Ok(default) }
    }

    /// Whether the current layer has attention: key heads, or where the file does not say, query heads.
    pub fn has_attention(&self) -> Result<bool, ModelError> {
        let heads = match self.layer_u32("attention.head_count_kv")? {
            Some(heads) => heads,
            None => self
                .layer_u32("attention.head_count")?
                .ok_or_else(|| self.missing_key("attention.head_count"))?,
        };
        Ok(heads > 0)
    }

    /// A causal convolution of each channel by the `ssm.conv_kernel` taps of `name.weight`, with `name.bias` if the file
    /// has it.
    pub fn short_convolution(&mut self, name: &'static str, x: ValueId) -> Result<ValueId, ModelError> {
        let taps = self.extent("ssm.conv_kernel")?;
        self.dilated_convolution(name, x, taps, 1)
    }

    /// The same by so many taps that are `dilation` tokens apart.
    pub fn dilated_convolution(
        &mut self,
        name: &'static str,
        x: ValueId,
        kernel: u32,
        dilation: u32,
    ) -> Result<ValueId, ModelError> {
        let channels = self.width(x);
        let weight = self.weight(&format!("{name}.weight"), &[channels, kernel])?;
        let bias = self.optional_weight(&format!("{name}.bias"), &[channels])?;
        let state = self.recurrent_state(&[kernel - 1, dilation, channels])?;
        let op = ShortConvolution { state, dilation };
        self.push(op, [x.into(), weight].into_iter().chain(bias).collect(), name)
    }

    /// The number of tokens that a short convolution sees, itself included.
    pub fn short_convolution_length(&self) -> Result<u32, ModelError> {
        self.extent("shortconv.l_cache")
    }

    /// For each row the one before it in its sequence.
    pub fn token_shift(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let state = self.recurrent_state(&[self.width(x)])?;
        self.push(TokenShift { state }, vec![x.into()], "token_shift")
    }

    /// `x / sqrt(Σ x² + epsilon)` over the last axis.
    pub fn unit_length(&mut self, x: ValueId, epsilon: f32) -> Result<ValueId, ModelError> {
        let width = self.width(x).max(1) as f32;
        let normed = self.push(RmsNorm { epsilon: epsilon / width }, vec![x.into()], "unit_length")?;
        self.scale(normed, 1.0 / width.sqrt(), "unit_length")
    }
}
