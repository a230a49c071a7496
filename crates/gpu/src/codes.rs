//! The numbers by which kernels know functions and rules; `functions.cuh` and its like repeat them.

use puna_graph::ops::{ClampedGlu, Function, GateBound, Gating, MaskRule};

/// Operations of the kernel `unary` beyond the functions.
pub const SCALE: i32 = 8;
/// `a tanh(x / a)`.
pub const SOFT_CAP: i32 = 9;
/// Between `a` and `b`.
pub const CLAMP: i32 = 10;
/// The xIELU.
pub const XIELU: i32 = 11;

/// Operations of the kernel `binary`.
pub const ADD: i32 = 0;
/// Product.
pub const MULTIPLY: i32 = 1;
/// Quotient.
pub const DIVIDE: i32 = 2;
/// A gated unit with a function is this plus its number.
pub const GATED: i32 = 16;

/// Number of a function, if kernels have it.
pub fn function(function: Function) -> Option<i32> {
    Some(match function {
        Function::Silu => 0,
        Function::Gelu => 1,
        Function::Relu => 2,
        Function::ReluSquared => 3,
        Function::Sigmoid => 4,
        Function::Tanh => 5,
        Function::Exp => 6,
        Function::Softplus => 7,
        Function::SignedRoot => return None,
    })
}

/// Operation and steepness of a bounded gated unit.
pub fn bounded(glu: &ClampedGlu) -> (i32, f32) {
    match glu.bound {
        GateBound::BeforeSilu => (32, 0.0),
        GateBound::AfterSilu => (33, 0.0),
        GateBound::Shifted { alpha } => (34, alpha),
    }
}

/// Number of a score function.
pub fn gating(gating: Gating) -> i32 {
    match gating {
        Gating::Softmax => 0,
        Gating::Sigmoid => 1,
        Gating::SoftmaxOfChosen => 2,
        Gating::SqrtSoftplus => 3,
    }
}

/// Number and extent of a mask rule, if kernels have it.
pub fn mask(rule: MaskRule) -> Option<(i32, i32)> {
    Some(match rule {
        MaskRule::Causal => (0, 0),
        MaskRule::Window(n) => (1, n as i32),
        MaskRule::Chunked(n) => (2, n as i32),
        MaskRule::Bidirectional => (3, 0),
        MaskRule::SymmetricWindow(_) => return None,
    })
}
