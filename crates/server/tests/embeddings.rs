//! Embeddings and ranks over HTTP, on zoo models.

mod common;

use std::sync::Arc;
use std::time::Instant;

use common::{Client, options, scripted, start};
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_chat::Template;
use puna_conformance::zoo;
use puna_engine::{Engine, EngineOptions};
use puna_gguf::{Array, Metadata, Value as Stored};
use puna_runtime::{Model, ModelOptions, OutputRows, Placement, Pooling, Purpose};
use puna_server::{Defaults, Embeds, Facts, Residence, Served, Server};
use puna_tokenizer::Tokenizer;
use serde_json::{Value, json};

/// A vocabulary of WordPiece letters.
fn words() -> Tokenizer {
    let mut tokens: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(str::to_owned).to_vec();
    tokens.extend(('a'..='z').map(|letter| format!("\u{2581}{letter}")));
    tokens.extend(('a'..='z').map(String::from));
    tokens.extend((tokens.len()..128).map(|index| format!("[unused{index}]")));
    let mut metadata = Metadata::new();
    for (key, value) in [
        ("tokenizer.ggml.model", Stored::String("bert".into())),
        ("tokenizer.ggml.tokens", Stored::Array(Array::String(tokens))),
        ("tokenizer.ggml.unknown_token_id", Stored::U32(1)),
        ("tokenizer.ggml.cls_token_id", Stored::U32(2)),
        ("tokenizer.ggml.seperator_token_id", Stored::U32(3)),
    ] {
        metadata.set(key, value);
    }
    Tokenizer::from_metadata(&metadata).unwrap().unwrap()
}

fn client(name: &str, pooling: Pooling) -> (Client, zoo::EmbeddingModel) {
    client_with(name, pooling, |options| options)
}

fn client_with(
    name: &str,
    pooling: Pooling,
    change: impl FnOnce(ModelOptions) -> ModelOptions,
) -> (Client, zoo::EmbeddingModel) {
    let zoo = zoo::embedding_models().into_iter().find(|zoo| zoo.name == name).unwrap();
    let backend: Arc<dyn Backend> = Arc::new(Reference);
    let options = ModelOptions {
        context: 64,
        sequences: 2,
        micro_batch: 64,
        purpose: Purpose::Embed(Some(pooling)),
        ..ModelOptions::default()
    };
    let options = change(options);
    let file = Arc::new(zoo.open());
    let backends = std::slice::from_ref(&backend);
    let model = Model::load(file, backends, &Placement::default(), &options, &mut |_| true).unwrap();
    let embeds = Embeds {
        width: model.information().width as usize,
        per_token: model.embedded_rows() == Some(OutputRows::All),
        ranks: pooling == Pooling::Rank,
        normalize: 2,
    };
    let engine =
        Engine::start(model, EngineOptions { step_tokens: options.micro_batch, ..EngineOptions::default() })
            .unwrap();
    let served = Served {
        engine: Residence::new(engine),
        tokenizer: words(),
        template: Template::parse("{{ messages[0].content }}", "", "").unwrap(),
        facts: Facts { name: "zoo".into(), ..Facts::default() },
        defaults: Defaults::default(),
        embeds: Some(embeds),
        adapters: Vec::new(),
        switchable: false,
    };
    (Client::new(Server::start(served, common::options()).unwrap()), zoo)
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn normalized(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    row.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

fn near(found: &[f32], right: &[f32]) {
    let error = puna_conformance::normalised_squared_error(found, right);
    assert!(error < 1e-6, "{error:e}");
}

#[test]
fn openai_embeddings() {
    let (client, zoo) = client("bert", Pooling::Cls);
    let recorded: Vec<Vec<f32>> = zoo.recorded["cls"].chunks(128).map(normalized).collect();
    let reply = client.post("/v1/embeddings", json!({"input": zoo.batch, "model": "any"})).ok();
    assert_eq!(reply["object"], "list");
    assert_eq!(reply["model"], "zoo");
    assert_eq!(reply["usage"], json!({"prompt_tokens": 40, "total_tokens": 40}));
    for index in 0..3 {
        let entry = &reply["data"][index];
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(index)));
        near(&numbers(&entry["embedding"]), &recorded[index + 1]);
    }
    // One list of ids is one text; base64 holds the same numbers.
    let one = client.post("/v1/embeddings", json!({"input": zoo.tokens, "encoding_format": "base64"})).ok();
    let text = one["data"][0]["embedding"].as_str().unwrap();
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u32> =
        text.trim_end_matches('=').chars().map(|letter| letters.find(letter).unwrap() as u32).collect();
    let bytes: Vec<u8> = bits
        .chunks(4)
        .flat_map(|group| {
            let all = group.iter().fold(0, |all, six| all << 6 | six) << (6 * (4 - group.len()));
            all.to_be_bytes()[1..group.len()].to_vec()
        })
        .collect();
    let floats: Vec<f32> =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    near(&floats, &recorded[0]);
    // Fewer dimensions are of length 1 again.
    let short = client.post("/v1/embeddings", json!({"input": zoo.tokens, "dimensions": 5})).ok();
    near(&numbers(&short["data"][0]["embedding"]), &normalized(&recorded[0][..5]));
    // Texts, in the peer's shape.
    let native = client.post("/embedding", json!({"content": ["ab c", "d"]})).ok();
    assert_eq!(native.as_array().unwrap().len(), 2);
    let listed = client.post("/v1/embeddings", json!({"input": ["ab c", {"content": "d"}]})).ok();
    near(&numbers(&native[1]["embedding"][0]), &numbers(&listed["data"][1]["embedding"]));
    assert_eq!(listed["usage"]["prompt_tokens"], 5 + 3);
    // Many at once get their own.
    std::thread::scope(|scope| {
        for index in 0..8 {
            let (client, zoo, recorded) = (&client, &zoo, &recorded);
            scope.spawn(move || {
                let text = &zoo.batch[index % 3];
                let reply = client.post("/v1/embeddings", json!({"input": text})).ok();
                near(&numbers(&reply["data"][0]["embedding"]), &recorded[index % 3 + 1]);
            });
        }
    });
}

