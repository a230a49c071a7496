//! Draft heads with all that they need to guess for another model.

use std::collections::HashMap;
use std::sync::Arc;

use puna_backend::Backend;
use puna_gguf::{File, Metadata, TensorInfo};
use puna_models::{Pooling, Purpose};
use puna_quant::DType;

use crate::{
    Batch, DraftOutputs, Extras, HeadInputs, Model, ModelOptions, OutputRows, Placement, RuntimeError, Work,
};

/// How a draft head guesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadKind {
    /// A token at a time, each from the head's own state of the one before (EAGLE-3).
    Stepwise,
    /// The same, by the first layer of a model that guesses tokens further ahead (multi-token prediction).
    Ahead,
    /// A block of masks at once, after the text's last token (DFlash).
    Block {
        /// Tokens of a block, that one included; at least 2.
        size: u32,
        /// The token that stands for one to be guessed.
        mask: u32,
    },
}

/// A draft head on its device.
pub struct DraftHead {
    model: Model,
    /// Makes one row of states of the other model's layers; none where the head's own graph does.
    fuse: Option<Model>,
    /// The other model's tokens for the head's own; none where they are the same.
    tokens: Option<Vec<u32>>,
    kind: HeadKind,
}

/// Layers of the other model that a draft head may read.
const MOST_LAYERS: usize = 64;

impl DraftHead {
    /// States of the other model that the head of a file reads; [`HeadInputs::None`] if the file is no head and has no layers
    /// that guess ahead.
    pub fn inputs(metadata: &Metadata) -> Result<HeadInputs, RuntimeError> {
        let architecture = metadata.str("general.architecture")?;
        let key = format!("{architecture}.target_layers");
        if !metadata.contains(&key) {
            let ahead = metadata.u32_or(&format!("{architecture}.nextn_predict_layers"), 0)?;
            return Ok(if ahead > 0 { HeadInputs::LastState } else { HeadInputs::None });
        }
        let layers = metadata.u32_array(&key)?;
        match layers.len() {
            1..=MOST_LAYERS => Ok(HeadInputs::Layers(layers)),
            count => Err(wrong(format!("{key} names {count} layers, expected 1 to {MOST_LAYERS}"))),
        }
    }

    /// Loads a head that guesses for the model of the file `target`, whose embeddings and output matrix it may share; of a model
    /// with layers that guess ahead the first of these, also where both files are the same.
    pub fn load(
        file: &Arc<File>,
        target: &Arc<File>,
        backends: &[Arc<dyn Backend>],
        placement: &Placement,
        options: &ModelOptions,
        progress: &mut dyn FnMut(f32) -> bool,
    ) -> Result<Self, RuntimeError> {
        let inputs = Self::inputs(&file.metadata)?;
        if inputs == HeadInputs::None {
            let needed = "the file names no layers of another model (target_layers) and has none that guess ahead \
                          (nextn_predict_layers)";
            return Err(wrong(needed.into()));
        }
        let kind = kind(&file.metadata, &inputs)?;
        let purpose = if kind == HeadKind::Ahead { Purpose::GuessAhead } else { options.purpose };
        let options = &ModelOptions { purpose, head_inputs: HeadInputs::None, ..options.clone() };
        let mut load = |options: &ModelOptions| {
            let extras = Extras { lent: lent(file, target), ..Extras::default() };
            Model::load_with(file.clone(), backends, placement, options, &extras, &|_| Vec::new(), progress)
        };
        let model = load(options)?;
        let fuse = match kind {
            HeadKind::Block { .. } | HeadKind::Ahead => None,
            HeadKind::Stepwise => {
                let purpose = Purpose::Embed(Some(Pooling::None));
                Some(load(&ModelOptions { purpose, outputs: 0, ..options.clone() })?)
            }
        };
        let tokens = tokens(file, &model, target)?;
        let vocabulary = model.information().vocabulary;
        if let HeadKind::Block { mask, .. } = kind
            && mask >= vocabulary
        {
            return Err(wrong(format!("its mask is token {mask}, it knows {vocabulary}")));
        }
        let head = Self { model, fuse, tokens, kind };
        head.check_states(file, target, &inputs)?;
        Ok(head)
    }

    /// Whether the states that it reads are those of the model that it guesses for.
    fn check_states(&self, file: &File, target: &File, inputs: &HeadInputs) -> Result<(), RuntimeError> {
        let (own, other) = (&file.metadata, &target.metadata);
        let architectures = (own.str("general.architecture")?, other.str("general.architecture")?);
        if self.kind == HeadKind::Ahead && architectures.0 != architectures.1 {
            let (own, other) = architectures;
            return Err(wrong(format!("its layer is of architecture '{own}', the model of '{other}'")));
        }
        let width = other.u32_or(&format!("{}.embedding_length", architectures.1), 0)? as usize;
        let found = match inputs {
            HeadInputs::Layers(layers) => layers.len().saturating_mul(width),
            HeadInputs::None | HeadInputs::LastState => width,
        };
        match self.state_width() {
            expected if expected == found => Ok(()),
            expected => Err(wrong(format!(
                "it reads states of {expected} numbers, those of the model have {found} (embedding_length)"
            ))),
        }
    }

