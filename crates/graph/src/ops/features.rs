//! Rows of numbers that a step brings beside its tokens.

use super::{OpDef, are_by_token, expect_inputs, shape_error};
use crate::{Array, Dim, Element, GraphError, Symbol, Type, evaluate::Context};

/// The widest row of [`Features`], far above any model's.
const MOST_FEATURES: u32 = 1 << 20;

/// Input: tokens `[Tokens]`, of which only the number matters. Result: `[Tokens, width]`, the numbers that
/// [`crate::Step::features`] brings, and zeros for rows without any. What a draft head reads of the model that it drafts for
/// (Li et al., arXiv 2503.01840).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Numbers in a row, 1 to 2²⁰.
    pub width: u32,
}

impl OpDef for Features {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Features", inputs, 1..=1, "tokens")?;
        if inputs[0].shape[..] != [Dim::Of(Symbol::Tokens)] {
            return Err(shape_error("Features", inputs, "it needs one integer for each token"));
        }
        // No weight stands behind the width, so nothing else bounds what a step allocates.
        if self.width == 0 || self.width > MOST_FEATURES {
            return Err(shape_error("Features", inputs, "it makes rows of 1 to 1048576 numbers"));
        }
        Ok(Type::f32(vec![Dim::Of(Symbol::Tokens), Dim::Fixed(self.width)]))
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[0]
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (rows, width) = (inputs[0].shape[0], self.width as usize);
        let mut out = vec![0.0; rows * width];
        let features = context.step.features.chunks_exact(width);
        for (row, numbers) in context.step.featured_rows.iter().zip(features) {
            if let Some(place) = out.get_mut(*row as usize * width..(*row as usize + 1) * width) {
                place.copy_from_slice(numbers);
            }
        }
        Array::f32(vec![rows, width], out)
    }
}

/// Inputs: `x` and `y` `[Tokens, n]`. Result: the rows of `y` for which the step brings features, else those of `x`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PreferFeatured;

impl OpDef for PreferFeatured {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("PreferFeatured", inputs, 2..=2, "two values")?;
        let same = inputs[0] == inputs[1] && inputs[0].element == Element::F32;
        if !are_by_token(inputs) || inputs[0].shape.len() != 2 || !same {
            return Err(shape_error("PreferFeatured", inputs, "it needs two values of a row for each token"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let width = inputs[0].width();
        let mut out = inputs[0].floats().to_vec();
        for row in &context.step.featured_rows {
            let row = *row as usize * width..(*row as usize + 1) * width;
            if let (Some(place), Some(numbers)) = (out.get_mut(row.clone()), inputs[1].floats().get(row)) {
                place.copy_from_slice(numbers);
            }
        }
        Array::f32(inputs[0].shape.clone(), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Input, Step};

    #[test]
    fn rows_without_features_are_zero_and_keep_their_own() {
        let step = Step { featured_rows: vec![0, 2], features: vec![1.0, 2.0, 3.0, 4.0], ..Step::default() };
        let mut context = Context { graph: &Graph::default(), step: &step, memory: &mut [] };
        let tokens = Array::i32(vec![3], vec![7, 7, 7]);
        let features = Features { width: 2 }.evaluate(&[&tokens], &mut context);
        assert_eq!(features.floats(), [1.0, 2.0, 0.0, 0.0, 3.0, 4.0]);
        let x = Array::f32(vec![3, 2], vec![9.0; 6]);
        let mixed = PreferFeatured.evaluate(&[&x, &features], &mut context);
        assert_eq!(mixed.floats(), [1.0, 2.0, 9.0, 9.0, 3.0, 4.0]);
    }

    #[test]
    fn they_need_a_row_for_each_token() {
        let features = Features { width: 2 }.infer(&[Input::Tokens.ty()]).expect("fits");
        assert!(PreferFeatured.infer(&[features.clone(), features.clone()]).is_ok());
        assert!(Features { width: 2 }.infer(&[Input::OutputRows.ty()]).is_err());
        let outputs = Type::f32(vec![Dim::Of(Symbol::Outputs), Dim::Fixed(2)]);
        assert!(PreferFeatured.infer(&[outputs.clone(), outputs]).is_err());
        let wide = Features { width: 3 }.infer(&[Input::Tokens.ty()]).expect("fits");
        assert!(PreferFeatured.infer(&[features, wide]).is_err());
    }
}
