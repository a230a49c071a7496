//! Operations: one file each, with attributes, shape rule and evaluation.

use crate::{Array, Dim, Element, GraphError, StateDecl, StateId, Symbol, Type, evaluate::Context};

mod adapter_scale;
mod add;
mod add_row;
mod attention;
mod block_attention;
mod choose_by_table;
mod clamp;
mod clamped_glu;
mod concat;
mod convolution;
mod div;
mod experts;
mod features;
mod fill_columns;
mod gather_rows;
mod gaussian_cut;
mod glu;
mod group_norm;
mod hyper_connections;
mod interpolate;
mod match_norm;
mod matmul;
mod matmul_heads;
mod mean_rows;
mod mul;
mod norm;
mod position_scale;
mod recurrent;
mod repeat_heads;
mod reshape;
mod rope;
mod scale;
mod scale_rows;
mod slice;
mod soft_cap;
mod softmax;
mod sum_elements;
mod unary;
mod weighted_sum;
mod xielu;

pub use adapter_scale::AdapterScale;
pub use add::Add;
pub use add_row::AddRow;
pub use attention::{Attention, MaskRule, RelativeBias, alibi_slope};
pub use block_attention::BlockAttention;
pub use choose_by_table::ChooseByTable;
pub use clamp::Clamp;
pub use clamped_glu::{ClampedGlu, GateBound};
pub use concat::Concat;
pub use convolution::Convolution;
pub use div::Div;
pub use experts::{
    AddExpertBias, ExpertGroups, ExpertWeights, Gating, GroupOfExpert, MatMulExperts, RouteExperts,
    SumExperts,
};
pub use features::{Features, PreferFeatured};
pub use fill_columns::FillColumns;
pub use gather_rows::GatherRows;
pub use gaussian_cut::GaussianCut;
pub use glu::Glu;
pub use group_norm::GroupNorm;
pub use hyper_connections::{HyperRead, HyperWrite};
pub use interpolate::Interpolate;
pub use match_norm::MatchNorm;
pub use matmul::MatMul;
pub use matmul_heads::MatMulHeads;
pub use mean_rows::MeanRows;
pub use mul::Mul;
pub use norm::{LayerNorm, RmsNorm};
pub use position_scale::PositionScale;
pub use recurrent::{
    CompressBlocks, GatedDeltaRule, GatedLinearAttention, KeyHeads, NgramHead, NgramRows, Rwkv7,
    SelectiveScan, ShortConvolution, TokenShift,
};
pub use repeat_heads::RepeatHeads;
pub use reshape::Reshape;
pub use rope::{Rope, RopeKind, RopePlace, Yarn};
pub use scale::Scale;
pub use scale_rows::ScaleRows;
pub use slice::Slice;
pub use soft_cap::SoftCap;
pub use softmax::Softmax;
pub use sum_elements::SumElements;
pub use unary::{Function, Unary};
pub use weighted_sum::WeightedSum;
pub use xielu::Xielu;

/// What every operation defines: its shape rule and its meaning.
pub trait OpDef {
    /// Type of the result for inputs of these types. [`Op::infer`] has checked element types and extents
    /// before, so a shape rule has only to compare.
    fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError>;
    /// Which inputs are integers; all others are floats.
    fn integer_inputs(&self) -> &'static [usize] {
        &[]
    }
    /// What it keeps from step to step, if anything.
    fn state(&self) -> Option<StateId> {
        None
    }
    /// Whether this state has the extents that the operation needs for inputs of these types, which
    /// [`OpDef::infer`] let through.
    fn fits_state(&self, _inputs: &[Type], _state: &StateDecl) -> bool {
        true
    }
    /// The result itself, slow and obvious: sums in `f64`, results rounded once to `f32`.
    fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array;
}

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// Any operation.
        #[derive(Clone, PartialEq, Debug)]
        #[allow(missing_docs)] // each variant is the struct of that name
        pub enum Op { $($name($name)),* }
        $(impl From<$name> for Op {
            fn from(op: $name) -> Self { Op::$name(op) }
        })*
        impl Op {
            /// Name of the operation.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => stringify!($name)),* }
            }
            /// Names of all operations.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];
        }
        impl OpDef for Op {
            /// Refuses whatever `evaluate` could not be run on: wrong element types, extents that are not
            /// known or 0 or too large, and what the operation's own rule refuses.
            fn infer(&self, inputs: &[Type]) -> Result<Type, GraphError> {
                check_inputs(self.name(), inputs, self.integer_inputs())?;
                let result = match self { $(Op::$name(op) => op.infer(inputs)),* }?;
                match fault(&result) {
                    Some(reason) => Err(shape_error(self.name(), inputs, reason)),
                    None => Ok(result),
                }
            }
            fn integer_inputs(&self) -> &'static [usize] {
                match self { $(Op::$name(op) => op.integer_inputs()),* }
            }
            fn fits_state(&self, inputs: &[Type], state: &StateDecl) -> bool {
                match self { $(Op::$name(op) => op.fits_state(inputs, state)),* }
            }
            fn state(&self) -> Option<StateId> {
                match self { $(Op::$name(op) => op.state()),* }
            }
            fn evaluate(&self, inputs: &[&Array], context: &mut Context<'_>) -> Array {
                match self { $(Op::$name(op) => op.evaluate(inputs, context)),* }
            }
        }
    };
}

