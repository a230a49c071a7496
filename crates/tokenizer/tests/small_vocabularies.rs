//! Every tokenizer model on vocabularies small enough to read, and files that are wrong on purpose.

use puna_gguf::{Metadata, Value};
use puna_tokenizer::{Decoder, Error, Kind, Role, Token, Tokenizer};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const BYTE: i32 = 6;

fn metadata(model: &str, tokens: &[(&str, f32, i32)], more: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", model);
    metadata
        .set("tokenizer.ggml.tokens", tokens.iter().map(|token| token.0.to_owned()).collect::<Vec<String>>());
    metadata.set("tokenizer.ggml.scores", tokens.iter().map(|token| token.1).collect::<Vec<f32>>());
    metadata.set("tokenizer.ggml.token_type", tokens.iter().map(|token| token.2).collect::<Vec<i32>>());
    for (key, value) in more {
        metadata.set(*key, value.clone());
    }
    metadata
}

fn build(metadata: &Metadata) -> Tokenizer {
    Tokenizer::from_metadata(metadata).unwrap().unwrap()
}

fn strings(texts: &[&str]) -> Value {
    texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>().into()
}

fn sentencepiece() -> Metadata {
    let mut tokens = vec![("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)];
    tokens.extend([("▁", -9.0, NORMAL), ("a", -9.0, NORMAL), ("b", -9.0, NORMAL), ("ab", -1.0, NORMAL)]);
    tokens.extend([("▁a", -2.0, NORMAL), ("▁ab", -3.0, NORMAL), ("<x>", 0.0, USER), ("▁▁", -0.5, NORMAL)]);
    tokens.extend([("<0xC3>", 0.0, BYTE), ("<0xA9>", 0.0, BYTE)]);
    metadata("llama", &tokens, &[])
}

#[test]
fn sentencepiece_merges_by_score() {
    let tokenizer = build(&sentencepiece());
    assert_eq!(tokenizer.encode("ab", false, false), [8]);
    assert_eq!(tokenizer.encode("ab", true, false), [1, 8]);
    assert_eq!(tokenizer.encode(" ab", false, false), [10, 6]);
    assert_eq!(tokenizer.encode("é", false, false), [3, 11, 12]);
    assert_eq!(tokenizer.encode("漢", false, false), [3, 0, 0, 0]);
    assert_eq!(tokenizer.encode("", true, true), [1]);
    assert_eq!(tokenizer.encode_bytes(b"ab\xc3", false, false), tokenizer.encode("ab\u{fffd}", false, false));
    // A user-defined token is always found, control tokens only on request; text after either gets the prefix.
    assert_eq!(tokenizer.encode("a<x>ab</s>", false, true), [7, 9, 8, 2]);
    assert!(!tokenizer.encode("</s>", false, false).contains(&2));
    assert_eq!(tokenizer.decode(&[1, 8, 3, 11, 12, 2], false), "ab é".as_bytes());
    assert_eq!(tokenizer.decode(&[1, 8], true), b"<s> ab");
    let mut decoder = Decoder::new(&tokenizer, false);
    assert_eq!([8, 11, 12, 11].map(|token| decoder.push(token)), [" ab", "", "é", ""]);
    assert_eq!(decoder.finish(), "\u{fffd}");
    assert_eq!(tokenizer.piece(9_999, true), b"");
}

#[test]
fn byte_pairs_merge_by_rank() {
    let tokens = ["a", "b", "c", "ab", "bc", "Ġ", "abc", "<|im_end|>", "Ã", "©", "Ġa", "!"];
    let tokens = tokens.map(|text| (text, 0.0, NORMAL));
    let merges = strings(&["b c", "a b", "a bc", "Ġ a"]);
    let more = [("tokenizer.ggml.merges", merges), ("tokenizer.ggml.pre", Value::from("gpt-2"))];
    let tokenizer = build(&metadata("gpt2", &tokens, &more));
    assert_eq!(tokenizer.encode("abc", false, false), [6]);
    assert_eq!(tokenizer.encode("ab abc é", false, false), [3, 5, 6, 5, 8, 9]);
    assert_eq!(tokenizer.encode("a<|im_end|>", false, true), [0, 7]);
    assert_eq!(tokenizer.decode(&[0, 7, 10], false), b"a a");
    assert_eq!(tokenizer.decode(&[0, 7], true), b"a<|im_end|>");
    // The text gives the token away although its kind is wrong.
    let vocabulary = tokenizer.vocabulary();
    assert_eq!(vocabulary.kind(7), Some(Kind::Control));
    assert_eq!(vocabulary.role(Role::Eot), Some(7));
    assert!(vocabulary.is_end_of_generation(7));
    assert_eq!(vocabulary.bos(), Some(11));
    assert!(!vocabulary.add_bos());
}

#[test]
fn word_pieces_cover_words_from_the_left() {
    let texts = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hok", "kai", "do", "▁!", "▁漢", "▁a", "▁字", "b"];
    let tokens = texts.map(|text| (text, 0.0, NORMAL));
    let more = [
        ("tokenizer.ggml.cls_token_id", Value::from(2u32)),
        ("tokenizer.ggml.seperator_token_id", Value::from(3u32)),
        ("tokenizer.ggml.unknown_token_id", Value::from(1u32)),
    ];
    let tokenizer = build(&metadata("bert", &tokens, &more));
    assert_eq!(tokenizer.encode("Hokkaidō!", true, false), [2, 4, 5, 6, 7, 3]);
    assert_eq!(tokenizer.encode("hokkaido xyz a漢字\u{0}b", false, false), [4, 5, 6, 1, 9, 8, 10, 1]);
    assert_eq!(tokenizer.encode("ab", false, false), [9, 11]);
    assert_eq!(tokenizer.encode(&"a".repeat(101), false, false), [1]);
    let more = [&more[..], &[("tokenizer.ggml.normalizer.strip_accents", Value::from(false))]].concat();
    let tokenizer = build(&metadata("bert", &tokens, &more));
    assert_eq!(tokenizer.encode("Hokkaidō", false, false), [1]);
}

#[test]
fn unigrams_take_the_best_cut() {
    let tokens = [
        ("<pad>", 0.0, CONTROL),
        ("</s>", 0.0, CONTROL),
        ("<unk>", 0.0, UNKNOWN),
        ("▁", -2.0, NORMAL),
        ("▁a", -3.0, NORMAL),
        ("b", -4.0, NORMAL),
        ("▁ab", -9.0, NORMAL),
        ("bc", -2.0, NORMAL),
        ("c", -5.0, NORMAL),
    ];
    let more = [
        ("tokenizer.ggml.add_space_prefix", Value::from(true)),
        ("tokenizer.ggml.remove_extra_whitespaces", Value::from(true)),
    ];
    let tokenizer = build(&metadata("t5", &tokens, &more));
    assert_eq!(tokenizer.encode("abc", true, false), [4, 7, 1]);
    assert_eq!(tokenizer.encode("  ab   c ", false, false), [4, 5, 3, 8]);
    assert_eq!(tokenizer.encode("axyzb", false, false), [4, 2, 5]);
    assert_eq!(tokenizer.decode(&[4, 7], false), b"abc");
    let long = "ab".repeat(50_000);
    assert_eq!(tokenizer.encode(&long, false, false).len(), 50_000 + 50_000);
}

#[test]
fn rwkv_takes_the_longest_token() {
    let tokens = ["<s>", r"\x00", "a", "ab", "abc", r"\n", r"\xe6", r"\xbc", r"\xa2", r"\n\n"];
    let tokenizer = build(&metadata("rwkv", &tokens.map(|text| (text, 0.0, NORMAL)), &[]));
    assert_eq!(tokenizer.encode("abcab\n\n\n漢a", false, false), [4, 3, 9, 5, 6, 7, 8, 2]);
    assert_eq!(tokenizer.decode(&[4, 9, 6, 7, 8, 1], false), "abc\n\n漢\0".as_bytes());
}

#[test]
fn plamo2_takes_the_best_cut_and_writes_the_rest_in_bytes() {
    let tokens = [
        ("<|plamo:unk|>", 0.0, UNKNOWN),
        ("<|plamo:bos|>", 0.0, CONTROL),
        ("<|plamo:eos|>", 0.0, CONTROL),
        ("<|plamo:pad|>", 0.0, CONTROL),
        ("a", -2.0, NORMAL),
        ("ab", -3.0, NORMAL),
        ("b", -2.5, NORMAL),
        ("bc", -1.0, NORMAL),
        ("</s>", -1.0, NORMAL),
        ("<0xC3>", 0.0, BYTE),
        ("<0xA9>", 0.0, BYTE),
    ];
    let tokenizer = build(&metadata("plamo2", &tokens, &[]));
    assert_eq!(tokenizer.encode("abcé", false, false), [4, 7, 9, 10]);
    assert_eq!(tokenizer.encode("ab", false, false), [5]);
    // Here </s> is text.
    assert_eq!(tokenizer.vocabulary().end_of_generation_tokens().collect::<Vec<_>>(), [2]);
}

#[test]
fn end_of_generation_has_its_exceptions() {
    let texts =
        ["<|return|>", "<|call|>", "<|end|>", "<|channel|>", "a", "<|endoftext|>", "b", "<|file_sep|>"];
    let tokens = texts.map(|text| (text, 0.0, CONTROL));
    let more = [
        ("tokenizer.ggml.merges", strings(&[])),
        ("tokenizer.ggml.pre", Value::from("gpt-4o")),
        ("tokenizer.ggml.eos_token_id", Value::from(4u32)),
        ("tokenizer.ggml.suppress_tokens", vec![6i32, -1, 100].into()),
    ];
    let tokenizer = build(&metadata("gpt2", &tokens, &more));
    let vocabulary = tokenizer.vocabulary();
    assert_eq!(vocabulary.end_of_generation_tokens().collect::<Vec<Token>>(), [0, 1, 4, 5, 7]);
    assert_eq!(vocabulary.kind(2), Some(Kind::UserDefined));
    assert_eq!(tokenizer.piece(3, false), b"<|channel|>");
    assert_eq!(vocabulary.suppress_tokens(), [6]);
}

#[test]
fn ids_beyond_the_vocabulary_mean_none() {
    let mut metadata = sentencepiece();
    metadata.set("tokenizer.ggml.bos_token_id", u32::MAX);
    metadata.set("tokenizer.ggml.eos_token_id", -1i32);
    metadata.set("tokenizer.ggml.padding_token_id", 13u32);
    let tokenizer = build(&metadata);
    let vocabulary = tokenizer.vocabulary();
    assert_eq!((vocabulary.bos(), vocabulary.eos(), vocabulary.role(Role::Padding)), (None, None, None));
    assert!(!vocabulary.add_bos());
    assert_eq!(tokenizer.encode("ab", true, true), [8]);
}

#[test]
fn odd_vocabularies_work() {
    let tokens = [("", 0.0, NORMAL), ("a", f32::NAN, NORMAL), ("a", 1.0, NORMAL), ("aa", f32::INFINITY, 99)];
    let tokenizer = build(&metadata("llama", &tokens, &[("tokenizer.ggml.add_space_prefix", false.into())]));
    assert_eq!(tokenizer.vocabulary().text(0), Some("[EMPTY_0]"));
    assert_eq!(tokenizer.encode("aaa", false, true), [3, 1]);
    assert_eq!(tokenizer.decode(&[0, 2, 3], false), b"[EMPTY_0]aaa");
}

#[test]
fn files_without_a_tokenizer_have_none() {
    assert!(Tokenizer::from_metadata(&Metadata::new()).unwrap().is_none());
    for model in ["none", "no_vocab", "test"] {
        let metadata: Metadata = [("tokenizer.ggml.model", Value::from(model))].into_iter().collect();
        assert!(Tokenizer::from_metadata(&metadata).unwrap().is_none());
    }
}

#[test]
fn wrong_files_are_refused_with_the_key() {
    type Change = fn(&mut Metadata);
    let cases: [(Change, &str); 12] = [
        (|metadata| drop(metadata.set("tokenizer.ggml.model", "nonsense")), "tokenizer.ggml.model"),
        (|metadata| drop(metadata.set("tokenizer.ggml.model", 7u32)), "tokenizer.ggml.model"),
        (|metadata| drop(metadata.remove("tokenizer.ggml.tokens")), "tokenizer.ggml.tokens"),
        (
            |metadata| drop(metadata.set("tokenizer.ggml.tokens", Vec::<String>::new())),
            "tokenizer.ggml.tokens",
        ),
        (|metadata| drop(metadata.set("tokenizer.ggml.tokens", vec![1u32])), "tokenizer.ggml.tokens"),
        (|metadata| drop(metadata.set("tokenizer.ggml.scores", vec![0f32])), "tokenizer.ggml.scores"),
        (
            |metadata| drop(metadata.set("tokenizer.ggml.token_type", vec![1i32; 99])),
            "tokenizer.ggml.token_type",
        ),
        (|metadata| drop(metadata.set("tokenizer.ggml.token_type", "x")), "tokenizer.ggml.token_type"),
        (|metadata| drop(metadata.set("tokenizer.ggml.bos_token_id", "x")), "tokenizer.ggml.bos_token_id"),
        (|metadata| drop(metadata.set("tokenizer.ggml.add_bos_token", "x")), "tokenizer.ggml.add_bos_token"),
        (
            |metadata| {
                metadata.set("tokenizer.ggml.model", "gpt2");
                metadata.set("tokenizer.ggml.pre", "nonsense");
            },
            "tokenizer.ggml.pre",
        ),
        (
            |metadata| {
                metadata.set("tokenizer.ggml.model", "gpt2");
                metadata.set("tokenizer.ggml.merges", strings(&["a b", "ab"]));
            },
            "tokenizer.ggml.merges",
        ),
    ];
    for (change, key) in cases {
        let mut metadata = sentencepiece();
        change(&mut metadata);
        let error: Error = Tokenizer::from_metadata(&metadata).unwrap_err();
        assert!(error.to_string().contains(key), "{error} does not name {key}");
    }
    let mut metadata = sentencepiece();
    metadata.set("tokenizer.ggml.model", "t5");
    metadata.set("tokenizer.ggml.precompiled_charsmap", vec![255u8; 5]);
    let error = Tokenizer::from_metadata(&metadata).unwrap_err();
    assert!(error.to_string().contains("tokenizer.ggml.precompiled_charsmap"), "{error}");
}

#[test]
fn phi_3_special_tokens_swallow_whitespace_behind_them() {
    let mut metadata = sentencepiece();
    metadata.set("general.name", "Phi-3 mini");
    let tokenizer = build(&metadata);
    assert_eq!(tokenizer.encode("<x> \n ab<s> ab", false, true), [9, 8, 1, 10, 6]);
}

/// Gemma's vocabulary holds the tags of HTML; its file says that they are text, and names its own end.
#[test]
fn tags_of_html_are_what_the_file_says() {
    let mut tokens = vec![("<pad>", 0.0, CONTROL), ("<eos>", 0.0, CONTROL), ("<bos>", 0.0, CONTROL)];
    tokens.extend([("<start_of_turn>", 0.0, CONTROL), ("<end_of_turn>", 0.0, CONTROL), ("a", -1.0, NORMAL)]);
    tokens.extend([("<b>", 0.0, USER), ("</b>", 0.0, USER), ("<s>", 0.0, USER), ("</s>", 0.0, USER)]);
    let more = [
        ("tokenizer.ggml.eos_token_id", Value::from(1u32)),
        ("tokenizer.ggml.bos_token_id", Value::from(2u32)),
        ("tokenizer.ggml.add_space_prefix", Value::from(false)),
    ];
    let tokenizer = build(&metadata("llama", &tokens, &more));
    assert_eq!(tokenizer.encode("a<s>a</s><b></b>", false, false), [5, 8, 5, 9, 6, 7]);
    assert_eq!(tokenizer.vocabulary().kind(9), Some(Kind::UserDefined));
    let ends: Vec<Token> = tokenizer.vocabulary().end_of_generation_tokens().collect();
    assert_eq!(ends, [1, 4]);
    assert_eq!(tokenizer.decode(&[5, 9], false), b"a</s>");
    // Without those tags it is the end of a sequence, whatever its kind.
    tokens.retain(|token| !token.0.contains('b') || token.0.len() > 4);
    let tokenizer = build(&metadata("llama", &tokens, &more));
    let end = tokens.iter().position(|token| token.0 == "</s>").unwrap() as Token;
    assert_eq!(tokenizer.vocabulary().kind(end), Some(Kind::Control));
    assert!(tokenizer.vocabulary().is_end_of_generation(end));
}

/// Tokens that a model's makers left for others are special ones like any: one token where special tokens are read, and text that
/// is not shown.
#[test]
fn unused_tokens_are_special() {
    let tokens = [
        ("<unk>", 0.0, UNKNOWN),
        ("<unused0>", 0.0, CONTROL),
        ("<unused1>", 0.0, CONTROL),
        ("a", -1.0, NORMAL),
    ];
    let more = [("tokenizer.ggml.add_space_prefix", Value::from(false))];
    let tokenizer = build(&metadata("llama", &tokens, &more));
    assert_eq!(tokenizer.encode("<unused0>a<unused1>", false, true), [1, 3, 2]);
    assert!(!tokenizer.encode("<unused0>", false, false).contains(&1));
    assert_eq!(tokenizer.vocabulary().kind(1), Some(Kind::Control));
    assert_eq!(tokenizer.decode(&[1, 3], false), b"a");
}

/// Tokens that begin with each other make each place of a text as dear as there are such tokens: only so many count.
#[test]
fn thousands_of_tokens_within_each_other() {
    let texts: Vec<String> = (1..=4_000).map(|length| "a".repeat(length)).collect();
    for model in ["t5", "plamo2", "rwkv"] {
        let mut tokens = vec![("<unk>", 0.0, UNKNOWN), ("b", -1.0, NORMAL)];
        tokens.extend(texts.iter().map(|text| (text.as_str(), -1.0, NORMAL)));
        let unknown = [("tokenizer.ggml.unknown_token_id", Value::from(0u32))];
        let tokenizer = build(&metadata(model, &tokens, &unknown));
        assert!(tokenizer.warnings().iter().any(|line| line.contains("longer than 512 bytes")), "{model}");
        let text = "a".repeat(60_000);
        let ids = tokenizer.encode(&text, false, false);
        assert_eq!(tokenizer.decode(&ids, false), text.as_bytes(), "{model}");
        assert!((60_000 / 512..60_000 / 400).contains(&ids.len()), "{model}: {} tokens", ids.len());
    }
}