#[test]
fn a11_long_texts_are_embedded_or_refused_with_both_numbers() {
    // Steps of 16 tokens; a model whose tokens see earlier ones only takes longer texts in several.
    let (client, zoo) =
        client_with("qwen3-embedding", Pooling::Last, |options| ModelOptions { micro_batch: 16, ..options });
    let whole =
        numbers(&client.post("/v1/embeddings", json!({"input": zoo.tokens})).ok()["data"][0]["embedding"]);
    assert!(zoo.tokens.len() > 16);
    near(&whole, &normalized(&zoo.recorded["last"][..whole.len()]));
    let refused = client.post("/v1/embeddings", json!({"input": vec![7; 65]}));
    let body = refused.json()["error"].clone();
    assert_eq!((&body["n_prompt_tokens"], &body["n_ctx"]), (&json!(65), &json!(64)), "{body}");
    refused.error(400, "exceed_context_size_error");
    // One whose tokens see later ones needs the text in one step, and says which flag makes it longer.
    let (whole, _) =
        client_with("bert", Pooling::Mean, |options| ModelOptions { micro_batch: 16, ..options });
    let refused = whole.post("/v1/embeddings", json!({"input": vec![7; 17]}));
    let message = refused.error(400, "exceed_context_size_error");
    assert!(message.contains("17") && message.contains("16") && message.contains("-b"), "{message}");
    whole.post("/v1/embeddings", json!({"input": vec![7; 16]})).ok();
}

#[test]
fn a12_every_pooling_takes_every_kind_of_input() {
    for (name, pooling) in [
        ("bert", Pooling::Mean),
        ("bert", Pooling::Cls),
        ("bert", Pooling::Last),
        ("qwen3-embedding", Pooling::Last),
        ("neo-bert", Pooling::None),
    ] {
        let (client, _) = client(name, pooling);
        let ask = |input: Value| {
            let reply = client.post("/embeddings", json!({"input": input})).ok();
            let rows = reply.as_array().unwrap().iter();
            rows.map(|row| row["embedding"].as_array().unwrap().iter().map(numbers).collect())
                .collect::<Vec<Vec<Vec<f32>>>>()
        };
        let alone = ask(json!("ab c"));
        let length = |row: &Vec<f32>| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let one = pooling != Pooling::None;
        assert!(alone[0].len() == 1 || !one, "{name} {pooling:?}");
        assert!(alone[0].iter().all(|row| (length(row) - 1.0).abs() < 1e-5), "{name} {pooling:?}");
        let ids =
            client.post("/tokenize", json!({"content": "ab c", "add_special": true})).ok()["tokens"].clone();
        for (input, place) in [(json!(["d", "ab c"]), 1), (ids.clone(), 0), (json!([[5, 6], ids]), 1)] {
            let found = ask(input.clone());
            for (found, expected) in found[place].iter().zip(&alone[0]) {
                let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-5, "{name} {pooling:?} {input}: {worst}");
            }
        }
    }
}

