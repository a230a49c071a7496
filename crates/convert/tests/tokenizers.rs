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

/// Numbers by chance, always the same ones.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below.max(1)
    }
}

/// Changes one value somewhere in a JSON document.
fn damage(value: &mut Value, random: &mut Random) {
    let inside = random.below(12) > 0;
    let count = match &*value {
        Value::Array(items) if inside => items.len(),
        Value::Object(members) if inside => members.len(),
        _ => 0,
    };
    if count > 0 {
        let place = random.below(count);
        match value {
            Value::Array(items) if random.below(20) == 0 => drop(items.remove(place)),
            Value::Array(items) => damage(&mut items[place], random),
            Value::Object(members) => {
                let key = members.keys().nth(place).expect("it is there").clone();
                match random.below(20) {
                    0 => drop(members.remove(&key)),
                    _ => damage(members.get_mut(&key).expect("it is there"), random),
                }
            }
            _ => {}
        }
        return;
    }
    let deep = (0..100).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
    let choices = [
        Value::Null,
        Value::from(true),
        Value::from(-1),
        Value::from(0),
        Value::from(u64::MAX),
        Value::from(1e300),
        Value::from(""),
        Value::from("\u{0}(\\"),
        Value::from("(".repeat(5_000)),
        Value::from("(a{9999}){9999}"),
        Value::from("a".repeat(3_000)),
        Value::from(Vec::<Value>::new()),
        serde_json::json!({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?i:"}}]}),
        serde_json::json!({"type": "BPE"}),
        deep,
    ];
    *value = choices[random.below(choices.len())].clone();
}

/// Files that somebody damaged are refused or used, and both soon.
#[test]
fn damaged_tokenizers_do_no_harm() {
    let mut random = Random(7);
    let (mut used, mut refused) = (0, 0);
    for name in ["gpt-2", "llama3", "qwen2", "starcoder", "bert", "unigram"] {
        let target = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(folder(name)).expect("the folder is there") {
            let path = entry.expect("an entry").path();
            let copy = target.path().join(path.file_name().expect("a name"));
            std::fs::copy(&path, copy).expect("it is copied");
        }
        let path = target.path().join("tokenizer.json");
        let text = std::fs::read_to_string(&path).expect("it is there");
        let sound: Value = serde_json::from_str(&text).expect("it is JSON");
        for round in 0..150 {
            let mut bytes = text.clone().into_bytes();
            if round % 5 == 0 {
                for _ in 0..1 + random.below(4) {
                    let place = random.below(bytes.len());
                    bytes[place] = random.below(256) as u8;
                }
                bytes.truncate(if round % 10 == 0 { random.below(bytes.len()) } else { bytes.len() });
            } else {
                let mut changed = sound.clone();
                (0..1 + random.below(3)).for_each(|_| damage(&mut changed, &mut random));
                bytes = changed.to_string().into_bytes();
            }
            std::fs::write(&path, &bytes).expect("it is written");
            let start = std::time::Instant::now();
            let options = Options { vocabulary_only: true, ..Options::default() };
            let opened = Conversion::open(target.path(), &options);
            let tokenizer = opened.ok().and_then(|opened| Tokenizer::from_metadata(&opened.metadata).ok()?);
            match tokenizer {
                Some(tokenizer) => {
                    used += 1;
                    let ids = tokenizer.encode("Hello, w\u{f6}rld! 123  \u{6f22}\n</s>", true, true);
                    tokenizer.decode(&ids, true);
                }
                None => refused += 1,
            }
            let elapsed = start.elapsed();
            assert!(
                elapsed.as_secs() < 5,
                "{name} {round}: {elapsed:?}\n{:.300}",
                String::from_utf8_lossy(&bytes)
            );
        }
    }
    assert!(used > 100 && refused > 100, "{used} used, {refused} refused");
}
