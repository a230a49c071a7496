//! One row of a table added to every row.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Inputs: `x` `[..., n]`, table `[rows, n]`. Result: as `x`, every row plus row `row` of the table: the segment
/// embedding of models that know kinds of segments, where all of a text is of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRow {
    /// Which row of the table.
    pub row: u32,
}

impl OpDef for AddRow {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("AddRow", inputs, 2..=2, "a value and a table")?;
        let [Dim::Fixed(rows), Dim::Fixed(width)] = inputs[1].shape[..] else {
            return Err(shape_error("AddRow", inputs, "the table must be a matrix"));
        };
        if inputs[0].width() != Some(width) || self.row >= rows {
            return Err(shape_error(
                "AddRow",
                inputs,
                "the table must be as wide as the value and have the row",
            ));
        }
        Ok(inputs[0].clone())
    }

    fn evaluate(&self, inputs: &[&Array], _: &mut Context<'_>) -> Array {
        let (x, table) = (inputs[0], inputs[1]);
        let width = table.width();
        let row = &table.floats()[self.row as usize * width..][..width];
        let sums = x.rows().flat_map(|x| x.iter().zip(row).map(|(x, y)| x + y));
        Array::f32(x.shape.clone(), sums.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Symbol;

    #[test]
    fn the_row_must_exist() {
        let x = Type::f32(vec![Dim::Of(Symbol::Tokens), Dim::Fixed(3)]);
        let table = Type::f32(vec![Dim::Fixed(2), Dim::Fixed(3)]);
        assert!(AddRow { row: 1 }.infer(&[x.clone(), table.clone()]).is_ok());
        assert!(AddRow { row: 2 }.infer(&[x.clone(), table]).is_err());
        assert!(AddRow { row: 0 }.infer(&[x.clone(), x]).is_err());
    }
}