#[test]
fn embeddings_that_are_refused() {
    let (client, zoo) = client("bert", Pooling::Mean);
    for (body, part) in [
        (json!({}), "'input'"),
        (json!({"input": []}), "at least one text"),
        (json!({"input": null}), "'input'"),
        (json!({"input": [[]]}), "empty"),
        (json!({"input": [1, 500]}), "500"),
        (json!({"input": {"content": [{"type": "image_url"}]}}), "text"),
        (json!({"input": "a", "encoding_format": "hex"}), "float or base64"),
        (json!({"input": "a", "dimensions": 0}), "'dimensions'"),
        (json!({"input": "a", "dimensions": 129}), "'dimensions'"),
        (json!({"input": vec!["a"; 2049]}), "2049"),
    ] {
        let message = client.post("/v1/embeddings", body.clone()).error(400, "invalid_request_error");
        assert!(message.contains(part), "{body}: {message}");
    }
    let long = client.post("/v1/embeddings", json!({"input": vec![7; 65]}));
    let message = long.error(400, "exceed_context_size_error");
    assert!(message.contains("65") && message.contains("64"), "{message}");
    for (path, body) in [
        ("/completion", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
    ] {
        client.post(path, body).error(501, "not_supported_error");
    }
    // And it goes on.
    client.post("/v1/embeddings", json!({"input": zoo.tokens})).ok();
    let text = start(scripted(64, 1), options());
    assert!(
        text.post("/v1/embeddings", json!({"input": "a"}))
            .error(501, "not_supported_error")
            .contains("--embeddings")
    );
}

#[test]
fn without_pooling_every_token_has_a_row() {
    let (client, zoo) = client("neo-bert", Pooling::None);
    client.post("/v1/embeddings", json!({"input": zoo.tokens})).error(400, "invalid_request_error");
    let reply = client.post("/embeddings", json!({"input": zoo.tokens, "embd_normalize": -1})).ok();
    let rows = reply[0]["embedding"].as_array().unwrap();
    assert_eq!(rows.len(), 24);
    let found: Vec<f32> = rows.iter().flat_map(numbers).collect();
    near(&found, &zoo.recorded["none"][..24 * 128]);
}

#[test]
fn a13_ranks_in_both_shapes() {
    let (client, _) = client("jina-bert-v2-rerank", Pooling::Rank);
    let documents = ["x y", "abc", "q"];
    let reply = client.post("/v1/rerank", json!({"query": "abc", "documents": documents})).ok();
    let results = reply["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(results.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{reply}");
    assert!(reply["usage"]["prompt_tokens"].as_u64().unwrap() > 3 * 6);
    let bare = client
        .post("/rerank", json!({"query": "abc", "texts": documents, "return_text": true, "top_n": 2}))
        .ok();
    assert_eq!(bare.as_array().unwrap().len(), 2);
    assert_eq!(bare[0]["index"], results[0]["index"]);
    assert_eq!(bare[0]["text"], documents[bare[0]["index"].as_u64().unwrap() as usize]);
    // Order does not depend on company.
    let index = results[2]["index"].as_u64().unwrap() as usize;
    let alone = client.post("/reranking", json!({"query": "abc", "documents": [documents[index]]})).ok();
    assert!((alone["results"][0]["relevance_score"].as_f64().unwrap() - scores[2]).abs() < 1e-5);
    let shares =
        client.post("/rerank", json!({"query": "abc", "documents": documents, "normalize": true})).ok();
    let share = shares["results"][0]["relevance_score"].as_f64().unwrap();
    assert!((share - 1.0 / (1.0 + (-scores[0]).exp())).abs() < 1e-5);
    for body in [
        json!({"documents": documents}),
        json!({"query": 1, "documents": documents}),
        json!({"query": "a", "documents": []}),
        json!({"query": "a", "documents": [1]}),
        json!({"query": "a", "documents": documents, "top_n": 0}),
    ] {
        client.post("/rerank", body).error(400, "invalid_request_error");
    }
}

#[test]
fn the_openai_package_reads_them() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/embeddings/openai_client.py");
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let there = std::process::Command::new(&python).args(["-c", "import openai"]).output();
    if !there.is_ok_and(|found| found.status.success()) {
        println!("skipped: {python} has no package openai");
        return;
    }
    let (client, _) = client("bert", Pooling::Cls);
    let base = format!("http://{}/v1", client.address());
    let found = std::process::Command::new(&python).args([script, &base]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let embeddings: Value = serde_json::from_slice(&found.stdout).unwrap();
    let listed = client.post("/v1/embeddings", json!({"input": ["ab c", "d"]})).ok();
    for index in 0..2 {
        near(&numbers(&embeddings[index]), &numbers(&listed["data"][index]["embedding"]));
    }
}

#[test]
fn texts_of_clients_that_leave_are_not_embedded() {
    for (name, pooling, path) in
        [("bert", Pooling::Mean, "/v1/embeddings"), ("jina-bert-v2-rerank", Pooling::Rank, "/rerank")]
    {
        // A text a step, and more texts than anybody would wait for.
        let (client, _) = client_with(name, pooling, |options| ModelOptions { micro_batch: 16, ..options });
        let body = |count: usize| {
            let texts = vec!["a b c d e f g h i"; count];
            match path {
                "/rerank" => json!({"query": "a", "documents": texts}),
                _ => json!({"input": texts}),
            }
        };
        let start = Instant::now();
        client.post(path, body(40)).ok();
        let each = start.elapsed() / 40;
        let open = client.leave_open(path, body(1500));
        std::thread::sleep(10 * each);
        drop(open);
        let start = Instant::now();
        client.post(path, body(1)).ok();
        let waited = start.elapsed();
        assert!(waited < 300 * each, "{path}: {waited:?}, a text takes {each:?}");
    }
}
