//! The tensor directory.

use std::collections::HashMap;
use std::ops::Range;

use puna_quant::DType;

use crate::{Error, TensorSpec};

/// What the directory says about one tensor. Its bytes come from [`File::bytes`](crate::File::bytes).
#[derive(Clone, PartialEq, Debug)]
pub struct TensorInfo {
    /// Name, unique in the file, 1 to 63 bytes.
    pub name: String,
    /// Number format of the elements.
    pub dtype: DType,
    /// Extents in row-major order, the last axis contiguous: the reverse of the file's order. As many axes as the
    /// file gives, 0 (a scalar) to 4. Extents may be 0.
    pub shape: Vec<u64>,
    /// Which of the file's shards holds the data.
    pub(crate) shard: usize,
    /// Where the data lies in that shard, counted from the shard's first byte.
    pub(crate) range: Range<u64>,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Number of bytes of the data, without padding.
    pub fn byte_len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// First byte of the data, counted from the start of the shard that holds it.
    pub fn file_offset(&self) -> u64 {
        self.range.start
    }

    /// Index of the shard that holds the data, in the order of [`File::paths`](crate::File::paths).
    pub fn shard(&self) -> usize {
        self.shard
    }
}

/// Tensors in file order, all shards one after another. Names are unique.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    infos: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl Tensors {
    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.infos.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.infos.is_empty()
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|&position| self.infos.get(position))
    }

    /// All tensors in file order.
    pub fn iter(&self) -> std::slice::Iter<'_, TensorInfo> {
        self.infos.iter()
    }

    /// The directory of a file that does not exist yet. Fails for names and shapes that a file could not have.
    pub fn from_specs(specs: &[TensorSpec]) -> Result<Self, Error> {
        let mut tensors = Self::default();
        let mut start = 0u64;
        for spec in specs {
            spec.check()?;
            let range = start..start.saturating_add(spec.byte_len()?);
            start = range.end;
            let TensorSpec { name, dtype, shape } = spec.clone();
            let info = TensorInfo { name, dtype, shape, shard: 0, range };
            tensors.push(info).map_err(|again| Error::DuplicateTensor { name: again.name })?;
        }
        Ok(tensors)
    }

    /// The same with tensors of another file, of those names that this one lacks. Their bytes come from that file.
    pub fn with_lent<'t>(&self, lent: impl IntoIterator<Item = &'t TensorInfo>) -> Self {
        let mut all = self.clone();
        for info in lent {
            // One that is there is not lent.
            let _ = all.push(info.clone());
        }
        all
    }

    /// Adds a tensor. Gives it back if there is one of its name.
    pub(crate) fn push(&mut self, info: TensorInfo) -> Result<(), TensorInfo> {
        if self.index.contains_key(&info.name) {
            return Err(info);
        }
        self.index.insert(info.name.clone(), self.infos.len());
        self.infos.push(info);
        Ok(())
    }
}

impl<'a> IntoIterator for &'a Tensors {
    type Item = &'a TensorInfo;
    type IntoIter = std::slice::Iter<'a, TensorInfo>;

    fn into_iter(self) -> Self::IntoIter {
        self.infos.iter()
    }
}

impl IntoIterator for Tensors {
    type Item = TensorInfo;
    type IntoIter = std::vec::IntoIter<TensorInfo>;

    fn into_iter(self) -> Self::IntoIter {
        self.infos.into_iter()
    }
}
