//! Reading the part of a file before its tensor data.

use std::io::Read;

use puna_quant::DType;

use crate::{
    Array, DEFAULT_ALIGNMENT, Error, MAX_DIMENSIONS, MAX_TENSOR_NAME, Metadata, TensorInfo, Tensors, Value,
    ValueType, Warning, align_up,
};

/// Most bytes of a metadata key, by the format's definition.
pub(crate) const MAX_KEY: u64 = 65_535;
/// Most bytes of a string and most elements of an array.
const MAX_LENGTH: u64 = 1 << 30;
/// Most keys and tensors: far above any real file, so that a large hostile one cannot take many times its size.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
/// Fewest bytes of a key with its value: length, one character, type, one byte.
const MIN_PAIR: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of a directory entry: length, one character, number of axes, format, offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 4 + 8;

/// Metadata and tensor directory of one file. The tensor data need not be there.
#[derive(Clone, Debug)]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data in bytes, a power of two.
    pub alignment: u64,
    /// All key-value pairs.
    pub metadata: Metadata,
    /// All tensors.
    pub tensors: Tensors,
    /// Byte at which the tensor data starts. Without tensors, the byte after the metadata.
    pub data_offset: u64,
    /// What is odd, but no reason to refuse the file.
    pub warnings: Vec<Warning>,
}

impl Header {
    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes, bytes.len() as u64)
    }

    /// Reads a header from `reader`, which holds `length` bytes in all.
    pub(crate) fn read(reader: impl Read, length: u64) -> Result<Self, Error> {
        if length == 0 {
            return Err(Error::Empty);
        }
        let mut cursor = Cursor { reader, position: 0, length };
        let version = cursor.preamble()?;
        let tensor_count = cursor.u64("the number of tensors")?;
        let key_count = cursor.u64("the number of metadata keys")?;
        cursor.expect_items("metadata keys", key_count, MIN_PAIR, MAX_KEYS)?;
        cursor.expect_items("tensors", tensor_count, MIN_TENSOR, MAX_TENSORS)?;

        let mut warnings = Vec::new();
        let mut metadata = Metadata::new();
        for _ in 0..key_count {
            let key = cursor.key()?;
            if metadata.contains(&key) {
                return Err(Error::DuplicateKey { key });
            }
            let mut invalid = 0;
            let value = match cursor.value(&mut invalid) {
                Ok(value) => value,
                Err(source) => return Err(Error::InValue { key, source: Box::new(source) }),
            };
            if invalid > 0 {
                warnings.push(Warning::InvalidText { key: key.clone(), count: invalid });
            }
            metadata.set(key, value);
        }
        let alignment = alignment(&metadata)?;

        let mut entries = Vec::new();
        for index in 0..tensor_count {
            entries.push(cursor.entry(index)?);
        }
        let end = cursor.position;
        let data_offset = match entries.is_empty() {
            true => end,
            false => align_up(end, alignment).ok_or(Error::Alignment { found: alignment.into() })?,
        };
        let tensors = directory(entries, data_offset, alignment)?;
        Ok(Self { version, alignment, metadata, tensors, data_offset, warnings })
    }

    /// Checks that every tensor lies inside a file of `length` bytes.
    pub(crate) fn check_data(&self, length: u64) -> Result<(), Error> {
        match self.tensors.iter().find(|tensor| tensor.range.end > length) {
            None => Ok(()),
            Some(tensor) => Err(Error::TensorOutside {
                name: tensor.name.clone(),
                start: tensor.range.start,
                end: tensor.range.end,
                available: length,
            }),
        }
    }
}

/// The alignment that `metadata` asks for: an integer of any type that is a power of two up to 2^31.
pub(crate) fn alignment(metadata: &Metadata) -> Result<u64, Error> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let found = value.integer().ok_or_else(|| crate::metadata::wrong_type(KEY, value, "u32"))?;
    match u32::try_from(found) {
        Ok(alignment) if alignment.is_power_of_two() => Ok(alignment.into()),
        _ => Err(Error::Alignment { found }),
    }
}

/// A directory entry as the file has it: dimensions contiguous first, offset within the data.
struct Entry {
    name: String,
    dimensions: Vec<u64>,
    format: u32,
    offset: u64,
}

/// Checks the entries against the formats and against one another.
fn directory(entries: Vec<Entry>, data_offset: u64, alignment: u64) -> Result<Tensors, Error> {
    let mut tensors = Tensors::default();
    let mut expected = 0u64;
    for Entry { name, mut dimensions, format, offset } in entries {
        let Some(dtype) = DType::from_id(format) else {
            return Err(Error::UnknownFormat { name, id: format });
        };
        let Some(bytes) = byte_len(dtype, &dimensions) else {
            return Err(size_error(name, dimensions, dtype));
        };
        if offset != expected {
            return Err(Error::Offset { name, found: offset, expected });
        }
        let end = data_offset.checked_add(offset).and_then(|start| start.checked_add(bytes));
        let next = expected.checked_add(bytes).and_then(|end| align_up(end, alignment));
        let (Some(end), Some(next)) = (end, next) else {
            return Err(Error::TensorSize { name, dimensions, dtype: dtype.name() });
        };
        expected = next;
        dimensions.reverse();
        tensors
            .push(TensorInfo { name, dtype, shape: dimensions, shard: 0, range: end - bytes..end })
            .map_err(|duplicate| Error::DuplicateTensor { name: duplicate.name })?;
    }
    Ok(tensors)
}

