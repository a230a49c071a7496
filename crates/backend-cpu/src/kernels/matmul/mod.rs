//! Multiplication of activations by weight matrices: `y[t, n] = sum over k of W[n, k] x[t, k]`.
//!
//! A matrix of any number format is packed once ([`Plan`], [`PackedMatrix`]). Each step prepares an activation in
//! the format the matrix asks for ([`ActivationFormat`]), and threads then multiply disjoint ranges of rows.
//!
//! The format of the activation decides the kernel, and no kernel lets a result depend on the other tokens of the
//! step. So results are reproducible for any mix of tokens if [`PackedMatrix::activation`] is always asked with the
//! same number of tokens.

/// Repeats a block for each number: as a loop the compiler would leave it one where it is long, and its sums would lie in memory.
#[cfg(target_arch = "x86_64")]
macro_rules! each {
    ($name:ident in $($value:literal)* => $body:block) => {
        $({
            let $name: usize = $value;
            $body
        })*
    };
}

mod activation;
mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod integers;
mod interleave;
mod layout;
#[cfg(target_arch = "x86_64")]
mod many;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod reference;
mod scales;
mod words;

pub use activation::ActivationFormat;

use crate::isa::Features;
use crate::memory::{AlignedBuffer, Share};
#[cfg(target_arch = "x86_64")]
use ahead::streams;
use ahead::{Abreast, Ahead};
use integers::EIGHT_BITS;
use layout::{GROUP, Geometry, Layout};
use puna_quant::DType;
use std::ops::Range;

/// From this number of tokens on the matrix unit is faster than the byte dot products, with the same results.
#[cfg(target_arch = "x86_64")]
const AMX_TILE: usize = 16;
/// From this number of tokens on, decoding integer codes to BF16 for the matrix unit is faster than integer dot
/// products.
const AMX_INTEGER: usize = 24;
/// The same for BF16 weights, and for rows that must be decoded anyway.
const BRAIN: usize = 8;
/// From this number of tokens on, F16 weights as integers of 16 bits are faster than f32, and than the three products of high and low
/// parts that the matrix unit would take.
const WORDS: usize = 32;

/// Whether weights of 8 bits are multiplied by split activations. Of one token, reading the weights takes longer than either
/// product with AVX-512 (with AVX2 it costs a tenth); of more, single bytes are faster. Without vector instructions nothing is fast.
fn splits(features: Features, tokens: usize) -> bool {
    tokens <= 1 || !features.vectors()
}

/// Why a matrix cannot be packed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MatrixError {
    /// There are no columns or no whole number of blocks of them, or the size does not fit the address space.
    #[error("a matrix of {rows} rows by {columns} columns cannot have the format {dtype}")]
    Shape {
        /// Number format.
        dtype: DType,
        /// Rows (output features).
        rows: usize,
        /// Columns (input features).
        columns: usize,
    },
    /// The bytes given are not those of the matrix.
    #[error("{rows} rows by {columns} columns of {dtype} are {expected} bytes, not {found}")]
    Bytes {
        /// Number format.
        dtype: DType,
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
        /// Bytes such a matrix has.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The system has no memory for the packed matrix.
    #[error("no memory for a packed matrix of {bytes} bytes")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// How a matrix is packed, and how large it becomes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    geometry: Geometry,
}

impl Plan {
    /// Rows of one indivisible unit: ranges to pack and to multiply start at multiples of it.
    pub const ROW_GRANULARITY: usize = GROUP;

    /// Plans a matrix of `rows` (output features) by `columns` (input features).
    pub fn new(dtype: DType, rows: usize, columns: usize) -> Result<Self, MatrixError> {
        let geometry =
            Geometry::new(dtype, rows, columns).ok_or(MatrixError::Shape { dtype, rows, columns })?;
        Ok(Self { geometry })
    }

    /// Rows (output features).
    pub fn rows(&self) -> usize {
        self.geometry.rows
    }

    /// Bytes of the packed matrix.
    pub fn bytes(&self) -> usize {
        self.geometry.groups() * self.geometry.group_bytes
    }

