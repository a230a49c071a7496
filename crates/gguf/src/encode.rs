//! The byte forms of strings and values. Nothing is checked here.

use crate::{Array, Value};

/// Appends a length and the bytes.
pub(crate) fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// Appends the type id and the value.
pub(crate) fn value(out: &mut Vec<u8>, value: &Value) {
    out.extend(value.value_type().id().to_le_bytes());
    match value {
        Value::U8(value) => out.extend(value.to_le_bytes()),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push((*value).into()),
        Value::String(text) => string(out, text.as_bytes()),
        Value::Array(values) => array(out, values),
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
    }
}

fn array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_type().id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(values) => out.extend(values),
        Array::I8(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::U16(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I16(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::U32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::F32(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::Bool(values) => out.extend(values.iter().map(|&value| u8::from(value))),
        Array::String(values) => values.iter().for_each(|text| string(out, text.as_bytes())),
        Array::U64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::I64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Array::F64(values) => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    }
}

/// Appends a tensor directory entry, dimensions in file order.
pub(crate) fn entry(out: &mut Vec<u8>, name: &[u8], dimensions: &[u64], format: u32, offset: u64) {
    string(out, name);
    out.extend((dimensions.len() as u32).to_le_bytes());
    out.extend(dimensions.iter().flat_map(|extent| extent.to_le_bytes()));
    out.extend(format.to_le_bytes());
    out.extend(offset.to_le_bytes());
}
