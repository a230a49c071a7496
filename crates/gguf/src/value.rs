//! Metadata values and their types.

use std::fmt;

/// Type of a metadata value or array element. The discriminant is the id in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)] // each variant is the type of that name
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// Every type, in the order of their ids.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this id in a file, or `None`.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Name as dumps print it, for example `u32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "str",
            Self::Array => "arr",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Fewest bytes that one value of this type occupies in a file.
    pub(crate) fn minimum_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::String | Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One metadata value.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // each variant is the type of that name
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of metadata values of one type. The format has no arrays of arrays.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // each variant holds elements of the type of that name
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// Type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Name of the type as dumps print it, with the element type of arrays: `u32`, `arr[str]`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Array(array) => array.type_name(),
            _ => self.value_type().name(),
        }
    }

    /// The value as an integer, whatever its width, or `None` for other types.
    pub fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::I8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U64(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The value as a floating-point number (`f32` or `f64`), or `None` for other types, integers included.
    pub fn float(&self) -> Option<f64> {
        match *self {
            Self::F32(value) => Some(value.into()),
            Self::F64(value) => Some(value),
            _ => None,
        }
    }

    /// The text of a string value, or `None` for other types.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }
}

impl Array {
    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Name of the type, for example `arr[str]`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "arr[u8]",
            Self::I8(_) => "arr[i8]",
            Self::U16(_) => "arr[u16]",
            Self::I16(_) => "arr[i16]",
            Self::U32(_) => "arr[u32]",
            Self::I32(_) => "arr[i32]",
            Self::F32(_) => "arr[f32]",
            Self::Bool(_) => "arr[bool]",
            Self::String(_) => "arr[str]",
            Self::U64(_) => "arr[u64]",
            Self::I64(_) => "arr[i64]",
            Self::F64(_) => "arr[f64]",
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(values) => values.len(),
            Self::I8(values) => values.len(),
            Self::U16(values) => values.len(),
            Self::I16(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::String(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as a value of its own, or `None` past the end.
    pub fn get(&self, index: usize) -> Option<Value> {
        Some(match self {
            Self::U8(values) => Value::U8(*values.get(index)?),
            Self::I8(values) => Value::I8(*values.get(index)?),
            Self::U16(values) => Value::U16(*values.get(index)?),
            Self::I16(values) => Value::I16(*values.get(index)?),
            Self::U32(values) => Value::U32(*values.get(index)?),
            Self::I32(values) => Value::I32(*values.get(index)?),
            Self::F32(values) => Value::F32(*values.get(index)?),
            Self::Bool(values) => Value::Bool(*values.get(index)?),
            Self::String(values) => Value::String(values.get(index)?.clone()),
            Self::U64(values) => Value::U64(*values.get(index)?),
            Self::I64(values) => Value::I64(*values.get(index)?),
            Self::F64(values) => Value::F64(*values.get(index)?),
        })
    }
}

macro_rules! conversions {
    ($($rust:ty => $variant:ident),* $(,)?) => {$(
        impl From<$rust> for Value {
            fn from(value: $rust) -> Self {
                Self::$variant(value)
            }
        }

        impl From<Vec<$rust>> for Array {
            fn from(values: Vec<$rust>) -> Self {
                Self::$variant(values)
            }
        }

        impl From<Vec<$rust>> for Value {
            fn from(values: Vec<$rust>) -> Self {
                Self::Array(Array::$variant(values))
            }
        }
    )*};
}

conversions! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f32 => F32, f64 => F64, bool => Bool, String => String,
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

impl fmt::Display for Value {
    /// Prints scalars as they are, strings quoted, arrays as type and length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(value) => value.fmt(f),
            Self::I8(value) => value.fmt(f),
            Self::U16(value) => value.fmt(f),
            Self::I16(value) => value.fmt(f),
            Self::U32(value) => value.fmt(f),
            Self::I32(value) => value.fmt(f),
            Self::F32(value) => write!(f, "{value:?}"),
            Self::Bool(value) => value.fmt(f),
            Self::String(value) => write!(f, "{value:?}"),
            Self::Array(array) => write!(f, "{} of {}", array.type_name(), array.len()),
            Self::U64(value) => value.fmt(f),
            Self::I64(value) => value.fmt(f),
            Self::F64(value) => write!(f, "{value:?}"),
        }
    }
}
