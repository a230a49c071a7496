//! Heads that several others share, once for each.

use super::{OpDef, expect_inputs, extents, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Input: `[rows, heads, width]`. Result: `[rows, heads · times, width]`, each head so many times in a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RepeatHeads {
    /// Copies of each head, at least 1.
    pub times: u32,
}

impl OpDef for RepeatHeads {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("RepeatHeads", inputs, 1..=1, "one value")?;
        let [_, Some(heads), Some(width)] = extents(&inputs[0])[..] else {
            return Err(shape_error("RepeatHeads", inputs, "the value must be split into heads"));
        };
        let Some(heads) = heads.checked_mul(self.times).filter(|heads| *heads > 0) else {
            return Err(shape_error(
                "RepeatHeads",
                inputs,
                "there must be at least one copy and not too many",
            ));
        };
        Ok(Type::f32(vec![inputs[0].shape[0], Dim::Fixed(heads), Dim::Fixed(width)]))
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let [rows, heads, width] = [0, 1, 2].map(|axis| inputs[0].shape[axis]);
        let times = self.times as usize;
        let data = inputs[0].rows().flat_map(|row| std::iter::repeat_n(row, times).flatten().copied());
        Array::f32(vec![rows, heads * times, width], data.collect())
    }
}
