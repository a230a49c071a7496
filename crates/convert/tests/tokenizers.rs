//! Small tokenizers with the ids that Hugging Face's libraries give (see `make_tokenizers.py`): converted and used.

use std::path::{Path, PathBuf};

use puna_convert::{Conversion, Options};
use puna_tokenizer::Tokenizer;
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/convert-tokenizer").join(name)
}

fn convert(name: &str) -> Conversion {
    let options = Options { vocabulary_only: true, ..Options::default() };
    Conversion::open(&folder(name), &options).expect("the folder is sound")
}

#[test]
fn converted_tokenizers_give_the_same_ids() {
    for (name, model, pre) in [
        ("gpt-2", "gpt2", Some("gpt-2")),
        ("llama3", "gpt2", Some("llama3")),
        ("qwen2", "gpt2", Some("qwen2")),
        ("starcoder", "gpt2", Some("starcoder")),
        ("bert", "bert", None),
        ("sentencepiece", "llama", Some("default")),
        ("unigram", "t5", Some("default")),
    ] {
        let conversion = convert(name);
        let metadata = &conversion.metadata;
        assert_eq!(metadata.str("tokenizer.ggml.model").expect("it is there"), model, "{name}");
        assert_eq!(metadata.optional_str("tokenizer.ggml.pre").expect("a text"), pre, "{name}");
        let tokenizer = Tokenizer::from_metadata(metadata).expect("it is sound").expect("it is there");
        let text = std::fs::read_to_string(folder(name).join("ids.json")).expect("the ids are there");
        let recorded: Value = serde_json::from_str(&text).expect("they are JSON");
        let texts = recorded["texts"].as_array().expect("a list");
        for (text, ids) in texts.iter().zip(recorded["ids"].as_array().expect("a list")) {
            let text = text.as_str().expect("a text");
            let ids: Vec<u32> =
                ids.as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32).collect();
            // SentencePiece alone knows no special tokens in texts.
            let special = name != "sentencepiece";
            assert_eq!(tokenizer.encode(text, true, special), ids, "{name}: {text:?}");
        }
    }
}

#[test]
fn an_unknown_pre_tokenizer_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "tokenizer.json"] {
        let text = std::fs::read_to_string(self::folder("starcoder").join(name)).expect("it is there");
        let changed = text.replace("\"Digits\"", "\"Whatever\"");
        std::fs::write(folder.path().join(name), changed).expect("it is written");
    }
    let open = |pre: Option<&str>| {
        let options =
            Options { vocabulary_only: true, pre_tokenizer: pre.map(str::to_owned), ..Options::default() };
        Conversion::open(folder.path(), &options)
    };
    let error = open(None).expect_err("it is unknown").to_string();
    assert!(error.contains("Whatever") && error.contains("--pre"), "{error}");
    assert!(open(Some("gpt-2")).is_ok());
    assert!(open(Some("no such name")).is_err());
}
