//! Well-formed files whose metadata values have other types or extreme values.

use super::Cases;
use super::raw::{Raw, RawValue};
use crate::{Array, Value};

pub(super) fn add(cases: &mut Cases, good: &Raw) {
    for (key, value) in &good.pairs {
        let (Ok(key), RawValue::Value(value)) = (std::str::from_utf8(key), value) else { continue };
        // The alignment belongs to the layout, whose cases are those of `structure`.
        if key == "general.alignment" {
            continue;
        }
        remove(cases, key);
        for (what, replacement) in replacements(value) {
            set(cases, key, what, replacement);
        }
    }
    for key in ["general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"] {
        for (what, text) in [
            ("unknown", "no-such-name".to_owned()),
            ("format", "%s%n{}{0}".to_owned()),
            ("path", "../../etc/passwd".to_owned()),
            ("nul", "llama\0".to_owned()),
        ] {
            set(cases, key, what, text.into());
        }
    }
    cases.relaid("key/strings-not-utf8".into(), |raw| {
        let bytes = [8u32.to_le_bytes().as_slice(), &4u64.to_le_bytes(), b"a\xff\0\xc3"].concat();
        raw.set("general.name", RawValue::Bytes(bytes));
    });
    for count in [2u32, 65_535] {
        cases.relaid(format!("key/split-count-{count}"), move |raw| raw.set("split.count", count));
    }
}

fn remove(cases: &mut Cases, key: &str) {
    let owned = key.to_owned();
    cases.relaid(format!("key/{key}/removed"), move |raw| raw.remove(&owned));
}

fn set(cases: &mut Cases, key: &str, what: &str, value: Value) {
    let owned = key.to_owned();
    cases.relaid(format!("key/{key}/{what}"), move |raw| raw.set(&owned, value.clone()));
}

/// What to put in place of a value: one of each other kind, and the extremes of its own.
fn replacements(value: &Value) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    match value {
        Value::Array(array) => {
            all.push(("as-u32", 1u32.into()));
            all.push(("as-str", "x".into()));
            all.extend(arrays(array));
        }
        Value::String(_) => {
            all.push(("as-u32", 1u32.into()));
            all.push(("as-bool", true.into()));
            all.push(("as-array", vec!["x".to_owned()].into()));
            all.push(("empty", "".into()));
            all.push(("1-megabyte", "a".repeat(1 << 20).into()));
        }
        Value::Bool(flag) => {
            all.push(("as-u32", 1u32.into()));
            all.push(("as-str", "true".into()));
            all.push(("as-array", vec![true].into()));
            all.push(("inverted", (!flag).into()));
        }
        Value::F32(_) | Value::F64(_) => {
            all.push(("as-u32", 1u32.into()));
            all.push(("as-str", "1.0".into()));
            all.push(("as-array", vec![1f32].into()));
            for (what, number) in [
                ("0", 0.0),
                ("-1", -1.0),
                ("nan", f32::NAN),
                ("inf", f32::INFINITY),
                ("max", f32::MAX),
                ("denormal", 1e-45),
            ] {
                all.push((what, number.into()));
            }
            all.push(("f64-max", f64::MAX.into()));
        }
        _ => {
            all.push(("as-f32", 1f32.into()));
            all.push(("as-str", "4".into()));
            all.push(("as-bool", true.into()));
            all.push(("as-array", vec![1u32; 3].into()));
            all.push(("as-empty-array", Vec::<u32>::new().into()));
            all.push(("0", 0u32.into()));
            all.push(("u64-0", 0u64.into()));
            all.push(("1", 1u32.into()));
            all.push(("-1", (-1i32).into()));
            all.push(("2^31", (1u32 << 31).into()));
            all.push(("2^32-1", u32::MAX.into()));
            all.push(("2^63", (1u64 << 63).into()));
        }
    }
    all
}

/// Other lengths, and the same elements in other types.
fn arrays(array: &Array) -> Vec<(&'static str, Value)> {
    let length = array.len();
    let shorter = length.saturating_sub(1);
    let mut all: Vec<(&'static str, Value)> = vec![
        ("as-u8", vec![1u8; length].into()),
        ("as-i8", vec![-1i8; length].into()),
        ("as-i32", vec![1i32; length].into()),
        ("as-f32", vec![1f32; length].into()),
        ("as-strings", vec![String::new(); length].into()),
    ];
    let own: Vec<(&'static str, Array)> = match array {
        Array::String(values) => vec![
            ("empty", Vec::<String>::new().into()),
            ("shorter", values.get(..shorter).unwrap_or(&[]).to_vec().into()),
            ("longer", [values.as_slice(), &["extra".to_owned()]].concat().into()),
        ],
        Array::F32(values) => vec![
            ("empty", Vec::<f32>::new().into()),
            ("shorter", values.get(..shorter).unwrap_or(&[]).to_vec().into()),
            ("longer", [values.as_slice(), &[0.0]].concat().into()),
            ("nan", vec![f32::NAN; length].into()),
            ("inf", vec![f32::INFINITY; length].into()),
        ],
        _ => vec![
            ("empty", Vec::<i32>::new().into()),
            ("shorter", vec![1i32; shorter].into()),
            ("longer", vec![1i32; length + 1].into()),
            ("minimum", vec![i32::MIN; length].into()),
            ("maximum", vec![i32::MAX; length].into()),
        ],
    };
    all.extend(own.into_iter().map(|(what, array)| (what, array.into())));
    all
}