    /// Where the packed form of `rows` lies in the packed matrix. The range starts at a multiple of
    /// [`Plan::ROW_GRANULARITY`] and ends at one or at the last row.
    pub fn destination(&self, rows: Range<usize>) -> Range<usize> {
        self.check(&rows);
        rows.start / GROUP * self.geometry.group_bytes..rows.end.div_ceil(GROUP) * self.geometry.group_bytes
    }

    /// Where `rows` lie in the matrix as the file has it.
    pub fn source(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.geometry.row_bytes()..rows.end * self.geometry.row_bytes()
    }

    /// Packs `rows`; `source` and `destination` are the bytes at [`Plan::source`] and [`Plan::destination`].
    /// Threads may pack different ranges of one matrix at the same time.
    ///
    /// # Panics
    /// If the range or the lengths are not as described.
    pub fn pack_rows(&self, source: &[u8], rows: Range<usize>, destination: &mut [u8]) {
        assert_eq!(source.len(), self.source(rows.clone()).len(), "source bytes of the rows");
        assert_eq!(destination.len(), self.destination(rows.clone()).len(), "packed bytes of the rows");
        let row_bytes = self.geometry.row_bytes();
        let groups = destination.chunks_exact_mut(self.geometry.group_bytes);
        for (source, destination) in source.chunks(row_bytes * GROUP).zip(groups) {
            pack::pack_group(&self.geometry, source, destination);
        }
    }

    fn check(&self, rows: &Range<usize>) {
        let last = self.geometry.rows;
        assert!(
            rows.start.is_multiple_of(GROUP)
                && rows.end <= last
                && rows.start <= rows.end
                && (rows.end.is_multiple_of(GROUP) || rows.end == last),
            "rows {rows:?} of {last} do not fall on multiples of {GROUP}"
        );
    }
}

/// An activation in prepared form.
#[derive(Clone, Copy)]
pub struct Activation<'a> {
    /// Form of the bytes.
    pub format: ActivationFormat,
    /// Number of rows.
    pub tokens: usize,
    /// Numbers in a row.
    pub columns: usize,
    /// [`ActivationFormat::bytes`] bytes, at a multiple of 4 (better 64) in memory.
    pub bytes: &'a [u8],
}

/// Where results go: number `n` of token `t` to `pointer[t * stride + n]`.
#[derive(Clone, Copy)]
pub struct OutputView {
    /// Result 0 of token 0.
    pub pointer: *mut f32,
    /// Numbers from one token to the next.
    pub stride: usize,
}

/// A weight matrix in the layout that its kernels read.
pub struct PackedMatrix {
    geometry: Geometry,
    bytes: Share,
}

impl PackedMatrix {
    /// Takes the memory that [`Plan::pack_rows`] filled.
    pub fn new(plan: Plan, bytes: Share) -> Result<Self, MatrixError> {
        let Geometry { dtype, rows, columns, .. } = plan.geometry;
        let (expected, found) = (plan.bytes(), bytes.len());
        if expected != found {
            return Err(MatrixError::Bytes { dtype, rows, columns, expected, found });
        }
        Ok(Self { geometry: plan.geometry, bytes })
    }

    /// Packs a whole matrix on the calling thread.
    pub fn pack(dtype: DType, rows: usize, columns: usize, source: &[u8]) -> Result<Self, MatrixError> {
        let plan = Plan::new(dtype, rows, columns)?;
        let (expected, found) = (plan.source(0..rows).len(), source.len());
        if expected != found {
            return Err(MatrixError::Bytes { dtype, rows, columns, expected, found });
        }
        let mut bytes =
            AlignedBuffer::new(plan.bytes()).ok_or(MatrixError::Memory { bytes: plan.bytes() })?;
        plan.pack_rows(source, 0..rows, bytes.as_mut_slice());
        Self::new(plan, bytes.into())
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.geometry.rows
    }

    /// Input features.
    pub fn columns(&self) -> usize {
        self.geometry.columns
    }

