//! Real graphs: a zoo model on the evaluator, and a real model on the CPU when there is one.

#![allow(clippy::print_stdout, reason = "says why it was skipped")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Client, served};
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_backend_cpu::{Cpu, CpuOptions};
use puna_chat::Template;
use puna_conformance::zoo;
use puna_engine::{Aids, Engine, EngineOptions, GUESSED_ROWS, NgramSettings, SpeculationSettings, proposers};
use puna_gguf::{Array, File, Metadata, OpenOptions, Value as Stored};
use puna_runtime::{Model, ModelOptions, Placement};
use puna_server::{Defaults, Facts, Residence, Served, Server};
use puna_tokenizer::Tokenizer;
use serde_json::{Value, json};

/// A vocabulary of so many tokens with one letter each.
fn letters(count: u32) -> Tokenizer {
    let text = |token: u32| char::from_u32(0x4e00 + token).unwrap().to_string();
    let mut metadata = Metadata::new();
    for (key, value) in [
        ("general.architecture", Stored::String("llama".into())),
        ("tokenizer.ggml.model", Stored::String("llama".into())),
        ("tokenizer.ggml.tokens", Stored::Array(Array::String((0..count).map(text).collect()))),
        ("tokenizer.ggml.scores", Stored::Array(Array::F32(vec![0.0; count as usize]))),
        ("tokenizer.ggml.token_type", Stored::Array(Array::I32(vec![1; count as usize]))),
        ("tokenizer.ggml.add_bos_token", Stored::Bool(false)),
        ("tokenizer.ggml.add_space_prefix", Stored::Bool(false)),
    ] {
        metadata.set(key, value);
    }
    Tokenizer::from_metadata(&metadata).unwrap().unwrap()
}

/// Four at once on this back end: the recorded prompt, and beginnings of it as they are continued alone.
fn recorded_on(backend: Arc<dyn Backend>) {
    let chosen = ["llama-dense", "gemma3-window8"];
    for zoo in zoo::models().into_iter().filter(|zoo| chosen.contains(&zoo.name.as_str())) {
        let options = ModelOptions { context: 512, sequences: 4, outputs: 4, ..ModelOptions::default() };
        let placement = Placement::default();
        let model = Model::load(
            Arc::new(zoo.open()),
            std::slice::from_ref(&backend),
            &placement,
            &options,
            &mut |_| true,
        )
        .unwrap();
        let vocabulary = model.information().vocabulary;
        let served = served(model, 16, letters(vocabulary), "");
        let client = Client::new(Server::start(served, common::options()).unwrap());
        let lengths = [zoo.tokens.len(), 1, 3, zoo.tokens.len() / 2];
        let run = &|length: usize| {
            let body = json!({
                "prompt": zoo.tokens[..length], "n_predict": zoo.greedy.len(), "temperature": 0,
                "return_tokens": true, "ignore_eos": true, "cache_prompt": false,
            });
            client.post("/completion", body).ok()["tokens"].clone()
        };
        let alone = lengths.map(run);
        assert_eq!(alone[0], json!(zoo.greedy), "{} alone on {}", zoo.name, backend.name());
        for _ in 0..3 {
            std::thread::scope(|scope| {
                let threads = lengths.map(|length| scope.spawn(move || run(length)));
                for (thread, alone) in threads.into_iter().zip(&alone) {
                    assert_eq!(&thread.join().unwrap(), alone, "{} on {}", zoo.name, backend.name());
                }
            });
        }
    }
}

#[test]
fn recorded_continuations() {
    recorded_on(Arc::new(Reference));
    recorded_on(Arc::new(Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap()));
}

/// With `deterministic` 32 equal requests at once get equal answers: cold, from the cache, and with guesses.
#[test]
fn equal_requests_get_equal_answers() {
    let zoo = zoo::models().into_iter().find(|zoo| zoo.name == "llama-dense").unwrap();
    let options = CpuOptions { threads: 2, deterministic: true, ..CpuOptions::default() };
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Cpu::new(options).unwrap())];
    let settings = SpeculationSettings {
        simple: NgramSettings { size: 1, most: 8, hits: 1 },
        ..SpeculationSettings::default()
    };
    let mut answers = Vec::new();
    for kinds in [&[][..], &["ngram-simple".to_owned()]] {
        let outputs = 8 + GUESSED_ROWS;
        let options = ModelOptions { context: 2048, sequences: 8, outputs, ..ModelOptions::default() };
        let file = Arc::new(zoo.open());
        let model = Model::load(file, &backends, &Placement::default(), &options, &mut |_| true).unwrap();
        let tokenizer = letters(model.information().vocabulary);
        let engine_options =
            EngineOptions { step_tokens: 64, store_bytes: 1 << 20, ..EngineOptions::default() };
        let proposers = proposers(kinds, &settings, None).unwrap();
        let aids = Aids { proposers, ..Aids::default() };
        let served = Served {
            engine: Residence::new(Engine::start_with(model, engine_options, aids).unwrap()),
            tokenizer,
            template: Template::parse("", "", "").unwrap(),
            facts: Facts::default(),
            defaults: Defaults::default(),
            embeds: None,
            adapters: Vec::new(),
            switchable: false,
        };
        let client = Client::new(Server::start(served, common::options()).unwrap());
        let prompt: Vec<u32> = zoo.tokens.iter().cycle().take(100).copied().collect();
        let body = json!({
            "prompt": prompt, "n_predict": 48, "temperature": 0, "return_tokens": true, "ignore_eos": true,
            "n_probs": 2,
        });
        let mut guessed = 0;
        for _ in 0..2 {
            let replies: Vec<Value> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..32).map(|_| scope.spawn(|| client.post("/completion", body.clone()).ok())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for reply in replies {
                assert_eq!(reply["timings"]["predicted_n"], 48);
                guessed += reply["timings"]["draft_n"].as_u64().unwrap_or(0);
                let parts =
                    ["content", "tokens", "completion_probabilities"].map(|name| reply[name].to_string());
                answers.push(parts.concat());
            }
        }
        assert_eq!(guessed > 0, !kinds.is_empty(), "{guessed}");
    }
    assert_eq!(answers.len(), 128);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

