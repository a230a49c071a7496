//! Views of a layer's cache.

use std::marker::PhantomData;

use super::RowFormat;

#[derive(Clone, Copy)]
struct Geometry {
    format: RowFormat,
    heads: usize,
    cells: usize,
    row_stride: usize,
    head_stride: usize,
}

impl Geometry {
    fn contiguous(format: RowFormat, heads: usize, cells: usize) -> Self {
        Self { format, heads, cells, row_stride: format.bytes(), head_stride: format.bytes() * cells }
    }

    fn offset(&self, head: usize, cell: usize) -> usize {
        assert!(head < self.heads && cell < self.cells, "head {head}, cell {cell} of {self:?}");
        head * self.head_stride + cell * self.row_stride
    }
}

impl std::fmt::Debug for Geometry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} heads of {} cells", self.heads, self.cells)
    }
}

/// Keys or values of one layer, `[heads, cells, dim]`, to read.
#[derive(Clone, Copy)]
pub struct CacheRows<'a> {
    pointer: *const u8,
    geometry: Geometry,
    life: PhantomData<&'a [u8]>,
}

/// As [`CacheRows`], to write.
pub struct CacheRowsMut<'a> {
    pointer: *mut u8,
    geometry: Geometry,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> CacheRows<'a> {
    /// A cache without gaps; panics if `data` has not exactly the bytes of `heads * cells` rows.
    pub fn new(data: &'a [u8], format: RowFormat, heads: usize, cells: usize) -> Self {
        assert_eq!(data.len(), heads * cells * format.bytes(), "bytes of {heads} heads of {cells} cells");
        let geometry = Geometry::contiguous(format, heads, cells);
        Self { pointer: data.as_ptr(), geometry, life: PhantomData }
    }

    /// A cache whose rows lie `row_stride` bytes apart and whose heads `head_stride` bytes.
    ///
    /// # Safety
    /// All rows lie in valid memory for `'a`, and nobody writes a row that a running kernel reads.
    pub unsafe fn from_raw(
        pointer: *const u8,
        format: RowFormat,
        heads: usize,
        cells: usize,
        row_stride: usize,
        head_stride: usize,
    ) -> Self {
        let geometry = Geometry { format, heads, cells, row_stride, head_stride };
        Self { pointer, geometry, life: PhantomData }
    }

    /// Format of the rows.
    pub fn format(&self) -> RowFormat {
        self.geometry.format
    }

    /// Number of heads.
    pub fn heads(&self) -> usize {
        self.geometry.heads
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.geometry.cells
    }

    /// Bytes from a cell's row to the next cell's.
    pub fn row_stride(&self) -> usize {
        self.geometry.row_stride
    }

    /// The row of a cell; panics if there is none.
    pub fn row(&self, head: usize, cell: usize) -> *const u8 {
        // SAFETY: the offset is that of a row promised at construction.
        unsafe { self.pointer.add(self.geometry.offset(head, cell)) }
    }
}

impl<'a> CacheRowsMut<'a> {
    /// A cache without gaps; panics if `data` has not exactly the bytes of `heads * cells` rows.
    pub fn new(data: &'a mut [u8], format: RowFormat, heads: usize, cells: usize) -> Self {
        assert_eq!(data.len(), heads * cells * format.bytes(), "bytes of {heads} heads of {cells} cells");
        let geometry = Geometry::contiguous(format, heads, cells);
        Self { pointer: data.as_mut_ptr(), geometry, life: PhantomData }
    }

    /// As [`CacheRows::from_raw`].
    ///
    /// # Safety
    /// All rows lie in valid memory for `'a`, and nobody else reads or writes a row that a running kernel
    /// writes.
    pub unsafe fn from_raw(
        pointer: *mut u8,
        format: RowFormat,
        heads: usize,
        cells: usize,
        row_stride: usize,
        head_stride: usize,
    ) -> Self {
        let geometry = Geometry { format, heads, cells, row_stride, head_stride };
        Self { pointer, geometry, life: PhantomData }
    }

    /// Format of the rows.
    pub fn format(&self) -> RowFormat {
        self.geometry.format
    }

    /// Number of heads.
    pub fn heads(&self) -> usize {
        self.geometry.heads
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.geometry.cells
    }

    /// The row of a cell; panics if there is none.
    pub fn row(&mut self, head: usize, cell: usize) -> *mut u8 {
        // SAFETY: the offset is that of a row promised at construction.
        unsafe { self.pointer.add(self.geometry.offset(head, cell)) }
    }
}
