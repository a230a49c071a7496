//! The hub's interface, and the cache folder: which models it holds and where.

use crate::choose::{self, RemoteFile};
use crate::download::{Origin, Wanted, download, hex};
use crate::error::Error;
use crate::http::{self, Request};
use crate::name::{self, Repository};
use crate::{Event, Observer, Options};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use ureq::Agent;

/// Answers longer than this are no list of files.
const MOST_LISTING: u64 = 32 << 20;

/// Models from the network and from the cache folder.
pub struct Hub {
    pub(crate) options: Options,
    pub(crate) agent: Agent,
}

/// A model in the cache folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cached {
    /// Name by which it can be had again: `user/model/file` or an address.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
}

#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    siblings: Vec<Sibling>,
    sha: Option<String>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Hub {
    /// With these options.
    pub fn new(options: Options) -> Result<Self, Error> {
        let agent = http::agent(options.connect_timeout, options.proxy.as_deref())?;
        Ok(Self { options, agent })
    }

    /// Makes sure that the cache has a model of the hub and returns its files, the first part first: the one
    /// called `file`, or the one of the repository's number format.
    pub fn pull(
        &self,
        repository: &Repository,
        file: Option<&str>,
        observe: Observer<'_>,
    ) -> Result<Vec<PathBuf>, Error> {
        let id = repository.id();
        let choose = |files: &[RemoteFile]| match file {
            Some(file) => choose::named(&id, files, file),
            None => choose::choose(&id, files, repository.quant()),
        };
        let folder = self.folder(repository);
        let in_folder = |files: Vec<RemoteFile>| -> Result<Vec<PathBuf>, Error> {
            files.iter().map(|file| name::join(&folder, &file.name)).collect()
        };
        let cached = || choose(&cached_files(&folder)).ok().and_then(|files| in_folder(files).ok());
        if self.options.offline {
            return cached().ok_or_else(|| Error::Offline { what: describe(repository, file) });
        }
        let (files, revision) = match self.list(&id) {
            Ok(listing) => listing,
            Err(error) if error.is_unreachable() => {
                let paths = cached().ok_or_else(|| clone_unreachable(&error))?;
                // A note cannot be cancelled: nothing is under way.
                let _ = observe(Event::Note(&format!("{error}; using the copy in the cache folder")));
                return Ok(paths);
            }
            Err(error) => return Err(error),
        };
        let chosen = choose(&files)?;
        for file in &chosen {
            let url = format!("{}/{id}/resolve/{revision}/{}", self.endpoint(), escaped(&file.name));
            let wanted = Wanted {
                name: &file.name,
                url: &url,
                token: self.options.token.as_deref(),
                size: file.size,
                sha256: file.sha256.clone(),
            };
            download(&self.agent, &wanted, &name::join(&folder, &file.name)?, observe)?;
        }
        in_folder(chosen)
    }

    /// Makes sure that the cache has the file at an address, with all parts if it is one of a split model, and
    /// returns them, the first part first.
    pub fn fetch(&self, url: &str, observe: Observer<'_>) -> Result<Vec<PathBuf>, Error> {
        let parsed = http::parse(url)?;
        let (before, query) = url.split_once('?').map_or((url, ""), |(before, query)| (before, query));
        let before = before.split('#').next().unwrap_or(before);
        let bad = |reason: &str| Error::BadUrl { url: url.to_owned(), reason: reason.to_owned() };
        let (folder_url, file) = before.rsplit_once('/').ok_or_else(|| bad("it names no file"))?;
        if file.is_empty() || !parsed.path().contains('/') || folder_url.ends_with(":/") {
            return Err(bad("it names no file"));
        }
        let key = hex(&Sha256::digest(folder_url.as_bytes()));
        let folder = self.options.cache.join("url").join(&key[..16]);
        let mut paths = Vec::new();
        for part in choose::part_names(file) {
            let path = name::join(&folder, &part)?;
            let query = if query.is_empty() { String::new() } else { format!("?{query}") };
            let url = format!("{folder_url}/{part}{query}");
            if self.options.offline && Origin::of(&path).is_none() {
                return Err(Error::Offline { what: url });
            }
            // The token belongs to the hub; other servers never see it.
            let token =
                self.options.token.as_deref().filter(|_| url.starts_with(&format!("{}/", self.endpoint())));
            let wanted = Wanted { name: &part, url: &url, token, size: None, sha256: None };
            download(&self.agent, &wanted, &path, observe)?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// The models in the cache folder, by name.
    pub fn cached(&self) -> Vec<Cached> {
        let mut all = Vec::new();
        for kind in ["hub", "url", "starter"] {
            let root = self.options.cache.join(kind);
            for name in walk(&root) {
                let path = root.join(&name);
                let Some(origin) = Origin::of(&path) else { continue };
                let name = if kind == "hub" { name } else { origin.url };
                all.push(Cached { name, path, size: origin.size });
            }
        }
        all.sort_by(|left, right| left.name.cmp(&right.name));
        all
    }

    fn folder(&self, repository: &Repository) -> PathBuf {
        self.options.cache.join("hub").join(repository.user()).join(repository.model())
    }

    pub(crate) fn endpoint(&self) -> &str {
        self.options.endpoint.trim_end_matches('/')
    }

    /// The files of a repository and the revision that has them.
    fn list(&self, id: &str) -> Result<(Vec<RemoteFile>, String), Error> {
        let url = format!("{}/api/models/{id}/revision/main?blobs=true", self.endpoint());
        let token = self.options.token.as_deref();
        let mut answer =
            http::get(&self.agent, &Request { url: &url, what: id, token, from: 0, unchanged: None })?;
        let bad = |reason: String| Error::Protocol { what: id.to_owned(), reason };
        let text = answer
            .body
            .with_config()
            .limit(MOST_LISTING)
            .read_to_vec()
            // A connection that breaks here is no other case than a server that cannot be reached.
            .map_err(|error| match http::parse(&url) {
                Ok(url) => http::failed(&url, id, error),
                Err(error) => error,
            })?;
        let listing: Listing = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let plain = |sha: &String| !sha.is_empty() && sha.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let revision = listing.sha.filter(plain).unwrap_or_else(|| "main".to_owned());
        let mut files = Vec::new();
        for sibling in listing.siblings {
            let lfs = sibling.lfs.unwrap_or(Lfs { sha256: None, size: None });
            let sha256 = lfs.sha256.as_deref().map(name::digest).transpose()?;
            files.push(RemoteFile { name: sibling.rfilename, size: lfs.size.or(sibling.size), sha256 });
        }
        Ok((files, revision))
    }
}

/// The same failure once more: errors of the system cannot be copied, and these are none.
fn clone_unreachable(error: &Error) -> Error {
    match error {
        Error::Status { what, status } => Error::Status { what: what.clone(), status: *status },
        Error::Connection { host, reason } => {
            Error::Connection { host: host.clone(), reason: reason.clone() }
        }
        other => Error::Connection { host: String::new(), reason: other.to_string() },
    }
}

fn describe(repository: &Repository, file: Option<&str>) -> String {
    match (file, repository.quant()) {
        (Some(file), _) => format!("{} of {}", file, repository.id()),
        (None, Some(quant)) => format!("{}:{quant}", repository.id()),
        (None, None) => repository.id(),
    }
}

/// Bytes that an address cannot hold as they are.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn cached_files(folder: &Path) -> Vec<RemoteFile> {
    let known = |name: String| {
        let origin = Origin::of(&folder.join(&name))?;
        Some(RemoteFile { name, size: Some(origin.size), sha256: Some(origin.sha256) })
    };
    walk(folder).into_iter().filter_map(known).collect()
}

/// Names of all files below a folder, with slashes; not deeper than names in the cache can be.
fn walk(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![(String::new(), 0)];
    while let Some((prefix, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(root.join(&prefix)) else { continue };
        for entry in entries.flatten() {
            let Ok(file) = entry.file_name().into_string() else { continue };
            let name = if prefix.is_empty() { file } else { format!("{prefix}/{file}") };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < 12 => folders.push((name, depth + 1)),
                Ok(kind) if kind.is_file() => names.push(name),
                _ => {}
            }
        }
    }
    names.sort();
    names
}
