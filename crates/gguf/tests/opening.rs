//! Opening by path: shards, odd kinds of files, options.

mod common;

use std::path::{Path, PathBuf};

use common::Image;
use puna_gguf::split::{self, ShardName};
use puna_gguf::{Error, File, Metadata, OpenOptions, TensorSpec, Warning, write};
use puna_quant::DType;

fn open(path: &Path) -> Result<File, Error> {
    File::open(path, &OpenOptions::default())
}

#[track_caller]
fn fails(path: &Path, parts: &[&str]) {
    let text = open(path).expect_err("a refusal").to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

/// Writes shard `number` of `count` with one tensor of this name, whose bytes are the number.
fn shard(
    prefix: &Path,
    number: u32,
    count: u32,
    tensor: &str,
    change: impl FnOnce(&mut Metadata),
) -> PathBuf {
    let path = split::path(prefix, number, count);
    let mut metadata = Metadata::new();
    if number == 1 {
        metadata.set("general.architecture", "llama");
    }
    metadata.set(split::KEY_NUMBER, (number - 1) as u16);
    metadata.set(split::KEY_COUNT, count as u16);
    metadata.set(split::KEY_TENSORS, count as i32);
    change(&mut metadata);
    let spec = TensorSpec { name: tensor.to_owned(), dtype: DType::I8, shape: vec![40] };
    write(&path, &metadata, &[(spec, &[number as u8; 40])]).expect("a shard");
    path
}

fn set(prefix: &Path, count: u32) -> Vec<PathBuf> {
    (1..=count).map(|number| shard(prefix, number, count, &format!("t{number}"), |_| ())).collect()
}

#[test]
fn any_shard_opens_the_set() {
    let folder = tempfile::tempdir().unwrap();
    let paths = set(&folder.path().join("a model-\u{17d}-00001-of-00002"), 3);
    for path in &paths {
        for mmap in [true, false] {
            let file = File::open(path, &OpenOptions { mmap, ..OpenOptions::default() }).expect("the set");
            assert_eq!(file.paths(), paths);
            assert_eq!(file.metadata.str("general.architecture").unwrap(), "llama");
            assert_eq!(
                file.tensors.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(),
                ["t1", "t2", "t3"]
            );
            for (index, info) in file.tensors.iter().enumerate() {
                assert_eq!(info.shard(), index);
                assert_eq!(file.bytes(info), [index as u8 + 1; 40]);
            }
            let size: u64 = paths.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
            assert_eq!(file.size_on_disk(), size);
        }
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let paths = set(&folder.path().join("model"), 3);
    std::fs::remove_file(&paths[1]).unwrap();
    fails(&paths[0], &["shard 2 of 3 is missing", "model-00002-of-00003.gguf"]);
    fails(&paths[2], &["shard 2 of 3 is missing", "model-00002-of-00003.gguf"]);
    std::fs::remove_file(&paths[0]).unwrap();
    fails(&paths[2], &["shard 1 of 3 is missing", "model-00001-of-00003.gguf"]);
}

#[test]
fn shards_that_disagree() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("model");
    let paths = set(&prefix, 2);
    shard(&prefix, 2, 2, "t1", |_| ());
    fails(&paths[0], &["\"t1\" occurs twice", "model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]);
    shard(&prefix, 2, 2, "t2", |metadata| drop(metadata.set(split::KEY_NUMBER, 0u16)));
    fails(&paths[0], &["model-00002-of-00002.gguf", "shard 2 of 2", "split.no is 0"]);
    shard(&prefix, 2, 2, "t2", |metadata| drop(metadata.set(split::KEY_COUNT, 3u16)));
    fails(&paths[0], &["split.count is 3"]);
    fails(&paths[1], &["split.count is 3"]);
    shard(&prefix, 2, 2, "t2", |metadata| drop(metadata.remove(split::KEY_NUMBER)));
    fails(&paths[0], &["model-00002-of-00002.gguf", "split.no", "missing"]);
    shard(&prefix, 2, 2, "t2", |_| ());
    shard(&prefix, 1, 2, "t1", |metadata| drop(metadata.set(split::KEY_TENSORS, 5i32)));
    fails(&paths[0], &["2 tensors", "split.tensors.count says 5"]);
    shard(&prefix, 1, 2, "t1", |metadata| drop(metadata.set(split::KEY_COUNT, "2")));
    fails(&paths[0], &["split.count", "str"]);
    // Half of shard 2 arrived.
    shard(&prefix, 1, 2, "t1", |_| ());
    let bytes = std::fs::read(&paths[1]).unwrap();
    std::fs::write(&paths[1], &bytes[..bytes.len() - 40]).unwrap();
    fails(&paths[0], &["model-00002-of-00002.gguf", "truncated"]);
}

#[test]
fn renamed_and_joined_shards() {
    let folder = tempfile::tempdir().unwrap();
    let paths = set(&folder.path().join("model"), 2);
    let renamed = folder.path().join("renamed.gguf");
    let joined = [std::fs::read(&paths[0]).unwrap(), std::fs::read(&paths[1]).unwrap()].concat();
    std::fs::write(&renamed, &joined).unwrap();
    fails(&renamed, &["shard 1 of 2", "-00001-of-00002.gguf", "not be concatenated"]);
    let error = File::from_bytes(joined).expect_err("one shard of two");
    assert!(matches!(error, Error::ShardName { number: 1, count: 2 }), "{error}");
}

#[test]
fn parts_that_were_merely_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) =
        (split::path(&folder.path().join("m"), 1, 2), split::path(&folder.path().join("m"), 2, 2));
    let full = Image::good().bytes();
    std::fs::write(&first, &full[..100]).unwrap();
    std::fs::write(&second, &full[100..]).unwrap();
    fails(&first, &["truncated", "m-00001-of-00002.gguf"]);
    fails(&second, &["not a GGUF file", "join them in order"]);
}

#[test]
fn files_can_be_shared_between_threads() {
    fn shareable<T: Send + Sync>() {}
    shareable::<File>();
    shareable::<Error>();
}

#[test]
fn one_of_one_is_a_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model-00001-of-00001.gguf", "model-00002-of-00003.gguf"] {
        let path = folder.path().join(name);
        // No split keys at all.
        std::fs::write(&path, Image::good().bytes()).unwrap();
        assert_eq!(open(&path).expect("a whole file").paths(), [path]);
    }
    let path = shard(&folder.path().join("other"), 1, 1, "t1", |_| ());
    assert_eq!(open(&path).expect("a whole file").tensors.len(), 1);
    // What a merging tool leaves.
    let path = shard(&folder.path().join("merged"), 1, 1, "t1", |metadata| {
        drop(metadata.set(split::KEY_COUNT, 0u16))
    });
    assert_eq!(open(&path).expect("a whole file").tensors.len(), 1);
}

