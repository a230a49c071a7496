//! Damaged versions of good files: cut, tampered with, with absurd numbers. The same ones in every run.

use super::workshop::Case;
use serde_json::{Value, json};

/// Whole numbers that lengths and counts should not be.
const WORDS: [u32; 5] = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX];

/// Numbers by chance, but always the same.
struct Chance(u64);

impl Chance {
    /// A number below `end`, which is above 0.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Beginnings of a file.
fn cuts(good: &[u8]) -> Vec<Case> {
    let length = good.len();
    let mut lengths =
        vec![0, 1, 4, 7, 8, 9, 12, 16, 20, 40, length / 8, length / 2, length * 7 / 8, length - 1];
    lengths.retain(|cut| *cut < length);
    lengths.dedup();
    lengths.into_iter().map(|cut| (format!("cut to {cut}"), good[..cut].to_vec())).collect()
}

/// Damage to any binary file: cuts, more at the end, absurd words near the beginning and anywhere.
pub fn binary(good: &[u8]) -> impl Iterator<Item = Case> {
    let mut cases = cuts(good);
    cases.push(("longer".into(), [good, &[0; 100]].concat()));
    let mut chance = Chance(1);
    let near = good.len().min(400);
    for number in 0..90 {
        let place = match number {
            0..50 => 4 * (number % (near / 4).max(1)),
            _ => chance.below(good.len()),
        };
        let word = WORDS[chance.below(WORDS.len())];
        let mut bytes = good.to_vec();
        bytes.iter_mut().skip(place).zip(word.to_le_bytes()).for_each(|(byte, new)| *byte = new);
        cases.push((format!("with {word:#x} at {place}"), bytes));
    }
    cases.into_iter()
}

/// Damage to a text of lines.
pub fn text(good: &[u8]) -> impl Iterator<Item = Case> {
    let mut cases = cuts(good);
    let mut add = |what: &str, bytes: Vec<u8>| cases.push((what.to_owned(), bytes));
    add("not UTF-8", [good, b"\xff\xfe"].concat());
    add("zeros", vec![0; 500]);
    add("line feeds", b"\n".repeat(600));
    add("one long line", b"hi ".repeat(3000));
    add("another line", [good, b"hi\n"].concat());
    add("commas", b",,,,\n".repeat(6));
    add("large numbers", b"99999999999999999999\n".repeat(6));
    cases.into_iter()
}

/// What is put in the place of a value.
fn substitutes() -> Vec<Value> {
    vec![
        Value::Null,
        json!(0),
        json!(-1),
        json!(7),
        json!(1e300),
        json!(u64::MAX),
        json!("x"),
        json!([]),
        json!({}),
        json!([[1]]),
        json!(true),
    ]
}

/// Pointers to all values inside a value.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let name = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (name(key), value)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
        }
        _ => return,
    };
    for (key, part) in parts {
        let place = format!("{at}/{key}");
        found.push(place.clone());
        pointers(part, &place, found);
    }
}

/// Changes of a JSON value at up to so many places: other values, nothing.
fn changed(good: &Value, places: usize) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    pointers(good, "", &mut all);
    let step = all.len().div_ceil(places).max(1);
    let substitutes = substitutes();
    let mut cases = Vec::new();
    for (number, place) in all.iter().step_by(step).enumerate() {
        // Each place gets some of the values, so that all of them occur beside each other.
        for (index, substitute) in substitutes.iter().enumerate() {
            if (index + number).is_multiple_of(2) || all.len() <= places / 2 {
                let mut value = good.clone();
                if let Some(part) = value.pointer_mut(place) {
                    *part = substitute.clone();
                }
                cases.push((format!("with {substitute} at {place}"), value));
            }
        }
        let mut value = good.clone();
        let (parent, key) = place.rsplit_once('/').unwrap_or(("", ""));
        if let Some(map) = value.pointer_mut(parent).and_then(Value::as_object_mut) {
            map.remove(&key.replace("~1", "/").replace("~0", "~"));
        }
        cases.push((format!("without {place}"), value));
    }
    cases
}

/// Damage to a JSON file, its values changed at up to so many places.
pub fn json(good: &[u8], places: usize) -> impl Iterator<Item = Case> + use<> {
    let value: Value = serde_json::from_slice(good).expect("the good file is JSON");
    let mut cases = cuts(good);
    cases.push(("deep".into(), b"[".repeat(200_000)));
    cases.push((
        "not UTF-8".into(),
        good.iter().map(|byte| if *byte == b'a' { 0xff } else { *byte }).collect(),
    ));
    cases.push(("a list".into(), b"[1, 2]".to_vec()));
    cases
        .into_iter()
        .chain(changed(&value, places).into_iter().map(|(what, value)| (what, value.to_string().into())))
}

/// Damage to the header of a safetensors file.
pub fn safetensors(good: &[u8]) -> impl Iterator<Item = Case> + use<> {
    let (length, rest) = good.split_first_chunk::<8>().expect("the good file has a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let value: Value = serde_json::from_slice(header).expect("the good header is JSON");
    let file = |header: &[u8], data: &[u8]| [&(header.len() as u64).to_le_bytes()[..], header, data].concat();
    let mut cases = Vec::new();
    for length in [0, 1, 100_000_000, u64::MAX, u64::MAX / 2] {
        let bytes = [&length.to_le_bytes()[..], header, data].concat();
        cases.push((format!("with a header of {length}"), bytes));
    }
    let names: Vec<String> =
        value.as_object().expect("an object").keys().filter(|key| *key != "__metadata__").cloned().collect();
    let absurd = [
        json!([0]),
        json!([u64::MAX, 2]),
        json!([1u64 << 40, 1u64 << 40]),
        json!([1, 1, 1, 1, 1, 1, 1, 1, 1]),
    ];
    for name in names.iter().step_by(names.len().div_ceil(8).max(1)) {
        for shape in &absurd {
            let mut value = value.clone();
            value[name]["shape"] = shape.clone();
            cases.push((
                format!("with the shape {shape} of {name}"),
                file(value.to_string().as_bytes(), data),
            ));
        }
        for format in ["F64", "I8", "BOOL", "F8_E4M3", "F4", ""] {
            let mut value = value.clone();
            value[name]["dtype"] = json!(format);
            cases.push((
                format!("with the format {format:?} of {name}"),
                file(value.to_string().as_bytes(), data),
            ));
        }
        // A tensor without elements but with large extents.
        let mut value = value.clone();
        value[name] = json!({"dtype": "F32", "shape": [0, 1u64 << 62], "data_offsets": [0, 0]});
        cases.push((format!("with no elements of {name}"), file(value.to_string().as_bytes(), data)));
    }
    let more: Vec<Case> = changed(&value, 60)
        .into_iter()
        .map(|(what, value)| (what, file(value.to_string().as_bytes(), data)))
        .collect();
    cases.into_iter().chain(more)
}
