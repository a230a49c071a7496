//! Faults that users of other engines reported about tokenizers; the tests are named after their numbers. Expected ids are
//! those of Hugging Face's `tokenizers` with the same vocabulary.
#![allow(clippy::print_stdout)] // skipped files

mod common;

use std::time::{Duration, Instant};

use common::{load_file, shared};
use puna_gguf::{File, Metadata, Value};
use puna_tokenizer::{Decoder, Role, Token, Tokenizer};

fn load(name: &str) -> Option<Tokenizer> {
    shared(&format!("vocab/ggml-vocab-{name}.gguf")).map(|path| load_file(&path))
}

/// A vocabulary of the fixtures after a change of its metadata.
fn changed(name: &str, change: impl FnOnce(&mut Metadata)) -> Option<Tokenizer> {
    let path = shared(&format!("vocab/ggml-vocab-{name}.gguf"))?;
    let mut metadata = File::header(&path).unwrap().metadata;
    change(&mut metadata);
    Some(Tokenizer::from_metadata(&metadata).unwrap().unwrap())
}

fn id(tokenizer: &Tokenizer, text: &str) -> Token {
    tokenizer.vocabulary().find(text).unwrap_or_else(|| panic!("{text:?} is no token"))
}

#[test]
fn t01_user_defined_tokens_leave_the_next_word_alone() {
    // As Nous-Hermes-2-Mixtral: Llama's tokenizer with two more tokens.
    let add = |metadata: &mut Metadata| {
        let mut tokens = metadata.string_array("tokenizer.ggml.tokens").unwrap().to_vec();
        let mut kinds = metadata.optional_i32_array("tokenizer.ggml.token_type").unwrap().unwrap();
        let mut scores = metadata.optional_f32_array("tokenizer.ggml.scores").unwrap().unwrap();
        for text in ["<|im_end|>", "<|im_start|>"] {
            tokens.push(text.to_owned());
            kinds.push(4);
            scores.push(0.0);
        }
        metadata.set("tokenizer.ggml.tokens", tokens);
        metadata.set("tokenizer.ggml.token_type", kinds);
        metadata.set("tokenizer.ggml.scores", scores);
    };
    let Some(tokenizer) = changed("llama-spm", add) else { return };
    // The word with the prefix, as `tokenizers` has it, not the bare one (1792).
    assert_eq!((id(&tokenizer, "▁user"), id(&tokenizer, "user")), (1404, 1792));
    assert_eq!(tokenizer.encode("<|im_start|>user", false, true), [32_001, 1404]);
    assert_eq!(tokenizer.encode("<|im_start|>user", false, false), [32_001, 1404]);
}

#[test]
fn t03_no_space_after_special_tokens_without_a_prefix() {
    let Some(tokenizer) = load("gemma-4") else { return };
    let expected = ["<pad>", "text", "<eos>"].map(|text| id(&tokenizer, text));
    assert_eq!(tokenizer.encode("<pad>text<eos>", false, true), expected);
    let no_prefix = |metadata: &mut Metadata| drop(metadata.set("tokenizer.ggml.add_space_prefix", false));
    let Some(tokenizer) = changed("llama-spm", no_prefix) else { return };
    let expected = ["<s>", "text", "</s>"].map(|text| id(&tokenizer, text));
    assert_eq!(tokenizer.encode("<s>text</s>", false, true), expected);
}

#[test]
fn t05_spaces_after_special_tokens() {
    let Some(tokenizer) = load("llama-spm") else { return };
    for (text, ids) in [
        ("hi</s> there", &[7251, 2, 29_871, 727][..]),
        ("hi</s>  there", &[7251, 2, 259, 727]),
        ("<s> <s> x", &[1, 259, 1, 29_871, 921]),
    ] {
        assert_eq!(tokenizer.encode(text, false, true), ids, "{text:?}");
    }
}

#[test]
fn t06_gemma_4_is_as_its_own_file_has_it() {
    let Some(tokenizer) = load("gemma-4") else { return };
    let text = "Hello world! Café déjà vu — 123 😊";
    let ids =
        [9259, 1902, 236_888, 62_367, 29_234, 11_042, 2192, 236_743, 236_770, 236_778, 236_800, 103_453];
    assert_eq!(tokenizer.encode(text, false, false), ids);
}

#[test]
fn t07_added_tokens_outrank_merges() {
    let Some(tokenizer) = load("deepseek-coder") else { return };
    assert_eq!(tokenizer.encode("Führer", false, false), [37, 32_009, 71, 6247]);
}

/// Every kind of tokenizer: from the fixtures where they have one, else small ones.
fn every_kind() -> Vec<(&'static str, Tokenizer)> {
    let mut all = Vec::new();
    for name in [
        "llama-spm",
        "llama-bpe",
        "qwen2",
        "qwen35",
        "gemma-4",
        "bert-bge",
        "deepseek-llm",
        "falcon",
        "gpt-2",
    ] {
        all.extend(load(name).map(|tokenizer| (name, tokenizer)));
    }
    let gpt4o = |metadata: &mut Metadata| drop(metadata.set("tokenizer.ggml.pre", "gpt-4o"));
    all.extend(changed("llama-bpe", gpt4o).map(|tokenizer| ("gpt-4o", tokenizer)));
    for model in ["t5", "rwkv", "plamo2", "llama", "bert"] {
        let texts =
            ["<unk>", "<s>", "</s>", "▁", "a", "aa", "aaaa", "▁a", ".", "..", "x", " ", "▁▁", "Z", "ZZ"];
        let mut metadata = Metadata::new();
        metadata.set("tokenizer.ggml.model", model);
        metadata.set("tokenizer.ggml.tokens", texts.map(str::to_owned).to_vec());
        metadata.set("tokenizer.ggml.scores", (0..15).map(|index| -1.0 - index as f32).collect::<Vec<f32>>());
        metadata.set("tokenizer.ggml.token_type", [&[2, 3, 3][..], &[1; 12]].concat());
        metadata.set("tokenizer.ggml.unknown_token_id", 0u32);
        all.push((model, Tokenizer::from_metadata(&metadata).unwrap().unwrap()));
    }
    all
}

