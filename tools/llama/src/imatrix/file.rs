//! Sums of squares of activations, in memory and in both kinds of files.

use crate::failure::Failure;
use crate::{files, shards};
use puna_gguf::{Array, File, Metadata, OpenOptions, TensorInfo, TensorSpec, Value};
use puna_quant::DType;
use std::collections::BTreeMap;
use std::path::Path;

/// What was seen of the inputs of one tensor.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Entry {
    /// For each matrix, one after another: sums of squares of each column.
    pub sums: Vec<f32>,
    /// Rows that each matrix saw.
    pub counts: Vec<f32>,
}

/// Sums by tensor.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sums {
    pub entries: BTreeMap<String, Entry>,
    /// Files that they were measured with.
    pub datasets: Vec<String>,
    pub chunks: u32,
    /// Tokens of a chunk.
    pub chunk_size: u32,
}

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Longest name and widest row of a file of the old kind.
const MOST: usize = 1 << 28;
/// Most bytes of such a file.
const MOST_BYTES: u64 = 1 << 32;

impl Sums {
    /// Reads a file of either kind.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let mut begin = [0; 4];
        let found = std::fs::File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut begin));
        found.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        if &begin == b"GGUF" { Self::read_gguf(path) } else { Self::read_legacy(path) }
    }

    fn read_gguf(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path, &OpenOptions::default())?;
        let failed = |text: String| Failure::Failed(format!("{}: {text}", path.display()));
        if file.metadata.str_or("general.type", "")? != "imatrix" {
            return Err(failed("this is no file with importance (general.type is not imatrix)".into()));
        }
        let datasets = match file.metadata.get("imatrix.datasets") {
            Some(Value::Array(Array::String(names))) => names.clone(),
            _ => Vec::new(),
        };
        let mut sums = Self {
            entries: BTreeMap::new(),
            datasets,
            chunks: file.metadata.u32_or("imatrix.chunk_count", 0)?,
            chunk_size: file.metadata.u32_or("imatrix.chunk_size", 0)?,
        };
        let numbers = |tensor: &TensorInfo| match tensor.dtype {
            DType::F32 => Ok(floats(file.bytes(tensor))),
            other => Err(failed(format!("{} is {other}, not f32", tensor.name))),
        };
        for tensor in file.tensors.iter() {
            let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
            let counts = file.tensors.get(&format!("{name}{COUNTS}"));
            let counts = counts.ok_or_else(|| failed(format!("there are no counts of {name}")))?;
            let entry = Entry { sums: numbers(tensor)?, counts: numbers(counts)? };
            entry.check(name).map_err(failed)?;
            sums.entries.insert(name.to_owned(), entry);
        }
        Ok(sums)
    }

    /// A file of the old kind: means times the number of calls.
    fn read_legacy(path: &Path) -> Result<Self, Failure> {
        let failed = |text: &str| Failure::Failed(format!("{}: {text}", path.display()));
        let bytes = files::read(path, MOST_BYTES)?;
        let mut rest = bytes.as_slice();
        let damaged = || failed("this is no file with importance, or it is damaged");
        let count = take_number(&mut rest).filter(|count| *count > 0).ok_or_else(damaged)?;
        let mut sums = Self::default();
        for _ in 0..count {
            let length = take_number(&mut rest).ok_or_else(damaged)?;
            let name = take(&mut rest, length).ok_or_else(damaged)?;
            let name = String::from_utf8_lossy(name).into_owned();
            let calls = take_number(&mut rest).ok_or_else(damaged)?.max(1) as f32;
            let width = take_number(&mut rest).filter(|width| *width > 0).ok_or_else(damaged)?;
            let values = floats(take(&mut rest, width * 4).ok_or_else(damaged)?);
            // The old files say nothing about experts: all matrices count alike.
            let entry = Entry { sums: values, counts: vec![calls] };
            entry.check(&name).map_err(|text| failed(&text))?;
            sums.entries.insert(name, entry);
        }
        if let Some(chunks) = take_number(&mut rest) {
            sums.chunks = u32::try_from(chunks).unwrap_or(0);
            let dataset = take_number(&mut rest).and_then(|length| take(&mut rest, length));
            sums.datasets.extend(dataset.map(|name| String::from_utf8_lossy(name).into_owned()));
        }
        Ok(sums)
    }

    /// Adds what another file has.
    pub fn merge(&mut self, other: Self) -> Result<(), Failure> {
        for (name, entry) in other.entries {
            let Some(own) = self.entries.get_mut(&name) else {
                self.entries.insert(name, entry);
                continue;
            };
            let sizes =
                |entry: &Entry| format!("{} sums for {} matrices", entry.sums.len(), entry.counts.len());
            if own.sums.len() != entry.sums.len() || own.counts.len() != entry.counts.len() {
                let (one, other) = (sizes(own), sizes(&entry));
                return Err(Failure::Failed(format!(
                    "what was measured of {name} cannot be added: {one} before, {other} now"
                )));
            }
            own.sums.iter_mut().zip(entry.sums).for_each(|(sum, more)| *sum += more);
            own.counts.iter_mut().zip(entry.counts).for_each(|(count, more)| *count += more);
        }
        for dataset in other.datasets {
            if !self.datasets.contains(&dataset) {
                self.datasets.push(dataset);
            }
        }
        self.chunks = self.chunks.saturating_add(other.chunks);
        self.chunk_size = self.chunk_size.max(other.chunk_size);
        Ok(())
    }

    /// Writes a GGUF file.
    pub fn write_gguf(&self, path: &Path) -> Result<(), Failure> {
        let mut metadata = Metadata::new();
        metadata.set("general.type", "imatrix");
        metadata.set("imatrix.datasets", self.datasets.clone());
        metadata.set("imatrix.chunk_count", self.chunks);
        metadata.set("imatrix.chunk_size", self.chunk_size);
        let mut tensors = Vec::new();
        for (name, entry) in &self.entries {
            let (matrices, all) = (entry.counts.len() as u64, entry.sums.len() as u64);
            let spec = |ending: &str, shape| TensorSpec {
                name: format!("{name}{ending}"),
                dtype: DType::F32,
                shape,
            };
            tensors.push((spec(SUMS, vec![matrices, all / matrices.max(1)]), bytes(&entry.sums)));
            tensors.push((spec(COUNTS, vec![matrices, 1]), bytes(&entry.counts)));
        }
        shards::write(path, &metadata, &tensors)
    }

    /// Writes a file of the old kind.
    pub fn write_legacy(&self, path: &Path) -> Result<(), Failure> {
        let size = self.chunk_size.max(1) as f32;
        let mut out = Vec::new();
        let number = |out: &mut Vec<u8>, number: i32| out.extend(number.to_le_bytes());
        number(&mut out, self.entries.len() as i32);
        for (name, entry) in &self.entries {
            let most = entry.counts.iter().copied().fold(0.0, f32::max);
            let calls = (most / size).ceil().max(1.0);
            number(&mut out, name.len() as i32);
            out.extend(name.as_bytes());
            number(&mut out, calls as i32);
            number(&mut out, entry.sums.len() as i32);
            out.extend(entry.means().into_iter().flat_map(|mean| (mean * calls).to_le_bytes()));
        }
        number(&mut out, self.chunks as i32);
        let dataset = self.datasets.first().map(String::as_str).unwrap_or("");
        number(&mut out, dataset.len() as i32);
        out.extend(dataset.as_bytes());
        files::replace(path, &out)
    }
}

