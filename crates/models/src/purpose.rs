//! What a model is asked for.

/// What a graph is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Purpose {
    /// Logits of the next token.
    #[default]
    Generate,
    /// Logits of the token after the next one, by the first layer that guesses tokens further ahead
    /// (`nextn_predict_layers`), from states that come with each row.
    GuessAhead,
    /// Embeddings or scores of texts, pooled this way; `None` for what the file says.
    Embed(Option<Pooling>),
}

/// How the rows of a text become its embedding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pooling {
    /// Every token has its own.
    None,
    /// The mean of all.
    Mean,
    /// That of the first token, often called CLS.
    Cls,
    /// That of the last token.
    Last,
    /// The scores of the model's classifier, as of a reranker.
    Rank,
}

impl Pooling {
    /// All of them with the names that flags and files use; a file's number is the index.
    pub const ALL: [(Pooling, &'static str); 5] = [
        (Pooling::None, "none"),
        (Pooling::Mean, "mean"),
        (Pooling::Cls, "cls"),
        (Pooling::Last, "last"),
        (Pooling::Rank, "rank"),
    ];

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, other)| *other == name).map(|(pooling, _)| *pooling)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(other, _)| *other == self).map_or("", |(_, name)| name)
    }
}
