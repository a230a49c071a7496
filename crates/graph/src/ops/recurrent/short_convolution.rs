//! A short causal convolution over the tokens of a sequence.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, shape_error};
use crate::{Array, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Inputs: `x` `[Tokens, channels]`, weight `[channels, kernel]`, optional bias `[channels]`. Result: as `x`, for
/// each channel `Σ_k weight[k] · x[t − kernel + 1 + k] + bias`; rows before the first of a sequence are zero.
/// State: the last rows, oldest first, `[kernel − 1, channels]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ShortConvolution {
    /// The last rows.
    pub state: StateId,
}

impl OpDef for ShortConvolution {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("ShortConvolution", inputs, 2..=3, "a value, a weight and perhaps a bias")?;
        if !are_by_token(&inputs[..1]) {
            return Err(shape_error("ShortConvolution", inputs, "there must be a row for each token"));
        }
        let (x, weight) = (extents(&inputs[0]), extents(&inputs[1]));
        let fits = match (&x[..], &weight[..]) {
            ([_, channels @ Some(_)], [others, Some(kernel)]) => channels == others && *kernel > 0,
            _ => false,
        };
        if !fits || inputs.get(2).is_some_and(|bias| extents(bias)[..] != x[1..]) {
            return Err(shape_error("ShortConvolution", inputs, "there must be a kernel for each channel"));
        }
        Ok(inputs[0].clone())
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let weight = extents(&inputs[1]);
        let before = weight[1].map(|kernel| kernel - 1);
        is_recurrent(state, &[weight[0], before])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (x, weight, bias) = (inputs[0], inputs[1], inputs.get(2));
        let (channels, kernel) = (weight.shape[0], weight.width());
        let mut out = vec![0.0; x.floats().len()];
        context.each_span(self.state, (kernel - 1) * channels, |rows, history| {
            for row in rows {
                let current = &x.floats()[row * channels..][..channels];
                for channel in 0..channels {
                    let kernel_row = &weight.floats()[channel * kernel..][..kernel];
                    let past = history.iter().skip(channel).step_by(channels);
                    let taps = past.chain(std::iter::once(&current[channel]));
                    let sum: f64 = kernel_row.iter().zip(taps).map(|(w, x)| *w as f64 * *x as f64).sum();
                    let bias = bias.map_or(0.0, |bias| bias.floats()[channel] as f64);
                    out[row * channels + channel] = (sum + bias) as f32;
                }
                if kernel > 1 {
                    history.copy_within(channels.., 0);
                    history[(kernel - 2) * channels..].copy_from_slice(current);
                }
            }
        });
        Array::f32(x.shape.clone(), out)
    }
}
