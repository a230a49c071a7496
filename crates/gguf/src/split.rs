//! Names and keys of models split over several files.

use std::path::{Path, PathBuf};

/// Zero-based number of a shard.
pub const KEY_NUMBER: &str = "split.no";
/// Number of shards.
pub const KEY_COUNT: &str = "split.count";
/// Number of tensors in all shards together.
pub const KEY_TENSORS: &str = "split.tensors.count";

/// A path of the form `<prefix>-%05d-of-%05d.gguf`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardName {
    /// Folder and name before the number.
    pub prefix: PathBuf,
    /// One-based number of the shard.
    pub number: u32,
    /// Number of shards, at least 1.
    pub count: u32,
}

impl ShardName {
    /// Reads the form from the last component of `path`; `None` if it has another form, or a number outside 1 to
    /// count.
    pub fn parse(path: &Path) -> Option<Self> {
        // Only the ASCII tail is looked at, so that names in any encoding work.
        let name = path.file_name()?;
        let bytes = name.as_encoded_bytes();
        let tail = bytes.get(bytes.len().checked_sub("-00001-of-00001.gguf".len())?..)?;
        let tail = std::str::from_utf8(tail).ok()?;
        let (number, count) = tail.strip_prefix('-')?.strip_suffix(".gguf")?.split_once("-of-")?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (number, count) = (digits(number)?, digits(count)?);
        if number == 0 || number > count {
            return None;
        }
        Some(Self { prefix: path.with_file_name(without_tail(name, tail.len())?), number, count })
    }

    /// The path of shard `number` (one-based) of the same model.
    pub fn sibling(&self, number: u32) -> PathBuf {
        path(&self.prefix, number, self.count)
    }
}

/// `<prefix>-%05d-of-%05d.gguf` with the one-based `number`.
pub fn path(prefix: &Path, number: u32, count: u32) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("-{number:05}-of-{count:05}.gguf"));
    name.into()
}

/// `name` without its last `length` bytes, which are ASCII.
#[cfg(unix)]
fn without_tail(name: &std::ffi::OsStr, length: usize) -> Option<std::ffi::OsString> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = name.as_bytes();
    Some(std::ffi::OsStr::from_bytes(bytes.get(..bytes.len().checked_sub(length)?)?).to_owned())
}

/// `name` without its last `length` bytes, which are ASCII; `None` if the rest is not Unicode.
#[cfg(not(unix))]
fn without_tail(name: &std::ffi::OsStr, length: usize) -> Option<std::ffi::OsString> {
    let text = name.to_str()?;
    Some(text.get(..text.len().checked_sub(length)?)?.into())
}