/// Bytes of a tensor with these dimensions (contiguous one first), or `None` if its rows are no whole blocks or
/// elements or bytes exceed 2^63 - 1. Zero dimensions count as one in that comparison.
pub(crate) fn byte_len(dtype: DType, dimensions: &[u64]) -> Option<u64> {
    let row = dimensions.first().copied().unwrap_or(1);
    let limit = |value: u64| (value <= i64::MAX as u64).then_some(value);
    let nonzero =
        dimensions.iter().try_fold(1u64, |product, &extent| limit(product.checked_mul(extent.max(1))?))?;
    if row % dtype.block() as u64 != 0 {
        return None;
    }
    let elements = if dimensions.contains(&0) { 0 } else { nonzero };
    limit(dtype.bytes_for(elements)?)
}

/// Why [`byte_len`] said no.
pub(crate) fn size_error(name: String, dimensions: Vec<u64>, dtype: DType) -> Error {
    let row = dimensions.first().copied().unwrap_or(1);
    let block = dtype.block() as u64;
    match row % block {
        0 => Error::TensorSize { name, dimensions, dtype: dtype.name() },
        _ => Error::RowLength { name, row, dtype: dtype.name(), block },
    }
}

/// A reader that knows how many bytes there are, so that nothing is allocated for bytes that are not.
struct Cursor<R> {
    reader: R,
    position: u64,
    length: u64,
}

impl<R: Read> Cursor<R> {
    fn remaining(&self) -> u64 {
        self.length - self.position
    }

    fn expect(&self, needed: u64, what: &'static str) -> Result<(), Error> {
        let available = self.remaining();
        if needed <= available {
            return Ok(());
        }
        Err(Error::Truncated { what, offset: self.position, needed, available })
    }

