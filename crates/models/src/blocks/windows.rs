//! Layers that see only a window of positions.

use puna_graph::ops::MaskRule;

use super::RopeSettings;
use crate::{Builder, ModelError};

/// Which layers see a window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Windows {
    /// Length of the window, the row's own position included; 0 if no layer is limited.
    pub length: u32,
    layers: Vec<bool>,
}

/// What a file need not say about windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowDefaults {
    /// Window without `attention.sliding_window`: 0 for none; `None` if the file must say.
    pub length: Option<u32>,
    /// Every so many layers one is full: 0 for none full; `None` if the file must say.
    pub pattern: Option<u32>,
    /// Whether the first of them is the full one, else the last.
    pub full_first: bool,
}

impl WindowDefaults {
    /// Length and pattern that the file must give.
    pub const NEEDED: Self = Self { length: None, pattern: None, full_first: false };

    /// A length that the file must give, and the last of so many layers full.
    pub fn every(pattern: u32) -> Self {
        Self { pattern: Some(pattern), ..Self::NEEDED }
    }

    /// This length where the file gives none.
    pub fn or_length(self, length: u32) -> Self {
        Self { length: Some(length), ..self }
    }

    /// The first layer of a pattern is the full one.
    pub fn full_first(self) -> Self {
        Self { full_first: true, ..self }
    }
}

/// How the rotation of window layers follows from that of full layers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum WindowRope {
    /// The same scaling; the base is `rope.freq_base_swa` or else the full layers'.
    Copied,
    /// Neither position scale nor YaRN; base as above.
    Plain,
    /// As `Plain`, but with this base if `rope.freq_base_swa` is absent.
    PlainWithBase(f32),
}

impl Windows {
    /// Whether the pattern makes this a window layer, window or not.
    pub fn contains(&self, layer: u32) -> bool {
        self.layers.get(layer as usize).copied().unwrap_or(false)
    }

    /// Whether this layer sees only the window.
    pub fn limits(&self, layer: u32) -> bool {
        self.length > 0 && self.contains(layer)
    }

    /// Positions that this layer sees.
    pub fn mask(&self, layer: u32) -> MaskRule {
        if self.limits(layer) { MaskRule::Window(self.length) } else { MaskRule::Causal }
    }
}

impl Builder<'_> {
    /// Reads `attention.sliding_window` and `attention.sliding_window_pattern`.
    pub fn windows(&self, defaults: WindowDefaults) -> Result<Windows, ModelError> {
        const LENGTH: &str = "attention.sliding_window";
        const PATTERN: &str = "attention.sliding_window_pattern";
        let length = self.optional_u32(LENGTH)?.or(defaults.length);
        let length = length.ok_or_else(|| self.missing_key(LENGTH))?.min(i32::MAX as u32);
        if let Some(layers) = self.is_array(PATTERN).then(|| self.layer_flags(PATTERN)).transpose()?.flatten()
        {
            return Ok(Windows { length, layers });
        }
        let pattern = self.optional_u32(PATTERN)?.or(defaults.pattern);
        let pattern = pattern.ok_or_else(|| self.missing_key(PATTERN))?;
        let windowed = |layer: u32| match (pattern, defaults.full_first) {
            (0, _) => true,
            (_, true) => !layer.is_multiple_of(pattern),
            (_, false) => layer % pattern < pattern - 1,
        };
        Ok(Windows { length, layers: (0..self.layers()).map(windowed).collect() })
    }

    /// The rotation of window layers.
    pub fn window_rope(&self, full: &RopeSettings, kind: WindowRope) -> Result<RopeSettings, ModelError> {
        let mut settings = *full;
        let default = match kind {
            WindowRope::PlainWithBase(base) => base,
            _ => full.rope.base,
        };
        settings.rope.base = self.rope_base("rope.freq_base_swa", default)?;
        const DIMENSIONS: &str = "rope.dimension_count_swa";
        settings.rope.dimensions = self.width_or(DIMENSIONS, full.rope.dimensions)?;
        let widest = self.width_or("attention.key_length_swa", self.key_dim()?)?;
        if settings.rope.dimensions > widest || !settings.rope.dimensions.is_multiple_of(2) {
            let rule = "even and at most the width of a head in window layers";
            return Err(self.value_error(DIMENSIONS, settings.rope.dimensions, rule));
        }
        if kind != WindowRope::Copied {
            settings.rope.position_scale = 1.0;
            settings.rope.yarn = None;
            settings.rope.magnitude = 1.0;
        }
        Ok(settings)
    }
}
