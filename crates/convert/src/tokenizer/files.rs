//! The files of a tokenizer.

use std::path::Path;

use serde_json::Value;

use crate::config::{read, read_json};
use crate::{Config, ConvertError};

/// Most bytes of a vocabulary.
const MOST: u64 = 1 << 28;

/// A folder with a tokenizer.
pub(crate) struct Files<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) config: &'a Config,
    /// What the user says about the pre-tokenizer.
    pub(crate) pre_tokenizer: Option<&'a str>,
}

impl Files<'_> {
    /// A JSON file, if it is there.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Value>, ConvertError> {
        let path = self.folder.join(name);
        if path.is_file() { read_json(&path).map(Some) } else { Ok(None) }
    }

    /// Any file, if it is there.
    pub(crate) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ConvertError> {
        let path = self.folder.join(name);
        if path.is_file() { read(&path, MOST).map(Some) } else { Ok(None) }
    }

    /// A text file, if it is there.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<String>, ConvertError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| ConvertError::Tokenizer { file: name, reason: "it is not UTF-8".into() })
    }
}