/// Long runs of one character, in a thread with little stack.
fn long_runs(runs: &'static [(&'static str, usize)], limit: Duration) {
    let work = move || {
        for (name, tokenizer) in every_kind() {
            for (text, count) in runs {
                let text = text.repeat(*count);
                // The better of two: other programs may run beside.
                let times = [(); 2].map(|()| {
                    let start = Instant::now();
                    let tokens = tokenizer.encode(&text, false, true);
                    assert!(
                        !tokens.is_empty() || text.trim().is_empty() || name.starts_with("bert"),
                        "{name}"
                    );
                    start.elapsed()
                });
                let best = times.into_iter().min().unwrap();
                assert!(best < limit, "{name}, {count} characters: {best:?}");
            }
        }
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn t09_long_runs_of_one_class_on_a_small_stack() {
    const RUNS: &[(&str, usize)] =
        &[("a", 30_000), (".", 30_000), (" ", 30_000), ("漢", 30_000), ("\n", 30_000), ("\u{301}", 30_000)];
    long_runs(RUNS, Duration::from_millis(100));
}

#[test]
fn t10_long_runs_of_capitals() {
    const RUNS: &[(&str, usize)] = &[("A", 43_000), ("Z", 131_072)];
    long_runs(RUNS, Duration::from_millis(400));
}

#[test]
fn t13_accents_are_no_other_words() {
    let Some(tokenizer) = load("bert-bge") else { return };
    let unknown = tokenizer.vocabulary().role(Role::Unknown).unwrap();
    let ids = |text: &str| tokenizer.encode(text, false, false);
    assert_eq!(ids("Hokkaidō"), ids("Hokkaido"));
    assert_eq!(ids("Hokkaidō"), [20_826]);
    assert_eq!(ids("Müller Straße"), [12_304, 2358, 27_807]);
    assert!(!ids("Hokkaidō Müller Straße").contains(&unknown));
}

#[test]
fn t14_slavic_names() {
    let Some(tokenizer) = load("bert-bge") else { return };
    for (text, ids) in [
        ("Gospić", &[2175, 13_102, 2594][..]),
        ("Filipović", &[10_882, 15_000, 9142]),
        ("Lučko", &[6735, 2080]),
        ("Krstić", &[1047, 12_096, 2594]),
    ] {
        assert_eq!(tokenizer.encode(text, false, false), ids, "{text}");
    }
}

#[test]
fn t16_decoding_cleans_nothing_up() {
    let Some(tokenizer) = load("llama-bpe") else { return };
    assert_eq!(tokenizer.decode(&[1232, 364, 1874], false), b"': 'search");
    for text in ["hello !", "x != y", "a . b", "don 't", " ,", "do n't"] {
        let tokens = tokenizer.encode(text, false, false);
        assert_eq!(tokenizer.decode(&tokens, false), text.as_bytes());
    }
}

#[test]
fn t17_white_space_survives() {
    for name in ["llama-spm", "phi-3", "llama-bpe", "gemma-4", "deepseek-coder", "starcoder"] {
        let Some(tokenizer) = load(name) else { continue };
        for count in 1..=200 {
            let code = format!("def f():\n{}if x:\n{}y\t= 1", " ".repeat(count), "\t".repeat(count % 9));
            for text in [" ".repeat(count), "\t".repeat(count), code] {
                let tokens = tokenizer.encode(&text, false, false);
                assert_eq!(String::from_utf8(tokenizer.decode(&tokens, false)).unwrap(), text, "{name}");
                let mut decoder = Decoder::new(&tokenizer, false);
                let streamed: String = tokens.iter().map(|token| decoder.push(*token)).collect();
                assert!((streamed + &decoder.finish()).ends_with(&text), "{name}");
            }
        }
    }
}

#[test]
fn t21_white_space_beside_added_tokens() {
    let Some(tokenizer) = load("phi-3") else { return };
    let tokens = tokenizer.encode("<|user|>This is a test<|end|>\n<|assistant|>", false, true);
    assert_eq!(tokens, [32_010, 910, 338, 263, 1243, 32_007, 32_001]);
}

#[test]
fn t22_every_token_that_ends_a_turn() {
    // The file names <|end_of_text|>, and its template ends turns with <|eot_id|>.
    let set =
        |metadata: &mut Metadata| drop(metadata.set("tokenizer.ggml.eos_token_id", Value::from(128_001u32)));
    let Some(tokenizer) = changed("llama-bpe", set) else { return };
    let vocabulary = tokenizer.vocabulary();
    assert_eq!(vocabulary.eos(), Some(128_001));
    for token in [128_001, 128_009] {
        assert!(vocabulary.is_end_of_generation(token), "{token}: {:?}", vocabulary.text(token));
    }
}
