//! The prompt that the flags give.

use crate::failure::Failure;
use crate::files;
use crate::tokenize::unescape;
use puna_flags::Config;

/// The prompt's bytes: of a file, used as they are; of a text file without its last line break; of the flag.
pub fn bytes(config: &Config) -> Result<Option<Vec<u8>>, Failure> {
    let prompt = &config.prompt;
    if let Some(path) = &prompt.binary_file {
        return files::read(path).map(Some);
    }
    let mut text = match (&prompt.file, &prompt.text) {
        (Some(path), _) => files::read(path)?,
        (None, Some(text)) => text.clone().into_bytes(),
        (None, None) => return Ok(None),
    };
    if prompt.file.is_some() && text.last() == Some(&b'\n') {
        text.pop();
    }
    Ok(Some(if prompt.escape { unescape(&text) } else { text }))
}

/// The prompt as a message. Bytes that are no text are replaced.
pub fn text(config: &Config) -> Result<Option<String>, Failure> {
    let text = bytes(config)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(text.filter(|text| !text.trim().is_empty()))
}
