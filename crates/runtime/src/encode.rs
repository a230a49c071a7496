//! Models with an encoder and a decoder: reading what the decoder is to answer.

use puna_graph::{CacheGroup, GroupStep, Step};

use crate::{Model, RuntimeError};

impl Model {
    /// Whether the model has an encoder, so that a sequence begins with [`Model::encode`].
    pub fn has_encoder(&self) -> bool {
        self.encoder().is_some()
    }

    /// Starts a sequence over: the encoder reads these tokens, at least one, which must fit into one step. What the
    /// decoder is given next attends to them. On an error the sequence is empty.
    pub fn encode(&mut self, sequence: u32, tokens: &[u32]) -> Result<(), RuntimeError> {
        self.check_sequence(sequence)?;
        if !self.has_encoder() {
            return Err(RuntimeError::NoEncoder { architecture: self.information.architecture.clone() });
        }
        if tokens.is_empty() {
            return Err(RuntimeError::EmptyText { index: 0 });
        }
        let (vocabulary, most) = (self.information.vocabulary, self.options.micro_batch);
        if tokens.len() > most as usize {
            return Err(RuntimeError::TextTooLong { tokens: tokens.len(), most });
        }
        if let Some(token) = tokens.iter().find(|token| **token >= vocabulary) {
            return Err(RuntimeError::TokenOutOfRange { token: *token, vocabulary });
        }
        self.clear(sequence);
        let result = self.read(sequence, tokens);
        if result.is_err() {
            self.clear(sequence);
        }
        result
    }

    fn read(&mut self, sequence: u32, tokens: &[u32]) -> Result<(), RuntimeError> {
        let rows = tokens.len() as u32;
        let positions: Vec<i32> = (0..rows as i32).collect();
        let context = self.options.context;
        let mut groups = Vec::new();
        for (index, group) in self.graph.groups().into_iter().enumerate() {
            groups.push(match group {
                CacheGroup::EncoderStep => GroupStep::of_rows(&positions, std::slice::from_ref(&(0..rows))),
                CacheGroup::Encoder => {
                    let ledger = &mut self.ledgers[index];
                    let free = ledger.free();
                    let full = |needed| RuntimeError::ContextFull { needed, free, context };
                    // Only the decoder's rows read these cells.
                    GroupStep { spans: Vec::new(), ..ledger.place(&[(sequence, rows)]).map_err(full)? }
                }
                CacheGroup::Full | CacheGroup::Window(_) | CacheGroup::Recurrent | CacheGroup::Step => {
                    GroupStep::default()
                }
            });
        }
        let step = Step {
            groups,
            encoder_tokens: tokens.to_vec(),
            encoder_positions: positions,
            adapters: self.adapters.clone(),
            ..Step::default()
        };
        self.run_step(&step).map(drop)
    }
}
