//! Writing files, tensor by tensor.

use std::collections::HashSet;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use puna_quant::DType;
use tempfile::{NamedTempFile, TempPath};

use crate::header::{self, MAX_KEY};
use crate::{Error, MAX_DIMENSIONS, MAX_TENSOR_NAME, Metadata, TensorInfo, align_up, encode};

/// What a file to be written says about one tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorSpec {
    /// Name, 1 to 63 bytes.
    pub name: String,
    /// Number format of the elements.
    pub dtype: DType,
    /// Extents in row-major order, the last axis contiguous, at most 4. Leading ones are not written: the format
    /// leaves out trailing ones of its reversed order.
    pub shape: Vec<u64>,
}

impl From<&TensorInfo> for TensorSpec {
    fn from(info: &TensorInfo) -> Self {
        Self { name: info.name.clone(), dtype: info.dtype, shape: info.shape.clone() }
    }
}

impl TensorSpec {
    /// Bytes of the data. Fails for shapes that the format cannot have.
    pub fn byte_len(&self) -> Result<u64, Error> {
        let dimensions = self.dimensions();
        header::byte_len(self.dtype, &dimensions)
            .ok_or_else(|| header::size_error(self.name.clone(), dimensions, self.dtype))
    }

    /// Extents in file order, without trailing ones but at least one.
    fn dimensions(&self) -> Vec<u64> {
        let mut dimensions: Vec<u64> = self.shape.iter().rev().copied().collect();
        while dimensions.len() > 1 && dimensions.last() == Some(&1) {
            dimensions.pop();
        }
        if dimensions.is_empty() {
            dimensions.push(1);
        }
        dimensions
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let length = self.name.len() as u64;
        if length == 0 || length > MAX_TENSOR_NAME as u64 {
            return Err(Error::SpecName { name: self.name.clone(), length });
        }
        let found = self.dimensions().len();
        if found > MAX_DIMENSIONS {
            return Err(Error::DimensionCount { name: self.name.clone(), found: found as u64 });
        }
        Ok(())
    }
}

/// Writes a file in version 3, in the order of its tensors, without holding their data.
///
/// The bytes go to a temporary file in the same folder, which takes the final name in [`Writer::finish`]. Until then
/// an older file of that name is untouched, and dropping the writer leaves nothing behind.
#[derive(Debug)]
pub struct Writer {
    output: BufWriter<NamedTempFile>,
    path: PathBuf,
    alignment: u64,
    /// Names and byte lengths, in file order.
    tensors: Vec<(String, u64)>,
    /// Tensor that is being written, and how much of it is.
    current: usize,
    written: u64,
}

impl Writer {
    /// Starts the file that shall be at `path` with all of its header. The alignment is that of
    /// `general.alignment`, or [`DEFAULT_ALIGNMENT`](crate::DEFAULT_ALIGNMENT).
    pub fn create(path: &Path, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Self, Error> {
        Self::start(path, metadata, tensors).map_err(|error| error.in_file(path))
    }

    fn start(path: &Path, metadata: &Metadata, tensors: &[TensorSpec]) -> Result<Self, Error> {
        let alignment = header::alignment(metadata)?;
        let (bytes, lengths) = encode_header(metadata, tensors, alignment)?;
        let output = BufWriter::with_capacity(1 << 20, temporary(path)?);
        let tensors = tensors.iter().map(|spec| spec.name.clone()).zip(lengths).collect();
        let mut writer = Self { output, path: path.to_owned(), alignment, tensors, current: 0, written: 0 };
        writer.put(&bytes)?;
        writer.pad(bytes.len() as u64)?;
        Ok(writer)
    }

    /// Writes all of the next tensor's data. Its length must be the tensor's.
    pub fn write_tensor(&mut self, data: &[u8]) -> Result<(), Error> {
        let (name, expected) = self.tensors.get(self.current).ok_or(Error::DataSurplus)?;
        let (found, expected) = (data.len() as u64, *expected);
        if self.written != 0 || found != expected {
            return Err(Error::DataLength { name: name.clone(), found: self.written + found, expected });
        }
        self.put(data)?;
        self.next(expected)
    }

    /// Writes the next bytes of the data, wherever tensors begin and end; the padding between them is added.
    pub fn write_part(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let &(_, length) = self.tensors.get(self.current).ok_or(Error::DataSurplus)?;
            let part = usize::try_from(length - self.written).unwrap_or(usize::MAX).min(data.len());
            let (now, later) = data.split_at(part);
            self.put(now)?;
            self.written += part as u64;
            if self.written == length {
                self.next(length)?;
            }
            data = later;
        }
        Ok(())
    }

    /// Where the bytes are until [`Writer::finish`], for who wants to take them away when the process ends.
    pub fn temporary_path(&self) -> &Path {
        self.output.get_ref().path()
    }

    /// Completes the file and gives it its name. Fails if data is missing.
    pub fn finish(self) -> Result<(), Error> {
        self.complete()?.publish()
    }

