//! The safetensors format: eight bytes with the header's length, a JSON header, the data.

use std::ops::Range;
use std::path::{Path, PathBuf};

use puna_gguf::Mapping;
use serde_json::Value;

use crate::ConvertError;

/// Longest header that is read; real ones are below a few million bytes.
const MOST_HEADER: u64 = 100_000_000;

/// Number format of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each variant is the format of that name
pub enum Format {
    F64,
    F32,
    F16,
    Bf16,
    F8E4m3,
    F8E5m2,
    /// Scales of MXFP4: powers of two.
    F8E8m0,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

/// Names in the file, with the bytes of an element.
const FORMATS: &[(&str, Format, u64)] = &[
    ("F64", Format::F64, 8),
    ("F32", Format::F32, 4),
    ("F16", Format::F16, 2),
    ("BF16", Format::Bf16, 2),
    ("F8_E4M3", Format::F8E4m3, 1),
    ("F8_E5M2", Format::F8E5m2, 1),
    ("F8_E8M0", Format::F8E8m0, 1),
    ("I64", Format::I64, 8),
    ("I32", Format::I32, 4),
    ("I16", Format::I16, 2),
    ("I8", Format::I8, 1),
    ("U64", Format::U64, 8),
    ("U32", Format::U32, 4),
    ("U16", Format::U16, 2),
    ("U8", Format::U8, 1),
    ("BOOL", Format::Bool, 1),
];

/// One tensor of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Format of the elements.
    pub format: Format,
    /// Extents, the last axis contiguous.
    pub shape: Vec<u64>,
    /// Where the data lies in the file.
    pub range: Range<usize>,
}

/// An opened file whose directory has been checked.
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    mapping: Mapping,
    entries: Vec<Entry>,
}

impl SafeTensors {
    /// Maps a file and checks its whole directory: every tensor lies inside the file, none overlaps another, and
    /// each is as long as its shape and format need.
    pub fn open(path: &Path) -> Result<Self, ConvertError> {
        let mapping = Mapping::open(path)?;
        let entries = directory(path, mapping.bytes())?;
        Ok(Self { path: path.to_owned(), mapping, entries })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, in the order of their data.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The mapped file.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

/// Reads and checks the directory of a file's bytes.
pub fn directory(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>, ConvertError> {
    let available = bytes.len() as u64;
    let header = |found| ConvertError::Header { path: path.to_owned(), found, available };
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| header(8))?;
    let length = u64::from_le_bytes(*length);
    if length > MOST_HEADER {
        return Err(header(length));
    }
    let text =
        usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or_else(|| header(length))?;
    let data = 8 + text.len();
    let parsed: Value = serde_json::from_slice(text)
        .map_err(|error| ConvertError::Json { path: path.to_owned(), reason: error.to_string() })?;
    let Value::Object(listed) = parsed else {
        return Err(ConvertError::Json { path: path.to_owned(), reason: "the header is no object".into() });
    };
    let mut entries = Vec::with_capacity(listed.len());
    for (name, value) in listed {
        if name == "__metadata__" {
            continue;
        }
        let found = entry(&name, &value, data, bytes.len());
        entries.push(found.map_err(|reason| ConvertError::Entry { path: path.to_owned(), name, reason })?);
    }
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    for pair in entries.windows(2) {
        if let [first, second] = pair
            && first.range.end > second.range.start
        {
            let reason = format!("its data overlaps that of {:?}", first.name);
            return Err(ConvertError::Entry { path: path.to_owned(), name: second.name.clone(), reason });
        }
    }
    Ok(entries)
}

fn entry(name: &str, value: &Value, data: usize, end: usize) -> Result<Entry, String> {
    let format = value.get("dtype").and_then(Value::as_str).ok_or("it has no dtype")?;
    let &(_, format, size) = FORMATS
        .iter()
        .find(|(known, ..)| *known == format)
        .ok_or_else(|| format!("its dtype {:?} is not known", format.chars().take(40).collect::<String>()))?;
    let shape = value.get("shape").and_then(Value::as_array).ok_or("it has no shape")?;
    if shape.len() > 8 {
        return Err(format!("it has {} axes", shape.len()));
    }
    let shape: Option<Vec<u64>> = shape.iter().map(Value::as_u64).collect();
    let shape = shape.ok_or("its shape is no list of whole numbers")?;
    let offsets = value.get("data_offsets").and_then(Value::as_array).map(Vec::as_slice);
    let Some([first, last]) = offsets else { return Err("it has no data_offsets".into()) };
    let place =
        |offset: &Value| offset.as_u64().and_then(|offset| usize::try_from(offset).ok()?.checked_add(data));
    let (Some(start), Some(stop)) = (place(first), place(last)) else {
        return Err("its data_offsets are no offsets".into());
    };
    if start > stop || stop > end {
        return Err(format!(
            "its data lies at bytes {start} to {stop} of a file of {end} (truncated or incomplete download?)"
        ));
    }
    let needed = shape.iter().try_fold(size, |product, extent| product.checked_mul(*extent));
    if needed != Some((stop - start) as u64) {
        return Err(format!("its data has {} bytes, its shape {shape:?} needs others", stop - start));
    }
    Ok(Entry { name: name.to_owned(), format, shape, range: start..stop })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<Entry>, ConvertError> {
        directory(Path::new("x"), bytes)
    }

    #[test]
    fn a_good_directory_is_read() {
        let header = r#"{"__metadata__": {"format": "pt"},
            "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
            "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}"#;
        let entries = read(&file(header, 26)).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].name.as_str(), entries[0].format), ("a", Format::F32));
        assert_eq!(entries[0].range.len(), 24);
        assert_eq!((entries[1].name.as_str(), entries[1].shape.len()), ("b", 0));
    }

    #[test]
    fn hostile_directories_are_refused() {
        let one = |entry: &str| file(&format!("{{\"a\": {entry}}}"), 8);
        let cases: Vec<Vec<u8>> = vec![
            vec![],
            vec![0; 7],
            u64::MAX.to_le_bytes().to_vec(),
            (1u64 << 40).to_le_bytes().to_vec(),
            file("[1]", 0),
            file("{\"a\": 1", 0),
            file(&"[".repeat(100_000), 0),
            one("1"),
            one(r#"{"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}"#),
            one(r#"{"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}"#),
            one(r#"{"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}"#),
            one(r#"{"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}"#),
            one(
                r#"{"dtype": "F32", "shape": [2], "data_offsets": [18446744073709551615, 18446744073709551615]}"#,
            ),
            one(r#"{"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}"#),
            one(r#"{"dtype": "X", "shape": [2], "data_offsets": [0, 8]}"#),
            one(r#"{"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}"#),
            one(r#"{"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,2], "data_offsets": [0, 8]}"#),
            file(
                r#"{"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                    "b": {"dtype": "U8", "shape": [4], "data_offsets": [7, 11]}}"#,
                12,
            ),
        ];
        for case in cases {
            assert!(read(&case).is_err(), "{:?}", String::from_utf8_lossy(&case));
        }
    }
}
