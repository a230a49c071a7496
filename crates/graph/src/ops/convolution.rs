//! Convolution along a sequence that sees both sides.

use super::{OpDef, expect_inputs, fixed, shape_error};
use crate::{Array, Dim, Element, GraphError, Symbol, Type, evaluate::Context};

/// Inputs: `x` `[Tokens, channels]`, kernel `[results, channels, taps]` or, where each channel is a convolution of its
/// own, `[channels, 1, taps]`; an odd number of taps. Result: `[Tokens, results]`, the middle tap on the row itself;
/// rows outside the sequence count as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Convolution;

impl OpDef for Convolution {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Convolution", inputs, 2..=2, "a value and a kernel")?;
        let ([rows @ Dim::Of(Symbol::Tokens), Dim::Fixed(channels)], [results, inner, taps]) =
            (&inputs[0].shape[..], &inputs[1].shape[..])
        else {
            return Err(shape_error("Convolution", inputs, "it needs rows of tokens and a kernel"));
        };
        let (Some(results), Some(inner), Some(taps)) =
            (fixed(Some(results)), fixed(Some(inner)), fixed(Some(taps)))
        else {
            return Err(shape_error("Convolution", inputs, "the kernel's extents must be fixed"));
        };
        let fits = inner == *channels || (inner == 1 && results == *channels);
        if !fits || taps.is_multiple_of(2) || inputs[0].element != Element::F32 {
            let reason = "the kernel must have the value's channels and an odd number of taps";
            return Err(shape_error("Convolution", inputs, reason));
        }
        Ok(Type::f32(vec![*rows, Dim::Fixed(results)]))
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (x, kernel) = (inputs[0], inputs[1]);
        let [results, inner, taps] = kernel.shape[..] else { unreachable!("checked by infer") };
        let channels = x.width();
        let mut out = vec![0.0; x.shape[0] * results];
        for sequence in &context.step.sequences {
            let rows = sequence.start as usize..sequence.end as usize;
            for row in rows.clone() {
                for result in 0..results {
                    let mut sum = 0.0_f64;
                    for tap in 0..taps {
                        // `row + tap − taps / 2`, if it lies in the sequence.
                        let Some(other) = (row + tap).checked_sub(taps / 2) else { continue };
                        if !rows.contains(&other) {
                            continue;
                        }
                        for channel in 0..inner {
                            let read = if inner == channels { channel } else { result };
                            let weight = kernel.floats()[(result * inner + channel) * taps + tap];
                            sum += weight as f64 * x.floats()[other * channels + read] as f64;
                        }
                    }
                    out[row * results + result] = sum as f32;
                }
            }
        }
        Array::f32(vec![x.shape[0], results], out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Step};

    #[test]
    fn rows_outside_the_sequence_are_zeros() {
        let step = Step { sequences: vec![0..2, 2..3], ..Step::default() };
        let mut context = Context { graph: &Graph::default(), step: &step, memory: &mut [] };
        let x = Array::f32(vec![3, 1], vec![1.0, 10.0, 100.0]);
        let kernel = Array::f32(vec![1, 1, 3], vec![2.0, 3.0, 5.0]);
        let out = Convolution.evaluate(&[&x, &kernel], &mut context);
        assert_eq!(out.floats(), [3.0 + 50.0, 2.0 + 30.0, 300.0]);
        let tokens = Type::f32(vec![Dim::Of(Symbol::Tokens), Dim::Fixed(1)]);
        let even = Type::f32(vec![Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(2)]);
        assert!(Convolution.infer(&[tokens, even]).is_err());
    }
}