impl Entry {
    /// Sums over counts; 1 for what was never used, which says nothing about its columns.
    pub fn means(&self) -> Vec<f32> {
        let width = (self.sums.len() / self.counts.len().max(1)).max(1);
        let rows = self.sums.chunks(width).zip(&self.counts);
        rows.flat_map(|(sums, count)| {
            sums.iter().map(move |sum| if *count > 0.0 { sum / count } else { 1.0 })
        })
        .collect()
    }

    fn check(&self, name: &str) -> Result<(), String> {
        let (sums, matrices) = (self.sums.len(), self.counts.len());
        if matrices == 0 || sums == 0 || !sums.is_multiple_of(matrices) {
            return Err(format!("{name} has {sums} sums for {matrices} counts"));
        }
        let wrong = self.sums.iter().chain(&self.counts).find(|value| !value.is_finite() || **value < 0.0);
        wrong.map_or(Ok(()), |value| Err(format!("the importance of {name} contains {value}")))
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, more) = rest.split_at_checked(count)?;
    *rest = more;
    Some(taken)
}

fn take_number(rest: &mut &[u8]) -> Option<usize> {
    let number = i32::from_le_bytes(take(rest, 4)?.try_into().ok()?);
    usize::try_from(number).ok().filter(|number| *number < MOST)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums() -> Sums {
        let entry = Entry { sums: vec![8.0, 16.0, 0.0, 0.0], counts: vec![4.0, 0.0] };
        let entries = BTreeMap::from([("blk.0.ffn_up.weight".to_owned(), entry)]);
        Sums { entries, datasets: vec!["text".into()], chunks: 2, chunk_size: 4 }
    }

    #[test]
    fn both_kinds_of_files_keep_what_they_can() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sums");
        sums().write_gguf(&path).expect("it is written");
        assert_eq!(Sums::read(&path).expect("it is read"), sums());
        sums().write_legacy(&path).expect("it is written");
        let read = Sums::read(&path).expect("it is read");
        assert_eq!((read.chunks, read.datasets.as_slice()), (2, &["text".to_owned()][..]));
        let entry = &read.entries["blk.0.ffn_up.weight"];
        assert_eq!(entry.means(), [2.0, 4.0, 1.0, 1.0]);
        for length in 0..std::fs::metadata(&path).expect("it is there").len() - 12 {
            let bytes = std::fs::read(&path).expect("it is there");
            std::fs::write(folder.path().join("cut"), &bytes[..length as usize]).expect("it is written");
            assert!(Sums::read(&folder.path().join("cut")).is_err(), "{length}");
        }
    }

    #[test]
    fn merging_adds() {
        let mut both = sums();
        both.merge(sums()).expect("they fit");
        let entry = &both.entries["blk.0.ffn_up.weight"];
        assert_eq!((entry.sums[1], entry.counts[0], both.chunks), (32.0, 8.0, 4));
        assert_eq!(both.datasets.len(), 1);
        let mut other = sums();
        other.entries.values_mut().for_each(|entry| entry.sums.push(0.0));
        assert!(both.merge(other).is_err());
    }
}