/// A model beside the project.
fn real_model() -> Option<PathBuf> {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.map(|folder| folder.join("models/SmolLM2-135M-Instruct.Q4_1.gguf")).find(|path| path.exists())
}

/// A server of that model, if it is there.
fn real_client() -> Option<Client> {
    let Some(path) = real_model() else {
        println!("skipped: there is no models/SmolLM2-135M-Instruct.Q4_1.gguf beside the project");
        return None;
    };
    let file = Arc::new(File::open(&path, &OpenOptions::default()).unwrap());
    let tokenizer = Tokenizer::from_metadata(&file.metadata).unwrap().unwrap();
    let source = file.metadata.optional_str("tokenizer.chat_template").unwrap().unwrap().to_owned();
    let options = CpuOptions { threads: 2, deterministic: true, ..CpuOptions::default() };
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Cpu::new(options).unwrap())];
    let options = ModelOptions { context: 4096, sequences: 4, outputs: 4, ..ModelOptions::default() };
    let model = Model::load(file, &backends, &Placement::default(), &options, &mut |_| true).unwrap();
    // A row's result does not depend on what shares its step; small steps mix requests more.
    let engine = Engine::start(model, EngineOptions { step_tokens: 7, ..EngineOptions::default() })
        .expect("the engine starts");
    let template = Template::parse(&source, "<|im_start|>", "<|im_end|>").unwrap();
    let served = Served {
        engine: Residence::new(engine),
        tokenizer,
        template,
        facts: Facts::default(),
        defaults: Defaults::default(),
        embeds: None,
        adapters: Vec::new(),
        switchable: false,
    };
    Some(Client::new(Server::start(served, common::options()).unwrap()))
}

/// The model's template knows no tools, and by itself it hardly ever calls one.
#[test]
fn a_real_model_calls_what_it_must() {
    let Some(client) = real_client() else { return };
    let function = |name: &str, properties: Value, required: Value| {
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        json!({"type": "function", "function": {"name": name, "description": name, "parameters": parameters}})
    };
    let tools = json!([
        function(
            "get_weather",
            json!({"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["celsius", "fahrenheit"]}}),
            json!(["city", "unit"])
        ),
        function(
            "add",
            json!({"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 0, "maximum": 9}}),
            json!(["a", "b"])
        ),
    ]);
    let ask = |choice: Value, more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": tools, "tool_choice": choice,
            "parallel_tool_calls": false, "max_tokens": 200,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.post("/v1/chat/completions", body)
    };
    let check = |call: &Value| {
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        match call["name"].as_str().unwrap() {
            "get_weather" => {
                assert!(arguments["city"].as_str().unwrap().chars().count() <= 30, "{arguments}");
                assert!(
                    ["celsius", "fahrenheit"].contains(&arguments["unit"].as_str().unwrap()),
                    "{arguments}"
                );
            }
            "add" => {
                assert!(
                    arguments["a"].is_i64() && (0..=9).contains(&arguments["b"].as_i64().unwrap()),
                    "{arguments}"
                );
            }
            other => panic!("{other}"),
        }
        call["name"].as_str().unwrap().to_owned()
    };
    for (temperature, seed) in [(0.0, 0), (1.0, 1), (1.0, 2), (1.5, 3)] {
        let found = ask(json!("required"), json!({"temperature": temperature, "seed": seed})).ok();
        let choice = &found["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{found}");
        assert_eq!(choice["message"]["content"], Value::Null, "{found}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{found}");
        check(&calls[0]["function"]);
    }
    // Who names a function gets one call of it; streamed it is the same.
    let named = json!({"type": "function", "function": {"name": "add"}});
    let found = ask(named.clone(), json!({"temperature": 0, "parallel_tool_calls": null})).ok();
    let calls = found["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), check(&calls[0]["function"]).as_str()), (1, "add"), "{found}");
    let events = ask(named, json!({"temperature": 0, "stream": true})).events();
    let deltas = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"].as_object());
    let streamed: String = deltas.filter_map(|function| function.get("arguments")?.as_str()).collect();
    assert_eq!(streamed, calls[0]["function"]["arguments"].as_str().unwrap());
}

#[test]
fn a_real_model_answers_eight_clients() {
    let Some(client) = real_client() else { return };
    let questions = ["What is the capital of France?", "Count to five.", "Name a colour."];
    let body = |index: usize| {
        let messages = json!([{"role": "user", "content": questions[index % questions.len()]}]);
        json!({"messages": messages, "temperature": 0, "max_tokens": 24})
    };
    let text = |reply: Value| reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let alone: Vec<String> = (0..questions.len())
        .map(|index| text(client.post("/v1/chat/completions", body(index)).ok()))
        .collect();
    assert!(alone.iter().all(|text| text.len() > 10), "{alone:?}");
    std::thread::scope(|scope| {
        for index in 0..8 {
            let (client, alone, body) = (&client, &alone, &body);
            scope.spawn(move || {
                let found = text(client.post("/v1/chat/completions", body(index)).ok());
                assert_eq!(found, alone[index % questions.len()]);
            });
        }
    });
}
