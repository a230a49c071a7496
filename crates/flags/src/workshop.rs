//! What the flags of the tools for model files say.

use puna_gguf::Value;
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
    /// Compare with recorded predictions.
    pub divergence: bool,
    /// File with recorded predictions, to be written unless `divergence`.
    pub base: Option<PathBuf>,
    /// Solve tasks with several answers instead.
    pub tasks: Option<Tasks>,
    /// Tasks of HellaSwag; 0 for all.
    pub hellaswag_tasks: u32,
    /// Tasks of WinoGrande; 0 for all.
    pub winogrande_tasks: u32,
    /// Tasks of other kinds; 0 for all.
    pub multiple_choice_tasks: u32,
}

/// Kinds of tasks with several answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tasks {
    /// Endings of a text.
    HellaSwag,
    /// Words for a gap.
    WinoGrande,
    /// Answers to a question.
    MultipleChoice,
}

impl Default for Perplexity {
    fn default() -> Self {
        Self {
            chunks: -1,
            stride: 0,
            output_type: 0,
            divergence: false,
            base: None,
            tasks: None,
            hellaswag_tasks: 400,
            winogrande_tasks: 0,
            multiple_choice_tasks: 0,
        }
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

/// What `convert` and `convert-lora` write. The type is still a name here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Convert {
    /// File to write.
    pub output: Option<PathBuf>,
    /// Type of file, or number format of an adapter.
    pub output_type: Option<String>,
    /// Nothing but the tokenizer.
    pub vocabulary_only: bool,
    /// Name of the model, instead of the folder's.
    pub name: Option<String>,
    /// Print what would be written.
    pub dry_run: bool,
    /// Leave tensors out that are not known.
    pub skip_unknown: bool,
    /// Name of the pre-tokenizer.
    pub pre_tokenizer: Option<String>,
    /// Leave layers out that guess tokens ahead.
    pub not_ahead: bool,
    /// Write nothing but layers that guess tokens ahead.
    pub only_ahead: bool,
    /// Print the model classes that are known.
    pub list: bool,
    /// Folder of the model that an adapter was trained for.
    pub base: Option<PathBuf>,
}

/// What `imatrix` measures and writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imatrix {
    /// File to write; `imatrix.gguf` unless given.
    pub output: Option<PathBuf>,
    /// `gguf` or `dat`; by the file's ending unless given.
    pub format: Option<String>,
    /// Write what there is after so many chunks; 0 for at the end only.
    pub output_frequency: u32,
    /// Keep a snapshot after so many chunks; 0 for never.
    pub save_frequency: u32,
    /// Also measure the output matrix.
    pub process_output: bool,
    /// Print the perplexity.
    pub perplexity: bool,
    /// Chunks to leave out at the beginning.
    pub from_chunk: u32,
    /// Files to begin with.
    pub inputs: Vec<PathBuf>,
    /// Special tokens in the text are what they are.
    pub parse_special: bool,
    /// Print statistics of the files.
    pub statistics: bool,
}

impl Default for Imatrix {
    fn default() -> Self {
        Self {
            output: None,
            format: None,
            output_frequency: 10,
            save_frequency: 0,
            process_output: false,
            perplexity: true,
            from_chunk: 0,
            inputs: Vec::new(),
            parse_special: false,
            statistics: false,
        }
    }
}

/// What `gguf-hash` computes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GgufHash {
    /// XXH64, which is also computed when nothing is chosen.
    pub xxh64: bool,
    /// SHA-1.
    pub sha1: bool,
    /// SHA-256.
    pub sha256: bool,
    /// All of them.
    pub all: bool,
    /// An identifier of version 5.
    pub uuid: bool,
    /// Hashes of the whole only.
    pub no_layer: bool,
    /// List to compare with.
    pub check: Option<PathBuf>,
}

/// A change of metadata.
#[derive(Clone, PartialEq, Debug)]
pub enum Edit {
    /// Gives a key a value.
    Set(String, Value),
    /// Gives a key another name.
    Rename(String, String),
    /// Removes a key.
    Delete(String),
}

/// How `gguf` changes a file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gguf {
    /// Changes, in order; none to print.
    pub edits: Vec<Edit>,
    /// File to write.
    pub output: Option<PathBuf>,
    /// Put the new file into the old one's place.
    pub in_place: bool,
    /// Print whole arrays and texts.
    pub full: bool,
}

/// Where `export-lora` writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExportLora {
    /// File to write.
    pub output: Option<PathBuf>,
}

/// How `cvector-generator` finds directions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cvector {
    /// Prompts of one kind, one in a line.
    pub positive: Option<PathBuf>,
    /// Prompts of the other kind.
    pub negative: Option<PathBuf>,
    /// File to write.
    pub output: Option<PathBuf>,
    /// The mean of differences instead of their principal direction.
    pub mean: bool,
    /// Most steps to the principal direction.
    pub iterations: u32,
}

impl Default for Cvector {
    fn default() -> Self {
        Self { positive: None, negative: None, output: None, mean: false, iterations: 1000 }
    }
}

/// What old files do not say.
#[derive(Clone, PartialEq, Debug)]
pub struct ConvertLegacy {
    /// Context that the model was trained with.
    pub context: u32,
    /// Epsilon of norms.
    pub epsilon: f32,
}

impl Default for ConvertLegacy {
    fn default() -> Self {
        Self { context: 2048, epsilon: 5e-6 }
    }
}
