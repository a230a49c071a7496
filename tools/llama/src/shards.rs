//! Models in several files: their metadata, and writing all of them or none.

use crate::console;
use crate::failure::Failure;
use crate::files::{self, Unfinished};
use indicatif::ProgressBar;
use puna_gguf::{Complete, MAX_LAYERS, Metadata, TensorSpec, Value, Writer, split};
use std::path::{Path, PathBuf};

/// A file that is about to be written.
pub struct Shard {
    pub path: PathBuf,
    pub metadata: Metadata,
    pub tensors: Vec<TensorSpec>,
}

/// The files for groups of tensors: one under the path itself, or several with `path` without `.gguf` before the
/// number. The first has all metadata, the others only what says which part they are.
pub fn plan(path: &Path, metadata: &Metadata, groups: Vec<Vec<TensorSpec>>) -> Result<Vec<Shard>, Failure> {
    let mut metadata = metadata.clone();
    for key in [split::KEY_NUMBER, split::KEY_COUNT, split::KEY_TENSORS] {
        metadata.remove(key);
    }
    if groups.len() <= 1 {
        let tensors = groups.into_iter().next().unwrap_or_default();
        return Ok(vec![Shard { path: path.to_owned(), metadata, tensors }]);
    }
    let too_many = |what| Failure::Failed(format!("there are too many {what} for a model in parts"));
    let count = u16::try_from(groups.len()).map_err(|_| too_many("files"))?;
    let tensors = groups.iter().map(Vec::len).sum::<usize>();
    let tensors = i32::try_from(tensors).map_err(|_| too_many("tensors"))?;
    let prefix = prefix(path);
    let shards = (0..count).zip(groups).map(|(number, group)| {
        let mut metadata = if number == 0 { metadata.clone() } else { alignment(&metadata) };
        metadata.set(split::KEY_NUMBER, Value::U16(number));
        metadata.set(split::KEY_COUNT, Value::U16(count));
        metadata.set(split::KEY_TENSORS, Value::I32(tensors));
        let path = split::path(&prefix, u32::from(number) + 1, u32::from(count));
        Shard { path, metadata, tensors: group }
    });
    Ok(shards.collect())
}

/// Refuses a number of layers that no model can have, before such a file is written once more.
pub fn check_layers(metadata: &Metadata) -> Result<(), Failure> {
    let Some(architecture) = metadata.get("general.architecture").and_then(Value::text) else {
        return Ok(());
    };
    let key = format!("{architecture}.block_count");
    let Some(value) = metadata.get(&key) else { return Ok(()) };
    match value.integer() {
        Some(layers) if (1..=MAX_LAYERS as i128).contains(&layers) => Ok(()),
        _ => Err(Failure::Failed(format!(
            "key {} is {}, it must be from 1 to {MAX_LAYERS}",
            console::printable(&key, 200),
            console::printable(&value.to_string(), 80)
        ))),
    }
}

/// What the names of the parts begin with: the path without `.gguf`. Other dots are part of the name.
pub fn prefix(path: &Path) -> PathBuf {
    match path.extension() {
        Some(extension) if extension == "gguf" => path.with_extension(""),
        _ => path.to_owned(),
    }
}

/// The one key that the layout of every file depends on.
fn alignment(metadata: &Metadata) -> Metadata {
    let key = "general.alignment";
    metadata.get(key).into_iter().map(|value| (key, value.clone())).collect()
}

/// Files that are written one after another and get their names together at the end; dropping this leaves nothing behind.
pub struct Output {
    done: Vec<(Complete, Unfinished)>,
    waiting: std::vec::IntoIter<Shard>,
    current: Option<(Writer, Unfinished, usize)>,
    paths: Vec<PathBuf>,
}

impl Output {
    /// Starts with the first file. None of them may be one of `inputs`.
    pub fn new(shards: Vec<Shard>, inputs: &[PathBuf]) -> Result<Self, Failure> {
        shards.iter().try_for_each(|shard| files::refuse_input(&shard.path, inputs))?;
        let paths = shards.iter().map(|shard| shard.path.clone()).collect();
        let mut output = Self { done: Vec::new(), waiting: shards.into_iter(), current: None, paths };
        output.advance()?;
        Ok(output)
    }

    /// Writes the next bytes of the next tensor.
    pub fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        match &mut self.current {
            Some((writer, ..)) => Ok(writer.write_part(data)?),
            None => Err(Failure::Failed("there is more data than tensors".to_owned())),
        }
    }

    /// Writes all of the next tensor, which `bar` hears of in parts.
    pub fn copy(&mut self, data: &[u8], bar: &ProgressBar) -> Result<(), Failure> {
        /// Bytes written at once.
        const PART: usize = 1 << 24;
        for part in data.chunks(PART) {
            self.write(part)?;
            bar.inc(part.len() as u64);
        }
        self.end_tensor()
    }

    /// Says that a tensor is complete.
    pub fn end_tensor(&mut self) -> Result<(), Failure> {
        if let Some((_, _, left)) = &mut self.current {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.advance()?;
            }
        }
        Ok(())
    }

    /// Closes the file and begins the next one that has tensors.
    fn advance(&mut self) -> Result<(), Failure> {
        if let Some((writer, unfinished, _)) = self.current.take() {
            self.done.push((writer.complete()?, unfinished));
        }
        for shard in self.waiting.by_ref() {
            let (writer, unfinished) = Unfinished::made(|| {
                let writer = Writer::create(&shard.path, &shard.metadata, &shard.tensors)?;
                let path = writer.temporary_path().to_owned();
                Ok((writer, path))
            })?;
            if !shard.tensors.is_empty() {
                self.current = Some((writer, unfinished, shard.tensors.len()));
                return Ok(());
            }
            self.done.push((writer.complete()?, unfinished));
        }
        Ok(())
    }

    /// Gives all files their names. If that fails for one, those before it are taken away again.
    pub fn finish(mut self) -> Result<Vec<PathBuf>, Failure> {
        if let Some((writer, unfinished, _)) = self.current.take() {
            self.done.push((writer.complete()?, unfinished));
        }
        // A part alone is of no use, so Ctrl-C takes those away, too, that have their names already.
        let mut named: Vec<Unfinished> = Vec::new();
        for ((file, _unfinished), path) in self.done.into_iter().zip(&self.paths) {
            let published = match self.paths.len() {
                1 => file.publish().map_err(Failure::from),
                _ => Unfinished::made(|| Ok((file.publish()?, path.clone())))
                    .map(|((), part)| named.push(part)),
            };
            if let Err(error) = published {
                for path in self.paths.iter().take(named.len()) {
                    // The error that is reported is the first one.
                    let _ = std::fs::remove_file(path);
                }
                return Err(error);
            }
        }
        Ok(self.paths)
    }
}

/// Writes one file whose data is at hand.
pub fn write(path: &Path, metadata: &Metadata, tensors: &[(TensorSpec, Vec<u8>)]) -> Result<(), Failure> {
    let specs = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let mut output = Output::new(plan(path, metadata, vec![specs])?, &[])?;
    for (_, data) in tensors {
        output.write(data)?;
        output.end_tensor()?;
    }
    output.finish().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_lose_the_ending_only() {
        for (path, expected) in [("a/m-v1.5", "a/m-v1.5"), ("a/m-v1.5.gguf", "a/m-v1.5"), ("m", "m")] {
            assert_eq!(prefix(Path::new(path)), Path::new(expected));
        }
    }
}
