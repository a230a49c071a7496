//! The weights of a model folder: one safetensors file, or several with an index.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use puna_gguf::Mapping;
use serde_json::Value;

use crate::ConvertError;
use crate::config::read_json;
use crate::safetensors::{Entry, Format, SafeTensors};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All tensors of a folder, by name. Scales of 8-bit weights are not listed: they belong to their weights.
#[derive(Debug, Default)]
pub struct Source {
    files: Vec<SafeTensors>,
    /// File and entry of each name.
    places: HashMap<String, (usize, usize)>,
    /// Names in order of the files.
    names: Vec<String>,
}

/// Endings of the names of scales, in place of `weight`; the product of both is the weight.
const SCALES: &[&str] = &["weight_scale_inv", "weight_scale"];

impl Source {
    /// Opens the weights of a folder: those of `model.safetensors.index.json`, else `model.safetensors`, else the only
    /// safetensors files there are.
    pub fn open(folder: &Path) -> Result<Self, ConvertError> {
        let index = folder.join(INDEX);
        if index.is_file() {
            return Self::open_listed(folder, &index);
        }
        let single = folder.join(SINGLE);
        let paths = if single.is_file() { vec![single] } else { found(folder)? };
        if paths.is_empty() {
            return Err(ConvertError::NoWeights { path: folder.to_owned() });
        }
        Self::from_files(&paths)
    }

    /// Opens these files.
    pub fn from_files(paths: &[PathBuf]) -> Result<Self, ConvertError> {
        let files = paths.iter().map(|path| SafeTensors::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut source = Self::default();
        for (file, opened) in files.iter().enumerate() {
            for (entry, listed) in opened.entries().iter().enumerate() {
                let place = (file, entry);
                if let Some((other, _)) = source.places.insert(listed.name.clone(), place) {
                    let first = files.get(other).map(|file| file.path().to_owned()).unwrap_or_default();
                    let second = opened.path().to_owned();
                    return Err(ConvertError::Duplicate { name: listed.name.clone(), first, second });
                }
                source.names.push(listed.name.clone());
            }
        }
        source.files = files;
        let places = &source.places;
        let is_scale = |name: &String| {
            SCALES.iter().any(|scale| {
                name.strip_suffix(scale).is_some_and(|stem| places.contains_key(&format!("{stem}weight")))
            })
        };
        source.names.retain(|name| !is_scale(name));
        Ok(source)
    }

    /// Adds the tensors of a file under names that begin with `prefix`.
    pub fn add(&mut self, path: &Path, prefix: &str) -> Result<(), ConvertError> {
        let opened = SafeTensors::open(path)?;
        for (entry, listed) in opened.entries().iter().enumerate() {
            let name = format!("{prefix}{}", listed.name);
            if let Some((other, _)) = self.places.insert(name.clone(), (self.files.len(), entry)) {
                let first = self.files.get(other).map(|file| file.path().to_owned()).unwrap_or_default();
                return Err(ConvertError::Duplicate { name, first, second: opened.path().to_owned() });
            }
            self.names.push(name);
        }
        self.files.push(opened);
        Ok(())
    }

    fn open_listed(folder: &Path, index: &Path) -> Result<Self, ConvertError> {
        let json = read_json(index)?;
        let listed = json.get("weight_map").and_then(Value::as_object);
        let listed = listed.ok_or_else(|| ConvertError::Json {
            path: index.to_owned(),
            reason: "there is no weight_map".into(),
        })?;
        let mut shards: BTreeMap<&str, PathBuf> = BTreeMap::new();
        for (name, file) in listed {
            let file = file.as_str().unwrap_or_default();
            // A file of another folder is none of the model's.
            let plain = Path::new(file).file_name().is_some_and(|last| last == file);
            if !plain {
                let file = format!("{name}: {file}").chars().take(200).collect();
                return Err(ConvertError::ShardName { index: index.to_owned(), file });
            }
            shards.entry(file).or_insert_with(|| folder.join(file));
        }
        let paths: Vec<PathBuf> = shards.into_values().collect();
        let source = Self::from_files(&paths)?;
        match listed.keys().find(|name| !source.places.contains_key(*name)) {
            Some(name) => Err(ConvertError::NotInShard { name: name.clone(), index: index.to_owned() }),
            None => Ok(source),
        }
    }

    /// Names of all tensors.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The directory's entry of a tensor.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        let (file, entry) = self.places.get(name)?;
        self.files.get(*file)?.entries().get(*entry)
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, name: &str) -> &[u8] {
        let place = self.places.get(name).and_then(|(file, _)| self.files.get(*file));
        let (Some(file), Some(entry)) = (place, self.entry(name)) else { return &[] };
        file.mapping().bytes().get(entry.range.clone()).unwrap_or(&[])
    }

    /// The mapped file of a tensor, and where in it the tensor is.
    pub fn mapped(&self, name: &str) -> Option<(Mapping, std::ops::Range<usize>)> {
        let file = self.files.get(self.places.get(name)?.0)?;
        Some((file.mapping().clone(), self.entry(name)?.range.clone()))
    }

    /// Gives back the physical memory behind a tensor.
    pub fn release(&self, name: &str) {
        if let Some((mapping, range)) = self.mapped(name) {
            mapping.release(range);
        }
    }

    /// Name of the scale of an 8-bit weight.
    pub fn scale_of(&self, name: &str) -> Result<String, ConvertError> {
        let stem = name.strip_suffix("weight").unwrap_or(name);
        let names: Vec<String> = SCALES.iter().map(|scale| format!("{stem}{scale}")).collect();
        let found = names.iter().find(|name| self.has(name)).cloned();
        found.ok_or_else(|| ConvertError::MissingScale {
            name: name.to_owned(),
            expected: names.first().cloned().unwrap_or_default(),
        })
    }

    /// The half-precision format that most of the weights have: whether more bytes are BF16 than F16.
    pub fn prefers_bfloat(&self) -> bool {
        let bytes = |format: Format| -> usize {
            let entries = self.files.iter().flat_map(|file| file.entries());
            entries.filter(|entry| entry.format == format).map(|entry| entry.range.len()).sum()
        };
        let eight_bits = bytes(Format::F8E4m3) + bytes(Format::F8E5m2);
        bytes(Format::Bf16) + eight_bits > bytes(Format::F16)
    }
}

/// The safetensors files of a folder without an index, in order of their names.
fn found(folder: &Path) -> Result<Vec<PathBuf>, ConvertError> {
    let io = |source| ConvertError::Io { path: folder.to_owned(), source };
    let mut paths = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".safetensors") && !name.starts_with("adapter_") && path.is_file() {
            paths.insert(path);
        }
    }
    Ok(paths.into_iter().collect())
}
