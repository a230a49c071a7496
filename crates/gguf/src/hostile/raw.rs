//! A file's parts without any rule about them.

use crate::{DEFAULT_ALIGNMENT, File, Value, align_up, encode};

/// A value, well-formed or not.
#[derive(Clone)]
pub(super) enum RawValue {
    /// A proper value.
    Value(Value),
    /// Type id and payload as they go to the file.
    Bytes(Vec<u8>),
}

impl<V: Into<Value>> From<V> for RawValue {
    fn from(value: V) -> Self {
        Self::Value(value.into())
    }
}

/// A tensor as the file has it: dimensions contiguous first.
#[derive(Clone)]
pub(super) struct RawTensor {
    pub(super) name: Vec<u8>,
    pub(super) dimensions: Vec<u64>,
    pub(super) format: u32,
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

/// A file's parts. Counts are those of the lists unless given.
#[derive(Clone)]
pub(super) struct Raw {
    pub(super) version: u32,
    pub(super) tensor_count: Option<u64>,
    pub(super) key_count: Option<u64>,
    pub(super) pairs: Vec<(Vec<u8>, RawValue)>,
    pub(super) tensors: Vec<RawTensor>,
    /// What the layout uses, whatever the metadata says.
    pub(super) alignment: u64,
}

impl Raw {
    /// The parts of a good file, laid out anew.
    pub(super) fn new(file: &File) -> Self {
        let tensor = |info| {
            let info: &crate::TensorInfo = info;
            RawTensor {
                name: info.name.clone().into_bytes(),
                dimensions: info.shape.iter().rev().copied().collect(),
                format: info.dtype.id(),
                offset: 0,
                data: file.bytes(info).to_vec(),
            }
        };
        let mut raw = Self {
            version: 3,
            tensor_count: None,
            key_count: None,
            pairs: file.metadata.iter().map(|(key, value)| (key.into(), value.clone().into())).collect(),
            tensors: file.tensors.iter().map(tensor).collect(),
            alignment: file.alignment(),
        };
        raw.lay_out();
        raw
    }

    /// Sets every offset as the format asks for.
    pub(super) fn lay_out(&mut self) {
        let mut offset = 0;
        for tensor in &mut self.tensors {
            tensor.offset = offset;
            offset = align_up(offset + tensor.data.len() as u64, self.alignment).unwrap_or(offset);
        }
    }

    /// Value of `key`, if it is a proper one.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.pairs.iter().find(|(own, _)| own == key.as_bytes()).and_then(|(_, value)| match value {
            RawValue::Value(value) => Some(value),
            RawValue::Bytes(_) => None,
        })
    }

    /// Replaces or adds `key`.
    pub(super) fn set(&mut self, key: &str, value: impl Into<RawValue>) {
        match self.pairs.iter_mut().find(|(own, _)| own == key.as_bytes()) {
            Some((_, old)) => *old = value.into(),
            None => self.pairs.push((key.into(), value.into())),
        }
    }

    /// Removes `key`.
    pub(super) fn remove(&mut self, key: &str) {
        self.pairs.retain(|(own, _)| own != key.as_bytes());
    }

    /// The bytes up to the padding before the data.
    pub(super) fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            encode::string(&mut out, key);
            match value {
                RawValue::Value(value) => encode::value(&mut out, value),
                RawValue::Bytes(bytes) => out.extend(bytes),
            }
        }
        for tensor in &self.tensors {
            encode::entry(&mut out, &tensor.name, &tensor.dimensions, tensor.format, tensor.offset);
        }
        out
    }

    /// The whole file: the header, then each tensor's data and its padding in the order of the list.
    pub(super) fn serialise(&self) -> Vec<u8> {
        // A hostile alignment is for the metadata only; the file stays small.
        let alignment = if self.alignment > 4096 { DEFAULT_ALIGNMENT } else { self.alignment };
        let pad = |out: &mut Vec<u8>| {
            let end = align_up(out.len() as u64, alignment).unwrap_or(0) as usize;
            out.resize(end.max(out.len()), 0);
        };
        let mut out = self.header();
        pad(&mut out);
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            pad(&mut out);
        }
        out
    }
}

/// A small generator of reproducible numbers (splitmix64).
#[derive(Clone)]
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    /// The next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, or 0 if that is 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound.max(1) as u64)) as usize
    }
}
