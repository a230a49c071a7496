//! An opened model: one file, or all shards of a split one.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::data::Data;
use crate::split::{self, ShardName};
use crate::stamp::Stamp;
use crate::{Error, Header, Metadata, TensorInfo, TensorSpec, Tensors, Value, Warning};

/// How to open a file.
#[derive(Clone, PartialEq, Debug)]
pub struct OpenOptions {
    /// Map the file instead of reading it into memory. Default: `true`.
    pub mmap: bool,
    /// Keep all bytes in physical memory until they are released. Where the system refuses, [`File::warnings`] says
    /// so. Default: `false`.
    pub mlock: bool,
    /// Metadata that replaces or adds to the file's, for example from [`parse_override`](crate::parse_override).
    /// The layout of the data is not affected, not even by `general.alignment`.
    pub overrides: Vec<(String, Value)>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { mmap: true, mlock: false, overrides: Vec::new() }
    }
}

/// Any file, mapped for reading; what the crate says about files that change holds for it.
#[derive(Clone, Debug)]
pub struct Mapping {
    data: Arc<Data>,
}

impl Mapping {
    /// Maps all of a regular file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, _) = open_regular(path).map_err(|error| error.in_file(path))?;
        let mapped =
            Data::map(&file).map_err(|source| Error::Io { action: "map the file", source }.in_file(path))?;
        Ok(Self { data: Arc::new(mapped) })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// Gives back the physical memory of the whole pages inside a range; see [`File::release`].
    pub fn release(&self, range: std::ops::Range<usize>) {
        self.data.release(range);
    }
}

/// Bytes of one tensor for [`File::from_parts`].
#[derive(Clone, Debug)]
pub enum Bytes {
    /// A range of a mapped file.
    Mapped(Mapping, std::ops::Range<usize>),
    /// In memory.
    Owned(Vec<u8>),
}

/// An opened model with all its shards.
#[derive(Debug)]
pub struct File {
    /// Metadata of the (first) file, with the overrides applied.
    pub metadata: Metadata,
    /// Tensors of all shards.
    pub tensors: Tensors,
    version: u32,
    alignment: u64,
    paths: Vec<PathBuf>,
    /// One for each of `paths`.
    stamps: Vec<Option<Stamp>>,
    shards: Vec<Arc<Data>>,
    warnings: Vec<Warning>,
}

