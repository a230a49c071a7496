//! Columns overwritten by a constant.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Element, GraphError, Type, evaluate::Context};

/// Input: `x` `[..., n]`. Result: as `x`, columns `start..start + length` of every row set to `value`: logits of tokens
/// that are never to be chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FillColumns {
    /// First column.
    pub start: u32,
    /// Number of columns.
    pub length: u32,
    /// Their new value.
    pub value: f32,
}

impl OpDef for FillColumns {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("FillColumns", inputs, 1..=1, "one value")?;
        let end = self.start.checked_add(self.length);
        if inputs[0].element != Element::F32
            || inputs[0].width().zip(end).is_none_or(|(width, end)| end > width)
        {
            return Err(shape_error("FillColumns", inputs, "the value must have these columns"));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let columns = self.start as usize..(self.start + self.length) as usize;
        let width = inputs[0].width();
        let values = inputs[0].floats().iter().enumerate();
        let filled =
            values.map(|(index, x)| if columns.contains(&(index % width)) { self.value } else { *x });
        Array::f32(inputs[0].shape.clone(), filled.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dim, Symbol};

    #[test]
    fn the_columns_must_exist() {
        let x = Type::f32(vec![Dim::Of(Symbol::Tokens), Dim::Fixed(3)]);
        assert!(FillColumns { start: 1, length: 2, value: 0.0 }.infer(std::slice::from_ref(&x)).is_ok());
        assert!(FillColumns { start: 2, length: 2, value: 0.0 }.infer(std::slice::from_ref(&x)).is_err());
        assert!(FillColumns { start: 1, length: u32::MAX, value: 0.0 }.infer(&[x]).is_err());
    }
}
