//! How far the kernels of a loaded model may depart from f32 for speed.

use puna_graph::Step;
use puna_quant::DType;

use crate::isa::Features;
use crate::kernels::matmul::{ActivationFormat, PackedMatrix};

/// One value of a loaded model: whatever rounds for speed asks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precision {
    /// A row's result may not depend on how many rows share its step.
    deterministic: bool,
    /// Whether attention of many rows rounds, which loses nothing that counts: where numbers become integers of 16 bits, because that
    /// loses no more than F16 in the cache; where they become BF16, if most numbers of matrices are quantised and multiplied by
    /// activations in BF16 or single bytes.
    rounds: bool,
}

impl Precision {
    /// The policy for a model with these matrices.
    pub fn new<'a>(
        matrices: impl Iterator<Item = &'a PackedMatrix>,
        features: Features,
        deterministic: bool,
    ) -> Self {
        let (mut all, mut rounded) = (0, 0);
        for matrix in matrices {
            let count = matrix.rows() * matrix.columns();
            all += count;
            let form = matrix.activation(features, usize::MAX);
            let less = matches!(form, ActivationFormat::Bf16 | ActivationFormat::Q8);
            if less && matrix.dtype() != DType::BF16 {
                rounded += count;
            }
        }
        let integers = features.avx512_vnni && !features.amx;
        Self { deterministic, rounds: integers || 2 * rounded > all }
    }

    /// The policy for one step, which may ask for more.
    pub fn of(self, step: &Step) -> Self {
        Self { deterministic: self.deterministic || step.deterministic, ..self }
    }

    /// The number of rows to choose the form of an activation by. Asked as for one row, a matrix never takes a form
    /// that only many rows are worth.
    pub fn rows(self, rows: usize) -> usize {
        if self.deterministic { 1 } else { rows }
    }

    /// Whether attention of many rows over a cache of `keys` may round to numbers of 16 bits. Who asks for a cache of f32 wants what
    /// its numbers say, not what these leave of them.
    pub fn attention_rounds(self, keys: DType) -> bool {
        self.rounds && !self.deterministic && keys != DType::F32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_rounds_only_where_the_weights_did_and_nobody_asks_for_more() {
        let (speed, exact) = (
            Precision { deterministic: false, rounds: true },
            Precision { deterministic: true, rounds: true },
        );
        assert!(speed.attention_rounds(DType::F16) && speed.attention_rounds(DType::Q8_0));
        assert!(!speed.attention_rounds(DType::F32) && !exact.attention_rounds(DType::F16));
        assert!(!Precision { rounds: false, ..speed }.attention_rounds(DType::F16));
        assert_eq!((speed.rows(40), exact.rows(40)), (40, 1));
    }

    #[test]
    fn models_of_plain_numbers_do_not_round_to_bf16() {
        let pack = |dtype: DType| {
            let bytes = vec![0; 16 * dtype.bytes_for(64).unwrap() as usize];
            PackedMatrix::pack(dtype, 16, 64, &bytes).unwrap()
        };
        let (plain, quantised) = (pack(DType::F16), pack(DType::Q4_0));
        for (_, features) in Features::detect().levels() {
            let of =
                |matrices: &[&PackedMatrix]| Precision::new(matrices.iter().copied(), features, false).rounds;
            let integers = features.avx512_vnni && !features.amx;
            assert!(
                [of(&[&plain]), of(&[&plain, &quantised]), of(&[])].iter().all(|rounds| *rounds == integers)
            );
            assert!(of(&[&plain, &quantised, &quantised]));
        }
    }
}
