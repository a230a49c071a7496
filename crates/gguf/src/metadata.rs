//! Key-value metadata in file order, with typed access.

use std::collections::HashMap;

use crate::{Error, Value};

/// The key-value pairs of a file, in file order. Keys are unique.
///
/// # Types
///
/// A key is often wanted in a type that differs a little from the stored one, so integers of any width convert
/// when the value fits, and so do `f32` and `f64`. Nothing else converts: a bool, a float or a string where an
/// integer belongs is [`Error::KeyType`], an integer that does not fit [`Error::KeyRange`]. The `_or` and
/// `optional_` forms differ for missing keys only; a present key of the wrong type is always an error.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Metadata {
    /// Metadata without any key.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).and_then(|&position| self.entries.get(position)).map(|(_, value)| value)
    }

    /// Whether there is a value for `key`.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// All pairs in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Sets `key`, in its old place if it exists, otherwise at the end. Returns the old value.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let key = key.into();
        if let Some((_, old)) = self.index.get(&key).and_then(|&position| self.entries.get_mut(position)) {
            return Some(std::mem::replace(old, value.into()));
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value.into()));
        None
    }

    /// Removes `key` and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let position = self.index.remove(key)?;
        let (_, value) = self.entries.remove(position);
        for later in self.index.values_mut().filter(|later| **later > position) {
            *later -= 1;
        }
        Some(value)
    }

    /// The value of `key`, or [`Error::MissingKey`].
    pub fn required(&self, key: &str) -> Result<&Value, Error> {
        self.get(key).ok_or_else(|| missing(key))
    }
}

pub(crate) fn missing(key: &str) -> Error {
    Error::MissingKey { key: key.to_owned() }
}

pub(crate) fn wrong_type(key: &str, value: &Value, expected: &'static str) -> Error {
    Error::KeyType { key: key.to_owned(), found: value.type_name(), expected }
}

fn integer<T: TryFrom<i128>>(key: &str, value: &Value, expected: &'static str) -> Result<T, Error> {
    let number = value.integer().ok_or_else(|| wrong_type(key, value, expected))?;
    T::try_from(number).map_err(|_| Error::KeyRange {
        key: key.to_owned(),
        found: number.to_string(),
        expected,
    })
}

fn float(key: &str, value: &Value) -> Result<f32, Error> {
    let number = value.float().ok_or_else(|| wrong_type(key, value, "f32"))?;
    narrow(number).ok_or_else(|| Error::KeyRange {
        key: key.to_owned(),
        found: value.to_string(),
        expected: "f32",
    })
}

/// The nearest `f32`, or `None` for a finite number beyond its range.
pub(crate) fn narrow(number: f64) -> Option<f32> {
    let narrowed = number as f32;
    (narrowed.is_finite() || !number.is_finite()).then_some(narrowed)
}

fn boolean(key: &str, value: &Value) -> Result<bool, Error> {
    match value {
        Value::Bool(value) => Ok(*value),
        other => Err(wrong_type(key, other, "bool")),
    }
}

fn text<'a>(key: &str, value: &'a Value) -> Result<&'a str, Error> {
    value.text().ok_or_else(|| wrong_type(key, value, "str"))
}

/// The required, defaulted and optional forms of one type's access.
macro_rules! scalar {
    ($($type:ty, $required:ident, $or:ident, $optional:ident, $convert:expr;)*) => {
        impl Metadata {$(
            #[doc = concat!("The value of `key` as `", stringify!($type), "`; the key must exist.")]
            pub fn $required(&self, key: &str) -> Result<$type, Error> {
                $convert(key, self.required(key)?)
            }

            #[doc = concat!("The value of `key` as `", stringify!($type), "`, or `default` if there is none.")]
            pub fn $or(&self, key: &str, default: $type) -> Result<$type, Error> {
                Ok(self.$optional(key)?.unwrap_or(default))
            }

            #[doc = concat!("The value of `key` as `", stringify!($type), "`, or `None` if there is none.")]
            pub fn $optional(&self, key: &str) -> Result<Option<$type>, Error> {
                self.get(key).map(|value| $convert(key, value)).transpose()
            }
        )*}
    };
}

scalar! {
    u32, u32, u32_or, optional_u32, |key, value| integer(key, value, "u32");
    i32, i32, i32_or, optional_i32, |key, value| integer(key, value, "i32");
    u64, u64, u64_or, optional_u64, |key, value| integer(key, value, "u64");
    f32, f32, f32_or, optional_f32, float;
    bool, bool, bool_or, optional_bool, boolean;
}

impl Metadata {
    /// The text of `key`; the key must exist.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        text(key, self.required(key)?)
    }

    /// The text of `key`, or `default` if there is none.
    pub fn str_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str, Error> {
        Ok(self.optional_str(key)?.unwrap_or(default))
    }

    /// The text of `key`, or `None` if there is none.
    pub fn optional_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.get(key).map(|value| text(key, value)).transpose()
    }
}

impl<'a> IntoIterator for &'a Metadata {
    type Item = (&'a str, &'a Value);
    type IntoIter =
        std::iter::Map<std::slice::Iter<'a, (String, Value)>, fn(&'a (String, Value)) -> Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    /// Later pairs replace earlier ones of the same key.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut metadata = Self::new();
        for (key, value) in pairs {
            metadata.set(key, value);
        }
        metadata
    }
}
