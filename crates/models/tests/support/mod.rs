//! The zoo's headers, to be changed.
#![allow(dead_code)] // each test uses a part

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use puna_conformance::{run, steps, zoo};
use puna_gguf::{File, Header, Metadata, TensorSpec, Tensors};
use puna_graph::evaluate::{Context, Memory, Weights, run as evaluate};
use puna_graph::{Array, CacheGroup, Graph, Op, Output, Step, ValueId, WeightId};
use puna_models::{BuildOptions, ModelError, Pooling, Purpose, build};

/// A model's header with what it can be used for.
pub struct Subject {
    pub name: String,
    pub architecture: String,
    pub header: Header,
    path: PathBuf,
    pub purposes: Vec<Purpose>,
}

impl Subject {
    /// What goes wrong with these keys and tensors, if anything does.
    pub fn errors(&self, metadata: &Metadata, tensors: &Tensors) -> Vec<String> {
        let error =
            |purpose: &Purpose| built(metadata, tensors, *purpose).err().map(|error| error.to_string());
        self.purposes.iter().filter_map(error).collect()
    }

    /// Keys that describe the model, with their names without the architecture.
    pub fn keys(&self) -> Vec<(String, String)> {
        let prefix = format!("{}.", self.architecture);
        let all = self.header.metadata.iter().map(|(key, _)| key.to_owned());
        let of_model = all.filter(|key| !key.starts_with("general.") && !key.starts_with("tokenizer."));
        of_model.map(|key| (key.clone(), key.strip_prefix(&prefix).unwrap_or(&key).to_owned())).collect()
    }

    /// The file, with numbers by chance.
    pub fn file(&self) -> File {
        File::from_bytes(zoo::fill(&self.path, 1)).expect("the zoo's files are good")
    }

    /// The directory of tensors, to be changed.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let spec = |tensor: &puna_gguf::TensorInfo| TensorSpec {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        };
        self.header.tensors.iter().map(spec).collect()
    }
}

/// The graph of a file with these keys and tensors.
pub fn built(metadata: &Metadata, tensors: &Tensors, purpose: Purpose) -> Result<Graph, ModelError> {
    build(metadata, tensors, &BuildOptions { context: 256, purpose, ..BuildOptions::default() })
}

/// Every model of the zoo: those with recorded logits, embedders, draft heads, and those with a layer that guesses ahead.
pub fn subjects() -> impl Iterator<Item = Subject> {
    let decoders = zoo::models().into_iter().map(|model| (model.name.clone(), model.header().to_path_buf()));
    let embedders = zoo::embedding_models().into_iter().map(|model| (model.name.clone(), model.header()));
    let drafts = zoo::draft_models().into_iter().chain(zoo::ahead_models());
    let drafts = drafts.map(|model| (model.name.clone(), model.header()));
    decoders.chain(embedders).chain(drafts).map(|(name, path)| {
        let bytes = std::fs::read(&path).expect("a model has a header");
        let header = Header::parse(&bytes).expect("the zoo's headers are good");
        let architecture = header.metadata.str("general.architecture").expect("it has one").to_owned();
        let purposes = [Some(Pooling::Mean), Some(Pooling::Rank)].map(Purpose::Embed);
        let purposes = [Purpose::Generate, Purpose::GuessAhead].into_iter().chain(purposes);
        let purposes = purposes.filter(|purpose| built(&header.metadata, &header.tensors, *purpose).is_ok());
        let purposes: Vec<Purpose> = purposes.collect();
        assert!(!purposes.is_empty(), "{name} is good for nothing");
        Subject { name, architecture, header, path, purposes }
    })
}

/// Weights of a file whose tensors are as those of the graph, or of as many elements.
struct FileWeights<'a> {
    file: &'a File,
    graph: &'a Graph,
}

impl Weights for FileWeights<'_> {
    fn decode(&self, weight: WeightId) -> Arc<Array> {
        let declared = &self.graph.weights[weight.index()];
        let bytes = self.file.bytes(self.file.tensors.get(&declared.name).expect("declared weights exist"));
        let floats = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Arc::new(Array::f32(declared.shape.iter().map(|extent| *extent as usize).collect(), floats))
    }
}

/// What a graph makes of four tokens on the evaluator, with the number of rows; none of graphs that read states of another model.
pub fn four_tokens(graph: &Graph, file: &File) -> Option<(Vec<f32>, usize)> {
    const TOKENS: [u32; 4] = [1, 2, 3, 4];
    if graph.nodes.iter().any(|node| matches!(node.op, Op::Features(_))) {
        return None;
    }
    let (step, value): (Step, ValueId) = match graph.output(Output::Logits) {
        None => steps::embedding(graph, &[&TOKENS]),
        Some(logits) => {
            let mut step = steps::encoder_and_decoder(graph, &TOKENS, &TOKENS);
            for (group, of_step) in graph.groups().into_iter().zip(&mut step.groups) {
                if !matches!(group, CacheGroup::Encoder | CacheGroup::EncoderStep) {
                    *of_step = run::group_step(group, 0, TOKENS.len() as u32);
                }
            }
            (step, logits)
        }
    };
    let mut memory: Vec<Memory> = graph.states.iter().map(|state| Memory::new(state, TOKENS.len())).collect();
    let mut context = Context { graph, step: &step, memory: &mut memory };
    let mut values = HashMap::new();
    evaluate(0..graph.nodes.len(), &FileWeights { file, graph }, &mut context, &mut values);
    Some((values.remove(&value).expect("the output was computed").into_floats(), step.output_rows.len()))
}

/// A tensor's name without its layer.
pub fn without_layer(name: &str) -> String {
    let mut parts = name.split('.').collect::<Vec<_>>();
    match parts.iter().position(|part| part.parse::<u32>().is_ok()) {
        Some(layer) => parts.split_off(layer + 1).join("."),
        None => name.to_owned(),
    }
}
