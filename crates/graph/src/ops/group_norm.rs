//! Normalisation of groups of channels over a whole sequence.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, Element, GraphError, Symbol, Type, evaluate::Context};

/// Inputs: `x` `[Tokens, n]`. Result: as `x`, each group of `n / groups` channels made to have mean 0 and variance 1
/// over all rows of its sequence (Wu and He, arXiv 1803.08494), without weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GroupNorm {
    /// Number of groups, a divisor of the width.
    pub groups: u32,
    /// Added to the variance.
    pub epsilon: f32,
}

impl OpDef for GroupNorm {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("GroupNorm", inputs, 1..=1, "one value")?;
        let [Dim::Of(Symbol::Tokens), Dim::Fixed(width)] = inputs[0].shape[..] else {
            return Err(shape_error("GroupNorm", inputs, "it needs rows of tokens"));
        };
        if self.groups == 0 || !width.is_multiple_of(self.groups) || inputs[0].element != Element::F32 {
            return Err(shape_error("GroupNorm", inputs, "the groups must divide the width"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let x = inputs[0];
        let (width, size) = (x.width(), x.width() / self.groups as usize);
        let mut out = x.floats().to_vec();
        for sequence in &context.step.sequences {
            for group in 0..self.groups as usize {
                let rows = sequence.start as usize..sequence.end as usize;
                let places =
                    rows.flat_map(|row| row * width + group * size..row * width + (group + 1) * size);
                let places: Vec<usize> = places.collect();
                let count = places.len().max(1) as f64;
                let mean = places.iter().map(|place| x.floats()[*place] as f64).sum::<f64>() / count;
                let squares = places.iter().map(|place| (x.floats()[*place] as f64 - mean).powi(2));
                let inverse = 1.0 / (squares.sum::<f64>() / count + self.epsilon as f64).sqrt();
                for place in places {
                    out[place] = ((x.floats()[place] as f64 - mean) * inverse) as f32;
                }
            }
        }
        Array::f32(x.shape.clone(), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Step};

    #[test]
    fn statistics_are_of_one_group_of_one_sequence() {
        let step = Step { sequences: vec![0..2, 2..3], ..Step::default() };
        let mut context = Context { graph: &Graph::default(), step: &step, memory: &mut [] };
        let x = Array::f32(vec![3, 2], vec![1.0, 5.0, 3.0, 5.0, 9.0, -9.0]);
        let out = GroupNorm { groups: 2, epsilon: 0.0 }.evaluate(&[&x], &mut context);
        assert_eq!([out.floats()[0], out.floats()[2]], [-1.0, 1.0]);
        let tokens = Type::f32(vec![Dim::Of(Symbol::Tokens), Dim::Fixed(2)]);
        assert!(GroupNorm { groups: 3, epsilon: 0.0 }.infer(&[tokens]).is_err());
    }
}