    /// Number format of the file.
    pub fn dtype(&self) -> DType {
        self.geometry.dtype
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Where the packed form of the rows from `row` on lies.
    pub fn place(&self, row: usize) -> *const u8 {
        self.bytes.as_pointer().wrapping_add(row / GROUP * self.geometry.group_bytes)
    }

    /// The form of activation with which `tokens` rows are multiplied fastest. The values do not depend on the rows
    /// of a step, but they do depend on this choice.
    pub fn activation(&self, features: Features, tokens: usize) -> ActivationFormat {
        match self.geometry.layout {
            // True f32 multiplication.
            Layout::Single => ActivationFormat::F32,
            Layout::Integer(EIGHT_BITS) if splits(features, tokens) => ActivationFormat::Q8Split,
            Layout::Integer(_) if features.amx && tokens >= AMX_INTEGER => ActivationFormat::Bf16,
            Layout::Integer(_) => ActivationFormat::Q8,
            Layout::Half if features.avx512_vnni && tokens >= WORDS => ActivationFormat::Q16,
            Layout::Brain | Layout::Rows if features.amx && tokens >= BRAIN => ActivationFormat::Bf16,
            Layout::Brain if features.avx512_bf16 && tokens >= BRAIN => ActivationFormat::Bf16,
            Layout::Half | Layout::Brain | Layout::Rows => ActivationFormat::F32,
        }
    }

    /// The same for the matrix of an expert that gets `tokens` rows on average. How many it gets in fact varies, so this is a form
    /// whose kernels need no decoding first.
    pub fn activation_of_experts(&self, features: Features, tokens: usize) -> ActivationFormat {
        match self.activation(features, 1) {
            ActivationFormat::Q8Split if !splits(features, tokens) => ActivationFormat::Q8,
            format => format,
        }
    }

    /// Bytes of private memory that a call of [`PackedMatrix::multiply`] needs.
    pub fn scratch_bytes(&self, format: ActivationFormat) -> usize {
        match format {
            #[cfg(target_arch = "x86_64")]
            ActivationFormat::Bf16 => amx::scratch_bytes(&self.geometry),
            #[cfg(not(target_arch = "x86_64"))]
            ActivationFormat::Bf16 => 0,
            #[cfg(target_arch = "x86_64")]
            ActivationFormat::Q16 => avx512::words_scratch_bytes(&self.geometry),
            #[cfg(not(target_arch = "x86_64"))]
            ActivationFormat::Q16 => 0,
            // One decoded group, and one decoded row.
            ActivationFormat::F32 => (self.geometry.padded_columns() * (GROUP + 1)) * 4 + 64,
            #[cfg(target_arch = "x86_64")]
            ActivationFormat::Q8 | ActivationFormat::Q8Split => amx::integer_scratch_bytes(&self.geometry),
            #[cfg(not(target_arch = "x86_64"))]
            ActivationFormat::Q8 | ActivationFormat::Q8Split => 0,
        }
    }

    /// Multiplies `rows` by all tokens of `activation`, whose format [`PackedMatrix::activation`] gave for some
    /// number of tokens. Rows start at a multiple of [`Plan::ROW_GRANULARITY`] and end at one or at the last
    /// row. Threads may multiply different rows at the same time. Few tokens wait for memory, so while the last rows are
    /// multiplied the kernel asks for what the caller reads next: packed weights at `next`, which may be null.
    ///
    /// # Safety
    /// `out` must be valid for writes of the results `rows` of every token, and no one else may access these.
    ///
    /// # Panics
    /// If the activation, the rows or the scratch memory do not fit the matrix.
    pub unsafe fn multiply(
        &self,
        features: Features,
        activation: &Activation<'_>,
        rows: Range<usize>,
        out: OutputView,
        next: *const u8,
        scratch: &mut [u8],
    ) {
        let geometry = &self.geometry;
        Plan { geometry: *geometry }.check(&rows);
        assert_eq!(activation.columns, geometry.columns, "columns of the activation");
        let format = activation.format;
        assert!(
            activation.bytes.len() >= format.bytes(activation.tokens, activation.columns)
                && activation.bytes.as_ptr().align_offset(4) == 0,
            "bytes of the activation"
        );
        assert!(scratch.len() >= self.scratch_bytes(format), "scratch memory");
        let operands = Operands {
            geometry: *geometry,
            matrix: self.bytes.as_slice(),
            activation: activation.bytes,
            token_bytes: format.token_bytes(activation.columns),
            tokens: activation.tokens,
            out,
            next,
        };
        let groups = rows.start / GROUP..rows.end.div_ceil(GROUP);
        match (geometry.layout, format) {
            (Layout::Integer(_), ActivationFormat::Q8) => integer(features, &operands, groups, scratch),
            (Layout::Integer(EIGHT_BITS), ActivationFormat::Q8Split) => {
                split(features, &operands, groups, scratch)
            }
            (_, ActivationFormat::F32) => float(features, &operands, groups, scratch),
            #[cfg(target_arch = "x86_64")]
            (Layout::Integer(_) | Layout::Brain | Layout::Rows, ActivationFormat::Bf16) if features.amx => {
                // SAFETY: `features` proves that the processor has AVX-512 and AMX and the system's permission.
                unsafe { amx::multiply(&operands, groups, scratch) }
            }
            #[cfg(target_arch = "x86_64")]
            (Layout::Brain, ActivationFormat::Bf16) if features.avx512_bf16 => {
                // SAFETY: `features` proves that the processor has the instructions.
                unsafe { avx512::brain(&operands, groups) }
            }
            #[cfg(target_arch = "x86_64")]
            (Layout::Half, ActivationFormat::Q16) if features.avx512_vnni => {
                // SAFETY: as above.
                unsafe { avx512::words(&operands, groups, scratch) }
            }
            (layout, format) => panic!("{layout:?} is not multiplied by {format:?}"),
        }
    }

    /// Writes the exact values of one row to `output`, which has one place for each column.
    ///
    /// # Panics
    /// If `row` is not less than the number of rows or `output` has another length.
    pub fn decode_row(&self, row: usize, output: &mut [f32]) {
        assert!(row < self.geometry.rows, "row {row} of {}", self.geometry.rows);
        assert_eq!(output.len(), self.geometry.columns, "columns of the row");
        let group = &self.bytes.as_slice()[row / GROUP * self.geometry.group_bytes..];
        pack::decode_row(&self.geometry, &group[..self.geometry.group_bytes], row % GROUP, output);
    }
}

/// What a kernel works on. Kernels write results only through [`Operands::store`] or to the same places.
#[derive(Clone, Copy)]
struct Operands<'a> {
    geometry: Geometry,
    matrix: &'a [u8],
    activation: &'a [u8],
    /// Bytes from one token to the next (in tiles: the bytes of one token's share).
    token_bytes: usize,
    tokens: usize,
    out: OutputView,
    /// What is read after this call, or null.
    next: *const u8,
}

