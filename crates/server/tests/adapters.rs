//! Adapters whose strength requests choose.

mod common;

use std::sync::Arc;

use common::*;
use puna_backend::Backend;
use puna_backend::reference::Reference;
use puna_conformance::zoo;
use puna_engine::{Engine, EngineOptions};
use puna_runtime::{Adapter, Extras, Model, ModelOptions, Placement};
use puna_server::{AdapterFacts, Residence, Served, Server};
use serde_json::{Value, json};

/// A server of a small model with two adapters.
fn client(switchable: bool) -> (Client, Vec<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let zoo = zoo::models().into_iter().find(|zoo| zoo.name == "llama-dense").unwrap();
    let file = Arc::new(zoo.open());
    let adapters = [1.0, 1.7].map(|seed| {
        let path = folder.path().join(format!("adapter{seed}.gguf"));
        puna_conformance::write_adapter(&file, &path, seed);
        Adapter::open(&path, 1.0).unwrap()
    });
    let facts = adapters
        .iter()
        .map(|adapter| AdapterFacts { path: adapter.path().display().to_string(), scale: adapter.scale() });
    let facts = facts.collect();
    let extras = Extras { adapters: adapters.to_vec(), switchable, ..Extras::default() };
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Reference)];
    let sizes = ModelOptions { context: 128, sequences: 2, outputs: 2, ..ModelOptions::default() };
    let model = Model::load_with(
        file,
        &backends,
        &Placement::default(),
        &sizes,
        &extras,
        &|_: &_| Vec::new(),
        &mut |_| true,
    );
    let engine = Engine::start(model.unwrap(), EngineOptions::default()).unwrap();
    let served = Served {
        engine: Residence::new(engine),
        adapters: facts,
        switchable,
        ..served(scripted(8, 1), 8, tokenizer(), TEMPLATE)
    };
    (Client::new(Server::start(served, options()).unwrap()), zoo.tokens.clone())
}

fn ask(client: &Client, prompt: &[u32], lora: Option<Value>) -> (Value, u64) {
    let mut body = json!({"prompt": prompt, "n_predict": 10, "temperature": 0, "ignore_eos": true, "return_tokens": true});
    body["lora"] = lora.unwrap_or(Value::Null);
    let reply = client.post("/completion", body).ok();
    (reply["tokens"].clone(), reply["timings"]["cache_n"].as_u64().unwrap())
}

#[test]
fn strengths_are_global_or_of_one_request() {
    let (client, prompt) = client(true);
    let scales = |client: &Client| -> Vec<Value> {
        let list = client.get("/lora-adapters").ok();
        list.as_array().unwrap().iter().map(|adapter| adapter["scale"].clone()).collect()
    };
    assert_eq!(scales(&client), [json!(1.0), json!(1.0)]);
    let list = client.get("/lora-adapters").ok();
    assert_eq!(list[1]["id"], 1);
    assert!(list[1]["path"].as_str().unwrap().ends_with("adapter1.7.gguf"));
    let both = json!([{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]);
    let strong = json!([{"id": 0, "scale": 8.0}]);
    let (first, cached) = ask(&client, &prompt, None);
    assert_eq!(cached, 0);
    assert_eq!(ask(&client, &prompt, Some(both)), (first.clone(), prompt.len() as u64 - 1));
    let (changed, cached) = ask(&client, &prompt, Some(strong.clone()));
    assert!(changed != first && cached == 0, "{changed}");
    let (without, _) = ask(&client, &prompt, Some(json!([])));
    assert!(without != changed);
    // The choice of one request is nobody else's.
    assert_eq!(ask(&client, &prompt, None).0, first);
    assert_eq!(client.post("/lora-adapters", strong).ok(), json!({"success": true}));
    assert_eq!(scales(&client), [json!(8.0), json!(0.0)]);
    assert_eq!(ask(&client, &prompt, None).0, changed);
    client.post("/lora-adapters", json!([])).ok();
    assert_eq!(ask(&client, &prompt, None).0, without);
    std::thread::scope(|scope| {
        for index in 0..8 {
            let (client, prompt, changed, without) = (&client, &prompt, &changed, &without);
            scope.spawn(move || {
                let strong = (index % 2 == 0).then(|| json!([{"id": 0, "scale": 8.0}]));
                let expected = if strong.is_some() { changed } else { without };
                assert_eq!(&ask(client, prompt, strong).0, expected);
            });
        }
    });
}

#[test]
fn adapters_that_are_refused() {
    let (client, _) = client(true);
    for (lora, part) in [
        (json!(5), "lora"),
        (json!([5]), "lora[0].id"),
        (json!([{"id": 0}]), "lora[0].scale"),
        (json!([{"id": 2, "scale": 1}]), "there are 2"),
        (json!([{"id": -1, "scale": 1}]), "there are 2"),
        (json!([{"id": 0, "scale": "a"}]), "lora[0].scale"),
        (json!([{"id": 0, "scale": 1e300}]), "lora[0].scale"),
    ] {
        let message = client
            .post("/completion", json!({"prompt": [1], "lora": lora}))
            .error(400, "invalid_request_error");
        assert!(message.contains(part), "{lora}: {message}");
        client.post("/lora-adapters", lora).error(400, "invalid_request_error");
    }
    client.post_bytes("/lora-adapters", b"[{").error(400, "invalid_request_error");
}

#[test]
fn adapters_that_cannot_be_switched() {
    let (fixed, prompt) = client(false);
    let list = fixed.get("/lora-adapters").ok();
    assert_eq!((&list[0]["scale"], &list[1]["scale"]), (&json!(1.0), &json!(1.0)));
    fixed.post("/lora-adapters", json!([{"id": 0, "scale": 1}])).error(501, "not_supported_error");
    let (switched, _) = client(true);
    assert_eq!(ask(&fixed, &prompt, None).0, ask(&switched, &prompt, None).0);
    let none = start(scripted(64, 1), options());
    assert_eq!(none.get("/lora-adapters").ok(), json!([]));
    let one = json!([{"id": 0, "scale": 1}]);
    let message = none.post("/lora-adapters", one).error(400, "invalid_request_error");
    assert!(message.contains("there are 0"), "{message}");
    none.post("/completion", json!({"prompt": "a", "n_predict": 1, "lora": []})).ok();
}
