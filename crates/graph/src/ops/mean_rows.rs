//! The mean of a sequence's rows.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, Element, GraphError, Symbol, Type, evaluate::Context};

/// Inputs: `x` `[Tokens, n]`, rows `[Outputs]`. Result: `[Outputs, n]`, for each of these rows the mean of all rows of
/// the sequence that it belongs to (mean pooling; Reimers and Gurevych, arXiv 1908.10084).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeanRows;

impl OpDef for MeanRows {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("MeanRows", inputs, 2..=2, "a value and rows")?;
        let ([Dim::Of(Symbol::Tokens), width @ Dim::Fixed(_)], [rows]) =
            (&inputs[0].shape[..], &inputs[1].shape[..])
        else {
            return Err(shape_error("MeanRows", inputs, "it needs rows of tokens and a list of rows"));
        };
        if inputs[0].element != Element::F32 || inputs[1].element != Element::I32 {
            return Err(shape_error("MeanRows", inputs, "it needs floats and a list of integers"));
        }
        Ok(Type::f32(vec![*rows, *width]))
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (x, rows) = (inputs[0], inputs[1]);
        let width = x.width();
        let mut means = Vec::with_capacity(rows.shape[0] * width);
        for row in rows.integers() {
            let found = context.step.sequences.iter().find(|sequence| sequence.contains(&(*row as u32)));
            let sequence = found.cloned().unwrap_or(0..0);
            let (start, end) = (sequence.start as usize, sequence.end as usize);
            means.extend((0..width).map(|column| {
                let sum: f64 = (start..end).map(|row| x.floats()[row * width + column] as f64).sum();
                (sum / (end - start).max(1) as f64) as f32
            }));
        }
        Array::f32(vec![rows.shape[0], width], means)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Step};

    #[test]
    fn each_sequence_has_its_own_mean() {
        let step = Step { sequences: vec![0..1, 1..3], ..Step::default() };
        let mut context = Context { graph: &Graph::default(), step: &step, memory: &mut [] };
        let x = Array::f32(vec![3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 8.0]);
        let rows = Array::i32(vec![2], vec![0, 2]);
        let means = MeanRows.evaluate(&[&x, &rows], &mut context);
        assert_eq!(means.floats(), [1.0, 2.0, 4.0, 6.0]);
        let tokens = Type::f32(vec![Dim::Of(Symbol::Tokens), Dim::Fixed(2)]);
        assert!(MeanRows.infer(&[tokens.clone(), tokens]).is_err());
    }
}