impl Operands<'_> {
    /// The packed bytes of a group.
    fn group(&self, group: usize) -> &[u8] {
        &self.matrix[group * self.geometry.group_bytes..][..self.geometry.group_bytes]
    }

    /// How to ask for what follows while some groups are read side by side, in so many steps of so many bytes of
    /// each.
    fn ahead(&self, groups: Abreast, steps: (usize, usize)) -> Ahead {
        let jump = if !groups.last {
            self.geometry.group_bytes as isize
        } else if self.next.is_null() {
            0
        } else {
            self.next.addr().wrapping_sub(self.group(groups.first).as_ptr().addr()) as isize
        };
        Ahead::new(self.geometry.layout, groups, steps, jump)
    }

    /// The prepared bytes of a token (formats without tiles).
    fn activation_row(&self, token: usize) -> &[u8] {
        &self.activation[token * self.token_bytes..][..self.token_bytes]
    }

    /// The numbers of a token ([`ActivationFormat::F32`]).
    fn activation_floats(&self, token: usize) -> &[f32] {
        bytemuck::cast_slice(self.activation_row(token))
    }

    /// Writes one result; `token` and `row` lie within the call's range.
    fn store(&self, token: usize, row: usize, value: f32) {
        // SAFETY: the caller of `multiply` vouches for all results of its rows.
        unsafe { *self.result(token, row) = value }
    }

    /// The place of one result.
    fn result(&self, token: usize, row: usize) -> *mut f32 {
        debug_assert!(token < self.tokens && row < self.geometry.rows);
        // Within the caller's memory or not, computing the address is harmless; writing is the kernel's promise.
        self.out.pointer.wrapping_add(token * self.out.stride + row)
    }
}

