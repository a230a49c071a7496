//! Rotary embedding as a file's keys describe it.

use puna_graph::ops::{Rope, RopeKind, RopePlace, Yarn};
use puna_graph::{Input, Operand, ValueId};

use crate::{Builder, ModelError};

/// A rotation with the tensor of its frequency factors.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RopeSettings {
    /// The operation.
    pub rope: Rope,
    /// Divisors of the frequencies, `[dimensions / 2]`, or more where some layers rotate less than others.
    pub factors: Option<Operand>,
    /// Those of long texts, where they have others.
    pub long_factors: Option<Operand>,
}

impl Builder<'_> {
    /// Reads every `rope.*` key, for heads of `head_dim` elements. `with_factors`: whether the architecture
    /// applies `rope_freqs` and `rope_factors_*`.
    pub fn rope_settings(
        &mut self,
        kind: RopeKind,
        head_dim: u32,
        with_factors: bool,
    ) -> Result<RopeSettings, ModelError> {
        let dimensions = self.width_or("rope.dimension_count", head_dim)?;
        if dimensions > head_dim || !dimensions.is_multiple_of(2) {
            let rule = "even and at most the width of a head";
            return Err(self.value_error("rope.dimension_count", dimensions, rule));
        }
        const SECTIONS: &str = "rope.dimension_sections";
        if self.has_key(SECTIONS) {
            // Which elements turn by which coordinate of an image; in a text all are the same.
            self.u64_array(SECTIONS, 4)?;
        }
        let base = self.rope_base("rope.freq_base", 10000.0)?;
        let factor = match self.applied_f32("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.applied_f32("rope.scale_linear")?.unwrap_or(1.0),
        };
        if factor < 0.0 {
            return Err(self.value_error("rope.scaling.factor", factor, "positive"));
        }
        let scaling = self.str_or("rope.scaling.type", "linear")?;
        let is_yarn = match scaling {
            "none" | "linear" | "longrope" => false,
            "yarn" => true,
            other => {
                let value = other.chars().take(64).collect::<String>();
                return Err(self.value_error("rope.scaling.type", value, "none, linear, yarn or longrope"));
            }
        };
        let position_scale = if scaling == "none" { 1.0 } else { 1.0 / factor };
        let train_context = self.count("context_length", u32::MAX)?;
        let original_context = self.u32_or("rope.scaling.original_context_length", train_context)?.max(1);
        let yarn = match is_yarn {
            true => Some(Yarn {
                original_context,
                beta_fast: self.f32_or("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: self.f32_or("rope.scaling.yarn_beta_slow", 1.0)?,
                extrapolation: self.f32_or("rope.scaling.yarn_ext_factor", 1.0)?,
            }),
            false => None,
        };
        let mut magnitude = self.f32_or("rope.scaling.attn_factor", 1.0)?;
        if is_yarn {
            // Attention temperature of YaRN; a log multiplier replaces its slope in the denominator.
            let temperature = |slope: f32| if factor > 1.0 { 0.1 * slope * factor.ln() + 1.0 } else { 1.0 };
            let multiplier = self.f32_or("rope.scaling.yarn_log_multiplier", 0.0)?;
            magnitude *=
                if multiplier != 0.0 { temperature(1.0) / temperature(multiplier) } else { temperature(1.0) };
        }
        let place = RopePlace::Own;
        let rope = Rope { kind, dimensions, base, position_scale, yarn, magnitude, place };
        let [factors, long_factors] = match with_factors {
            true => self.rope_factors(dimensions, original_context, train_context)?,
            false => [None, None],
        };
        Ok(RopeSettings { rope, factors, long_factors })
    }

    /// A base of frequencies: above 1.
    pub fn rope_base(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        let base = self.f32_or(key, default)?;
        if base > 1.0 { Ok(base) } else { Err(self.value_error(key, base, "above 1")) }
    }

    /// `rope_freqs` if present; else LongRoPE's factors, those of long texts only where a text can get long: it is long if it
    /// has more tokens than the original context.
    fn rope_factors(
        &mut self,
        dimensions: u32,
        original_context: u32,
        train_context: u32,
    ) -> Result<[Option<Operand>; 2], ModelError> {
        let shape = [dimensions / 2];
        if self.has_global("rope_freqs.weight") {
            return Ok([self.optional_global_weight("rope_freqs.weight", &shape)?, None]);
        }
        const LONG: &str = "rope_factors_long.weight";
        if self.only_long_texts() && train_context > original_context && self.has_global(LONG) {
            return Ok([self.optional_global_weight(LONG, &shape)?, None]);
        }
        let short = self.optional_global_weight("rope_factors_short.weight", &shape)?;
        if self.context() <= original_context {
            return Ok([short, None]);
        }
        let long = self.optional_global_weight(LONG, &shape)?;
        if long.is_some() {
            self.set_short_context(original_context);
        }
        Ok([short, long])
    }

    /// Rotates heads by their rows' positions.
    pub fn rope(&mut self, x: ValueId, settings: &RopeSettings) -> Result<ValueId, ModelError> {
        let turned = |b: &mut Self, x: ValueId, rope: Rope, factors: Option<Operand>| {
            let inputs = [x.into(), Operand::Input(Input::Positions)].into_iter().chain(factors);
            b.push(rope, inputs.collect(), "rope")
        };
        let Some(long) = settings.long_factors else {
            return turned(self, x, settings.rope, settings.factors);
        };
        // Each row is turned by one of the two.
        let of_texts = |long| Rope { place: RopePlace::OfTexts { long }, ..settings.rope };
        let x = turned(self, x, of_texts(false), settings.factors)?;
        turned(self, x, Rope { magnitude: 1.0, ..of_texts(true) }, Some(long))
    }
}
