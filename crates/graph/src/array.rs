//! Concrete values of the evaluator.

use crate::Floats;

/// Elements with a concrete row-major shape.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    data: Data,
}

#[derive(Clone, PartialEq, Debug)]
enum Data {
    F32(Floats),
    I32(Vec<i32>),
}

impl Array {
    /// An array of floats; `data.len()` is the product of `shape`.
    pub fn f32(shape: Vec<usize>, data: Vec<f32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        Self { shape, data: Data::F32(data.into()) }
    }

    /// An array of floats that may lie elsewhere; as many as the product of `shape`.
    pub fn of_floats(shape: Vec<usize>, floats: Floats) -> Self {
        assert_eq!(shape.iter().product::<usize>(), floats.len(), "shape {shape:?}");
        Self { shape, data: Data::F32(floats) }
    }

    /// An array of integers; `data.len()` is the product of `shape`.
    pub fn i32(shape: Vec<usize>, data: Vec<i32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        Self { shape, data: Data::I32(data) }
    }

    /// The floats. Panics on an integer array: shape inference has made sure of the element type.
    pub fn floats(&self) -> &[f32] {
        match &self.data {
            Data::F32(data) => data,
            Data::I32(_) => panic!("integer array where floats belong"),
        }
    }

    /// The integers. Panics on a float array: shape inference has made sure of the element type.
    pub fn integers(&self) -> &[i32] {
        match &self.data {
            Data::I32(data) => data,
            Data::F32(_) => panic!("float array where integers belong"),
        }
    }

    /// Takes the floats out as a vector. Panics as [`Array::floats`] does.
    pub fn into_floats(self) -> Vec<f32> {
        self.into_lent().into_vec()
    }

    /// Takes the floats out where they lie. Panics as [`Array::floats`] does.
    pub fn into_lent(self) -> Floats {
        match self.data {
            Data::F32(data) => data,
            Data::I32(_) => panic!("integer array where floats belong"),
        }
    }

    /// The same elements under another shape of equal size.
    pub fn reshaped(mut self, shape: Vec<usize>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), self.shape.iter().product::<usize>());
        self.shape = shape;
        self
    }

    /// Last extent.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows of the last axis, as floats.
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.floats().chunks_exact(self.width().max(1))
    }

    /// Applies `f` to every float.
    pub fn map(&self, f: impl Fn(f32) -> f32) -> Self {
        Self::f32(self.shape.clone(), self.floats().iter().map(|x| f(*x)).collect())
    }
}
