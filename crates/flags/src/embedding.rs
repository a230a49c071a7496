//! What the flags of embeddings and ranks say.

/// How texts become embeddings, and how these are printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Embedding {
    /// Pooling by name; `None` for the model's own.
    pub pooling: Option<&'static str>,
    /// Whether tokens see only earlier ones; `None` for what the model says.
    pub causal: Option<bool>,
    /// Norm that embeddings are divided by: -1 none, 0 the largest number to 32760, else the p-norm.
    pub normalize: i32,
    /// Format of the output: empty, `array`, `json`, `json+` or `raw`.
    pub format: &'static str,
    /// Text between prompts.
    pub separator: String,
    /// Text between the parts of a pair that is ranked.
    pub class_separator: String,
    /// Documents to print, the best ones; `None` for all.
    pub top: Option<usize>,
    /// Serve embeddings instead of text.
    pub serve: bool,
    /// Serve ranks instead of text.
    pub serve_ranks: bool,
}

impl Default for Embedding {
    fn default() -> Self {
        Self {
            pooling: None,
            causal: None,
            normalize: 2,
            format: "",
            separator: "\n".into(),
            class_separator: "\t".into(),
            top: None,
            serve: false,
            serve_ranks: false,
        }
    }
}
