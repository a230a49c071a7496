//! Rotary position embedding.

use super::{OpDef, expect_inputs, shape_error};
use crate::{Array, Dim, GraphError, Type, evaluate::Context};

/// Which elements of a head form a pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RopeKind {
    /// `(2i, 2i + 1)`: the order of the original paper.
    Interleaved,
    /// `(i, i + dimensions / 2)`: the order of GPT-NeoX.
    Split,
}

/// YaRN: fast pairs keep their frequency, slow ones are interpolated (Peng et al., arXiv 2309.00071).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Yarn {
    /// Context length of the training before extension.
    pub original_context: u32,
    /// Rotations over the original context above which a pair keeps its frequency.
    pub beta_fast: f32,
    /// Rotations below which a pair is fully interpolated.
    pub beta_slow: f32,
    /// Share of the mixture, 1 for plain YaRN.
    pub extrapolation: f32,
}

/// Which position a row is rotated by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum RopePlace {
    /// Its own.
    #[default]
    Own,
    /// Its own, backwards: undoes the rotation, but for its magnitude.
    Reversed,
    /// The first of its block of so many positions, at least 1.
    BlockStart(u32),
    /// Its own if its text is long (true) or short (false), as [`crate::Step::long_texts`] says, else 0, which turns nothing:
    /// two rotations after one another, one of each kind, turn short and long texts by different frequencies (LongRoPE; Ding
    /// et al., arXiv 2402.13753).
    OfTexts {
        /// Which texts.
        long: bool,
    },
}

impl RopePlace {
    /// The position that the angle is made from, for a row of a long text or of another.
    pub fn at(self, position: i32, in_long: bool) -> i32 {
        match self {
            RopePlace::OfTexts { long } if long != in_long => 0,
            RopePlace::OfTexts { .. } => position,
            RopePlace::Own => position,
            RopePlace::Reversed => position.saturating_neg(),
            RopePlace::BlockStart(block) => {
                let block = block.clamp(1, i32::MAX as u32) as i32;
                position.div_euclid(block) * block
            }
        }
    }
}

/// Inputs: `x` `[Tokens, heads, n]`, positions `[Tokens]`, optional factors that divide the
/// frequencies, one per pair (further ones are not read). Result: `x` with pairs of its first `dimensions` elements rotated by
/// `position · frequency` (Su et al., arXiv 2104.09864).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rope {
    /// Pairing.
    pub kind: RopeKind,
    /// Rotated elements of each head; the rest passes through.
    pub dimensions: u32,
    /// Frequencies are `base^(−2i / dimensions)`.
    pub base: f32,
    /// Positions are multiplied by it: one over the linear scaling factor.
    pub position_scale: f32,
    /// YaRN mixture, if used; it then decides where `position_scale` acts.
    pub yarn: Option<Yarn>,
    /// Factor on cosine and sine.
    pub magnitude: f32,
    /// Which position a row is rotated by.
    pub place: RopePlace,
}

impl Rope {
    /// Angle per position of each pair, in radians; `factors` divide the unscaled frequencies.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let dimensions = self.dimensions as f64;
        let base = self.base as f64;
        let scale = self.position_scale as f64;
        let pairs = self.dimensions as usize / 2;
        let plain = (0..pairs).map(|pair| {
            let factor = factors.and_then(|factors| factors.get(pair)).map_or(1.0, |factor| *factor as f64);
            base.powf(-2.0 * pair as f64 / dimensions) / factor
        });
        let Some(yarn) = self.yarn else { return plain.map(|frequency| frequency * scale).collect() };
        // The pair that makes `beta` rotations over the original context.
        let boundary = |beta: f32| {
            dimensions * (yarn.original_context as f64 / (beta as f64 * 2.0 * std::f64::consts::PI)).ln()
                / (2.0 * base.ln())
        };
        let low = boundary(yarn.beta_fast).floor().max(0.0);
        let high = boundary(yarn.beta_slow).ceil().min(dimensions - 1.0);
        plain
            .enumerate()
            .map(|(pair, frequency)| {
                let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let mix = (1.0 - ramp) * yarn.extrapolation as f64;
                frequency * scale * (1.0 - mix) + frequency * mix
            })
            .collect()
    }

    /// Indexes of the two elements of a pair.
    pub fn pair(&self, pair: usize) -> (usize, usize) {
        match self.kind {
            RopeKind::Interleaved => (2 * pair, 2 * pair + 1),
            RopeKind::Split => (pair, pair + self.dimensions as usize / 2),
        }
    }
}

impl OpDef for Rope {
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
        expect_inputs("Rope", inputs, 2..=3, "a value, positions and perhaps factors")?;
        let (x, positions) = (&inputs[0], &inputs[1]);
        let width = x.width().unwrap_or(0);
        if x.shape.len() != 3 || positions.shape[..] != x.shape[..1] {
            return Err(shape_error("Rope", inputs, "it needs heads and one position per row"));
        }
        if self.dimensions == 0 || self.dimensions > width || !self.dimensions.is_multiple_of(2) {
            return Err(shape_error(
                "Rope",
                inputs,
                "rotated elements must be even and at most the head's width",
            ));
        }
        if inputs.get(2).is_some_and(
            |factors| !matches!(factors.shape[..], [Dim::Fixed(count)] if count >= self.dimensions / 2),
        ) {
            return Err(shape_error("Rope", inputs, "there must be one factor per pair"));
        }
        Ok(x.clone())
    }

    fn integer_inputs(&self) -> &'static [usize] {
        &[1]
    }

    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
        let (x, positions) = (inputs[0], inputs[1].integers());
        let long = context.step.long_rows();
        let frequencies = self.frequencies(inputs.get(2).map(|factors| factors.floats()));
        let (heads, width) = (x.shape[1], x.shape[2]);
        let mut data = x.floats().to_vec();
        for (row, head) in data.chunks_exact_mut(width).enumerate() {
            let token = row / heads;
            let in_long = long.get(token).copied().unwrap_or(false);
            let position = self.place.at(positions[token], in_long) as f64;
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sine, cosine) = (position * frequency).sin_cos();
                let (sine, cosine) = (sine * self.magnitude as f64, cosine * self.magnitude as f64);
                let (i, j) = self.pair(pair);
                let (a, b) = (head[i] as f64, head[j] as f64);
                head[i] = (a * cosine - b * sine) as f32;
                head[j] = (a * sine + b * cosine) as f32;
            }
        }
        Array::f32(x.shape.clone(), data)
    }
}
