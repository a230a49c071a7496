//! Blocks that architectures share. They take values and plain settings, never a model's struct.

mod attention;
mod decoder;
mod experts;
mod feed_forward;
mod hyper;
mod pooling;
mod rope;
mod standard;
mod windows;

mod delta_net;
mod mamba;
mod mla;
pub mod per_layer;
mod recurrent;

pub use attention::{Attending, AttentionBlock, HeadNorms, HeadShape};
pub use decoder::{MATRIX_BIASES, NORM_BIASES, OUTPUT, Residuals};
pub use delta_net::ChannelDecay;
pub use experts::{CHUNK_EXPERTS, EXPERTS, Experts, Routing};
pub use feed_forward::{Activation, FeedForward, GateSource};
pub use hyper::{HYPER_ATTENTION, HYPER_FEED_FORWARD};
pub use mamba::ScanInputs;
pub use mla::LatentAttention;
pub use pooling::Classifier;
pub use rope::RopeSettings;
pub use standard::Decoder;
pub use windows::{WindowDefaults, WindowRope, Windows};
