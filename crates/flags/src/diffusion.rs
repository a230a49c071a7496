//! What `diffusion` is told.

/// How a text is made by masked diffusion.
#[derive(Clone, PartialEq, Debug)]
pub struct Diffusion {
    /// Steps.
    pub steps: u32,
    /// Whether each step's text is shown.
    pub visual: bool,
    /// Last time of the schedule by time; 0 for the schedule by blocks.
    pub end: f32,
    /// Tokens of a block; 0 for the schedule by time.
    pub block_length: u32,
    /// Which places are filled first: 0 any with equal chance, 1 by entropy, 2 by margin, 3 at random, 4 by confidence.
    pub algorithm: u32,
    /// Temperature of the choice of places.
    pub order_temperature: f32,
    /// Classifier-free guidance.
    pub guidance: f32,
    /// Whether logits get Gumbel noise.
    pub noise: bool,
}

impl Default for Diffusion {
    fn default() -> Self {
        Self {
            steps: 128,
            visual: false,
            end: 0.0,
            block_length: 0,
            algorithm: 4,
            order_temperature: 0.0,
            guidance: 0.0,
            noise: false,
        }
    }
}
