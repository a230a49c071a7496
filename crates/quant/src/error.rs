//! What can be wrong with a row of blocks.

use crate::DType;

/// Why a row cannot be decoded, encoded or trusted.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum QuantError {
    /// The elements do not fill whole blocks.
    #[error("{elements} elements are no whole number of {dtype} blocks of {} elements", dtype.block())]
    PartialElements {
        /// Format of the row.
        dtype: DType,
        /// Elements in the row.
        elements: usize,
    },
    /// The bytes do not fill whole blocks.
    #[error("{bytes} bytes are no whole number of {dtype} blocks of {} bytes", dtype.format().bytes)]
    PartialBytes {
        /// Format of the row.
        dtype: DType,
        /// Bytes in the row.
        bytes: usize,
    },
    /// The number of bytes does not belong to the number of elements.
    #[error("{elements} elements of {dtype} take {expected} bytes, but there are {found}")]
    ByteCount {
        /// Format of the row.
        dtype: DType,
        /// Elements in the row.
        elements: usize,
        /// Bytes these elements take.
        expected: u64,
        /// Bytes in the row.
        found: usize,
    },
    /// The importance of columns does not fit the rows.
    #[error(
        "{elements} elements of {dtype} are no whole rows of {found} columns, for which there is importance"
    )]
    ImportanceCount {
        /// Format of the rows.
        dtype: DType,
        /// Elements in all rows.
        elements: usize,
        /// Columns that have an importance.
        found: usize,
    },
    /// An element to be encoded is infinite or not a number.
    #[error("element {index} is {value}, but only finite numbers can be encoded")]
    Element {
        /// Index of the element, counted from 0.
        index: usize,
        /// The element.
        value: f32,
    },
    /// The format has no encoder for this purpose.
    #[error("there is no such encoder for {dtype}")]
    NoEncoder {
        /// The format.
        dtype: DType,
    },
    /// A floating-point element or scale is infinite or not a number.
    #[error("{dtype} block {block} holds {value} at byte {offset}, but only finite numbers are allowed")]
    NotFinite {
        /// Format of the row.
        dtype: DType,
        /// Index of the block, counted from 0.
        block: usize,
        /// Offset of the number in the block in bytes.
        offset: usize,
        /// The number found.
        value: f64,
    },
}
