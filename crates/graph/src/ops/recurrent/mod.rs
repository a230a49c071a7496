//! Operations that carry a state from token to token.

use super::{OpDef, are_by_token, expect_inputs, extents, is_recurrent, matmul, shape_error};

mod gated_delta_rule;
mod gated_linear_attention;
mod rwkv7;
mod selective_scan;
mod short_convolution;
mod token_shift;

pub use gated_delta_rule::{GatedDeltaRule, KeyHeads};
pub use gated_linear_attention::GatedLinearAttention;
pub use rwkv7::Rwkv7;
pub use selective_scan::SelectiveScan;
pub use short_convolution::ShortConvolution;
pub use token_shift::TokenShift;
