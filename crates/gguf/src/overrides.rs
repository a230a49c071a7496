//! Metadata overrides as users write them.

use crate::{Error, Value};

const MAX_BYTES: usize = 127;

/// Reads `KEY=TYPE:VALUE` with TYPE `int`, `float`, `bool` (`true` or `false`) or `str`; key and text have at
/// most 127 bytes. Integers become `i64` and floats `f64`, which the typed access of
/// [`Metadata`](crate::Metadata) converts as needed.
pub fn parse_override(text: &str) -> Result<(String, Value), Error> {
    let bad = |reason| Error::Override { text: text.to_owned(), reason };
    let (key, rest) = text.split_once('=').ok_or_else(|| bad("there is no '='"))?;
    if key.is_empty() || key.len() > MAX_BYTES {
        return Err(bad("the key must have 1 to 127 bytes"));
    }
    let (kind, value) = rest.split_once(':').ok_or_else(|| bad("there is no ':' after the type"))?;
    let value = match kind {
        "int" => Value::I64(value.parse().map_err(|_| bad("the value is no 64-bit integer"))?),
        "float" => Value::F64(value.parse().map_err(|_| bad("the value is no number"))?),
        "bool" => Value::Bool(value.parse().map_err(|_| bad("the value is neither true nor false"))?),
        "str" if value.len() > MAX_BYTES => return Err(bad("the text has more than 127 bytes")),
        "str" => Value::String(value.to_owned()),
        _ => return Err(bad("the type is unknown")),
    };
    Ok((key.to_owned(), value))
}
