//! What is known about a loaded model.

use puna_gguf::{Metadata, Tensors};
use puna_graph::{Graph, Input, Node, Op, Operand};

use crate::RuntimeError;
use crate::draft::feature_width;

/// Facts about a model, for people and for the engine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelInformation {
    /// Value of `general.architecture`.
    pub architecture: String,
    /// Value of `general.name`, or empty.
    pub name: String,
    /// Number of layers.
    pub layers: u32,
    /// Context that the model was trained with, in tokens.
    pub context_train: u32,
    /// The longest a sequence can get, in tokens: the context it was loaded with, or the positions that it has learned if these are
    /// fewer.
    pub context: u32,
    /// Positions that the model has learned, if it has a table of them: no text gets longer.
    pub positions: Option<u32>,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Numbers in a row of what the model gives: logits of all tokens, an embedding, or scores.
    pub width: u32,
    /// Width of the residual stream.
    pub embedding: u32,
    /// Token that a decoder with an encoder begins its text with.
    pub decoder_start: u32,
    /// Elements of all tensors of the file.
    pub parameters: u64,
    /// Bytes of all tensors of the file.
    pub file_bytes: u64,
}

impl ModelInformation {
    /// Whether a sequence gets no longer because the model has learned no more positions.
    pub fn context_is_learned(&self) -> bool {
        self.positions == Some(self.context)
    }

    /// What the metadata and the directory say. `context`, `positions`, `vocabulary` and `width` come when the graph is built.
    pub(crate) fn of_file(metadata: &Metadata, tensors: &Tensors) -> Result<Self, RuntimeError> {
        let architecture = metadata.str("general.architecture")?;
        // Nothing else of the file means anything then.
        puna_models::find(architecture)?;
        let number = |key: &str| metadata.u32_or(&format!("{architecture}.{key}"), 0);
        Ok(Self {
            architecture: architecture.to_owned(),
            name: metadata.str_or("general.name", "")?.to_owned(),
            // Layers that guess tokens further ahead are not run.
            layers: number("block_count")?.saturating_sub(number("nextn_predict_layers")?),
            context_train: number("context_length")?,
            embedding: number("embedding_length")?,
            decoder_start: decoder_start(metadata, architecture)?,
            parameters: tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.elements())),
            file_bytes: tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.byte_len())),
            ..Self::default()
        })
    }
}

/// What `decoder_start_token_id` says, else the token that texts begin with, else 0.
fn decoder_start(metadata: &Metadata, architecture: &str) -> Result<u32, RuntimeError> {
    let begin = metadata.u32_or("tokenizer.ggml.bos_token_id", 0)?;
    Ok(metadata.u32_or(&format!("{architecture}.decoder_start_token_id"), begin)?)
}

/// Rows of the graph's table of embeddings.
pub(crate) fn vocabulary(graph: &Graph) -> Result<u32, RuntimeError> {
    let table = |node: &Node| match (&node.op, &node.inputs[..]) {
        (
            Op::GatherRows(_),
            [Operand::Weight(table), Operand::Input(Input::Tokens | Input::EncoderTokens)],
        ) => graph.weights[table.index()].shape.first().copied(),
        _ => None,
    };
    let rows = graph.nodes.iter().find_map(table);
    // Where rows are made of features alone, tokens do not matter.
    let rows = rows.or_else(|| feature_width(graph).map(|_| u32::MAX));
    rows.ok_or(RuntimeError::NotALanguageModel { what: "vocabulary" })
}
