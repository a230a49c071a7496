//! Texts to numbers: what `embedding` and `rerank` share.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{load, prompt};
use puna_flags::Config;
use puna_runtime::{ModelOptions, Pooling, Purpose};
use puna_tokenizer::{Role, Tokenizer};

/// Texts that are computed side by side at most.
const SEQUENCES: usize = 64;

/// A model file that is open, with its tokenizer.
pub struct Embedder {
    opened: load::Opened,
    /// The tokenizer of the file.
    pub tokenizer: Tokenizer,
}

/// What came of it.
pub struct Embedded {
    /// For each text its row, or without pooling a row per token one after another.
    pub rows: Vec<Vec<f32>>,
    /// Numbers in a row.
    pub width: usize,
    /// How rows were pooled.
    pub pooling: Pooling,
    /// Names of the scores, where there are scores and the file names them.
    pub labels: Vec<String>,
}

impl Embedder {
    /// Opens the model that the flags name.
    pub fn open(invocation: &Invocation, config: &Config, console: &Console) -> Result<Self, Failure> {
        let opened = load::open(invocation, config, console, false)?;
        let tokenizer = opened.tokenizer(console)?;
        Ok(Self { opened, tokenizer })
    }

    /// The pooling of the flag, else of the file, else none.
    pub fn pooling(&self, config: &Config) -> Result<Pooling, Failure> {
        load::pooling_of(config, &self.opened.file.metadata)
    }

    /// Warns where a text does not end as the model was trained.
    pub fn check_ends(&self, texts: &[Vec<u32>], console: &Console) {
        let vocabulary = self.tokenizer.vocabulary();
        let ends = [vocabulary.eos(), vocabulary.role(Role::Separator)];
        if texts.iter().any(|text| !ends.contains(&text.last().copied())) {
            console.warn(
                "a text does not end with the end token or the separator; tokenizer.ggml.add_eos_token in the model's \
                 file would add it",
            );
        }
    }

    /// Loads the model, as large as the texts need, and embeds them.
    pub fn embed(
        &self,
        config: &Config,
        console: &Console,
        pooling: Pooling,
        texts: &[Vec<u32>],
    ) -> Result<Embedded, Failure> {
        let tokens = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let longest = tokens(texts.iter().map(Vec::len).max().unwrap_or(0)).max(1);
        let total = tokens(texts.iter().map(Vec::len).sum()).max(1);
        let sequences = tokens(texts.len().clamp(1, SEQUENCES));
        let options = load::options(config, sequences, 0)?;
        // A text is in one step as a whole; without a size from the user the context is what the texts need.
        let micro_batch = options.micro_batch.max(config.context.batch).min(total).max(longest);
        let context = if options.context == 0 { micro_batch } else { options.context };
        if context < longest {
            return Err(Failure::Failed(format!(
                "a text has {longest} tokens, the context {context}; a larger one is needed (-c)"
            )));
        }
        let purpose = Purpose::Embed(Some(pooling));
        let options = ModelOptions { context, micro_batch, purpose, ..options };
        let mut model = load::model_with(&self.opened, config, console, &options)?;
        let train = model.information().context_train;
        if train > 0 && longest > train {
            console.warn(&format!("a text has {longest} tokens, the model was trained with {train}"));
        }
        let rows = model.embed(texts)?;
        let metadata = &self.opened.file.metadata;
        let architecture = &model.information().architecture;
        let labels = metadata
            .optional_string_array(&format!("{architecture}.classifier.output_labels"))?
            .map(|labels| labels.to_vec())
            .unwrap_or_default();
        Ok(Embedded { rows, width: model.information().width as usize, pooling, labels })
    }
}

/// The prompts that the flags give, as texts.
pub fn prompts(config: &Config, separator: &str) -> Result<Vec<String>, Failure> {
    let text = prompt::given(config)?.unwrap_or_default();
    Ok(text.split(separator).map(str::to_owned).collect())
}
