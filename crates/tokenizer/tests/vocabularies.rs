//! Real vocabularies against the token ids of their original tokenizers.
#![allow(clippy::print_stdout)] // counts and skipped files

mod common;

use common::{load_file, shared};
use puna_tokenizer::{Decoder, Tokenizer};

/// The tokenizer of a GGUF file in the shared fixtures, if they are there.
fn load(path: &str) -> Option<Tokenizer> {
    shared(path).map(|path| load_file(&path))
}

/// Texts of the `.inp` file and token ids of the `.out` file.
fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
    let path = shared(&format!("vocab/ggml-vocab-{name}.gguf.inp")).unwrap();
    let input = std::fs::read_to_string(&path).unwrap();
    let output = std::fs::read_to_string(path.with_extension("out")).unwrap();
    // Most of the files end with a separator, one does not.
    let input = input.strip_suffix("\n__ggml_vocab_test__\n").unwrap_or(&input);
    let texts: Vec<_> = input.split("\n__ggml_vocab_test__\n").collect();
    let ids: Vec<Vec<u32>> =
        output.lines().map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect();
    assert_eq!(texts.len(), ids.len());
    texts.into_iter().map(str::to_owned).zip(ids).collect()
}

fn check(name: &str) {
    let Some(tokenizer) = load(&format!("vocab/ggml-vocab-{name}.gguf")) else { return };
    let cases = cases(name);
    let mut failures = Vec::new();
    for (text, expected) in &cases {
        let found = tokenizer.encode(text, false, false);
        if found != *expected {
            failures.push(format!("{text:?}: {found:?}, expected {expected:?}"));
        }
    }
    println!("{name}: {} of {} texts", cases.len() - failures.len(), cases.len());
    assert!(failures.is_empty(), "{name}: {} of {}\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// Decoding gives back every text, at once and token by token.
fn check_round_trip(tokenizer: &Tokenizer, text: &str) {
    let tokens = tokenizer.encode(text, false, false);
    assert_eq!(String::from_utf8(tokenizer.decode(&tokens, false)).unwrap(), text);
    let mut decoder = Decoder::new(tokenizer, false);
    let mut streamed: String = tokens.iter().map(|token| decoder.push(*token)).collect();
    streamed.push_str(&decoder.finish());
    let prefix = if tokenizer.vocabulary().add_space_prefix() && !text.is_empty() { " " } else { "" };
    assert_eq!(streamed, format!("{prefix}{text}"));
}

macro_rules! vocabularies {
    ($($test:ident $name:literal;)*) => {$(
        #[test]
        fn $test() {
            check($name);
        }
    )*};
}

vocabularies! {
    llama_spm "llama-spm";
    phi_3 "phi-3";
    gpt_2 "gpt-2";
    llama_bpe "llama-bpe";
    qwen2 "qwen2";
    qwen35 "qwen35";
    deepseek_coder "deepseek-coder";
    deepseek_llm "deepseek-llm";
    falcon "falcon";
    starcoder "starcoder";
    bert_bge "bert-bge";
    gemma_4 "gemma-4";
}

#[test]
fn texts_survive_the_round_trip() {
    for name in
        ["llama-spm", "phi-3", "gpt-2", "llama-bpe", "qwen2", "qwen35", "falcon", "starcoder", "gemma-4"]
    {
        let Some(tokenizer) = load(&format!("vocab/ggml-vocab-{name}.gguf")) else { continue };
        for (text, _) in cases(name) {
            check_round_trip(&tokenizer, &text);
        }
        for count in 1..=200 {
            check_round_trip(&tokenizer, &" ".repeat(count));
            check_round_trip(&tokenizer, &"\t".repeat(count));
            check_round_trip(
                &tokenizer,
                &format!("if x:\n{}y = 1{}", " ".repeat(count), "\n".repeat(count % 7)),
            );
        }
        for text in ["hello !", "x != y", "a . b", "': 'search", "don 't", "\u{10ffff}\u{1}\u{7f}"] {
            check_round_trip(&tokenizer, text);
        }
    }
}

#[test]
fn known_token_sequences() {
    if let Some(tokenizer) = load("vocab/ggml-vocab-deepseek-coder.gguf") {
        assert_eq!(tokenizer.encode("Führer", false, false), [37, 32009, 71, 6247]);
    }
    if let Some(tokenizer) = load("vocab/ggml-vocab-llama-bpe.gguf") {
        assert_eq!(tokenizer.decode(&[1232, 364, 1874], false), b"': 'search");
        let vocabulary = tokenizer.vocabulary();
        for token in [128_001, 128_009] {
            assert!(vocabulary.is_end_of_generation(token), "{token}");
        }
        assert_eq!(tokenizer.encode("a<|eot_id|>", true, true), [128_000, 64, 128_009]);
        assert!(!tokenizer.encode("a<|eot_id|>", true, false).contains(&128_009));
    }
    if let Some(tokenizer) = load("vocab/ggml-vocab-llama-spm.gguf") {
        // A user-defined or control token is followed by the space prefix again, as Hugging Face's tokenizer has it.
        let there = tokenizer.encode("there", false, true);
        assert_eq!(tokenizer.encode("</s>there", false, true), [&[2], &there[..]].concat());
        assert_eq!(tokenizer.encode("hi</s> there", true, true), [1, 7251, 2, 29871, 727]);
    }
    if let Some(tokenizer) = load("vocab/ggml-vocab-phi-3.gguf") {
        let tokens = tokenizer.encode("<|user|>This is a test<|end|>\n<|assistant|>", false, true);
        // Special tokens of Phi-3 swallow the newline behind them.
        assert_eq!(tokens, [32_010, 910, 338, 263, 1243, 32_007, 32_001]);
    }
}

#[test]
fn long_texts_are_fast_on_a_small_stack() {
    let work = || {
        for name in ["llama-spm", "llama-bpe", "qwen2", "qwen35", "gemma-4", "bert-bge", "deepseek-llm"] {
            let Some(tokenizer) = load(&format!("vocab/ggml-vocab-{name}.gguf")) else { continue };
            for (text, count) in
                [("Z", 131_072), ("a", 100_000), (".", 30_000), (" ", 30_000), ("漢", 30_000)]
            {
                let text = text.repeat(count);
                let start = std::time::Instant::now();
                let tokens = tokenizer.encode(&text, false, true);
                let elapsed = start.elapsed();
                println!("{name} {count} x {:?}: {} tokens, {elapsed:?}", text.chars().next(), tokens.len());
                assert!(elapsed.as_millis() < 1_000, "{name} {count}: {elapsed:?}");
            }
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}
