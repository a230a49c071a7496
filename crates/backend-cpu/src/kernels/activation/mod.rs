//! Elementwise kernels on rows: activations, gated products, sums and scales.

use std::ops::Range;

use super::rows::{Rows, RowsMut};
use super::vector::math::{exp, sigmoid, tanh};
use super::vector::{Kernel, Vector, dispatch, load_upto, store_upto};
use crate::isa::Features;

/// A function of one number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Unary {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `e^x`.
    Exp,
    /// `factor * x + offset`.
    Affine {
        /// Factor.
        factor: f32,
        /// Summand.
        offset: f32,
    },
    /// `min(max(x, low), high)`.
    Clamp {
        /// Least result.
        low: f32,
        /// Largest result.
        high: f32,
    },
    /// `cap * tanh(x / cap)`.
    Softcap {
        /// Bound of the result.
        cap: f32,
    },
}

/// A function of two numbers, `a` and `b`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a * b`.
    Multiply,
    /// `a / b`.
    Divide,
    /// `silu(a) * b`.
    SiluGate,
    /// `gelu(a) * b`, tanh form.
    GeluGate,
    /// `max(a, 0) * b`.
    ReluGate,
    /// `sigmoid(a) * b`.
    SigmoidGate,
    /// With `g = min(a, limit)` and `u = clamp(b, -limit, limit)`: `g * sigmoid(alpha * g) * (u + 1)`.
    OaiGate {
        /// Steepness, 1.702 in the models known.
        alpha: f32,
        /// Bound of gate and value.
        limit: f32,
    },
    /// `silu(min(a, limit)) * clamp(b, -limit, limit)`.
    SiluGateLimitedBefore {
        /// Bound of gate and value.
        limit: f32,
    },
    /// `min(silu(a), limit) * clamp(b, -limit, limit)`.
    SiluGateLimitedAfter {
        /// Bound of gate and value.
        limit: f32,
    },
}

/// `y = function(x)` for the rows in `range`; `y` may be `x`. Panics if the widths differ.
pub fn unary(features: Features, function: Unary, x: Rows<'_>, y: &mut RowsMut<'_>, range: Range<usize>) {
    assert_eq!(x.width(), y.width(), "output of another width");
    for row in range {
        let (width, x, y) = (x.width(), x.row(row), y.row(row));
        macro_rules! map {
            ($function:expr) => {
                dispatch(features, Map { function: $function, width, x, y })
            };
        }
        match function {
            Unary::Silu => map!(Silu {}),
            Unary::Gelu => map!(Gelu {}),
            Unary::Relu => map!(Relu {}),
            Unary::ReluSquared => map!(ReluSquared {}),
            Unary::Sigmoid => map!(Sigmoid {}),
            Unary::Tanh => map!(Tanh {}),
            Unary::Exp => map!(Exp {}),
            Unary::Affine { factor, offset } => map!(Affine { factor, offset }),
            Unary::Clamp { low, high } => map!(Clamp { low, high }),
            Unary::Softcap { cap } => map!(Softcap { cap }),
        }
    }
}

/// `y = function(a, b)` for the rows in `range`; `y` may be `a` or `b`. Panics if the widths differ.
pub fn binary(
    features: Features,
    function: Binary,
    a: Rows<'_>,
    b: Rows<'_>,
    y: &mut RowsMut<'_>,
    range: Range<usize>,
) {
    assert!(a.width() == y.width() && b.width() == y.width(), "operands of different widths");
    for row in range {
        let (width, a, b, y) = (a.width(), a.row(row), b.row(row), y.row(row));
        macro_rules! zip {
            ($function:expr) => {
                dispatch(features, Zip { function: $function, width, a, b, y })
            };
        }
        match function {
            Binary::Add => zip!(Add {}),
            Binary::Multiply => zip!(Multiply {}),
            Binary::Divide => zip!(Divide {}),
            Binary::SiluGate => zip!(Gate(Silu {})),
            Binary::GeluGate => zip!(Gate(Gelu {})),
            Binary::ReluGate => zip!(Gate(Relu {})),
            Binary::SigmoidGate => zip!(Gate(Sigmoid {})),
            Binary::OaiGate { alpha, limit } => zip!(OaiGate { alpha, limit }),
            Binary::SiluGateLimitedBefore { limit } => zip!(LimitedBefore { limit }),
            Binary::SiluGateLimitedAfter { limit } => zip!(LimitedAfter { limit }),
        }
    }
}