#[test]
fn shard_names() {
    let parse = |text: &str| ShardName::parse(Path::new(text));
    let name = parse("/models-00001-of-00013/big-00007-of-00013.gguf").expect("a shard");
    assert_eq!((name.number, name.count), (7, 13));
    assert_eq!(name.sibling(1), Path::new("/models-00001-of-00013/big-00001-of-00013.gguf"));
    assert_eq!(split::path(Path::new("a/b"), 2, 12), Path::new("a/b-00002-of-00012.gguf"));
    assert_eq!(
        parse("-00001-of-00002.gguf").expect("an empty prefix").sibling(2),
        Path::new("-00002-of-00002.gguf")
    );
    for other in [
        "",
        "model.gguf",
        "model-00001-of-00013.gguf.part",
        "model-0001-of-00013.gguf",
        "model-00000-of-00013.gguf",
        "model-00014-of-00013.gguf",
        "model-+0001-of-00013.gguf",
        "model-00001-of-000\u{e9}3.gguf",
        "model_00001-of-00013.gguf",
        "model-00001-of-00013/model.gguf",
    ] {
        assert_eq!(parse(other), None, "{other}");
    }
}

#[test]
fn kinds_of_files_that_hold_no_model() {
    let folder = tempfile::tempdir().unwrap();
    fails(folder.path(), &["a directory", &folder.path().display().to_string()]);
    fails(&folder.path().join("none.gguf"), &["none.gguf", "cannot open"]);
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    fails(&empty, &["empty.gguf", "empty", "truncated"]);
    #[cfg(unix)]
    {
        fails(Path::new("/dev/zero"), &["a device"]);
        fails(Path::new("/dev/null"), &["a device"]);
        let fifo = folder.path().join("fifo");
        if std::process::Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()) {
            fails(&fifo, &["a FIFO"]);
        }
        let link = folder.path().join("link.gguf");
        let good = folder.path().join("good.gguf");
        std::fs::write(&good, Image::good().bytes()).unwrap();
        std::os::unix::fs::symlink(&good, &link).unwrap();
        open(&link).expect("a link to a good file");
        let odd = folder
            .path()
            .join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff \xe6.gguf"));
        std::fs::write(&odd, Image::good().bytes()).unwrap();
        open(&odd).expect("a name that is not UTF-8");
    }
}

