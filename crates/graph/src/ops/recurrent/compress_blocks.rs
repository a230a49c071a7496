//! One row for each block of tokens.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, shape_error};
use crate::{Array, Dim, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Inputs: values and gates `[Tokens, channels]`, gate biases `[ratio, channels]`. Result: `[Tokens, width]`, in the rows
/// at positions that end a block of `ratio` positions the block's row, zeros in all others.
///
/// A gate gets the bias of its place in the block; a block's row is for each channel the sum of its values weighted
/// by the softmax of its gates (DeepSeek-V4). With `overlap` there are two channels for each of the result's: a block
/// covers its predecessor's tokens, if it has one, through the first half of the channels, and its own through the
/// second. State: values and gates of the last blocks, by position, `[ratio or 2 · ratio, 2 · channels]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressBlocks {
    /// The last blocks.
    pub state: StateId,
    /// Positions in a block, at least 1.
    pub ratio: u32,
    /// Whether a block covers the one before, too.
    pub overlap: bool,
}

impl OpDef for CompressBlocks {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("CompressBlocks", inputs, 3..=3, "values, gates and biases")?;
        let (values, biases) = (extents(&inputs[0]), extents(&inputs[2]));
        let ([_, Some(channels)], true) = (&values[..], inputs[0] == inputs[1] && are_by_token(&inputs[..1]))
        else {
            return Err(shape_error("CompressBlocks", inputs, "there must be a gate for each value"));
        };
        let halves = if self.overlap { 2 } else { 1 };
        if biases[..] != [Some(self.ratio), Some(*channels)]
            || self.ratio == 0
            || *channels == 0
            || !channels.is_multiple_of(halves)
        {
            return Err(shape_error("CompressBlocks", inputs, "there must be biases for a block"));
        }
        Ok(Type::f32(vec![inputs[0].shape[0], Dim::Fixed(channels / halves)]))
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
        let slots = self.ratio.checked_mul(if self.overlap { 2 } else { 1 });
        is_recurrent(state, &[slots, Some(2), extents(&inputs[0])[1]])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (values, gates, biases) = (inputs[0], inputs[1], inputs[2].floats());
        let (channels, ratio) = (values.width(), self.ratio as usize);
        let slots = if self.overlap { 2 * ratio } else { ratio };
        let width = if self.overlap { channels / 2 } else { channels };
        let mut out = vec![0.0; values.shape[0] * width];
        let positions = context.step.positions.clone();
        context.each_span(self.state, slots * 2 * channels, |rows, kept| {
            for row in rows {
                let position = positions[row].max(0) as usize;
                let slot = &mut kept[position % slots * 2 * channels..][..2 * channels];
                let bias = &biases[position % ratio * channels..][..channels];
                slot[..channels].copy_from_slice(&values.floats()[row * channels..][..channels]);
                let gates = &gates.floats()[row * channels..][..channels];
                slot[channels..].iter_mut().zip(gates.iter().zip(bias)).for_each(|(to, (g, b))| *to = g + b);
                if !(position + 1).is_multiple_of(ratio) {
                    continue;
                }
                let start = position + 1 - ratio;
                // Slots of the block, with the first channel that is read of each.
                let mut covered: Vec<(usize, usize)> = Vec::new();
                if self.overlap && start > 0 {
                    covered.extend((start - ratio..start).map(|position| (position % slots, 0)));
                }
                covered.extend((start..=position).map(|position| (position % slots, channels - width)));
                for element in 0..width {
                    let read = |(slot, first): &(usize, usize)| {
                        let at = slot * 2 * channels + first + element;
                        (kept[at] as f64, kept[at + channels] as f64)
                    };
                    let most = covered.iter().map(|place| read(place).1).fold(f64::NEG_INFINITY, f64::max);
                    let (mut sum, mut total) = (0.0, 0.0);
                    for (value, gate) in covered.iter().map(read) {
                        let weight = (gate - most).exp();
                        sum += weight * value;
                        total += weight;
                    }
                    out[row * width + element] = (sum / total) as f32;
                }
            }
        });
        Array::f32(vec![values.shape[0], width], out)
    }
}
