//! Hashes of the last tokens, which choose rows of a table.

use super::{OpDef, are_by_token, expect_inputs, is_recurrent, shape_error};
use crate::{Array, Dim, Element, GraphError, StateDecl, StateId, Type, evaluate::Context};

/// Input: tokens `[Tokens]`. Result: integers `[Tokens, heads]`, a row of a table for each head.
///
/// With `c_j` the token `j` before (the token of `end` before the start of a sequence, and from an `end` token
/// on backwards), a head of `n` tokens has row `first + (⊕_{j<n} c_j · multiplier_j) mod rows`, in 64-bit arithmetic. State:
/// the last tokens plus one, oldest first, 0 for none, `[multipliers − 1]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NgramRows {
    /// The last tokens.
    pub state: StateId,
    /// A factor for each token of the longest n-gram, the current one's first.
    pub multipliers: Vec<u64>,
    /// The heads.
    pub heads: Vec<NgramHead>,
    /// The token that ends a text.
    pub end: u32,
}

/// One head of [`NgramRows`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NgramHead {
    /// Tokens that are hashed, at least 1 and at most the number of multipliers.
    pub tokens: u32,
    /// First row of its part of the table.
    pub first: u32,
    /// Rows of its part, at least 1; `first + rows` is at most 2³¹.
    pub rows: u32,
}

impl NgramRows {
    /// The rows for a token; `before` has the tokens before it plus one, nearest last.
    fn rows(&self, token: u32, before: &[f32]) -> impl Iterator<Item = i32> {
        let mut context = vec![token as u64];
        let mut ended = false;
        for kept in before.iter().rev() {
            let kept = *kept as u64;
            ended |= kept == 0 || kept == self.end as u64 + 1;
            context.push(if ended { self.end as u64 } else { kept - 1 });
        }
        self.heads.iter().map(move |head| {
            let terms = context.iter().zip(&self.multipliers).take(head.tokens as usize);
            let hash = terms.fold(0, |hash, (token, factor)| hash ^ token.wrapping_mul(*factor));
            (head.first as u64 + hash % head.rows.max(1) as u64) as i32
        })
    }
}

impl OpDef for NgramRows {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("NgramRows", inputs, 1..=1, "tokens")?;
        let fits = |head: &NgramHead| {
            let end = head.first as u64 + head.rows as u64;
            (1..=self.multipliers.len()).contains(&(head.tokens as usize)) && head.rows > 0 && end <= 1 << 31
        };
        let counts = !self.multipliers.is_empty() && self.heads.len() <= 1 << 16;
        let tokens = are_by_token(inputs) && inputs[0].shape.len() == 1;
        if !tokens || !counts || !self.heads.iter().all(fits) {
            return Err(shape_error("NgramRows", inputs, "it needs tokens, and heads within 2^31 rows"));
        }
        let shape = vec![inputs[0].shape[0], Dim::Fixed(self.heads.len() as u32)];
        Ok(Type { element: Element::I32, shape })
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[0]
    }

    fn state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn fits_state(&self, _: &[Type], state: &StateDecl) -> bool {
        is_recurrent(state, &[u32::try_from(self.multipliers.len() - 1).ok()])
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let tokens = inputs[0].integers();
        let heads = self.heads.len();
        let mut data = vec![0; tokens.len() * heads];
        context.each_span(self.state, self.multipliers.len() - 1, |rows, before| {
            for row in rows {
                let token = tokens[row] as u32;
                let found = self.rows(token, before);
                data[row * heads..][..heads].iter_mut().zip(found).for_each(|(to, row)| *to = row);
                if !before.is_empty() {
                    before.rotate_left(1);
                    before[self.multipliers.len() - 2] = token as f32 + 1.0;
                }
            }
        });
        Array::i32(vec![tokens.len(), heads], data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_stop_at_the_end_of_a_text() {
        let heads =
            vec![NgramHead { tokens: 2, first: 0, rows: 100 }, NgramHead { tokens: 3, first: 100, rows: 50 }];
        let op = NgramRows { state: StateId(0), multipliers: vec![1, 3, 5], heads, end: 9 };
        // Tokens 4, 6 before 7: 7 ^ 18 = 21, ^ 20 = 1.
        assert_eq!(op.rows(7, &[5.0, 7.0]).collect::<Vec<_>>(), [21, 101]);
        // The end before it: 7 ^ 27 = 28, ^ 45 = 49, whatever stood before the end.
        assert_eq!(op.rows(7, &[5.0, 10.0]).collect::<Vec<_>>(), [28, 149]);
        // Nothing before it is as an end.
        assert_eq!(op.rows(7, &[0.0, 0.0]).collect::<Vec<_>>(), [28, 149]);
    }
}
