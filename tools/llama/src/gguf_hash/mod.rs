//! `llama gguf-hash`: hashes of a file's tensors, and checks against a list of them.

mod digests;

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{console, files, interrupt, pages};
use digests::{Hasher, Sha1, Xxh64};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};
use puna_gguf::{File, OpenOptions};
use sha2::Digest;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Flags of `gguf-hash`.
pub const SPEC: Spec<Config> = Spec {
    name: "gguf-hash",
    tool: ToolSet::GGUF_HASH,
    about: "Print hashes of the tensors of a model file and of all their data (xxh64 unless told otherwise), or check them \
            against a list (--check FILE)",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "FILE",
        help: "Model file",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// Kinds of hashes, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Xxh64,
    Sha1,
    Sha256,
}

const KINDS: [Kind; 3] = [Kind::Xxh64, Kind::Sha1, Kind::Sha256];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Xxh64 => "xxh64",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    fn start(self) -> Hasher {
        match self {
            Self::Xxh64 => Hasher::Xxh64(Xxh64::new()),
            Self::Sha1 => Hasher::Sha1(Sha1::new()),
            Self::Sha256 => Hasher::Sha256(sha2::Sha256::new()),
        }
    }
}

/// The name space of identifiers of model files.
const NAME_SPACE: [u8; 16] =
    [0xef, 0x00, 0x12, 0x06, 0xda, 0xdc, 0x5f, 0x6d, 0xa1, 0x5f, 0x33, 0x59, 0xe5, 0x77, 0xd4, 0xe5];

/// Bytes hashed at once.
const PART: usize = 1 << 22;

/// One line: kind, hash, and what was hashed.
struct Line {
    kind: &'static str,
    hash: String,
    name: String,
}

/// `llama gguf-hash`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let [path] = config.positional.as_slice() else { return Err(invocation.usage("expected FILE")) };
    let flags = &config.gguf_hash;
    let chosen = [(flags.xxh64, Kind::Xxh64), (flags.sha1, Kind::Sha1), (flags.sha256, Kind::Sha256)];
    let mut kinds: Vec<Kind> =
        chosen.iter().filter(|(on, _)| *on || flags.all).map(|(_, kind)| *kind).collect();
    let file = File::open(Path::new(path), &OpenOptions::default())?;
    file.warnings().iter().for_each(|warning| console.warn(&warning.to_string()));
    interrupt::install();
    let Some(manifest) = &flags.check else {
        if kinds.is_empty() && !flags.uuid {
            kinds.push(Kind::Xxh64);
        }
        let lines = hash(&file, path, &kinds, !flags.no_layer, flags.uuid)?;
        let mut text = String::new();
        for line in lines {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:8}  {}  {}", line.kind, line.hash, line.name);
        }
        return pages::print(text.as_bytes());
    };
    check(&file, path, manifest, &kinds, !flags.no_layer)
}

/// Hashes of each tensor, then of everything.
fn hash(file: &File, path: &str, kinds: &[Kind], tensors: bool, uuid: bool) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    let mut whole: Vec<(Kind, Hasher)> = kinds.iter().map(|kind| (*kind, kind.start())).collect();
    let mut identifier = Sha1::new();
    identifier.update(&NAME_SPACE);
    for tensor in file.tensors.iter() {
        let mut own: Vec<(Kind, Hasher)> =
            if tensors { kinds.iter().map(|kind| (*kind, kind.start())).collect() } else { Vec::new() };
        for part in file.bytes(tensor).chunks(PART) {
            own.iter_mut().chain(&mut whole).for_each(|(_, hasher)| hasher.update(part));
            if uuid {
                identifier.update(part);
            }
        }
        for (kind, hasher) in own {
            let name = format!("{path}:{}", console::printable(&tensor.name, usize::MAX));
            lines.push(Line { kind: kind.name(), hash: hasher.finish(), name });
        }
        file.release(tensor);
    }
    for (kind, hasher) in whole {
        lines.push(Line { kind: kind.name(), hash: hasher.finish(), name: path.to_owned() });
    }
    if uuid {
        lines.push(Line { kind: "uuid", hash: version_5(identifier.finish()), name: path.to_owned() });
    }
    Ok(lines)
}

/// An identifier of version 5 from a hash.
fn version_5(digest: [u8; 20]) -> String {
    let mut text = String::new();
    for (index, byte) in digest.into_iter().take(16).enumerate() {
        let byte = match index {
            6 => (byte & 0x0f) | 0x50,
            8 => (byte & 0x3f) | 0x80,
            _ => byte,
        };
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Compares with a list, by the kinds that were asked for or else the strongest one in it.
fn check(file: &File, path: &str, manifest: &Path, asked: &[Kind], tensors: bool) -> Result<(), Failure> {
    let mut listed: BTreeMap<(String, String), String> = BTreeMap::new();
    for line in files::read_text(manifest, files::PROMPT)?.lines() {
        let mut words = line.splitn(3, char::is_whitespace);
        let (Some(kind), Some(rest)) = (words.next(), line.split_once(char::is_whitespace)) else { continue };
        let rest = rest.1.trim_start();
        if let Some((hash, name)) = rest.split_once(char::is_whitespace) {
            listed.insert((kind.to_owned(), name.trim().to_owned()), hash.to_owned());
        }
    }
    let found: Vec<Kind> =
        KINDS.into_iter().rev().filter(|kind| listed.keys().any(|(name, _)| name == kind.name())).collect();
    let best = found
        .first()
        .copied()
        .ok_or_else(|| Failure::Failed(format!("{} lists no hashes of known kinds", manifest.display())))?;
    let kinds = if asked.is_empty() { vec![best] } else { asked.to_vec() };
    let names: Vec<&str> = found.iter().map(|kind| kind.name()).collect();
    let mut text = format!("manifest  {}  {}\n", manifest.display(), names.join("  "));
    let mut failed = 0;
    for line in hash(file, path, &kinds, tensors, false)? {
        let result = match listed.get(&(line.kind.to_owned(), line.name.clone())) {
            Some(hash) if *hash == line.hash => "Ok",
            Some(_) => "Mismatch",
            None => "Not Found",
        };
        failed += usize::from(result != "Ok");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:8}  {}  {}  -  {result}", line.kind, line.hash, line.name);
    }
    let result = if failed == 0 { "Success" } else { "Failure" };
    let _ = write!(text, "\nVerification results for {} - {result}\n", manifest.display());
    pages::print(text.as_bytes())?;
    match failed {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} hashes differ from {}", manifest.display()))),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn identifiers_have_version_and_variant() {
        let text = super::version_5([0xff; 20]);
        assert_eq!(text, "ffffffff-ffff-5fff-bfff-ffffffffffff");
    }
}