impl File {
    /// Opens the model at `path`. Any shard of a split model stands for all of them: the others are looked for
    /// beside it.
    ///
    /// Headers and directories are validated completely, and every tensor is known to lie inside its file, before
    /// any data is mapped or read.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        let opened = Shard::open(path)?;
        let shards = match shard_count(&opened.header.metadata).map_err(|error| error.in_file(path))? {
            0 | 1 => vec![opened],
            count => {
                let name =
                    shard_name(path, count, &opened.header.metadata).map_err(|error| error.in_file(path))?;
                open_set(opened, &name)?
            }
        };
        Self::assemble(shards, options)
    }

    /// Takes the bytes of a whole file. A shard of a split model is refused, since the others cannot be found.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        let header = Header::parse(&bytes)?;
        header.check_data(bytes.len() as u64)?;
        let count = shard_count(&header.metadata)?;
        if count > 1 {
            let number = header.metadata.u64_or(split::KEY_NUMBER, 0)?.saturating_add(1);
            return Err(Error::ShardName { number, count });
        }
        let Header { version, alignment, metadata, tensors, warnings, .. } = header;
        let shards = vec![Arc::new(Data::Owned(bytes))];
        let (paths, stamps) = (Vec::new(), Vec::new());
        Ok(Self { metadata, tensors, version, alignment, paths, stamps, shards, warnings })
    }

    /// Metadata and tensor directory of the one file at `path`, whose data may be absent. Nothing is mapped, and
    /// other shards are not looked for.
    pub fn header(path: &Path) -> Result<Header, Error> {
        Ok(Shard::open(path)?.header)
    }

    /// The data of `tensor`, which must be one of this file's tensors; for any other the result may be empty.
    ///
    /// The first byte is as aligned as the file asks for (32 bytes by default) if the file was opened by path; do
    /// not rely on that for bytes from [`File::from_bytes`].
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        let Some(data) = self.shards.get(tensor.shard) else { return &[] };
        usize_range(tensor).and_then(|range| data.bytes().get(range)).unwrap_or(&[])
    }

    /// The files, shards in order. Empty for [`File::from_bytes`].
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Bytes of all files together.
    pub fn size_on_disk(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes().len() as u64).sum()
    }

    /// Format version of the (first) file, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of the (first) file's tensor data in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// What is odd about the files, or could not be done as asked.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Gives back the physical memory of the whole pages inside `tensor`, so that a repacked copy is the only one
    /// resident. The bytes stay readable, at the price of reading the file again. Does nothing for
    /// [`File::from_bytes`].
    pub fn release(&self, tensor: &TensorInfo) {
        if let (Some(data), Some(range)) = (self.shards.get(tensor.shard), usize_range(tensor)) {
            data.release(range);
        }
    }

    /// A line of text that tells the bytes of `tensor` from all others without reading them: path, length, times, number
    /// and device of its file as they were when it was opened, and the place in it.
    ///
    /// `None` where that does not say what the bytes are: for [`File::from_bytes`] and [`File::from_parts`], where the
    /// path no longer leads to the same unchanged file, and where the file was changed in the two seconds before, so
    /// that another change need not show in its times.
    pub fn identity(&self, tensor: &TensorInfo) -> Option<String> {
        let stamp = self.stamps.get(tensor.shard)?.as_ref()?.text_at(std::time::SystemTime::now())?;
        Some(format!("{stamp}, {:?}", tensor.range))
    }

    /// Asks the system to read the mapped files ahead.
    pub fn prefetch(&self) {
        self.shards.iter().for_each(|shard| shard.prefetch());
    }

    /// Puts a model together that no file holds in this form: metadata, and tensors whose bytes are in memory or
    /// are ranges of mapped files. Fails for names, shapes and lengths that a file could not have.
    pub fn from_parts(metadata: Metadata, parts: Vec<(TensorSpec, Bytes)>) -> Result<Self, Error> {
        let mut tensors = Tensors::default();
        let mut shards: Vec<Arc<Data>> = Vec::new();
        for (spec, bytes) in parts {
            spec.check()?;
            let expected = spec.byte_len()?;
            let (data, range) = match bytes {
                Bytes::Owned(bytes) => {
                    let range = 0..bytes.len();
                    (Arc::new(Data::Owned(bytes)), range)
                }
                Bytes::Mapped(mapping, range) => (mapping.data, range),
            };
            let found = data.bytes().get(range.clone()).map_or(0, |bytes| bytes.len() as u64);
            if found != expected {
                return Err(Error::DataLength { name: spec.name, found, expected });
            }
            // The shards of a mapped file follow one another, so looking at the last ones finds it.
            let known = shards.iter().rposition(|shard| Arc::ptr_eq(shard, &data));
            let shard = known.unwrap_or_else(|| {
                shards.push(data);
                shards.len() - 1
            });
            let range = range.start as u64..range.end as u64;
            let info = TensorInfo { name: spec.name, dtype: spec.dtype, shape: spec.shape, shard, range };
            tensors.push(info).map_err(|again| Error::DuplicateTensor { name: again.name })?;
        }
        let (version, alignment) = (3, crate::DEFAULT_ALIGNMENT);
        let (paths, stamps, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { metadata, tensors, version, alignment, paths, stamps, shards, warnings })
    }

    fn assemble(shards: Vec<Shard>, options: &OpenOptions) -> Result<Self, Error> {
        for shard in &shards {
            shard.header.check_data(shard.length).map_err(|error| error.in_file(&shard.path))?;
        }
        let mut paths = Vec::new();
        let mut stamps = Vec::new();
        let mut data = Vec::new();
        let mut warnings = Vec::new();
        let mut tensors = Tensors::default();
        let mut first: Option<(u32, u64, Metadata)> = None;
        for (index, shard) in shards.into_iter().enumerate() {
            let bytes = shard.load(options, &mut warnings).map_err(|error| error.in_file(&shard.path))?;
            let Header { version, alignment, metadata, tensors: own, warnings: odd, .. } = shard.header;
            warnings.extend(odd);
            paths.push(shard.path);
            stamps.push(shard.stamp);
            for mut tensor in own {
                tensor.shard = index;
                tensors.push(tensor).map_err(|again| duplicate(again, &tensors, &paths))?;
            }
            data.push(Arc::new(bytes));
            first.get_or_insert((version, alignment, metadata));
        }
        let (version, alignment, mut metadata) = first.ok_or(Error::NoFile)?;
        if paths.len() > 1
            && let Some(expected) = metadata.optional_u64(split::KEY_TENSORS)?
            && expected != tensors.len() as u64
        {
            return Err(Error::ShardTensors { found: tensors.len() as u64, expected });
        }
        for (key, value) in &options.overrides {
            metadata.set(key.clone(), value.clone());
        }
        Ok(Self { metadata, tensors, version, alignment, paths, stamps, shards: data, warnings })
    }
}

fn usize_range(tensor: &TensorInfo) -> Option<std::ops::Range<usize>> {
    Some(usize::try_from(tensor.range.start).ok()?..usize::try_from(tensor.range.end).ok()?)
}

fn duplicate(again: TensorInfo, tensors: &Tensors, paths: &[PathBuf]) -> Error {
    let path = |shard: usize| paths.get(shard).cloned().unwrap_or_default();
    let first = tensors.get(&again.name).map_or(0, TensorInfo::shard);
    Error::DuplicateTensorInShards { first: path(first), second: path(again.shard), name: again.name }
}

fn shard_count(metadata: &Metadata) -> Result<u64, Error> {
    metadata.u64_or(split::KEY_COUNT, 0)
}

