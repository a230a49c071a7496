//! Which files of a repository make up the model that was asked for.

use crate::error::Error;

/// One file of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteFile {
    /// Name with folders.
    pub name: String,
    /// Bytes, if known.
    pub size: Option<u64>,
    /// SHA-256 digest in lower-case hexadecimal, if known.
    pub sha256: Option<String>,
}

/// The number format taken when none is asked for.
const DEFAULT_QUANT: &str = "Q4_K_M";

/// The files of one model, the first part first: those of this number format; without one, Q4_K_M or else the
/// first model by name.
pub(crate) fn choose(
    repository: &str,
    files: &[RemoteFile],
    quant: Option<&str>,
) -> Result<Vec<RemoteFile>, Error> {
    let mut models: Vec<&RemoteFile> = files.iter().filter(|file| is_model(&file.name)).collect();
    models.sort_by(|left, right| left.name.cmp(&right.name));
    let with = |quant: &str| models.iter().find(|file| has_quant(&file.name, quant)).copied();
    let chosen = match quant {
        Some(quant) => with(quant),
        None => with(DEFAULT_QUANT).or(models.first().copied()),
    };
    let chosen = chosen.ok_or_else(|| no_file(repository, files, quant.unwrap_or("(*.gguf)")))?;
    parts(repository, files, &chosen.name)
}

/// The named file and, if it is part of a split model, all other parts; the first part first.
pub(crate) fn named(repository: &str, files: &[RemoteFile], name: &str) -> Result<Vec<RemoteFile>, Error> {
    if !files.iter().any(|file| file.name == name) {
        return Err(no_file(repository, files, name));
    }
    parts(repository, files, name)
}

fn parts(repository: &str, files: &[RemoteFile], name: &str) -> Result<Vec<RemoteFile>, Error> {
    let find = |name: String| match files.iter().find(|file| file.name == name) {
        Some(file) => Ok(file.clone()),
        None => Err(Error::MissingPart { repository: repository.to_owned(), name }),
    };
    part_names(name).into_iter().map(find).collect()
}

/// Names of all parts of a split model, of which `name` is one; of any other file its own name.
pub(crate) fn part_names(name: &str) -> Vec<String> {
    match split(name) {
        Some((stem, _, count)) => {
            (1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}.gguf")).collect()
        }
        None => vec![name.to_owned()],
    }
}

/// Takes `stem-00002-of-00003.gguf` apart.
fn split(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |text: &str| -> Option<u32> {
        (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let (part, count) = (number(part)?, number(count)?);
    // More parts than anybody makes would only be a way to keep us busy.
    (1..=1000).contains(&count).then_some(())?;
    (1..=count).contains(&part).then_some((stem, part, count))
}

fn is_model(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let file = lower.rsplit('/').next().unwrap_or("");
    let other = ["mmproj", "imatrix"].iter().any(|kind| file.contains(kind));
    lower.ends_with(".gguf") && !other && split(name).is_none_or(|(_, part, _)| part == 1)
}

/// True if the name has this number format as a word of its own: `Q4_K` is not in `model-Q4_K_M.gguf`.
fn has_quant(name: &str, quant: &str) -> bool {
    let (name, quant) = (name.to_ascii_uppercase(), quant.to_ascii_uppercase());
    name.match_indices(&quant).any(|(place, _)| {
        let before = name[..place].chars().next_back();
        let after = name[place + quant.len()..].chars().next();
        before.is_none_or(|letter| "-._/".contains(letter))
            && after.is_none_or(|letter| "-./".contains(letter))
    })
}

fn no_file(repository: &str, files: &[RemoteFile], wanted: &str) -> Error {
    let mut names: Vec<&str> =
        files.iter().map(|file| file.name.as_str()).filter(|name| is_model(name)).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(12);
    names.truncate(12);
    let mut available = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    if more > 0 {
        available.push_str(&format!(" and {more} more"));
    }
    Error::NoFile { repository: repository.to_owned(), wanted: wanted.to_owned(), available }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str], quant: Option<&str>) -> Result<Vec<String>, String> {
        let file = |name: &&str| RemoteFile { name: (*name).to_owned(), size: None, sha256: None };
        let files: Vec<_> = names.iter().map(file).collect();
        match choose("u/m", &files, quant) {
            Ok(files) => Ok(files.into_iter().map(|file| file.name).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn number_formats_are_words() {
        let names = [
            "m-Q4_K_S.gguf",
            "m-Q4_K_M.gguf",
            "m-q8_0.gguf",
            "mmproj-m-f16.gguf",
            "README.md",
            "m-IQ4_K_M.gguf",
        ];
        for (quant, expected) in
            [(None, "m-Q4_K_M.gguf"), (Some("Q8_0"), "m-q8_0.gguf"), (Some("q4_k_s"), "m-Q4_K_S.gguf")]
        {
            assert_eq!(chosen(&names, quant).unwrap(), [expected], "{quant:?}");
        }
        let error = chosen(&names, Some("Q4_K")).unwrap_err();
        assert_eq!(
            error,
            "u/m has no model file Q4_K; it has m-IQ4_K_M.gguf, m-Q4_K_M.gguf, m-Q4_K_S.gguf, m-q8_0.gguf"
        );
        assert!(chosen(&names, Some("f16")).is_err());
    }

    #[test]
    fn without_the_usual_format_it_is_the_first() {
        assert_eq!(chosen(&["z.gguf", "b-Q8_0.gguf"], None).unwrap(), ["b-Q8_0.gguf"]);
        assert_eq!(chosen(&["x.bin"], None).unwrap_err(), "u/m has no model file (*.gguf); it has none");
    }

    #[test]
    fn split_models_come_whole() {
        let names = ["Q8/m-Q8_0-00002-of-00002.gguf", "Q8/m-Q8_0-00001-of-00002.gguf"];
        assert_eq!(chosen(&names, Some("Q8_0")).unwrap(), [names[1], names[0]]);
        let error = chosen(&names[1..], Some("Q8_0")).unwrap_err();
        assert_eq!(error, "u/m lacks Q8/m-Q8_0-00002-of-00002.gguf, a part of the model");
        assert_eq!(part_names("m-00001-of-99999.gguf"), ["m-00001-of-99999.gguf"]);
        assert_eq!(part_names("m-00003-of-00002.gguf"), ["m-00003-of-00002.gguf"]);
    }
}
