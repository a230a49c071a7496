//! Embeddings and scores of texts.

use puna_graph::PooledRows;

use crate::{Batch, Model, OutputRows, RuntimeError, Work};

impl Model {
    /// Which of a text's tokens are asked for, if the model was loaded to make embeddings.
    pub fn embedded_rows(&self) -> Option<OutputRows> {
        self.pooled.map(|rows| match rows {
            PooledRows::All => OutputRows::All,
            PooledRows::First => OutputRows::First,
            PooledRows::Last | PooledRows::Mean => OutputRows::Last,
        })
    }

    /// Tokens that a text may have.
    pub fn longest_text(&self) -> u32 {
        let options = &self.options;
        let most = match (self.needs_whole_texts(), self.embedded_rows()) {
            (true, Some(OutputRows::All)) => options.micro_batch.min(options.outputs),
            (true, _) => options.micro_batch,
            (false, _) => options.context,
        };
        most.min(self.information.context)
    }

    /// Embeddings of texts, none of them empty, as many as fit in each step: for each text its row, or without
    /// pooling a row per token, one after another, not normalised. Whatever the model's sequences hold is dropped.
    pub fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, RuntimeError> {
        let Some(outputs) = self.embedded_rows() else {
            return Err(RuntimeError::Purpose { purpose: "generating text" });
        };
        if let Some(index) = texts.iter().position(Vec::is_empty) {
            return Err(RuntimeError::EmptyText { index });
        }
        let mut embeddings = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let (some, others) = rest.split_at(self.fitting(rest));
            rest = others;
            embeddings.extend(self.embed_together(some, outputs)?);
        }
        Ok(embeddings)
    }

    /// How many of these texts, at least one, have room side by side.
    fn fitting(&self, texts: &[Vec<u32>]) -> usize {
        let context = self.options.context as usize;
        let mut tokens = 0_usize;
        let fits = |text: &&Vec<u32>| {
            tokens = tokens.saturating_add(text.len());
            // What sees both directions needs no cells.
            self.ledgers.is_empty() || tokens <= context
        };
        let count = texts.iter().take(self.options.sequences as usize).take_while(fits).count();
        count.max(1)
    }

    fn embed_together(
        &mut self,
        texts: &[Vec<u32>],
        outputs: OutputRows,
    ) -> Result<Vec<Vec<f32>>, RuntimeError> {
        (0..self.options.sequences).for_each(|sequence| self.clear(sequence));
        let work = |(sequence, text): (usize, &Vec<u32>)| Work {
            sequence: sequence as u32,
            tokens: text.clone(),
            outputs,
        };
        let batch = Batch::of(texts.iter().enumerate().map(work).collect());
        let found = self.run(&batch);
        (0..self.options.sequences).for_each(|sequence| self.clear(sequence));
        let found = found?;
        let mut rows = found.logits.chunks_exact(found.width.max(1));
        let rows_of = |text: &Vec<u32>| if outputs == OutputRows::All { text.len() } else { 1 };
        let embedding = |text: &Vec<u32>| rows.by_ref().take(rows_of(text)).flatten().copied().collect();
        Ok(texts.iter().map(embedding).collect())
    }
}
