//! Cut, random and hostile files: an error or a file, never a panic.

mod common;

use common::{Image, fixtures};
use puna_gguf::{File, Header, hostile};

fn touch(file: &File) -> usize {
    file.tensors.iter().map(|tensor| file.bytes(tensor).len()).sum()
}

#[test]
fn every_cut_is_called_truncated() {
    let full = Image::good().bytes();
    for length in 0..full.len() - 26 {
        let error = File::from_bytes(full[..length].to_vec()).expect_err("a cut file");
        assert!(error.to_string().contains("truncated"), "{length}: {error}");
    }
    // The header alone is whole as soon as the last entry is.
    let header = Image::good().header();
    let parsed = Header::parse(&header).expect("a header without data");
    assert_eq!(parsed.tensors.len(), 2);
    assert_eq!(parsed.data_offset, header.len() as u64);
}

#[test]
fn random_bytes_never_panic() {
    let good = Image::good().bytes();
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut refused = 0;
    for _ in 0..5000 {
        let mut bytes = good.clone();
        for _ in 0..1 + next() % 4 {
            let place = next() % bytes.len();
            bytes[place] = match next() % 3 {
                0 => next() as u8,
                1 => bytes[place] ^ (1 << (next() % 8)),
                _ => [0, 1, 0x7f, 0x80, 0xff][next() % 5],
            };
        }
        match File::from_bytes(bytes) {
            Ok(file) => {
                assert_eq!(touch(&file), file.tensors.iter().map(|tensor| tensor.byte_len() as usize).sum())
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!((1000..5000).contains(&refused), "{refused} of 5000 were refused");
}

fn check_hostile(good: &[u8], least: usize) {
    let mut names = std::collections::HashSet::new();
    for (name, bytes) in hostile::cases(good).expect("a good file") {
        let start = std::time::Instant::now();
        let result = File::from_bytes(bytes);
        // Generous: the machine may be busy. A loop over a huge count would take far longer.
        assert!(start.elapsed().as_secs() < 5, "{name} took {:?}", start.elapsed());
        match (&result, name.split_once('/').expect("a group").0) {
            (Ok(_), "structure" | "truncate") => panic!("{name} was accepted"),
            (Err(error), "truncate") => assert!(error.to_string().contains("truncated"), "{name}: {error}"),
            (Err(error), "key" | "tokenizer" | "template" | "shape") if !name.starts_with("key/split") => {
                panic!("{name} is well-formed, but: {error}")
            }
            _ => {}
        }
        assert!(names.insert(name.clone()), "{name} occurs twice");
    }
    assert!(names.len() >= least, "only {} cases", names.len());
}

#[test]
fn hostile_cases_of_a_small_file() {
    check_hostile(&Image::good().bytes(), 300);
}

#[test]
#[allow(clippy::print_stderr)]
fn hostile_cases_of_a_model() {
    let Some(folder) = fixtures("zoo/headers") else { return };
    let mut bytes = std::fs::read(folder.join("llama-gqa4-tied.header")).expect("a header");
    let end = Header::parse(&bytes)
        .expect("a header")
        .tensors
        .iter()
        .last()
        .map(|last| last.file_offset() + last.byte_len());
    bytes.resize(end.expect("tensors") as usize, 0);
    let count = hostile::cases(&bytes).expect("a good file").size_hint().0;
    eprintln!("{count} cases");
    assert!((400..=800).contains(&count), "{count} cases");
    check_hostile(&bytes, 400);
}

#[test]
fn hostile_cases_are_the_same_each_time() {
    let good = Image::good().bytes();
    let all = || hostile::cases(&good).expect("a good file").filter(|(_, bytes)| bytes.len() < 1 << 18);
    assert!(all().eq(all()));
}
