//! Blocks that architectures share. They take values and plain settings, never a model's struct.

mod attention;
mod decoder;
mod experts;
mod feed_forward;
mod rope;
mod standard;
mod windows;

pub use attention::{AttentionBlock, HeadNorms, HeadShape};
pub use decoder::Residuals;
pub use experts::{CHUNK_EXPERTS, EXPERTS, Experts, Routing};
pub use feed_forward::{Activation, FeedForward};
pub use rope::RopeSettings;
pub use standard::Decoder;
pub use windows::{WindowDefaults, WindowRope, Windows};