    /// How it guesses.
    pub fn kind(&self) -> HeadKind {
        self.kind
    }

    /// Its caches.
    pub fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Bytes of weights that a token is guessed with.
    pub fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes() + self.fuse.as_ref().map_or(0, Model::weight_bytes)
    }

    /// The other model's token for one of the head's own; none for one that does not exist.
    pub fn token(&self, own: u32) -> Option<u32> {
        match &self.tokens {
            Some(tokens) => tokens.get(own as usize).copied(),
            None => Some(own),
        }
    }

    /// Numbers in a row of states of the other model.
    pub fn state_width(&self) -> usize {
        self.fuse.as_ref().unwrap_or(&self.model).feature_width().unwrap_or(0) as usize
    }

    /// The features of rows of states, `[rows, width]`.
    pub fn features(&mut self, states: &[f32]) -> Result<Vec<f32>, RuntimeError> {
        let Some(fuse) = &mut self.fuse else { return Ok(states.to_vec()) };
        let width = fuse.feature_width().unwrap_or(1).max(1) as usize;
        // Tokens do not matter here, only that there is one for each row.
        let work = Work { sequence: 0, tokens: vec![0; states.len() / width], outputs: OutputRows::All };
        let fused = fuse.run_draft(&Batch::of(vec![work]), &[states.to_vec()])?;
        Ok(fused.rows.logits.into_vec())
    }

    /// Runs the head; see [`Model::run_draft`]. Tokens are the other model's, rows of logits are for the head's own.
    pub fn run(&mut self, batch: &Batch, features: &[Vec<f32>]) -> Result<DraftOutputs, RuntimeError> {
        self.model.run_draft(batch, features)
    }
}

fn wrong(reason: String) -> RuntimeError {
    RuntimeError::DraftHead { reason }
}

/// Heads are told apart by what they read and by whether they have blocks.
fn kind(metadata: &Metadata, inputs: &HeadInputs) -> Result<HeadKind, RuntimeError> {
    if *inputs == HeadInputs::LastState {
        return Ok(HeadKind::Ahead);
    }
    let architecture = metadata.str("general.architecture")?;
    if architecture != "dflash" {
        return Ok(HeadKind::Stepwise);
    }
    let key = format!("{architecture}.block_size");
    let size = metadata.u32(&key)?;
    if size < 2 {
        return Err(wrong(format!("{key} is {size}, expected at least 2")));
    }
    Ok(HeadKind::Block { size, mask: metadata.u32("tokenizer.ggml.mask_token_id")? })
}

/// What a head may leave to the model that it guesses for: the table of embeddings, and the output matrix unless the head has
/// tokens of its own.
fn lent(file: &File, target: &Arc<File>) -> HashMap<String, (Arc<File>, TensorInfo)> {
    let own_tokens = file.tensors.get("d2t").is_some();
    let names = ["token_embd.weight", "output.weight"].into_iter();
    let missing = names
        .filter(|name| file.tensors.get(name).is_none() && !(own_tokens && name.starts_with("output")))
        .filter_map(|name| Some((name.to_owned(), (target.clone(), target.tensors.get(name)?.clone()))));
    missing.collect()
}

/// The other model's tokens for the head's own, checked.
fn tokens(file: &File, model: &Model, target: &File) -> Result<Option<Vec<u32>>, RuntimeError> {
    let own = model.information().width;
    let known = target.tensors.get("token_embd.weight").and_then(|table| table.shape.first().copied());
    let known = known.unwrap_or(u64::from(u32::MAX));
    let Some(tensor) = file.tensors.get("d2t") else {
        if u64::from(own) > known {
            return Err(wrong(format!("it guesses {own} tokens, the model knows {known}")));
        }
        return Ok(None);
    };
    if tensor.dtype != DType::I64 || tensor.elements() != u64::from(own) {
        let (count, dtype) = (tensor.elements(), tensor.dtype);
        return Err(wrong(format!("d2t has {count} numbers of {dtype}, expected {own} of i64")));
    }
    let numbers = file.bytes(tensor).as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
    let token = |number: i64| match u32::try_from(number) {
        Ok(token) if u64::from(token) < known => Ok(token),
        _ => Err(wrong(format!("d2t names token {number}, the model knows {known}"))),
    };
    numbers.map(token).collect::<Result<_, _>>().map(Some)
}
