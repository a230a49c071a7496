//! Files with a missing or wrong key: an error that names something of the file, never a panic. `missing.rs` demands more.

use puna_conformance::zoo;
use puna_gguf::{Array, Header, Metadata, TensorSpec, Tensors, Value};
use puna_models::{ARCHITECTURES, BuildOptions, ModelError, build};

fn headers() -> impl Iterator<Item = (String, Vec<u8>)> {
    let known = |model: &zoo::ZooModel| ARCHITECTURES.iter().any(|row| row.name == model.architecture());
    zoo::models().into_iter().filter(known).map(|model| {
        let header = std::fs::read(model.header()).expect("a model has a header");
        (model.name, header)
    })
}

fn built(metadata: &Metadata, tensors: &Tensors) -> Result<(), ModelError> {
    build(metadata, tensors, &BuildOptions { context: 256, ..BuildOptions::default() }).map(|_| ())
}

/// Values that some key may not have.
fn wrong_values(value: &Value) -> Vec<Value> {
    let mut wrong = vec![Value::String("no number".into()), Value::Array(Array::U32(vec![1; 77]))];
    if value.integer().is_some() {
        wrong.extend([0, 1, 7, u32::MAX].map(Value::U32));
        wrong.push(Value::I32(-1));
    }
    if value.float().is_some() {
        wrong.extend([0.0, -1.0, 1e30, f32::NAN, f32::INFINITY].map(Value::F32));
    }
    wrong
}

#[test]
fn a_wrong_key_is_refused_by_name_or_harmless() {
    let mut refused = 0;
    for (name, bytes) in headers() {
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        let architecture = header.metadata.str("general.architecture").expect("it has one").to_string();
        let keys: Vec<String> = header.metadata.iter().map(|(key, _)| key.to_string()).collect();
        for key in keys.iter().filter(|key| key.starts_with(&format!("{architecture}."))) {
            let mut metadata = header.metadata.clone();
            let value = metadata.remove(key).expect("the key was listed");
            let mut check = |metadata: &Metadata| {
                if let Err(error) = built(metadata, &header.tensors) {
                    refused += 1;
                    let text = error.to_string();
                    let names = ["tensor ", "key "].iter().any(|kind| text.contains(kind));
                    assert!(names || matches!(error, ModelError::Graph { .. }), "{name}, {key}: {text}");
                }
            };
            check(&metadata);
            for wrong in wrong_values(&value) {
                metadata.set(key.clone(), wrong);
                check(&metadata);
            }
        }
    }
    assert!(refused > 1000, "only {refused} wrong keys were refused");
}

/// Widths of embeddings per layer that are none, do not fit the tensors, or are too many with all layers; the zoo's Gemma 3n
/// files leave the key out, so that no other test gives it values.
#[test]
fn embeddings_per_layer_of_an_impossible_width_are_refused() {
    for model in ["gemma3n-dense", "gemma4-e-dense"] {
        let (_, bytes) = headers().find(|(name, _)| name == model).expect("the zoo has it");
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        let architecture = header.metadata.str("general.architecture").expect("it has one").to_owned();
        let key = format!("{architecture}.embedding_length_per_layer_input");
        let refused = |width: u32| {
            let mut metadata = header.metadata.clone();
            metadata.set(key.clone(), width);
            built(&metadata, &header.tensors).expect_err("is refused").to_string()
        };
        for width in [1 << 23, 1 << 24, u32::MAX] {
            let error = refused(width);
            assert!(error.contains(&key) && error.contains(&width.to_string()), "{model}: {error}");
        }
        // A width that could be, of other tensors.
        let error = refused(96);
        assert!(error.contains("per_layer_") && error.contains("the model needs"), "{model}: {error}");
    }
    // The zoo's width is the one that files without the key have.
    let (_, bytes) = headers().find(|(name, _)| name == "gemma3n-dense").expect("the zoo has it");
    let header = Header::parse(&bytes).expect("the zoo's headers are good");
    let mut metadata = header.metadata.clone();
    metadata.set("gemma3n.embedding_length_per_layer_input", 256u32);
    built(&metadata, &header.tensors).expect("is what the file means");
}

#[test]
fn an_unknown_architecture_is_told_its_nearest_names() {
    let (_, bytes) = headers().next().expect("there are models");
    let header = Header::parse(&bytes).expect("the zoo's headers are good");
    for (wrong, near) in
        [("lama", "llama"), ("qwen-3", "qwen3"), ("deepseek3", "deepseek"), ("Gemma_3", "gemma3")]
    {
        let mut metadata = header.metadata.clone();
        metadata.set("general.architecture", Value::String(wrong.into()));
        let error = built(&metadata, &header.tensors).expect_err("is refused").to_string();
        assert!(error.contains(&format!("'{wrong}'")) && error.contains(near), "{error}");
    }
    let mut metadata = header.metadata.clone();
    metadata.remove("general.architecture");
    let error = built(&metadata, &header.tensors).expect_err("is refused").to_string();
    assert!(error.contains("general.architecture"), "{error}");
}

#[test]
fn a_tensor_without_elements_is_told_as_such() {
    let (mut told, mut tried) = (0, 0);
    for (name, bytes) in headers().filter(|(name, _)| {
        ["llama-dense", "mamba-", "qwen3moe", "qwen3next"].iter().any(|begin| name.starts_with(begin))
    }) {
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        for tensor in header.tensors.iter() {
            let mut specs: Vec<TensorSpec> = header.tensors.iter().map(TensorSpec::from).collect();
            let empty = specs.iter_mut().find(|other| other.name == tensor.name).expect("it is there");
            empty.shape[0] = 0;
            let Ok(changed) = Tensors::from_specs(&specs) else { continue };
            tried += 1;
            if let Err(error) = built(&header.metadata, &changed) {
                let text = error.to_string();
                assert!(text.contains(&tensor.name) && !text.contains("needs []"), "{name}: {text}");
                told += 1;
            }
        }
    }
    // One that the model does not use may be anything.
    assert!(told + 1 >= tried && tried > 20, "{told} of {tried}");
}

#[test]
fn codes_that_are_more_than_the_tokens_are_told_with_both_tensors() {
    let (_, bytes) = headers().find(|(name, _)| name == "qwen3tts-dense").expect("the zoo has it");
    let header = Header::parse(&bytes).expect("the zoo's headers are good");
    let mut metadata = header.metadata.clone();
    metadata.remove("tokenizer.ggml.tokens");
    let mut specs: Vec<TensorSpec> = header.tensors.iter().map(TensorSpec::from).collect();
    let table = specs.iter_mut().find(|tensor| tensor.name == "token_embd.weight").expect("it is there");
    table.shape[0] = 3071;
    let error = built(&metadata, &Tensors::from_specs(&specs).expect("names differ"));
    let text = error.expect_err("is refused").to_string();
    let (table, output) = ("token_embd.weight of shape [3071, 256]", "output.weight of shape [3072, 256]");
    assert!(text.contains(table) && text.contains(output), "{text}");
}
