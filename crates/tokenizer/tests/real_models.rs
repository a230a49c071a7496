//! The starter models' tokenizers against recorded token ids, and their speed.
#![allow(clippy::print_stdout)] // counts and skipped files

mod common;

use common::{above, load_file, shared};
use serde_json::Value;

#[test]
fn prompts_have_the_recorded_tokens() {
    for name in ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"] {
        let Some(model) = above(&format!("models/{name}.gguf")) else { continue };
        let Some(recorded) = shared(&format!("real/{name}.json")) else { continue };
        let start = std::time::Instant::now();
        let tokenizer = load_file(&model);
        println!("{name}: {} tokens loaded in {:?}", tokenizer.vocabulary().len(), start.elapsed());
        let recorded: Value = serde_json::from_str(&std::fs::read_to_string(recorded).unwrap()).unwrap();
        let mut checked = 0;
        for case in recorded.as_array().unwrap() {
            let prompt = case["prompt"].as_str().unwrap();
            let expected: Vec<u32> =
                case["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(tokenizer.encode(prompt, true, true), expected, "{name}: {prompt:?}");
            checked += 1;
        }
        assert!(checked > 0);
        println!("{name}: {checked} prompts");

        let Some(text) = shared("real/text.txt") else { continue };
        let text = std::fs::read_to_string(text).unwrap();
        let start = std::time::Instant::now();
        let tokens = tokenizer.encode(&text, false, false);
        let elapsed = start.elapsed();
        println!("{name}: {} bytes, {} tokens in {elapsed:?}", text.len(), tokens.len());
        assert_eq!(String::from_utf8(tokenizer.decode(&tokens, false)).unwrap(), text);
        assert!(elapsed.as_secs() < 2);
    }
}

/// What `tests/tokenizers/random_strings.py` has written beside the models.
#[test]
fn random_strings_equal_those_of_tokenizers() {
    for name in ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"] {
        let Some(model) = above(&format!("models/{name}.gguf")) else { continue };
        let Some(recorded) = above(&format!("models/{name}.random.json")) else { continue };
        let tokenizer = load_file(&model);
        let recorded: Value = serde_json::from_str(&std::fs::read_to_string(recorded).unwrap()).unwrap();
        let texts = recorded["texts"].as_array().unwrap();
        let mut different = Vec::new();
        for (text, ids) in texts.iter().zip(recorded["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let ids: Vec<u32> =
                ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let found = tokenizer.encode(text, false, false);
            if found != ids {
                different.push(format!("{text:?}: {found:?}, expected {ids:?}"));
            }
        }
        println!("{name}: {} of {} random strings", texts.len() - different.len(), texts.len());
        assert!(texts.len() >= 1000);
        assert!(
            different.is_empty(),
            "{name}: {} differ\n{}",
            different.len(),
            different[..different.len().min(5)].join("\n")
        );
    }
}
