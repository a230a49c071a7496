//! The prompt that the flags give.

use crate::failure::Failure;
use crate::files::{self, PROMPT};
use crate::tokenize::unescape;
use puna_flags::Config;

/// The prompt: of a file, used as it is; of a text file without its last line break; of the flag. What is not
/// UTF-8 is refused.
pub fn given(config: &Config) -> Result<Option<String>, Failure> {
    let prompt = &config.prompt;
    if let Some(path) = &prompt.binary_file {
        return files::read_text(path, PROMPT).map(Some);
    }
    let (mut text, name) = match (&prompt.file, &prompt.text) {
        (Some(path), _) => (files::read_text(path, PROMPT)?, path.display().to_string()),
        (None, Some(text)) => (text.clone(), "-p".to_string()),
        (None, None) => return Ok(None),
    };
    if prompt.file.is_some() && text.ends_with('\n') {
        text.pop();
    }
    if prompt.escape {
        // Escapes name bytes, which may be no text.
        text = files::text(unescape(text.as_bytes()), &format!("{name}, escapes replaced"))?;
    }
    Ok(Some(text))
}

/// The prompt as a message: nothing if it is blank.
pub fn message(config: &Config) -> Result<Option<String>, Failure> {
    Ok(given(config)?.filter(|text| !text.trim().is_empty()))
}
