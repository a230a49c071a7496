//! What the flags of the tools for model files say.

use std::path::PathBuf;

/// What `batched-bench` measures: every combination of the three lists.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BatchedBench {
    /// Prompt lengths.
    pub prompts: Vec<u32>,
    /// Generation lengths.
    pub answers: Vec<u32>,
    /// Numbers of sequences.
    pub sequences: Vec<u32>,
    /// All sequences have the same prompt, evaluated once.
    pub shared_prompt: bool,
    /// Each sequence generates alone, one after the other.
    pub separate: bool,
    /// One JSON object a line instead of a table.
    pub jsonl: bool,
}

/// What `perplexity` computes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Perplexity {
    /// Most chunks to evaluate; -1 means all.
    pub chunks: i32,
    /// Tokens between the starts of overlapping chunks; 0 means chunks that do not overlap.
    pub stride: u32,
    /// 0 for `[chunk]perplexity,`, 1 for a line with the position, too.
    pub output_type: u32,
}

impl Default for Perplexity {
    fn default() -> Self {
        Self { chunks: -1, stride: 0, output_type: 0 }
    }
}

/// How `quantize` chooses formats. Formats are still names here.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Quantize {
    /// Also quantise tensors that are quantised already.
    pub allow_requantize: bool,
    /// Keep `output.weight` as it is.
    pub leave_output_tensor: bool,
    /// One format for all tensors.
    pub pure: bool,
    /// File with the importance of columns.
    pub importance: Option<PathBuf>,
    /// Use importance for these tensors only.
    pub include_weights: Vec<String>,
    /// Do not use importance for these tensors.
    pub exclude_weights: Vec<String>,
    /// Format of `output.weight`.
    pub output_tensor_type: Option<String>,
    /// Format of the token embeddings.
    pub token_embedding_type: Option<String>,
    /// Patterns of tensor names with their format, `PATTERN=TYPE`.
    pub tensor_types: Vec<String>,
    /// Files with such patterns.
    pub tensor_type_files: Vec<PathBuf>,
    /// Layers to leave out.
    pub prune_layers: Vec<u32>,
    /// Write as many files as were read.
    pub keep_split: bool,
    /// Print formats and sizes, write nothing.
    pub dry_run: bool,
}

/// How `gguf-split` cuts files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GgufSplit {
    /// Cut a file into several.
    pub split: bool,
    /// Make one file of several.
    pub merge: bool,
    /// Most tensors of a file.
    pub max_tensors: Option<u64>,
    /// Most bytes of a file.
    pub max_bytes: Option<u64>,
    /// The first file has metadata only.
    pub no_tensor_first_split: bool,
    /// Print what would be written.
    pub dry_run: bool,
    /// Delete each file once it is merged.
    pub delete_splits: bool,
}
