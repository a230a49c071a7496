//! Real files read completely, by each way of opening.

mod common;

use common::{beside_the_project, files, fixtures};
use puna_gguf::{File, OpenOptions, TensorSpec, write};

#[test]
fn vocabularies() {
    let Some(folder) = fixtures("vocab") else { return };
    let files = files(&folder, "gguf");
    assert_eq!(files.len(), 12);
    for path in files {
        let file = File::open(&path, &OpenOptions::default()).expect("a vocabulary");
        let tokens = file.metadata.string_array("tokenizer.ggml.tokens").expect("tokens");
        assert!(tokens.len() > 1000, "{}", path.display());
        assert_eq!(file.metadata.i32_array("tokenizer.ggml.token_type").expect("types").len(), tokens.len());
        assert!(file.warnings().is_empty(), "{}: {:?}", path.display(), file.warnings());
        assert_eq!(file.size_on_disk(), std::fs::metadata(&path).unwrap().len());
    }
}

#[test]
fn zoo_headers() {
    for (name, count) in [("zoo/headers", 182), ("zoo/headers-embedding", 26)] {
        let Some(folder) = fixtures(name) else { return };
        let files = files(&folder, "header");
        assert_eq!(files.len(), count, "{name}");
        for path in files {
            let header = File::header(&path).expect("a header");
            assert!(!header.tensors.is_empty());
            let architecture = header.metadata.str("general.architecture").expect("an architecture");
            header.metadata.u32(&format!("{architecture}.block_count")).expect("layers");
            // The data is absent, so the file as a whole is not usable.
            let error = File::open(&path, &OpenOptions::default()).expect_err("no data");
            assert!(error.to_string().contains("truncated"), "{error}");
        }
    }
}

#[test]
fn models() {
    let Some(folder) = beside_the_project("models") else { return };
    for path in files(&folder, "gguf") {
        let mapped = File::open(&path, &OpenOptions::default()).expect("a model");
        mapped.prefetch();
        assert!(!mapped.tensors.is_empty());
        let tensor = mapped.tensors.iter().max_by_key(|tensor| tensor.byte_len()).expect("a tensor");
        let before = mapped.bytes(tensor).to_vec();
        mapped.release(tensor);
        assert!(before == mapped.bytes(tensor), "released bytes changed");
        let options = OpenOptions { mmap: false, ..OpenOptions::default() };
        let copied = File::open(&path, &options).expect("a model");
        assert!(before == copied.bytes(tensor), "read and mapped bytes differ");
        assert_eq!(mapped.bytes(tensor).as_ptr().align_offset(32), 0);
        assert_eq!(copied.bytes(tensor).as_ptr().align_offset(32), 0);
        assert_eq!(mapped.metadata, copied.metadata);
    }
}

/// Files of other tools are laid out as ours are.
#[test]
fn rewritten_vocabularies_are_the_same_bytes() {
    let Some(folder) = fixtures("vocab") else { return };
    let out = tempfile::tempdir().unwrap();
    let copy = out.path().join("copy.gguf");
    for path in files(&folder, "gguf") {
        let file = File::open(&path, &OpenOptions::default()).expect("a vocabulary");
        let tensors: Vec<_> =
            file.tensors.iter().map(|info| (TensorSpec::from(info), file.bytes(info))).collect();
        write(&copy, &file.metadata, &tensors).expect("a copy");
        let (mut original, written) = (std::fs::read(&path).unwrap(), std::fs::read(&copy).unwrap());
        // Some tools leave out the padding at the end.
        original.resize(original.len().next_multiple_of(32), 0);
        // The version is the only thing that may differ before it.
        original[4..8].copy_from_slice(&3u32.to_le_bytes());
        assert!(original == written, "{}", path.display());
    }
}
