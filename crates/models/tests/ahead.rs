//! Layers that guess tokens further ahead (`nextn_predict_layers`) follow those of the text and are not run.

use puna_conformance::zoo;
use puna_gguf::{Array, Header, TensorSpec, Tensors, Value};
use puna_models::{BuildOptions, build, unused_tensors};

/// A header with one more layer, which guesses ahead; arrays of one element per layer have one for it.
fn with_a_guess(header: &Header) -> (puna_gguf::Metadata, Tensors) {
    let mut metadata = header.metadata.clone();
    let architecture = metadata.str("general.architecture").expect("it has one").to_owned();
    let key = |name: &str| format!("{architecture}.{name}");
    let layers = metadata.u32(&key("block_count")).expect("it has layers");
    let longer = |array: &Array| match array {
        Array::U32(values) => Some(Array::U32([&values[..], &values[..1]].concat())),
        Array::I32(values) => Some(Array::I32([&values[..], &values[..1]].concat())),
        Array::F32(values) => Some(Array::F32([&values[..], &values[..1]].concat())),
        Array::Bool(values) => Some(Array::Bool([&values[..], &values[..1]].concat())),
        _ => None,
    };
    let arrays = header.metadata.iter().filter(|(key, _)| !key.starts_with("tokenizer."));
    for (name, value) in arrays {
        let Value::Array(array) = value else { continue };
        // One of four elements is no array of layers.
        let is_of_layers = array.len() == layers as usize && !name.ends_with("rope.dimension_sections");
        if let Some(longer) = longer(array).filter(|_| is_of_layers) {
            metadata.set(name.to_owned(), Value::Array(longer));
        }
    }
    metadata.set(key("block_count"), Value::U32(layers + 1));
    metadata.set(key("nextn_predict_layers"), Value::U32(1));
    let own = header.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
    let last = format!("blk.{}.", layers - 1);
    let copies = header.tensors.iter().filter_map(|tensor| {
        let name = tensor.name.strip_prefix(&last)?;
        Some((format!("blk.{layers}.{name}"), tensor.dtype, tensor.shape.clone()))
    });
    let guess = (format!("blk.{layers}.nextn.eh_proj.weight"), puna_quant::DType::F32, vec![8, 16]);
    let all = own.chain(copies).chain([guess]);
    let specs = all.map(|(name, dtype, shape)| TensorSpec { name, dtype, shape }).collect::<Vec<_>>();
    (metadata, Tensors::from_specs(&specs).expect("names differ"))
}

#[test]
fn a_layer_that_guesses_ahead_changes_nothing() {
    let options = BuildOptions { context: 256, ..BuildOptions::default() };
    let mut tried = 0;
    for model in zoo::models() {
        let bytes = std::fs::read(model.header()).expect("a model has a header");
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        // Numbers of layers in a list stay as they are, of which one can be as long as the model.
        if header.metadata.contains("qwen4exp.ple.layers") {
            continue;
        }
        let (metadata, tensors) = with_a_guess(&header);
        let alone = build(&header.metadata, &header.tensors, &options).expect("it builds").to_string();
        let graph =
            build(&metadata, &tensors, &options).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        assert_eq!(graph.to_string(), alone, "{}", model.name);
        let unused = unused_tensors(&graph, &tensors);
        assert!(unused.iter().any(|name| name.ends_with("nextn.eh_proj.weight")), "{}", model.name);
        tried += 1;
    }
    assert!(tried > 170, "only {tried}");
}

#[test]
fn no_layer_but_those_that_guess_ahead_is_an_error() {
    let model = zoo::models().into_iter().find(|model| model.name == "qwen35-dense").expect("it is there");
    let bytes = std::fs::read(model.header()).expect("a model has a header");
    let mut header = Header::parse(&bytes).expect("the zoo's headers are good");
    let layers = header.metadata.u32("qwen35.block_count").expect("it has layers");
    for ahead in [layers, layers + 1] {
        header.metadata.set("qwen35.nextn_predict_layers", Value::U32(ahead));
        let error =
            build(&header.metadata, &header.tensors, &BuildOptions::default()).expect_err("is refused");
        assert!(error.to_string().contains("nextn_predict_layers"), "{error}");
    }
}
