//! Typed access to metadata arrays and to values given per layer.

use crate::metadata::{narrow, wrong_type};
use crate::{Array, Error, MAX_LAYERS, Metadata, Value};

fn fit<S: Copy + Into<i128>, T: TryFrom<i128>>(
    key: &str,
    values: &[S],
    expected: &'static str,
) -> Result<Vec<T>, Error> {
    let convert = |(index, &value): (usize, &S)| {
        let number: i128 = value.into();
        T::try_from(number).map_err(|_| Error::ElementRange {
            key: key.to_owned(),
            index,
            found: number.to_string(),
            expected,
        })
    };
    values.iter().enumerate().map(convert).collect()
}

/// Arrays of 32 and 64-bit integers, in any signedness. Narrower ones are refused: no writer uses them for
/// numbers, so they are a sign of a wrong or hostile file.
fn integers<T: TryFrom<i128>>(
    key: &str,
    value: &Value,
    name: &'static str,
    expected: &'static str,
) -> Result<Vec<T>, Error> {
    match value {
        Value::Array(Array::U32(values)) => fit(key, values, name),
        Value::Array(Array::I32(values)) => fit(key, values, name),
        Value::Array(Array::U64(values)) => fit(key, values, name),
        Value::Array(Array::I64(values)) => fit(key, values, name),
        other => Err(wrong_type(key, other, expected)),
    }
}

/// Arrays of `f32`, `f64` and, as some converters write scores, `i32`.
fn floats(key: &str, value: &Value) -> Result<Vec<f32>, Error> {
    match value {
        Value::Array(Array::F32(values)) => Ok(values.clone()),
        Value::Array(Array::I32(values)) => Ok(values.iter().map(|&value| value as f32).collect()),
        Value::Array(Array::F64(values)) => {
            let convert = |(index, &value): (usize, &f64)| {
                narrow(value).ok_or_else(|| Error::ElementRange {
                    key: key.to_owned(),
                    index,
                    found: format!("{value:?}"),
                    expected: "f32",
                })
            };
            values.iter().enumerate().map(convert).collect()
        }
        other => Err(wrong_type(key, other, "arr[f32]")),
    }
}

/// Arrays of bools, and of 32-bit integers that are 0 or 1.
fn booleans(key: &str, value: &Value) -> Result<Vec<bool>, Error> {
    let bits: Vec<u32> = match value {
        Value::Array(Array::Bool(values)) => return Ok(values.clone()),
        Value::Array(Array::U32(_) | Array::I32(_)) => integers(key, value, "bool", "arr[bool]")?,
        other => return Err(wrong_type(key, other, "arr[bool]")),
    };
    let convert = |(index, &bit): (usize, &u32)| match bit {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::ElementRange {
            key: key.to_owned(),
            index,
            found: other.to_string(),
            expected: "bool",
        }),
    };
    bits.iter().enumerate().map(convert).collect()
}

/// Arrays of bytes, signed or not.
fn bytes(key: &str, value: &Value) -> Result<Vec<u8>, Error> {
    match value {
        Value::Array(Array::U8(values)) => Ok(values.clone()),
        Value::Array(Array::I8(values)) => Ok(values.iter().map(|&value| value as u8).collect()),
        other => Err(wrong_type(key, other, "arr[u8]")),
    }
}

fn strings<'a>(key: &str, value: &'a Value) -> Result<&'a [String], Error> {
    match value {
        Value::Array(Array::String(values)) => Ok(values),
        other => Err(wrong_type(key, other, "arr[str]")),
    }
}

/// `convert`'s array as it is, if it has one element per layer; or `scalar`'s value for each layer.
fn per_layer<T: Clone>(
    metadata: &Metadata,
    key: &str,
    layers: usize,
    scalar: impl Fn() -> Result<T, Error>,
    array: impl Fn(&Value) -> Result<Vec<T>, Error>,
) -> Result<Option<Vec<T>>, Error> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    if layers > MAX_LAYERS {
        return Err(Error::TooManyLayers { key: key.to_owned(), layers, maximum: MAX_LAYERS });
    }
    let Value::Array(entries) = value else { return Ok(Some(vec![scalar()?; layers])) };
    if entries.len() != layers {
        return Err(Error::ArrayLength { key: key.to_owned(), found: entries.len(), expected: layers });
    }
    array(value).map(Some)
}

/// The required and optional forms of one element type's access.
macro_rules! arrays {
    ($($what:literal, $type:ty, $required:ident, $optional:ident, $convert:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The array `key` ", $what, "; the key must exist.")]
            pub fn $required(&self, key: &str) -> Result<$type, Error> {
                $convert(key, self.required(key)?)
            }

            #[doc = concat!("The array `key` ", $what, ", or `None` if there is no such key.")]
            pub fn $optional(&self, key: &str) -> Result<Option<$type>, Error> {
                self.get(key).map(|value| $convert(key, value)).transpose()
            }
        )*}
    };
}

arrays! {
    "of 32 or 64-bit integers as `u32`", Vec<u32>, u32_array, optional_u32_array,
        |key, value| integers(key, value, "u32", "arr[u32]");
    "of 32 or 64-bit integers as `i32`", Vec<i32>, i32_array, optional_i32_array,
        |key, value| integers(key, value, "i32", "arr[i32]");
    "of 32 or 64-bit integers as `u64`", Vec<u64>, u64_array, optional_u64_array,
        |key, value| integers(key, value, "u64", "arr[u64]");
    "of `f32`, `f64` or `i32` as `f32`", Vec<f32>, f32_array, optional_f32_array, floats;
    "of bools, or of 32-bit integers 0 and 1", Vec<bool>, bool_array, optional_bool_array, booleans;
    "of `u8`, or of `i8` taken as bytes", Vec<u8>, u8_array, optional_u8_array, bytes;
}

impl Metadata {
    /// The array `key` of strings; the key must exist.
    pub fn string_array(&self, key: &str) -> Result<&[String], Error> {
        strings(key, self.required(key)?)
    }

    /// The array `key` of strings, or `None` if there is no such key.
    pub fn optional_string_array(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.get(key).map(|value| strings(key, value)).transpose()
    }

    /// `key` for each of `layers` layers (at most [`MAX_LAYERS`]): a scalar counts for all, an array (also of
    /// bools, as 0 and 1) must have exactly one element per layer. `None` if there is no such key.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, Error> {
        let array = |value: &Value| match value {
            Value::Array(Array::Bool(bits)) => Ok(bits.iter().map(|&bit| bit.into()).collect()),
            other => integers(key, other, "u32", "u32 or arr[u32]"),
        };
        per_layer(self, key, layers, || self.u32(key), array)
    }

    /// `key` for each of `layers` layers (at most [`MAX_LAYERS`]): a scalar counts for all, an array must have
    /// exactly one element per layer. `None` if there is no such key.
    pub fn f32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<f32>>, Error> {
        per_layer(self, key, layers, || self.f32(key), |value| floats(key, value))
    }

    /// `key` for each of `layers` layers (at most [`MAX_LAYERS`]): a scalar counts for all, an array must have
    /// exactly one element per layer. `None` if there is no such key.
    pub fn bool_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<bool>>, Error> {
        per_layer(self, key, layers, || self.bool(key), |value| booleans(key, value))
    }
}