ops! {
    GatherRows, MatMul, Add, Mul, Scale, RmsNorm, LayerNorm, Rope, Attention, Glu, Unary, SoftCap, Reshape,
    RouteExperts, ExpertWeights, MatMulExperts, SumExperts, AddExpertBias, Slice, ScaleRows, Div, Clamp,
    ClampedGlu, PositionScale, Xielu, GroupOfExpert, WeightedSum, MatchNorm, GaussianCut, Softmax, Concat, RepeatHeads, SumElements, MatMulHeads,
    AddRow, MeanRows, Convolution, GroupNorm, FillColumns,
    Interpolate, ShortConvolution, TokenShift, SelectiveScan, GatedDeltaRule, GatedLinearAttention, Rwkv7,
    HyperRead, HyperWrite, BlockAttention, CompressBlocks, NgramRows, ChooseByTable,
    Features, PreferFeatured, AdapterScale,
}

/// Shape-rule helper: builds the error of operation `op`.
fn shape_error(op: &'static str, inputs: &[Type], reason: &'static str) -> GraphError {
    GraphError::Shape { op, inputs: inputs.to_vec(), reason }
}

/// Most elements of a value, those of the step's axis aside.
const MOST_ELEMENTS: u64 = 1 << 40;

/// Product of the fixed extents, if it is small enough.
fn elements(ty: &Type) -> Option<u64> {
    let fixed = ty.shape.iter().map(|dim| match dim {
        Dim::Fixed(extent) => u64::from(*extent),
        Dim::Of(_) => 1,
    });
    let mut fixed = fixed;
    fixed.try_fold(1_u64, u64::checked_mul).filter(|elements| *elements <= MOST_ELEMENTS)
}

/// What no value of a graph may be, if this is one: it has one to four axes, extents of the step only on the
/// first, and none of 0.
fn fault(ty: &Type) -> Option<&'static str> {
    let inner = ty.shape.get(1..).unwrap_or(&[]);
    if !(1..=4).contains(&ty.shape.len()) {
        Some("a value has one to four axes")
    } else if ty.shape.contains(&Dim::Fixed(0)) {
        Some("an extent is 0")
    } else if inner.iter().any(|dim| matches!(dim, Dim::Of(_))) {
        Some("only the first extent may come with the step")
    } else if elements(ty).is_none() {
        Some("a value is too large")
    } else {
        None
    }
}

/// Checks what holds for the inputs of every operation.
fn check_inputs(op: &'static str, inputs: &[Type], integers: &[usize]) -> Result<(), GraphError> {
    for (index, input) in inputs.iter().enumerate() {
        let wanted = if integers.contains(&index) { Element::I32 } else { Element::F32 };
        let mixed = "there are integers where floats belong, or the other way round";
        if let Some(reason) = fault(input).or((input.element != wanted).then_some(mixed)) {
            return Err(shape_error(op, inputs, reason));
        }
    }
    Ok(())
}

/// Whether all values have a row for each token of the step.
fn are_by_token(inputs: &[Type]) -> bool {
    inputs.iter().all(|input| input.shape.first() == Some(&Dim::Of(Symbol::Tokens)))
}

/// Whether this is a recurrent state of so many numbers: the product of the extents.
fn is_recurrent(state: &StateDecl, extents: &[Option<u32>]) -> bool {
    let product = extents.iter().try_fold(1_u32, |product, extent| product.checked_mul((*extent)?));
    matches!(state, StateDecl::Recurrent { elements, .. } if Some(*elements) == product)
}

/// The index of a row out of `count`; the last one for what is outside, so that no data can end the program.
fn row_index(index: i32, count: usize) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX).min(count.saturating_sub(1))
}

/// Refuses another number of inputs than `allowed`.
fn expect_inputs(
    op: &'static str,
    inputs: &[Type],
    allowed: std::ops::RangeInclusive<usize>,
    expected: &'static str,
) -> Result<(), GraphError> {
    if allowed.contains(&inputs.len()) {
        Ok(())
    } else {
        Err(GraphError::InputCount { op, expected, found: inputs.len() })
    }
}

/// Whether `vector` can be broadcast over the leading axes of `value`: its extents equal the last ones, or it
/// is a single number.
fn is_suffix(vector: &Type, value: &Type) -> bool {
    let single = vector.shape[..] == [Dim::Fixed(1)];
    vector.element == Element::F32 && (single || value.shape.ends_with(&vector.shape))
}

/// Extents of a value of floats, those of the step as `None`; nothing for integers.
fn extents(ty: &Type) -> Vec<Option<u32>> {
    if ty.element != Element::F32 {
        return Vec::new();
    }
    ty.shape.iter().map(|dim| fixed(Some(dim))).collect()
}

/// Whether this is a fixed extent.
fn fixed(dim: Option<&Dim>) -> Option<u32> {
    match dim {
        Some(Dim::Fixed(extent)) => Some(*extent),
        _ => None,
    }
}
