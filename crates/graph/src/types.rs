//! Symbolic shapes.

use std::fmt;

/// An extent that is only known when a step runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Symbol {
    /// Token rows of the step, over all sequences.
    Tokens,
    /// Rows of an encoder's input, in models that have an encoder and a decoder.
    EncoderTokens,
    /// Rows whose result leaves the model (logits or embeddings).
    Outputs,
}

/// One extent of a shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dim {
    /// A number known when the graph is built.
    Fixed(u32),
    /// An extent brought by the step.
    Of(Symbol),
}

/// Extents, outermost first; the last axis is contiguous. At most four.
pub type Shape = Vec<Dim>;

/// What the elements of a value are. Weights have number formats of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Element {
    /// 32-bit float: all activations.
    F32,
    /// 32-bit integer: indexes such as selected experts.
    I32,
}

/// Element type and symbolic shape of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Type {
    /// Element type.
    pub element: Element,
    /// Extents, outermost first.
    pub shape: Shape,
}

impl Type {
    /// An `f32` value of this shape.
    pub fn f32(shape: impl Into<Shape>) -> Self {
        Self { element: Element::F32, shape: shape.into() }
    }

    /// The last extent, if it is a fixed number.
    pub fn width(&self) -> Option<u32> {
        match self.shape.last() {
            Some(Dim::Fixed(extent)) => Some(*extent),
            _ => None,
        }
    }

    /// Product of the fixed extents after the first axis: elements in one row of the step's axis.
    pub fn row_elements(&self) -> usize {
        self.shape
            .iter()
            .skip(1)
            .map(|dim| match dim {
                Dim::Fixed(extent) => *extent as usize,
                Dim::Of(_) => 1,
            })
            .product()
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Fixed(extent) => write!(f, "{extent}"),
            Dim::Of(symbol) => write!(f, "{symbol:?}"),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = match self.element {
            Element::F32 => "f32",
            Element::I32 => "i32",
        };
        let dims: Vec<String> = self.shape.iter().map(Dim::to_string).collect();
        write!(f, "{element}[{}]", dims.join(", "))
    }
}
