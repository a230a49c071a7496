//! Text for tokenizers of every kind: a small one, and those of the shared vocabularies if they are there.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use puna_gguf::{Array, File, Metadata, Value};
use puna_tokenizer::{Decoder, Tokenizer};

static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();

fn small() -> Option<Tokenizer> {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["\u{2581}", "ab", "a", "b", "<|x|>"].map(str::to_owned));
    let mut kinds = vec![6; tokens.len()];
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    kinds[259..263].fill(1);
    kinds[263] = 4;
    let mut metadata = Metadata::new();
    for (key, value) in [
        ("tokenizer.ggml.model", Value::String("llama".into())),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()]))),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.unknown_token_id", Value::U32(0)),
    ] {
        metadata.set(key, value);
    }
    Tokenizer::from_metadata(&metadata).ok()?
}

fn tokenizers() -> &'static [Tokenizer] {
    TOKENIZERS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/vocab");
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf"));
        let read = |path: std::path::PathBuf| Tokenizer::from_metadata(&File::header(&path).ok()?.metadata).ok()?;
        small().into_iter().chain(files.filter_map(read)).collect()
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else { return };
    let all = tokenizers();
    let tokenizer = &all[*first as usize / 2 % all.len()];
    let tokens = tokenizer.encode_bytes(text, false, first & 1 == 1);
    let whole = tokenizer.decode(&tokens, true);
    // Piece by piece it is the same text.
    let mut decoder = Decoder::new(tokenizer, true);
    let mut pieces: String = tokens.iter().map(|token| decoder.push(*token)).collect();
    pieces.push_str(&decoder.finish());
    assert_eq!(pieces, String::from_utf8_lossy(&whole));
});
