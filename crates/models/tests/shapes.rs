//! Every extent of every tensor of every zoo model made larger and smaller by one, and every number among its keys set to values
//! that it should not have: what cannot be is refused by name, and what is taken runs.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use puna_gguf::{Array, Metadata, Tensors, Value};
use puna_graph::{Graph, Output};
use puna_models::{BuildOptions, ModelError, Purpose, build};
use support::{Subject, built, four_tokens, subjects, without_layer};

/// Names, axes (0 for the last) and extents (0 for any) of what may be otherwise, with the reason.
const FREE: &[(&str, usize, u64, &str)] = &[
    (
        "token_embd.weight",
        1,
        0,
        "without output matrix and tokenizer nothing else says how many tokens there are",
    ),
    ("ssm_norm.weight", 1, 1, "one norm for all groups instead of one for each of two"),
    ("attn_q_norm.weight", 1, 1, "one norm for all heads instead of one for each of two"),
    ("attn_k_norm.weight", 1, 1, "one norm for all heads instead of one for each of two"),
];

/// Of layers whose tensors have the same names and shapes only the first is tried.
fn is_repeated(subject: &Subject, index: usize) -> bool {
    let tensors: Vec<_> = subject.header.tensors.iter().collect();
    let same = |a: &puna_gguf::TensorInfo, b: &puna_gguf::TensorInfo| {
        without_layer(&a.name) == without_layer(&b.name) && a.shape == b.shape
    };
    tensors[..index].iter().any(|other| same(other, tensors[index]))
}