/// Integer layouts by Q8 activations with the best kernel.
fn integer(features: Features, operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    // SAFETY: `features` proves that the processor has the instructions.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        if features.avx512_vnni && features.amx && operands.tokens >= AMX_TILE {
            return amx::integer(operands, groups, scratch);
        } else if features.avx512_vnni {
            return avx512::integer(operands, groups);
        } else if features.avx_vnni {
            return avx2::integer_vnni(operands, groups);
        } else if features.avx2 {
            return avx2::integer(operands, groups);
        }
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        if features.neon_i8mm {
            return neon::integer_matrix(operands, groups);
        } else if features.neon_dot {
            return neon::integer_dot(operands, groups);
        } else if features.neon {
            return neon::integer(operands, groups);
        }
    }
    let _ = (features, scratch);
    reference::integer(operands, groups);
}

/// Weights of 8 bits by split activations with the best kernel.
fn split(features: Features, operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    // SAFETY: `features` proves that the processor has the instructions.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        if features.avx512_vnni && features.amx && operands.tokens >= AMX_TILE {
            return amx::split(operands, groups, scratch);
        } else if features.avx512_vnni {
            return avx512::split(operands, groups);
        } else if features.avx_vnni {
            return avx2::split_vnni(operands, groups);
        } else if features.avx2 {
            return avx2::split(operands, groups);
        }
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        if features.neon_i8mm {
            return neon::split_matrix(operands, groups);
        } else if features.neon_dot {
            return neon::split_dot(operands, groups);
        } else if features.neon {
            return neon::split(operands, groups);
        }
    }
    let _ = (features, scratch);
    reference::split(operands, groups);
}

/// The other layouts by F32 activations with the best kernel.
fn float(features: Features, operands: &Operands<'_>, groups: Range<usize>, scratch: &mut [u8]) {
    // SAFETY: any bytes are valid f32s; the middle part is aligned.
    let scratch = unsafe { scratch.align_to_mut::<f32>().1 };
    if !features.vectors() {
        return reference::float(operands, groups, scratch);
    }
    if operands.geometry.layout != Layout::Rows {
        return float_lanes(features, operands, groups);
    }
    let columns = operands.geometry.padded_columns();
    let (decoded, line) = scratch.split_at_mut(columns * GROUP);
    for group in groups {
        let rows = operands.geometry.rows - group * GROUP;
        pack::decode_group(&operands.geometry, operands.group(group), rows, line, decoded);
        let single = Operands {
            geometry: Geometry {
                layout: Layout::Single,
                rows,
                group_bytes: columns * GROUP * 4,
                ..operands.geometry
            },
            matrix: bytemuck::cast_slice(decoded),
            out: OutputView { pointer: operands.result(0, group * GROUP), ..operands.out },
            ..*operands
        };
        float_lanes(features, &single, 0..1);
    }
}

/// Interleaved floating-point layouts by F32 activations with the best kernel of a processor that has one.
fn float_lanes(features: Features, operands: &Operands<'_>, groups: Range<usize>) {
    // SAFETY: `features` proves that the processor has the instructions.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        if features.avx512 {
            avx512::float(operands, groups);
        } else {
            avx2::float(operands, groups);
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        debug_assert!(features.neon);
        // SAFETY: as above.
        unsafe { neon::float(operands, groups) }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    unreachable!(
        "{features:?} on a processor without vector kernels for {} groups of {}",
        groups.len(),
        operands.tokens
    );
}
