//! Layers that guess tokens further ahead: what is around them. They are layers as the architecture has them, so its own
//! function builds them, too; what differs is where their input comes from, which layer it is, and the norm and matrix
//! after it.

use puna_graph::ops::{Concat, GatherRows};
use puna_graph::{Input, Operand, Output, ValueId};

use super::{Builder, MOST_WIDTH, ModelError, Result};
use crate::Purpose;
use crate::ahead::Reads;

/// How many layers of the file guess ahead.
const KEY: &str = "nextn_predict_layers";

impl Builder<'_> {
    /// Layers without those after them that guess tokens further ahead.
    pub(super) fn layers_of_text(&self) -> Result<u32> {
        let ahead = self.u32_or(KEY, 0)?;
        match self.blocks.checked_sub(ahead) {
            Some(layers @ 1..) => Ok(layers),
            _ => Err(self.value_error(KEY, ahead, "less than block_count")),
        }
    }

    /// Looks up what layers that guess ahead read, where they or what they read are asked for.
    pub(super) fn prepare_ahead(&mut self, reads: Option<Reads>) -> Result<()> {
        if !self.options.last_state && !self.guesses_ahead() {
            return Ok(());
        }
        self.reads = reads.ok_or_else(|| ModelError::Unsuitable {
            architecture: self.architecture.to_string(),
            what: "layers that guess tokens ahead",
        })?;
        match self.guesses_ahead() && self.layers == self.blocks {
            true => Err(self.value_error(KEY, 0, "at least 1 for guesses by layers of the file itself")),
            false => Ok(()),
        }
    }

    /// Whether what is built is a layer that guesses ahead and not the model itself.
    pub fn guesses_ahead(&self) -> bool {
        self.options.purpose == Purpose::GuessAhead
    }

    /// The layer that guesses ahead, if it is what is built: the first of those.
    pub(super) fn guessing_layer(&self) -> Option<u32> {
        self.guesses_ahead().then_some(self.layers)
    }

    /// Number of the first layer that is built.
    pub fn first_layer(&self) -> u32 {
        self.guessing_layer().unwrap_or(0)
    }

    /// Number of layers with those that guess ahead.
    pub fn all_layers(&self) -> u32 {
        self.blocks
    }

    /// Embeddings of tokens beside the state of the row before each, as one: `[Tokens, embedding_length]`.
    pub(super) fn embed_ahead(&mut self, layer: u32) -> Result<ValueId> {
        let (width, vocabulary) = (self.count("embedding_length", MOST_WIDTH)?, self.vocabulary()?);
        self.at_layer(layer, |b| {
            let table = match b.optional_weight("nextn.embed_tokens.weight", &[vocabulary, width])? {
                Some(own) => own,
                None => b.global_weight("token_embd.weight", &[vocabulary, width])?,
            };
            let tokens = b.push(GatherRows, vec![table, Operand::Input(Input::Tokens)], "embed")?;
            let states = b.features(width)?;
            let tokens = b.norm("nextn.enorm", tokens)?;
            let states = b.norm("nextn.hnorm", states)?;
            let both = b.push(Concat, vec![tokens.into(), states.into()], "nextn.features")?;
            b.linear("nextn.eh_proj", both, width)
        })
    }

    /// The norm after all layers. Of a layer that guesses ahead it is its own if it has one, and of output rows only.
    pub(super) fn last_norm(&mut self, x: ValueId) -> Result<ValueId> {
        /// Of two names that files have for the same, the older one is the second.
        const OWN: [&str; 2] = ["nextn.shared_head_norm", "layer_output_norm"];
        let guessing = self.guessing_layer();
        let x = if guessing.is_some() { self.output_rows(x)? } else { x };
        let outer = self.layer;
        self.layer = guessing;
        let own = OWN.into_iter().find(|name| guessing.is_some() && self.has(&format!("{name}.weight")));
        self.layer = guessing.filter(|_| own.is_some());
        let normed = self.norm_of(own.unwrap_or("output_norm"), x);
        self.layer = outer;
        let normed = normed?;
        self.last_state = Some(match self.reads {
            Reads::BeforeNorm => x,
            Reads::AfterNorm => normed,
        });
        Ok(normed)
    }

    /// The matrix `[vocabulary, width]` that makes logits: that of the layer that guesses ahead if it has one, `output.weight`,
    /// or the embedding table.
    pub(super) fn output_matrix(&mut self, vocabulary: u32, width: u32) -> Result<Operand> {
        if let Some(layer) = self.guessing_layer() {
            let outer = self.layer.replace(layer);
            let own = self.optional_weight("nextn.shared_head_head.weight", &[vocabulary, width]);
            self.layer = outer;
            if let Some(own) = own? {
                return Ok(own);
            }
        }
        let name = if self.has("output.weight") { "output.weight" } else { "token_embd.weight" };
        self.global_weight(name, &[vocabulary, width])
    }

    /// The state that layers which guess ahead read next, if it is asked for.
    pub(super) fn state_output(&self) -> Result<Option<(Output, ValueId)>> {
        let kind = match (self.guesses_ahead(), self.options.last_state) {
            (true, _) => Output::Hidden,
            (false, true) => Output::LastState,
            (false, false) => return Ok(None),
        };
        let missing = || ModelError::Unsuitable {
            architecture: self.architecture.to_string(),
            what: "a last state that is read elsewhere",
        };
        Ok(Some((kind, self.last_state.ok_or_else(missing)?)))
    }
}