/// What is wrong with the answers to a file in which the tensor has this shape: nothing, or that it is taken, or that an error
/// does not say which tensor it is and what was found.
fn complaint(subject: &Subject, name: &str, tensors: &Tensors, shape: &[u64]) -> Option<String> {
    let results = subject.purposes.iter().map(|purpose| built(&subject.header.metadata, tensors, *purpose));
    let mut errors = Vec::new();
    for result in results {
        match result {
            Ok(graph) if graph.weights.iter().any(|weight| weight.name == name) => {
                return Some("is taken".into());
            }
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    let names = |error: &ModelError| {
        let text = error.to_string();
        text.contains(&format!("tensor {name} ")) && text.contains(&format!("shape {shape:?}"))
    };
    errors.iter().find(|error| !names(error)).map(|error| error.to_string())
}

#[test]
fn an_extent_that_is_off_by_one_is_refused_with_the_tensor_and_both_shapes() {
    let (mut faults, mut tried, mut free) = (Vec::new(), 0, [0; FREE.len()]);
    for subject in subjects() {
        let specs = subject.specs();
        for index in 0..specs.len() {
            if is_repeated(&subject, index) {
                continue;
            }
            for axis in 0..specs[index].shape.len() {
                for larger in [true, false] {
                    let mut changed = specs.clone();
                    let extent = &mut changed[index].shape[axis];
                    *extent = if larger { *extent + 1 } else { *extent - 1 };
                    let (name, shape) = (changed[index].name.clone(), changed[index].shape.clone());
                    let tensors = Tensors::from_specs(&changed).expect("names differ");
                    tried += 1;
                    let Some(found) = complaint(&subject, &name, &tensors, &shape) else { continue };
                    let from_end = shape.len() - 1 - axis;
                    let is_free = |(other, axis, extent, _): &(&str, usize, u64, &str)| {
                        let fits = *extent == 0 || shape.iter().rev().nth(from_end) == Some(extent);
                        *other == without_layer(&name) && *axis == from_end && fits
                    };
                    if let Some(row) = FREE.iter().position(is_free).filter(|_| found == "is taken") {
                        free[row] += 1;
                        continue;
                    }
                    faults.push(format!("{}, {name} as {shape:?}: {found}", subject.name));
                }
            }
        }
    }
    println!("{tried} extents, {free:?} of them free");
    assert!(faults.is_empty(), "{} of {tried}:\n{}", faults.len(), faults.join("\n"));
    assert!(tried > 15_000 && free.iter().all(|count| (1..20).contains(count)), "{tried}, {free:?}");
}

/// Values that a number should mostly not have.
fn odd_values(value: &Value) -> Vec<Value> {
    let mut odd = Vec::new();
    if value.integer().is_some() {
        odd.extend([0, 1, 3, 77, i32::MAX as u32, u32::MAX].map(Value::U32));
        odd.extend([Value::I32(-1), Value::U64(u64::MAX), Value::F32(2.5), Value::Bool(true)]);
    } else if value.float().is_some() {
        odd.extend([0.0, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY].map(Value::F32));
    }
    match value {
        Value::Array(Array::U32(numbers)) => {
            odd.extend([0, 1, 3, u32::MAX].map(|odd| Value::Array(Array::U32(vec![odd; numbers.len()]))));
        }
        Value::Array(Array::I32(numbers)) => {
            odd.extend([0, 1, 3, -1, i32::MAX].map(|odd| Value::Array(Array::I32(vec![odd; numbers.len()]))));
        }
        Value::Array(Array::F32(numbers)) => {
            odd.extend([0.0, -1.0, f32::NAN].map(|odd| Value::Array(Array::F32(vec![odd; numbers.len()]))));
        }
        _ => {}
    }
    odd
}

/// How many times the nodes of a model's graph one with an odd number may have.
const MOST_NODES: usize = 200;

/// Of those that are taken, each that makes another graph than the usual number is run: what it computes may make no sense, but there
/// is as much of it as there should be.
#[test]
fn an_odd_number_is_refused_by_a_name_or_makes_a_model_of_about_the_same_size_that_runs() {
    let (mut faults, mut tried, mut refused, mut ran) = (Vec::new(), 0, 0, 0);
    for subject in subjects() {
        let usual = |purpose: &Purpose| {
            built(&subject.header.metadata, &subject.header.tensors, *purpose).expect("it was built before")
        };
        let usual: Vec<Graph> = subject.purposes.iter().map(usual).collect();
        let file = subject.file();
        // Graphs for other purposes differ in their ends alone.
        let first = subject.purposes[0];
        let mut seen: Vec<Graph> = Vec::new();
        for (key, short) in subject.keys() {
            let value = subject.header.metadata.get(&key).expect("the key was listed");
            for odd in odd_values(value) {
                let mut metadata = subject.header.metadata.clone();
                let shown: String = format!("{odd:?}").chars().take(60).collect();
                metadata.set(key.clone(), odd);
                for (purpose, usual) in subject.purposes.iter().zip(&usual) {
                    tried += 1;
                    let found = match built(&metadata, &subject.header.tensors, *purpose) {
                        Ok(graph) if graph.nodes.len() > MOST_NODES * usual.nodes.len() => {
                            format!("{} nodes", graph.nodes.len())
                        }
                        Ok(graph) if *purpose != first || graph == *usual || seen.contains(&graph) => {
                            continue;
                        }
                        Ok(graph) => {
                            let result = catch_unwind(AssertUnwindSafe(|| four_tokens(&graph, &file)));
                            ran += 1;
                            let fault = match result {
                                Ok(None) => None,
                                Ok(Some((numbers, rows))) if numbers.len() == rows * width(usual) => None,
                                Ok(Some((numbers, rows))) => {
                                    Some(format!("{} numbers in {rows} rows", numbers.len()))
                                }
                                Err(_) => Some("it panicked".to_owned()),
                            };
                            seen.push(graph);
                            let Some(fault) = fault else { continue };
                            fault
                        }
                        Err(error) => {
                            refused += 1;
                            let text = error.to_string();
                            let names = ["tensor ", "key "].iter().any(|kind| text.contains(kind));
                            match error {
                                ModelError::Graph { .. } => text,
                                _ if !names => text,
                                _ => continue,
                            }
                        }
                    };
                    faults.push(format!("{}, {short} as {shown}: {found}", subject.name));
                }
            }
        }
    }
    println!("{tried} values, {refused} refused, {ran} other graphs run");
    assert!(faults.is_empty(), "{} of {tried}:\n{}", faults.len(), faults.join("\n"));
    assert!(refused > 10_000 && ran > 1000, "only {refused} of {tried} refused, {ran} run");
}

/// Numbers in a row of what a graph gives.
fn width(graph: &Graph) -> usize {
    let output = graph.output(Output::Logits).or(graph.embeddings().map(|(value, _)| value));
    output.and_then(|output| graph.value_type(output).width()).expect("it gives something") as usize
}

fn subject(name: &str) -> Subject {
    subjects().find(|subject| subject.name == name).expect("the zoo has it")
}

fn error_of(metadata: &Metadata, tensors: &Tensors, purpose: Purpose) -> String {
    built(metadata, tensors, purpose).expect_err("is refused").to_string()
}

#[test]
fn no_heads_in_any_layer_and_an_unknown_pooling_are_named_with_their_values() {
    let llama = subject("llama-dense");
    let mut metadata = llama.header.metadata.clone();
    metadata.set("llama.attention.head_count", Value::Array(Array::U32(vec![0, 0])));
    let error = error_of(&metadata, &llama.header.tensors, Purpose::Generate);
    assert_eq!(error, "key llama.attention.head_count is 0, it must be above 0 in some layer");
    for (key, least) in [("llama.pooling_type", 5), ("llama.classifier.pooling_type", 77)] {
        for (number, is_good) in [(0, true), (4, true), (least, false), (u32::MAX, false)] {
            let mut metadata = llama.header.metadata.clone();
            metadata.set(key, number);
            let result = built(&metadata, &llama.header.tensors, Purpose::Generate);
            assert_eq!(result.is_ok(), is_good, "{key} {number}");
            let expected = format!("key {key} is {number}, it must be between 0 and 4");
            assert!(result.err().is_none_or(|error| error.to_string() == expected), "{key} {number}");
        }
    }
}

/// Files may say 0 where they say nothing of the width of experts: the tensors do. Another width than theirs is refused.
#[test]
fn experts_are_as_wide_as_their_tensors_where_the_key_is_0() {
    let mut tried = 0;
    for model in subjects() {
        let key = format!("{}.expert_feed_forward_length", model.architecture);
        let Ok(Some(right)) = model.header.metadata.optional_u32(&key) else { continue };
        let answer = |width: u32| {
            let mut metadata = model.header.metadata.clone();
            metadata.set(key.clone(), width);
            built(&metadata, &model.header.tensors, model.purposes[0])
        };
        let usual = answer(right).expect("it is built");
        if !usual.weights.iter().any(|weight| weight.name.contains("_exps.")) {
            continue;
        }
        tried += 1;
        assert_eq!(answer(0).expect("the tensors say"), usual, "{}", model.name);
        let error = answer(right + 1).expect_err("is another width").to_string();
        assert!(error.contains(&format!("key {key} is {}, ", right + 1)), "{}: {error}", model.name);
    }
    assert!(tried > 30, "{tried}");
}

/// Where a number is not in the file, the error says so, or names the one that it comes from.
#[test]
fn numbers_that_come_from_others_are_not_told_as_keys_of_the_file() {
    let llama = subject("llama-dense");
    let answer = |key: &str, value: u32| {
        let mut metadata = llama.header.metadata.clone();
        metadata.set(format!("llama.{key}"), value);
        error_of(&metadata, &llama.header.tensors, Purpose::Generate)
    };
    for (key, value, error) in [
        (
            "attention.head_count",
            999,
            "key llama.attention.head_count is 999, it must be at most embedding_length",
        ),
        ("embedding_length", 1, "key llama.attention.head_count is 2, it must be at most embedding_length"),
        (
            "embedding_length",
            6,
            "key llama.rope.dimension_count is missing, and its default of 3 is not even and at most the width of a head",
        ),
    ] {
        assert_eq!(answer(key, value), error);
    }
}

/// A table of positions has a row for each position of the context.
#[test]
fn positions_are_as_many_as_the_context() {
    for name in ["gpt2-dense", "starcoder-mqa", "mpt-dense", "bert", "xlm-roberta"] {
        let model = subject(name);
        let purpose = model.purposes[0];
        let key = format!("{}.context_length", model.architecture);
        let trained = model.header.metadata.u32(&key).expect("it has a context");
        let graph = built(&model.header.metadata, &model.header.tensors, purpose).expect("it builds");
        assert_eq!(graph.positions, Some(trained), "{name}");
        for wrong in [trained / 2, trained + 1] {
            let mut metadata = model.header.metadata.clone();
            metadata.set(key.clone(), wrong);
            let error = error_of(&metadata, &model.header.tensors, purpose);
            assert!(
                error.starts_with(&format!("tensor position_embd.weight has shape [{trained}, ")),
                "{error}"
            );
            assert!(error.contains(&format!("needs [{wrong}, ")), "{error}");
        }
    }
    let llama = subject("llama-dense");
    let graph = built(&llama.header.metadata, &llama.header.tensors, Purpose::Generate).expect("it builds");
    assert_eq!(graph.positions, None);
}

/// Directions that a model cannot be asked to see are refused; those that it can change its masks.
#[test]
fn rows_see_what_was_asked_for_or_the_model_says_that_they_cannot() {
    let both = "cannot have attention to later tokens: it has layers that take tokens in order";
    let one = "cannot have attention to earlier tokens alone: it has layers whose tokens see all, or those around them";
    let answer = |name: &str, causal: bool| {
        let model = subject(name);
        let options = BuildOptions {
            context: 256,
            purpose: model.purposes[0],
            causal: Some(causal),
            ..Default::default()
        };
        let graph = build(&model.header.metadata, &model.header.tensors, &options);
        graph.map(|graph| graph.to_string()).map_err(|error| error.to_string())
    };
    for name in [
        "mamba-dense",
        "mamba2-dense",
        "rwkv7-dense",
        "jamba-dense",
        "lfm2-dense",
        "qwen3next-moe",
        "deepseek4-moe",
    ] {
        let error = answer(name, false).expect_err("is refused");
        assert!(error.ends_with(both), "{name}: {error}");
        answer(name, true).expect("is what it does");
    }
    for name in ["llada-dense", "modern-bert", "t5encoder"] {
        let error = answer(name, true).expect_err("is refused");
        assert!(error.ends_with(one), "{name}: {error}");
        answer(name, false).expect("is what it does");
    }
    for name in ["llama-dense", "gemma3-window8", "deepseek2-moe", "bert"] {
        let (causal, both) = (answer(name, true), answer(name, false));
        assert_ne!(causal.expect("it can"), both.expect("it can, too"), "{name}");
    }
}

/// DeepSeek 4 is published with the first matrix of its output in one, the mixtures of Qwen 4 perhaps with the norms of all streams in
/// a row; the bytes are the same.
#[test]
fn axes_that_files_have_as_one_make_the_same_graph() {
    for (name, part) in [("deepseek4-moe", "attn_output_a.weight"), ("qwen4exp-moe", "norm")] {
        let subject = subject(name);
        let mut specs = subject.specs();
        let mut joined = 0;
        for spec in specs.iter_mut().filter(|spec| spec.name.contains(part) && spec.shape.len() > 1) {
            let first = spec.shape.remove(0);
            spec.shape[0] *= first;
            joined += 1;
        }
        assert!(joined > 2, "{name}: {joined}");
        let tensors = Tensors::from_specs(&specs).expect("names differ");
        let right = built(&subject.header.metadata, &subject.header.tensors, Purpose::Generate);
        let found = built(&subject.header.metadata, &tensors, Purpose::Generate);
        assert_eq!(found.expect("it is built"), right.expect("it is built"), "{name}");
    }
}
