//! Names from outside, checked once: nothing that passes here can leave the cache folder.

use crate::error::Error;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A repository of the hub, and which of its files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repository {
    user: String,
    model: String,
    quant: Option<String>,
}

impl Repository {
    /// Owner.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Name without the owner.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The part after the colon: a number format such as `Q4_K_M`.
    pub fn quant(&self) -> Option<&str> {
        self.quant.as_deref()
    }

    /// `user/model`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.user, self.model)
    }
}

impl FromStr for Repository {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let bad = || Error::BadRepository { name: name.to_owned() };
        let (id, quant) = match name.split_once(':') {
            // `:latest` is what other tools call the default.
            Some((id, "latest")) => (id, None),
            Some((id, quant)) => (id, Some(quant)),
            None => (name, None),
        };
        let (user, model) = id.split_once('/').ok_or_else(bad)?;
        let fits = |part: &str| {
            part.len() <= 96
                && !part.starts_with(['.', '-'])
                && !part.is_empty()
                && part.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
        };
        if !fits(user) || !fits(model) || !quant.is_none_or(fits) {
            return Err(bad());
        }
        Ok(Self { user: user.to_owned(), model: model.to_owned(), quant: quant.map(str::to_owned) })
    }
}

/// Joins a file name of a repository, which may have folders, to a folder of the cache.
pub(crate) fn join(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let parts: Vec<&str> = name.split('/').collect();
    let fits = |part: &&str| {
        !part.is_empty()
            && part.len() <= 240
            && !part.starts_with('.')
            && !part.chars().any(|letter| letter.is_control() || "\\:*?\"<>|%".contains(letter))
    };
    if parts.len() > 8 || !parts.iter().all(fits) {
        return Err(Error::UnsafeName { name: name.to_owned() });
    }
    Ok(parts.iter().fold(folder.to_owned(), |path, part| path.join(part)))
}

/// A SHA-256 digest in lower-case hexadecimal.
pub(crate) fn digest(text: &str) -> Result<String, Error> {
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(Error::BadDigest { digest: text.chars().take(100).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories() {
        let parsed: Repository = "ggml-org/gemma-3:Q8_0".parse().unwrap();
        assert_eq!((parsed.user(), parsed.model(), parsed.quant()), ("ggml-org", "gemma-3", Some("Q8_0")));
        assert_eq!("a/b:latest".parse::<Repository>().unwrap().quant(), None);
        for wrong in [
            "", "a", "a/", "/b", "../b", "a/..", "a/b/c", "a/b:", "a/b:../x", "a/b%2fc", "a\\b/c", "a/b:c/d",
            "~/b", "a/.b",
        ] {
            assert!(wrong.parse::<Repository>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_stay_in_the_folder() {
        let folder = Path::new("cache");
        assert_eq!(join(folder, "Q4/m.gguf").unwrap(), Path::new("cache/Q4/m.gguf"));
        for wrong in
            ["", "..", "../x", "a/../../x", "/etc/x", "a//b", "..%2fx", "a\\b", "C:x", ".hidden", "a/\0"]
        {
            assert!(join(folder, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn digests() {
        assert_eq!(digest(&"A".repeat(64)).unwrap(), "a".repeat(64));
        for wrong in ["", "sha256:../../x", &"g".repeat(64), &"a".repeat(63)] {
            assert!(digest(wrong).is_err(), "{wrong}");
        }
    }
}