/// The name of a shard, which must agree with its metadata.
fn shard_name(path: &Path, count: u64, metadata: &Metadata) -> Result<ShardName, Error> {
    match ShardName::parse(path) {
        Some(name) if u64::from(name.count) == count => Ok(name),
        Some(name) if name.count > 1 => Err(Error::ShardKey {
            number: name.number,
            count: name.count,
            key: split::KEY_COUNT,
            found: count,
        }),
        _ => {
            let number = metadata.u64_or(split::KEY_NUMBER, 0)?.saturating_add(1);
            Err(Error::ShardName { number, count })
        }
    }
}

/// All shards of the set that `opened`, of this name, belongs to.
fn open_set(opened: Shard, name: &ShardName) -> Result<Vec<Shard>, Error> {
    let mut opened = Some(opened);
    let mut shards = Vec::new();
    for number in 1..=name.count {
        let shard = match opened.take_if(|_| number == name.number) {
            Some(shard) => shard,
            None => open_sibling(name, number)?,
        };
        shard.check_position(number, name.count).map_err(|error| error.in_file(&shard.path))?;
        shards.push(shard);
    }
    Ok(shards)
}

fn open_sibling(name: &ShardName, number: u32) -> Result<Shard, Error> {
    let expected = name.sibling(number);
    Shard::open(&expected).map_err(|error| match error.inner() {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::MissingShard { number, count: name.count, expected }
        }
        _ => error,
    })
}

/// Adds to a wrong magic what the file's name tells: parts that were merely cut have names like shards.
fn cut_into_parts(error: Error, path: &Path) -> Error {
    match error {
        Error::Magic { found, .. } if ShardName::parse(path).is_some_and(|name| name.number > 1) => {
            Error::Magic {
                found,
                hint: "; its name is that of a shard: if a file was cut into parts, join them in order instead",
            }
        }
        other => other,
    }
}

/// One file with its header read and checked.
struct Shard {
    path: PathBuf,
    file: std::fs::File,
    length: u64,
    stamp: Option<Stamp>,
    header: Header,
}

impl Shard {
    fn open(path: &Path) -> Result<Self, Error> {
        let (file, length) = open_regular(path).map_err(|error| error.in_file(path))?;
        // Before anything is read, so that what changes meanwhile is another file.
        let stamp = file.metadata().ok().and_then(|metadata| Stamp::of(path, &metadata));
        let reader = BufReader::with_capacity(1 << 16, &file);
        let header =
            Header::read(reader, length).map_err(|error| cut_into_parts(error, path).in_file(path))?;
        Ok(Self { path: path.to_owned(), file, length, stamp, header })
    }

    /// Checks that the metadata calls this shard `number` (one-based) of `count`.
    fn check_position(&self, number: u32, count: u32) -> Result<(), Error> {
        let metadata = &self.header.metadata;
        let own_count = metadata.u64(split::KEY_COUNT)?;
        if own_count != u64::from(count) {
            return Err(Error::ShardKey { number, count, key: split::KEY_COUNT, found: own_count });
        }
        let own_number = metadata.u64(split::KEY_NUMBER)?;
        if own_number != u64::from(number - 1) {
            return Err(Error::ShardKey { number, count, key: split::KEY_NUMBER, found: own_number });
        }
        Ok(())
    }

    fn load(&self, options: &OpenOptions, warnings: &mut Vec<Warning>) -> Result<Data, Error> {
        let data = if options.mmap {
            Data::map(&self.file).map_err(|source| Error::Io { action: "map the file", source })?
        } else {
            let length = usize::try_from(self.length).map_err(|_| Error::Io {
                action: "read the file",
                source: std::io::ErrorKind::OutOfMemory.into(),
            })?;
            Data::read(&self.file, length).map_err(|source| Error::Io { action: "read the file", source })?
        };
        // The file may have become shorter since its header was read.
        self.header.check_data(data.bytes().len() as u64)?;
        if options.mlock
            && let Err(error) = data.lock()
        {
            let bytes = data.bytes().len() as u64;
            warnings.push(Warning::MemoryLock { path: self.path.clone(), bytes, reason: error.to_string() });
        }
        Ok(data)
    }
}

/// Opens a regular file and returns it with its length. Anything else is refused before it is opened, since
/// opening a FIFO waits for a writer.
pub(crate) fn open_regular(path: &Path) -> Result<(std::fs::File, u64), Error> {
    let io = |source| Error::Io { action: "open the file", source };
    require_regular(&std::fs::metadata(path).map_err(io)?)?;
    let file = std::fs::File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    require_regular(&metadata)?;
    Ok((file, metadata.len()))
}

/// Refuses what is no regular file and says what it is.
pub(crate) fn require_regular(metadata: &std::fs::Metadata) -> Result<(), Error> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return Err(Error::NotRegular { kind: "a FIFO" });
        }
        if kind.is_char_device() || kind.is_block_device() {
            return Err(Error::NotRegular { kind: "a device" });
        }
        if kind.is_socket() {
            return Err(Error::NotRegular { kind: "a socket" });
        }
    }
    Err(Error::NotRegular { kind: if kind.is_dir() { "a directory" } else { "something else" } })
}
