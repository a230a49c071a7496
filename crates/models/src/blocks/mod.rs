//! Blocks that architectures share. They take values and plain settings, never a model's struct.

mod attention;
mod experts;
mod feed_forward;
mod rope;

pub use attention::AttentionBlock;
pub use rope::RopeSettings;
