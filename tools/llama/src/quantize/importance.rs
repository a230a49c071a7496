//! Importance of columns from a file that `imatrix` wrote.

use crate::failure::Failure;
use puna_gguf::{Array, File, OpenOptions, Value};
use puna_quant::DType;
use std::collections::BTreeMap;
use std::path::Path;

/// What the file says, by tensor.
pub struct Importance {
    entries: BTreeMap<String, Vec<f32>>,
    /// Files that it was measured with, and the number of chunks.
    pub datasets: Vec<String>,
    pub chunks: u32,
}

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

impl Importance {
    /// Reads a file. Only entries pass whose tensor has one of the names in `include` in its name, if there are any,
    /// and none of those in `exclude`.
    pub fn read(path: &Path, include: &[String], exclude: &[String]) -> Result<Self, Failure> {
        let file = File::open(path, &OpenOptions::default())?;
        let failed = |text: String| Failure::Failed(format!("{}: {text}", path.display()));
        if file.metadata.str_or("general.type", "")? != "imatrix" {
            return Err(failed("this is no file with importance (general.type is not imatrix)".into()));
        }
        let datasets = match file.metadata.get("imatrix.datasets") {
            Some(Value::Array(Array::String(names))) => names.clone(),
            _ => Vec::new(),
        };
        let chunks = file.metadata.u32_or("imatrix.chunk_count", 0)?;
        let passes = |name: &str| {
            let has = |list: &[String]| list.iter().any(|part| name.contains(part.as_str()));
            (include.is_empty() || has(include)) && !has(exclude)
        };
        let mut entries = BTreeMap::new();
        for tensor in file.tensors.iter() {
            let Some(name) = tensor.name.strip_suffix(SUMS).filter(|name| passes(name)) else { continue };
            let counts = file.tensors.get(&format!("{name}{COUNTS}"));
            let counts = counts.ok_or_else(|| failed(format!("there are no counts of {name}")))?;
            let numbers = |tensor: &puna_gguf::TensorInfo| match tensor.dtype {
                DType::F32 => Ok(floats(file.bytes(tensor))),
                other => Err(failed(format!("{} is {other}, not f32", tensor.name))),
            };
            let (mut sums, counts) = (numbers(tensor)?, numbers(counts)?);
            let matrices = counts.len();
            if matrices == 0 || !sums.len().is_multiple_of(matrices) || sums.is_empty() {
                return Err(failed(format!("{name} has {} sums for {matrices} counts", sums.len())));
            }
            let width = sums.len() / matrices;
            for (sums, count) in sums.chunks_mut(width).zip(counts) {
                // What was never used says nothing about its columns.
                sums.iter_mut().for_each(|sum| *sum = if count > 0.0 { *sum / count } else { 1.0 });
            }
            if let Some(value) = sums.iter().find(|value| !value.is_finite() || **value < 0.0) {
                return Err(failed(format!("the importance of {name} contains {value}")));
            }
            entries.insert(name.to_owned(), sums);
        }
        Ok(Self { entries, datasets, chunks })
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Importance of the columns of a tensor: those of each of its matrices one after another.
    pub fn of(&self, name: &str) -> Option<&[f32]> {
        self.entries.get(name).map(Vec::as_slice)
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}