    /// Completes the file without giving it its name yet. Fails if data is missing.
    pub fn complete(mut self) -> Result<Complete, Error> {
        while self.written == 0 && self.tensors.get(self.current).is_some_and(|&(_, length)| length == 0) {
            self.current += 1;
        }
        if let Some((name, _)) = self.tensors.get(self.current) {
            return Err(Error::DataMissing {
                name: name.clone(),
                missing: self.tensors.len() - self.current,
            });
        }
        let Self { output, path, .. } = self;
        let close = || -> std::io::Result<TempPath> {
            let file = output.into_inner()?;
            file.as_file().sync_data()?;
            Ok(file.into_temp_path())
        };
        match close() {
            Ok(temporary) => Ok(Complete { temporary, path }),
            Err(source) => Err(Error::Io { action: "complete the file", source }.in_file(&path)),
        }
    }

    fn next(&mut self, length: u64) -> Result<(), Error> {
        self.current += 1;
        self.written = 0;
        self.pad(length)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.output.write_all(bytes).map_err(|source| self.failed(source))
    }

    /// Zeros up to the next multiple of the alignment after `length` bytes.
    fn pad(&mut self, length: u64) -> Result<(), Error> {
        let padding = length.wrapping_neg() % self.alignment;
        match std::io::copy(&mut std::io::repeat(0).take(padding), &mut self.output) {
            Ok(_) => Ok(()),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io { action: "write the file", source }.in_file(&self.path)
    }
}

/// A file that is complete but for its name, and closed, so that any number of them may wait for each other. Dropping it
/// leaves nothing behind.
#[derive(Debug)]
pub struct Complete {
    temporary: TempPath,
    path: PathBuf,
}

impl Complete {
    /// Gives the file its name.
    pub fn publish(self) -> Result<(), Error> {
        let Self { temporary, path } = self;
        temporary.persist(&path).map_err(|error| {
            Error::Io { action: "give the file its name", source: error.error }.in_file(&path)
        })
    }
}

/// Writes a whole file whose data is at hand, for example mapped from other files.
pub fn write(path: &Path, metadata: &Metadata, tensors: &[(TensorSpec, &[u8])]) -> Result<(), Error> {
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let mut writer = Writer::create(path, metadata, &specs)?;
    for (_, data) in tensors {
        writer.write_tensor(data).map_err(|error| error.in_file(path))?;
    }
    writer.finish()
}

/// The header's bytes and each tensor's length.
fn encode_header(
    metadata: &Metadata,
    tensors: &[TensorSpec],
    alignment: u64,
) -> Result<(Vec<u8>, Vec<u64>), Error> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        let length = key.len() as u64;
        if length == 0 || length > MAX_KEY {
            return Err(Error::KeyLength { offset: out.len() as u64, length });
        }
        encode::string(&mut out, key.as_bytes());
        encode::value(&mut out, value);
    }
    let mut names = HashSet::new();
    let mut lengths = Vec::new();
    let mut offset = 0u64;
    for spec in tensors {
        spec.check()?;
        if !names.insert(spec.name.as_str()) {
            return Err(Error::DuplicateTensor { name: spec.name.clone() });
        }
        let length = spec.byte_len()?;
        let dimensions = spec.dimensions();
        encode::entry(&mut out, spec.name.as_bytes(), &dimensions, spec.dtype.id(), offset);
        offset = offset.checked_add(length).and_then(|end| align_up(end, alignment)).ok_or_else(|| {
            Error::TensorSize { name: spec.name.clone(), dimensions, dtype: spec.dtype.name() }
        })?;
        lengths.push(length);
    }
    Ok((out, lengths))
}

/// Gives a file that is to take the place of the one at `path` its permissions, and its owner and group where that is
/// allowed, so that nobody gets to read what was closed to them. Without a file there, or where systems have no such
/// permissions, nothing changes.
pub fn take_over_access(path: &Path, file: &std::fs::File) -> std::io::Result<()> {
    #[cfg(unix)]
    if let Ok(old) = std::fs::metadata(path) {
        use std::os::unix::fs::{MetadataExt, fchown};
        // Only the superuser may give files away; the group may be one of the user's.
        if fchown(file, Some(old.uid()), Some(old.gid())).is_err() {
            let _ = fchown(file, None, Some(old.gid()));
        }
        file.set_permissions(old.permissions())?;
    }
    #[cfg(not(unix))]
    let _ = (path, file);
    Ok(())
}

/// A temporary file beside `path`, with the permissions of the file there or of any new file.
fn temporary(path: &Path) -> Result<NamedTempFile, Error> {
    if let Ok(existing) = std::fs::metadata(path) {
        crate::file::require_regular(&existing)?;
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".").suffix(".gguf.part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let made = builder.tempfile_in(folder).and_then(|file| {
        take_over_access(path, file.as_file())?;
        Ok(file)
    });
    made.map_err(|source| Error::Io { action: "create a temporary file", source })
}
