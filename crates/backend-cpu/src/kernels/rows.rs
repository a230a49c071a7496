//! Views of row-major matrices that kernels read and write.

use std::marker::PhantomData;

/// `rows` rows of `width` numbers, `stride` numbers apart, to read.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pointer: *const f32,
    rows: usize,
    width: usize,
    stride: usize,
    life: PhantomData<&'a [f32]>,
}

/// As [`Rows`], to write. It may describe the very memory that a [`Rows`] given to the same kernel describes
/// (in place), if both have the same stride; kernels touch the memory only through raw pointers.
pub struct RowsMut<'a> {
    pointer: *mut f32,
    rows: usize,
    width: usize,
    stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

fn fits(length: usize, rows: usize, width: usize, stride: usize) -> bool {
    width <= stride
        && (rows == 0
            || (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(width)).is_some_and(|n| n <= length))
}

impl<'a> Rows<'a> {
    /// Rows of `width` numbers, one every `stride`; panics if `data` is shorter.
    pub fn new(data: &'a [f32], rows: usize, width: usize, stride: usize) -> Self {
        assert!(fits(data.len(), rows, width, stride), "{rows} rows of {width}/{stride} in {}", data.len());
        Self { pointer: data.as_ptr(), rows, width, stride, life: PhantomData }
    }

    /// The same `data` for each of `rows` rows.
    pub fn repeated(data: &'a [f32], rows: usize) -> Self {
        Self { pointer: data.as_ptr(), rows, width: data.len(), stride: 0, life: PhantomData }
    }

    /// As [`Rows::new`] without a slice.
    ///
    /// # Safety
    /// The rows lie in valid memory for `'a`, and nobody writes a row while a kernel that was asked for this row
    /// runs, unless through this kernel's own output.
    pub unsafe fn from_raw(pointer: *const f32, rows: usize, width: usize, stride: usize) -> Self {
        Self { pointer, rows, width, stride, life: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first number of row `row`; panics if there is no such row.
    pub fn row(&self, row: usize) -> *const f32 {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row lies in the memory promised at construction.
        unsafe { self.pointer.add(row * self.stride) }
    }
}

impl<'a> RowsMut<'a> {
    /// Rows of `width` numbers, one every `stride`; panics if `data` is shorter.
    pub fn new(data: &'a mut [f32], rows: usize, width: usize, stride: usize) -> Self {
        assert!(fits(data.len(), rows, width, stride), "{rows} rows of {width}/{stride} in {}", data.len());
        Self { pointer: data.as_mut_ptr(), rows, width, stride, life: PhantomData }
    }

    /// As [`RowsMut::new`] without a slice, so that several threads can write different rows of one matrix.
    ///
    /// # Safety
    /// The rows lie in valid memory for `'a`, and nobody else reads or writes a row while a kernel that was asked
    /// for this row runs.
    pub unsafe fn from_raw(pointer: *mut f32, rows: usize, width: usize, stride: usize) -> Self {
        Self { pointer, rows, width, stride, life: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The first number of row `row`; panics if there is no such row.
    pub fn row(&self, row: usize) -> *mut f32 {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row lies in the memory promised at construction.
        unsafe { self.pointer.add(row * self.stride) }
    }
}
