//! How fast texts become tokens: `cargo run --release -p puna-tokenizer --example encode_speed VOCABULARY.gguf TEXT...`.
//!
//! The best of three runs on one thread, without loading. The hash (FNV-1a over the ids) tells whether two programs
//! found the same tokens.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use puna_gguf::File;
use puna_tokenizer::Tokenizer;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("the path of a vocabulary or a model");
    let metadata = File::header(std::path::Path::new(&path)).expect("a readable file").metadata;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_metadata(&metadata).expect("a tokenizer").expect("a tokenizer");
    println!("{} tokens, read in {:?}", tokenizer.vocabulary().len(), start.elapsed());
    for path in arguments {
        let text = std::fs::read_to_string(&path).expect("a readable text");
        let mut best = Duration::MAX;
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            tokens = tokenizer.encode(&text, false, true);
            best = best.min(start.elapsed());
        }
        let step = |hash: u64, token: &u32| (hash ^ u64::from(*token)).wrapping_mul(0x100_0000_01b3);
        let hash = tokens.iter().fold(0xcbf2_9ce4_8422_2325, step);
        let speed = text.len() as f64 / best.as_secs_f64() / 1e6;
        println!("{path}: {} tokens, {best:.3?}, {speed:.2} MB/s, hash {hash:x}", tokens.len());
    }
}