trait Function1 {
    fn apply<V: Vector>(&self, x: V) -> V;
}

trait Function2 {
    fn apply<V: Vector>(&self, a: V, b: V) -> V;
}

struct Map<F> {
    function: F,
    width: usize,
    x: *const f32,
    y: *mut f32,
}

impl<F: Function1> Kernel for Map<F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for i in (0..self.width).step_by(V::LANES) {
            let count = self.width - i;
            // SAFETY: both pointers are rows of `width` numbers.
            unsafe {
                let value = self.function.apply(load_upto::<V>(self.x.add(i), count));
                store_upto(value, self.y.add(i), count);
            }
        }
    }
}

struct Zip<F> {
    function: F,
    width: usize,
    a: *const f32,
    b: *const f32,
    y: *mut f32,
}

impl<F: Function2> Kernel for Zip<F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for i in (0..self.width).step_by(V::LANES) {
            let count = self.width - i;
            // SAFETY: all pointers are rows of `width` numbers.
            unsafe {
                let (a, b) = (load_upto::<V>(self.a.add(i), count), load_upto::<V>(self.b.add(i), count));
                store_upto(self.function.apply(a, b), self.y.add(i), count);
            }
        }
    }
}

macro_rules! function1 {
    ($name:ident { $($field:ident),* }, |$self:ident, $x:ident| $body:expr) => {
        struct $name { $($field: f32),* }
        impl Function1 for $name {
            #[inline(always)]
            fn apply<V: Vector>(&$self, $x: V) -> V { $body }
        }
    };
}

function1!(Silu {}, |self, x| x.div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))));
// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), which keeps its relative error for large negative x.
function1!(Gelu {}, |self, x| {
    let inner = x.mul(x).fma(V::splat(0.044_715), V::splat(1.0)).mul(x);
    x.div(V::splat(1.0).add(exp(inner.mul(V::splat(-1.595_769_2)))))
});
function1!(Relu {}, |self, x| V::splat(0.0).max(x));
function1!(ReluSquared {}, |self, x| {
    let positive = V::splat(0.0).max(x);
    positive.mul(positive)
});
function1!(Sigmoid {}, |self, x| sigmoid(x));
function1!(Tanh {}, |self, x| tanh(x));
function1!(Exp {}, |self, x| exp(x));
function1!(Affine { factor, offset }, |self, x| x.fma(V::splat(self.factor), V::splat(self.offset)));
function1!(Clamp { low, high }, |self, x| V::splat(self.high).min(V::splat(self.low).max(x)));
function1!(Softcap { cap }, |self, x| tanh(x.div(V::splat(self.cap))).mul(V::splat(self.cap)));

macro_rules! function2 {
    ($name:ident { $($field:ident),* }, |$self:ident, $a:ident, $b:ident| $body:expr) => {
        struct $name { $($field: f32),* }
        impl Function2 for $name {
            #[inline(always)]
            fn apply<V: Vector>(&$self, $a: V, $b: V) -> V { $body }
        }
    };
}

/// The function of the first number times the second.
struct Gate<F>(F);

impl<F: Function1> Function2 for Gate<F> {
    #[inline(always)]
    fn apply<V: Vector>(&self, a: V, b: V) -> V {
        self.0.apply(a).mul(b)
    }
}

function2!(Add {}, |self, a, b| a.add(b));
function2!(Multiply {}, |self, a, b| a.mul(b));
function2!(Divide {}, |self, a, b| a.div(b));
function2!(OaiGate { alpha, limit }, |self, a, b| {
    let gate = V::splat(self.limit).min(a);
    let value = symmetric_clamp(b, self.limit).add(V::splat(1.0));
    gate.mul(sigmoid(gate.mul(V::splat(self.alpha)))).mul(value)
});
function2!(LimitedBefore { limit }, |self, a, b| {
    Silu {}.apply(V::splat(self.limit).min(a)).mul(symmetric_clamp(b, self.limit))
});
function2!(LimitedAfter { limit }, |self, a, b| {
    V::splat(self.limit).min(Silu {}.apply(a)).mul(symmetric_clamp(b, self.limit))
});

#[inline(always)]
fn symmetric_clamp<V: Vector>(x: V, limit: f32) -> V {
    V::splat(limit).min(V::splat(-limit).max(x))
}