    /// Checks that `count` items of at least `minimum` bytes can follow, and that they are not too many.
    fn expect_items(&self, what: &'static str, count: u64, minimum: u64, maximum: u64) -> Result<(), Error> {
        let needed = u128::from(count) * u128::from(minimum);
        if needed > self.remaining().into() {
            let (available, offset) = (self.remaining(), self.position);
            return Err(Error::Count { what, count, needed, available, offset });
        }
        if count > maximum {
            return Err(Error::TooMany { what, found: count, maximum });
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8], what: &'static str) -> Result<(), Error> {
        self.expect(buffer.len() as u64, what)?;
        match self.reader.read_exact(buffer) {
            Ok(()) => {
                self.position += buffer.len() as u64;
                Ok(())
            }
            // The file was longer when it was opened.
            Err(source) if source.kind() == std::io::ErrorKind::UnexpectedEof => Err(Error::Truncated {
                what,
                offset: self.position,
                needed: buffer.len() as u64,
                available: 0,
            }),
            Err(source) => Err(Error::Io { action: "read the file", source }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let mut buffer = [0; N];
        self.fill(&mut buffer, what)?;
        Ok(buffer)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Magic and version. Returns the version.
    fn preamble(&mut self) -> Result<u32, Error> {
        let found: [u8; 4] = self.array("the magic \"GGUF\"")?;
        if &found != b"GGUF" {
            let hint = match &found {
                b"vers" => "; it looks like a Git LFS pointer instead of the file itself",
                b"<!DO" | b"<!do" | b"<htm" | b"<HTM" => "; it looks like a web page instead of a download",
                b"lmgg" | b"tjgg" | b"fmgg" | b"algg" => "; the formats before GGUF are not supported",
                b"PK\x03\x04" => "; it looks like a zip or PyTorch file",
                _ => "",
            };
            return Err(Error::Magic { found, hint });
        }
        let version = self.u32("the version")?;
        match version {
            2 | 3 => Ok(version),
            // Both bytes of a small number swapped to the upper end.
            foreign if foreign != 0 && foreign & 0xffff == 0 => {
                Err(Error::BigEndian { version: foreign.swap_bytes() })
            }
            found => Err(Error::Version { found }),
        }
    }

    /// `length` raw bytes.
    fn bytes(&mut self, length: u64, what: &'static str) -> Result<Vec<u8>, Error> {
        self.expect(length, what)?;
        if length > MAX_LENGTH {
            return Err(Error::TooLong { what, offset: self.position, found: length, maximum: MAX_LENGTH });
        }
        let length = length as usize; // at most 2^30
        let mut bytes = reserve(length)?;
        bytes.resize(length, 0);
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A string value. What is not UTF-8 is replaced and counted in `invalid`.
    fn string(&mut self, invalid: &mut usize) -> Result<String, Error> {
        let length = self.u64("the length of a string")?;
        let bytes = self.bytes(length, "a string")?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| {
            *invalid += 1;
            replace_invalid(error.as_bytes())
        }))
    }

    fn key(&mut self) -> Result<String, Error> {
        let offset = self.position;
        let length = self.u64("the length of a metadata key")?;
        self.expect(length, "a metadata key")?;
        if length == 0 || length > MAX_KEY {
            return Err(Error::KeyLength { offset, length });
        }
        let bytes = self.bytes(length, "a metadata key")?;
        String::from_utf8(bytes).map_err(|_| Error::KeyText { offset })
    }

    fn value_type(&mut self) -> Result<ValueType, Error> {
        let offset = self.position;
        let id = self.u32("a value type")?;
        ValueType::from_id(id).ok_or(Error::UnknownValueType { id, offset })
    }

    fn value(&mut self, invalid: &mut usize) -> Result<Value, Error> {
        const WHAT: &str = "a value";
        Ok(match self.value_type()? {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(WHAT)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(WHAT)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(WHAT)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(WHAT)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.array(WHAT)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(WHAT)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(WHAT)?)),
            ValueType::Bool => Value::Bool(self.array(WHAT)? != [0]),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.array(WHAT)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(WHAT)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(WHAT)?)),
            ValueType::String => Value::String(self.string(invalid)?),
            ValueType::Array => Value::Array(self.array_value(invalid)?),
        })
    }

    fn array_value(&mut self, invalid: &mut usize) -> Result<Array, Error> {
        let element = self.value_type()?;
        if element == ValueType::Array {
            return Err(Error::NestedArray);
        }
        let count = self.u64("the length of an array")?;
        self.expect_items("array elements", count, element.minimum_bytes(), MAX_LENGTH)?;
        let count = count as usize; // at most 2^30
        Ok(match element {
            ValueType::U8 => Array::U8(self.bytes(count as u64, "an array")?),
            ValueType::I8 => Array::I8(self.numbers(count, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.numbers(count, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.numbers(count, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.numbers(count, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.numbers(count, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.numbers(count, f32::from_le_bytes)?),
            ValueType::Bool => Array::Bool(self.numbers(count, |byte| byte != [0])?),
            ValueType::U64 => Array::U64(self.numbers(count, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.numbers(count, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.numbers(count, f64::from_le_bytes)?),
            ValueType::String => {
                let mut strings = reserve(count)?;
                for _ in 0..count {
                    strings.push(self.string(invalid)?);
                }
                Array::String(strings)
            }
            ValueType::Array => return Err(Error::NestedArray),
        })
    }

    /// `count` numbers of `N` bytes each, which the caller knows to be there.
    fn numbers<T, const N: usize>(
        &mut self,
        count: usize,
        convert: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        let mut numbers = reserve(count)?;
        let mut buffer = [0u8; 4096]; // a multiple of every N
        let mut left = count;
        while left > 0 {
            let part = left.min(buffer.len() / N);
            let (used, _) = buffer.split_at_mut(part * N);
            self.fill(used, "an array")?;
            numbers.extend(used.as_chunks().0.iter().map(|&bytes| convert(bytes)));
            left -= part;
        }
        Ok(numbers)
    }

    fn entry(&mut self, index: u64) -> Result<Entry, Error> {
        let offset = self.position;
        let length = self.u64("the length of a tensor's name")?;
        if length == 0 || length > MAX_TENSOR_NAME as u64 {
            return Err(Error::TensorNameLength { index, offset, length });
        }
        let bytes = self.bytes(length, "a tensor's name")?;
        let name = String::from_utf8(bytes).map_err(|_| Error::TensorNameText { index, offset })?;
        let count = self.u32("a tensor's number of dimensions")?;
        if count as usize > MAX_DIMENSIONS {
            return Err(Error::DimensionCount { name, found: count.into() });
        }
        let mut dimensions = Vec::with_capacity(count as usize);
        for axis in 0..count as usize {
            let found = self.u64("a tensor's dimension")?;
            if found > i64::MAX as u64 {
                return Err(Error::Dimension { name, axis, found });
            }
            dimensions.push(found);
        }
        let format = self.u32("a tensor's number format")?;
        let offset = self.u64("a tensor's offset")?;
        Ok(Entry { name, dimensions, format, offset })
    }
}

/// The text of `bytes` with replacement characters, in a buffer of exactly its size.
fn replace_invalid(bytes: &[u8]) -> String {
    let replacement = |invalid: &[u8]| if invalid.is_empty() { "" } else { "\u{fffd}" };
    let pieces = || bytes.utf8_chunks().flat_map(|chunk| [chunk.valid(), replacement(chunk.invalid())]);
    let mut text = String::with_capacity(pieces().map(str::len).sum());
    text.extend(pieces());
    text
}

/// An empty vector with room for `count` elements, or an error where memory is short.
fn reserve<T>(count: usize) -> Result<Vec<T>, Error> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).map_err(|error| Error::Io {
        action: "allocate memory for the metadata",
        source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, error),
    })?;
    Ok(vector)
}
