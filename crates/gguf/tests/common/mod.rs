//! A byte-level builder, independent of the crate's writer, and the places of fixtures.
#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};

/// A length and the bytes.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// A value: type id and payload.
pub fn value(id: u32, payload: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes()[..], payload].concat()
}

/// An array value.
pub fn array(element: u32, count: u64, payload: &[u8]) -> Vec<u8> {
    value(9, &[&element.to_le_bytes()[..], &count.to_le_bytes(), payload].concat())
}

/// A directory entry.
#[derive(Clone)]
pub struct Entry {
    pub name: Vec<u8>,
    pub dimensions: Vec<u64>,
    pub format: u32,
    pub offset: u64,
}

/// A file in parts.
#[derive(Clone)]
pub struct Image {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub key_count: Option<u64>,
    pub keys: Vec<(Vec<u8>, Vec<u8>)>,
    pub tensors: Vec<Entry>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Image {
    /// A good file: three keys, an f32 tensor of 2 x 4 and a q8_0 tensor of 3 x 32 (102 bytes, padded to 128).
    pub fn good() -> Self {
        let tokens = [string(b"<s>"), string("\u{e9}".as_bytes()), string(b"")].concat();
        let entry = |name: &[u8], dimensions: &[u64], format, offset| Entry {
            name: name.to_vec(),
            dimensions: dimensions.to_vec(),
            format,
            offset,
        };
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            key_count: None,
            keys: vec![
                (b"general.architecture".to_vec(), value(8, &string(b"llama"))),
                (b"llama.block_count".to_vec(), value(4, &2u32.to_le_bytes())),
                (b"tokenizer.ggml.tokens".to_vec(), array(8, 3, &tokens)),
            ],
            tensors: vec![
                entry(b"token_embd.weight", &[4, 2], 0, 0),
                entry(b"blk.0.attn_q.weight", &[32, 3], 8, 32),
            ],
            alignment: 32,
            data: (0..160u32).map(|index| if index < 134 { index as u8 } else { 0 }).collect(),
        }
    }

    /// The file's bytes up to its data.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.key_count.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            out.extend(string(key));
            out.extend(value);
        }
        for entry in &self.tensors {
            out.extend(string(&entry.name));
            out.extend((entry.dimensions.len() as u32).to_le_bytes());
            out.extend(entry.dimensions.iter().flat_map(|extent| extent.to_le_bytes()));
            out.extend(entry.format.to_le_bytes());
            out.extend(entry.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        [self.header(), self.data.clone()].concat()
    }

    /// The good file after a change.
    pub fn changed(change: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut image = Self::good();
        change(&mut image);
        image.bytes()
    }
}

/// A folder of the project's fixtures or else of the shared ones, or `None` with a printed reason.
pub fn fixtures(folder: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(folder);
    if own.is_dir() {
        return Some(own);
    }
    beside_the_project(&format!("shared/fixtures/{folder}"))
}

/// A folder that lies beside the project, or beside the folder of its worktrees; `None` with a printed reason.
#[allow(clippy::print_stderr)] // tests say what they skip
pub fn beside_the_project(folder: &str) -> Option<PathBuf> {
    let places = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(3).map(|place| place.join(folder));
    let found = places.into_iter().find(|path| path.is_dir());
    if found.is_none() {
        eprintln!("skipped: there is no {folder} beside the project");
    }
    found
}

/// The files of a folder with this extension, sorted.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.extension().is_some_and(|own| own == extension))
        .collect();
    files.sort();
    files
}
