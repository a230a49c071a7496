//! Importance of columns from a file that `imatrix` wrote.

use crate::failure::Failure;
use crate::imatrix::file::Sums;
use std::collections::BTreeMap;
use std::path::Path;

/// What the file says, by tensor.
pub struct Importance {
    entries: BTreeMap<String, Vec<f32>>,
    /// Files that it was measured with, and the number of chunks.
    pub datasets: Vec<String>,
    pub chunks: u32,
    /// Parts of names that no entry has.
    pub unmatched: Vec<String>,
}

impl Importance {
    /// Reads a file. Only entries pass whose tensor has one of the names in `include` in its name, if there are any,
    /// and none of those in `exclude`.
    pub fn read(path: &Path, include: &[String], exclude: &[String]) -> Result<Self, Failure> {
        let sums = Sums::read(path)?;
        let unmatched = include.iter().chain(exclude);
        let unmatched =
            unmatched.filter(|part| !sums.entries.keys().any(|name| name.contains(part.as_str())));
        let unmatched = unmatched.cloned().collect();
        let passes = |name: &str| {
            let has = |list: &[String]| list.iter().any(|part| name.contains(part.as_str()));
            (include.is_empty() || has(include)) && !has(exclude)
        };
        let entries = sums.entries.iter().filter(|(name, _)| passes(name));
        let entries = entries.map(|(name, entry)| (name.clone(), entry.means())).collect();
        Ok(Self { entries, datasets: sums.datasets, chunks: sums.chunks, unmatched })
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