#[test]
fn cut_files_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let full = Image::good().bytes();
    for length in (0..full.len() - 26).step_by(13) {
        std::fs::write(&path, &full[..length]).unwrap();
        for mmap in [true, false] {
            let error =
                File::open(&path, &OpenOptions { mmap, ..OpenOptions::default() }).expect_err("a cut file");
            let text = error.to_string();
            assert!(text.contains("truncated") && text.contains("cut.gguf"), "{length}: {text}");
        }
    }
    // Metadata and directory are readable without the data.
    std::fs::write(&path, Image::good().header()).unwrap();
    assert_eq!(File::header(&path).expect("a header").tensors.len(), 2);
}

#[test]
fn locking_and_advice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let spec = TensorSpec { name: "t".into(), dtype: DType::I8, shape: vec![1 << 18] };
    let data: Vec<u8> = (0..1 << 18).map(|index| (index % 251) as u8).collect();
    write(&path, &Metadata::new(), &[(spec, &data)]).unwrap();
    for mmap in [true, false] {
        for mlock in [true, false] {
            let file =
                File::open(&path, &OpenOptions { mmap, mlock, ..OpenOptions::default() }).expect("a file");
            let info = file.tensors.get("t").unwrap();
            file.prefetch();
            file.release(info);
            assert_eq!(file.bytes(info), data);
            // Either it was locked, or the warning says why not.
            for warning in file.warnings() {
                assert!(mlock && matches!(warning, Warning::MemoryLock { .. }), "{warning}");
            }
        }
    }
    let bytes = File::from_bytes(std::fs::read(&path).unwrap()).expect("the same file");
    let info = bytes.tensors.get("t").unwrap();
    bytes.release(info);
    assert_eq!(bytes.bytes(info), data);
    // A tensor of another file yields no bytes rather than wrong memory.
    let small = File::from_bytes(Image::good().bytes()).expect("a good file");
    assert_eq!(small.bytes(info), b"");
    small.release(info);
}

/// Memory of the pages, mapped or copied, is really given back, and they can still be read.
#[test]
#[cfg(target_os = "linux")]
fn released_pages_are_not_resident() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resident.gguf");
    let spec = TensorSpec { name: "t".into(), dtype: DType::I8, shape: vec![8 << 20] };
    write(&path, &Metadata::new(), &[(spec, &vec![1; 8 << 20])]).unwrap();
    for mmap in [true, false] {
        let file = File::open(&path, &OpenOptions { mmap, ..OpenOptions::default() }).expect("a file");
        let info = file.tensors.get("t").unwrap();
        let middle = file.bytes(info)[4 << 20..].as_ptr() as u64;
        // Of the mapping that holds the middle of the tensor.
        let resident = || {
            let maps = std::fs::read_to_string("/proc/self/smaps").expect("the memory map");
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            let holds = |line: &&str| {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let ends = range.and_then(|(start, end)| Some((number(start)?, number(end)?)));
                ends.is_some_and(|(start, end)| (start..end).contains(&middle))
            };
            let rest = maps.lines().skip_while(|line| !holds(line));
            let line = rest.into_iter().find(|line| line.starts_with("Rss:")).expect("a size");
            line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("kilobytes")
        };
        assert!(file.bytes(info).iter().all(|&byte| byte == 1));
        let before = resident();
        assert!(before >= 8 << 10, "{before} KiB after reading all");
        file.release(info);
        let after = resident();
        assert!(after <= 16, "{after} KiB of {before} are left");
        assert!(file.bytes(info).iter().all(|&byte| byte == 1));
    }
}
