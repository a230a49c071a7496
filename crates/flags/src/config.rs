//! The configuration that flags write: plain data, one field per flag.

use crate::diffusion::Diffusion;
use crate::embedding::Embedding;
use crate::speculation::Speculation;
use crate::values::Toggle;
use crate::workshop::{
    BatchedBench, Convert, ConvertLegacy, Cvector, ExportLora, Gguf, GgufHash, GgufSplit, Imatrix,
    Perplexity, Quantize,
};
use puna_gguf::Value;
use std::path::PathBuf;

/// Everything that the shared flags set.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// Messages and their destination.
    pub log: Log,
    /// Where the model comes from and how it is read.
    pub model: Model,
    /// Threads.
    pub cpu: Cpu,
    /// Devices and placement.
    pub device: Device,
    /// Context, batches and caches.
    pub context: Context,
    /// Changes to the model's position encoding.
    pub rope: Rope,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// How texts are guessed ahead.
    pub speculation: Speculation,
    /// Input text.
    pub prompt: Prompt,
    /// Conversation.
    pub chat: Chat,
    /// How models are served.
    pub server: Server,
    /// What `tokenize` prints.
    pub tokenize: Tokenize,
    /// What `logits` computes.
    pub logits: Logits,
    /// How `diffusion` makes a text.
    pub diffusion: Diffusion,
    /// What `batched-bench` measures.
    pub batched_bench: BatchedBench,
    /// How texts become embeddings.
    pub embedding: Embedding,
    /// What `perplexity` computes.
    pub perplexity: Perplexity,
    /// How `quantize` chooses formats.
    pub quantize: Quantize,
    /// How `gguf-split` cuts files.
    pub gguf_split: GgufSplit,
    /// What `imatrix` measures and writes.
    pub imatrix: Imatrix,
    /// What `gguf-hash` computes.
    pub gguf_hash: GgufHash,
    /// How `gguf` changes a file.
    pub gguf: Gguf,
    /// Where `export-lora` writes.
    pub export_lora: ExportLora,
    /// How `cvector-generator` finds directions.
    pub cvector: Cvector,
    /// What `convert-legacy` cannot know.
    pub convert_legacy: ConvertLegacy,
    /// What `convert` and `convert-lora` write.
    pub convert: Convert,
    /// `--json` of `info`, `devices`, `list` and `rerank`.
    pub json: bool,
    /// Arguments that are no flags, in order.
    pub positional: Vec<String>,
}

/// Messages and their destination.
#[derive(Clone, PartialEq, Debug)]
pub struct Log {
    /// Messages above this level are hidden: 0 output only, 1 errors, 2 warnings, 3 information, 4 trace,
    /// 5 debug. `None` leaves the choice to the tool.
    pub verbosity: Option<u32>,
    /// No messages at all.
    pub disable: bool,
    /// Also written to this file.
    pub file: Option<PathBuf>,
    /// Colours of messages.
    pub colors: Toggle,
    /// A line of JSON for each message.
    pub json: bool,
    /// A letter for the level before each message.
    pub prefix: bool,
    /// The time before each message.
    pub times: bool,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            verbosity: None,
            disable: false,
            file: None,
            colors: Toggle::Auto,
            json: false,
            prefix: false,
            times: false,
        }
    }
}

/// How a model file is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadMode {
    /// A memory map, unless a device does not allow it.
    Auto,
    /// Read into memory.
    Read,
    /// A memory map.
    Mmap,
    /// Read into memory and kept out of swap.
    Mlock,
    /// A memory map kept in memory.
    MmapMlock,
}

/// Where the model comes from and how it is read.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// A file (the first one of a split model).
    pub path: Option<PathBuf>,
    /// A file to download.
    pub url: Option<String>,
    /// A repository of the hub, `user/model[:quant]`.
    pub hf_repo: Option<String>,
    /// A file of that repository.
    pub hf_file: Option<String>,
    /// Access token for the hub.
    pub hf_token: Option<String>,
    /// Never use the network.
    pub offline: bool,
    /// How the file is read.
    pub load_mode: LoadMode,
    /// Look for invalid numbers in the weights.
    pub check_tensors: bool,
    /// Metadata keys and the values to use for them.
    pub overrides: Vec<(String, Value)>,
    /// LoRA adapters with their factors.
    pub adapters: Vec<(PathBuf, f32)>,
    /// Control vectors with their factors.
    pub control_vectors: Vec<(PathBuf, f32)>,
    /// First and last layer of control vectors; all unless given.
    pub control_layers: Option<(u32, u32)>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            path: None,
            url: None,
            hf_repo: None,
            hf_file: None,
            hf_token: None,
            offline: false,
            load_mode: LoadMode::Auto,
            check_tensors: false,
            overrides: Vec::new(),
            adapters: Vec::new(),
            control_vectors: Vec::new(),
            control_layers: None,
        }
    }
}

/// Threads.
#[derive(Clone, PartialEq, Debug)]
pub struct Cpu {
    /// Threads for single tokens; `None` means one per physical core.
    pub threads: Option<usize>,
    /// How far kernels may go: one of [`ISA_LEVELS`].
    pub isa: &'static str,
    /// Results of a row may not depend on the other rows of a step.
    pub deterministic: bool,
    /// Keep the file's own copy of repacked weights resident.
    pub repack_keep: bool,
}

/// Levels of instruction sets of the processor, each with what the ones before it have of the same architecture; `auto`
/// has no limit.
pub const ISA_LEVELS: &[&str] =
    &["auto", "scalar", "avx2", "avxvnni", "avx512", "amx", "neon", "dotprod", "i8mm"];

/// The levels that only one architecture has, by its name in Rust.
pub(crate) const ISA_ARCHITECTURES: [(&str, &[&str]); 2] =
    [("x86_64", &["avx2", "avxvnni", "avx512", "amx"]), ("aarch64", &["neon", "dotprod", "i8mm"])];

impl Default for Cpu {
    fn default() -> Self {
        Self { threads: None, isa: ISA_LEVELS[0], deterministic: false, repack_keep: false }
    }
}

/// How many layers go to devices other than the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layers {
    /// As many as fit.
    #[default]
    Fitting,
    /// All, whether they fit or not.
    All,
    /// The last so many, the output counted as one.
    Count(u32),
}

/// Devices and placement.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    /// Names of the devices for layers; `None` leaves the choice to the program.
    pub names: Option<Vec<String>>,
    /// Layers that go there.
    pub layers: Layers,
    /// How they are split over several: `none`, `layer`, `row` or `tensor`.
    pub split: &'static str,
    /// Shares of the devices; none for what they have free.
    pub shares: Vec<f32>,
    /// Index of the device where only one is used.
    pub main: u32,
    /// Patterns of names of tensors, and the devices of these.
    pub overrides: Vec<(String, String)>,
    /// The first so many layers have their experts on the CPU.
    pub cpu_moe: u32,
    /// The first so many layers have their dense feed-forward weights on the CPU.
    pub cpu_ffn: u32,
    /// Caches are on the device of their layer.
    pub kv_offload: bool,
    /// What was not asked for follows from the memory that is free.
    pub fit: bool,
    /// MiB to leave free on each device.
    pub fit_target: Vec<u32>,
    /// Least context that may be chosen.
    pub fit_context: u32,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            names: None,
            layers: Layers::Fitting,
            split: "layer",
            shares: Vec::new(),
            main: 0,
            overrides: Vec::new(),
            cpu_moe: 0,
            cpu_ffn: 0,
            kv_offload: true,
            fit: true,
            fit_target: vec![1024],
            fit_context: 4096,
        }
    }
}

/// Context, batches and caches.
#[derive(Clone, PartialEq, Debug)]
pub struct Context {
    /// Tokens in the context; 0 means the number that the model was trained with.
    pub size: u32,
    /// Upper limit of `micro_batch`, as steps are what is handed over.
    pub batch: u32,
    /// Tokens computed at once.
    pub micro_batch: u32,
    /// Tokens of the prompt that stay when the context is shifted; -1 means all.
    pub keep: i32,
    /// Drop old tokens when the context is full, instead of stopping.
    pub shift: bool,
    /// Keep the full context for layers with a sliding window.
    pub full_window: bool,
    /// Number format of cached keys: a format's printed name.
    pub type_k: &'static str,
    /// Number format of cached values.
    pub type_v: &'static str,
}

impl Default for Context {
    fn default() -> Self {
        Self {
            size: 0,
            batch: 2048,
            micro_batch: 512,
            keep: 0,
            shift: false,
            full_window: false,
            type_k: "f16",
            type_v: "f16",
        }
    }
}

/// Changes to the model's position encoding; what is `None` is read from the model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rope {
    /// `none`, `linear` or `yarn`.
    pub scaling: Option<&'static str>,
    /// Factor by which the context grows.
    pub scale: Option<f32>,
    /// Base frequency.
    pub freq_base: Option<f32>,
    /// YaRN: context that the model was trained with.
    pub yarn_orig_ctx: Option<u32>,
    /// YaRN: mix of extrapolation and interpolation.
    pub yarn_ext_factor: Option<f32>,
    /// YaRN: factor on attention.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN: high correction dimension.
    pub yarn_beta_slow: Option<f32>,
    /// YaRN: low correction dimension.
    pub yarn_beta_fast: Option<f32>,
}

impl Rope {
    /// The same changes as metadata of a model of this architecture, for a reader that lets metadata be
    /// overridden.
    pub fn metadata(&self, architecture: &str) -> Vec<(String, Value)> {
        let key = |name: &str| format!("{architecture}.rope.{name}");
        let float = |value: f32| Value::F64(f64::from(value));
        let mut all = Vec::new();
        // A factor alone leaves the file's kind of scaling, which is linear where the file names none.
        all.extend(self.scale.map(|scale| (key("scaling.factor"), float(scale))));
        all.extend(self.scaling.map(|name| (key("scaling.type"), Value::String(name.to_owned()))));
        all.extend(self.freq_base.map(|value| (key("freq_base"), float(value))));
        let original = self.yarn_orig_ctx;
        all.extend(original.map(|value| (key("scaling.original_context_length"), Value::U32(value))));
        for (name, value) in [
            ("scaling.yarn_ext_factor", self.yarn_ext_factor),
            ("scaling.attn_factor", self.yarn_attn_factor),
            ("scaling.yarn_beta_slow", self.yarn_beta_slow),
            ("scaling.yarn_beta_fast", self.yarn_beta_fast),
        ] {
            all.extend(value.map(|value| (key(name), float(value))));
        }
        all
    }
}

/// How the next token is chosen: numbers only, in the units of the sampler of that name.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampling {
    /// Names of the samplers in their order; `None` means the usual ones.
    pub samplers: Option<Vec<String>>,
    /// Start of the random numbers; `None` means a new one each time.
    pub seed: Option<u32>,
    /// Never choose the end of the text.
    pub ignore_eos: bool,
    /// Temperature; 0 or less means the most likely token.
    pub temperature: f32,
    /// Number of most likely tokens to keep; 0 means all.
    pub top_k: i32,
    /// Probability that the kept tokens sum to; 1 means all.
    pub top_p: f32,
    /// Least probability relative to the most likely token.
    pub min_p: f32,
    /// Locally typical probability; 1 means all.
    pub typical_p: f32,
    /// Tokens looked back on by the penalties; 0 means none, -1 the whole context.
    pub repeat_last_n: i32,
    /// Divisor for repeated tokens; 1 means none.
    pub repeat_penalty: f32,
    /// Subtracted once from tokens that have occurred.
    pub presence_penalty: f32,
    /// Subtracted for each time that a token has occurred.
    pub frequency_penalty: f32,
    /// Standard deviations of the logits that are kept below the best; 0 or less means all.
    pub top_n_sigma: f32,
    /// How often the most likely tokens are dropped.
    pub xtc_probability: f32,
    /// Least probability of what may be dropped then.
    pub xtc_threshold: f32,
    /// Strength of DRY; 0 means none.
    pub dry_multiplier: f32,
    /// Base of DRY's power.
    pub dry_base: f32,
    /// Longest repetition in tokens that DRY lets pass.
    pub dry_allowed_length: i32,
    /// Tokens that DRY looks back on; 0 means none, -1 the whole context.
    pub dry_penalty_last_n: i32,
    /// Texts that end a repetition; `None` means the usual ones.
    pub dry_breakers: Option<Vec<String>>,
    /// Mean probability that adaptive-p comes to; below 0 means off.
    pub adaptive_target: f32,
    /// Weight that older tokens keep in it.
    pub adaptive_decay: f32,
    /// How far the temperature follows the entropy; 0 means not at all.
    pub dynatemp_range: f32,
    /// Exponent of the entropy's share.
    pub dynatemp_exponent: f32,
    /// Version of mirostat; 0 means none.
    pub mirostat: i32,
    /// Learning rate of mirostat.
    pub mirostat_eta: f32,
    /// Surprise in bits that mirostat comes to.
    pub mirostat_tau: f32,
    /// Tokens and what is added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// What the output has to follow.
    pub grammar: Option<GrammarSource>,
}

/// Where the output's grammar comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GrammarSource {
    /// A grammar in GBNF, or in Lark after `%llguidance`.
    Text(String),
    /// A file with one.
    File(PathBuf),
    /// A JSON schema.
    Schema(String),
    /// A file with one.
    SchemaFile(PathBuf),
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            samplers: None,
            seed: None,
            ignore_eos: false,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_breakers: None,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat: 0,
            mirostat_eta: 0.1,
            mirostat_tau: 5.0,
            logit_bias: Vec::new(),
            grammar: None,
        }
    }
}

/// Input text and its limits.
#[derive(Clone, PartialEq, Debug)]
pub struct Prompt {
    /// The prompt itself.
    pub text: Option<String>,
    /// A file with the prompt.
    pub file: Option<PathBuf>,
    /// A file with the prompt, used byte for byte.
    pub binary_file: Option<PathBuf>,
    /// Replace `\n`, `\t` and the like in prompts.
    pub escape: bool,
    /// Tokens to generate: -1 no limit, -2 until the context is full; `None` leaves the choice to the tool.
    pub predict: Option<i32>,
    /// Texts that stop the generation.
    pub reverse: Vec<String>,
    /// Print special tokens.
    pub special: bool,
    /// Print the prompt's tokens first.
    pub verbose: bool,
    /// Print the prompt before the generated text.
    pub display: bool,
    /// Print the token count every so many tokens; -1 means never.
    pub print_token_count: i32,
    /// File with a saved state of the context.
    pub cache_file: Option<PathBuf>,
    /// Save generated tokens to it, too.
    pub cache_all: bool,
    /// Never write it.
    pub cache_read_only: bool,
}

impl Default for Prompt {
    fn default() -> Self {
        Self {
            text: None,
            file: None,
            binary_file: None,
            escape: true,
            predict: None,
            reverse: Vec::new(),
            special: false,
            verbose: false,
            display: true,
            print_token_count: -1,
            cache_file: None,
            cache_all: false,
            cache_read_only: false,
        }
    }
}

/// Conversation.
#[derive(Clone, PartialEq, Debug)]
pub struct Chat {
    /// System prompt.
    pub system: Option<String>,
    /// A file with the system prompt.
    pub system_file: Option<PathBuf>,
    /// Hold a conversation (`completion`); `None` means if the model has a template.
    pub conversation: Option<bool>,
    /// One answer, then end.
    pub single_turn: bool,
    /// Take input between answers without a template.
    pub interactive: bool,
    /// Start by taking input.
    pub interactive_first: bool,
    /// Lines end with a backslash unless the message goes on.
    pub multiline_input: bool,
    /// Put the beginning token before each input.
    pub prefix_bos: bool,
    /// Text before each input.
    pub prefix: String,
    /// Text after each input.
    pub suffix: String,
    /// Plain input and output without line editing.
    pub simple_io: bool,
    /// Colours of prompt and answer.
    pub color: Toggle,
    /// Timings after each answer.
    pub show_timings: bool,
    /// The model's chat template or a built-in one, instead of the model's own.
    pub template: Option<String>,
    /// A file with the template.
    pub template_file: Option<PathBuf>,
    /// A JSON object of more values for the template.
    pub template_values: Option<String>,
    /// Templates may be Jinja; otherwise only built-in ones count.
    pub jinja: bool,
    /// The conversation whose prompt is printed, a JSON file (`template`).
    pub conversation_file: Option<PathBuf>,
    /// What time it is (`template`); the clock's unless given.
    pub now: Option<String>,
    /// Reasoning of models that can switch it.
    pub reasoning: Toggle,
    /// How hard a model should think, in the words of its template.
    pub reasoning_effort: Option<String>,
    /// Where a server puts reasoning: `none`, `auto`, `deepseek` or `deepseek-legacy`.
    pub reasoning_format: &'static str,
    /// Tokens of reasoning in an answer at most.
    pub reasoning_budget: Option<u32>,
    /// What the reasoning says when its tokens are used up.
    pub reasoning_budget_message: String,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            system: None,
            system_file: None,
            conversation: None,
            single_turn: false,
            interactive: false,
            interactive_first: false,
            multiline_input: false,
            prefix_bos: false,
            prefix: String::new(),
            suffix: String::new(),
            simple_io: false,
            color: Toggle::Auto,
            show_timings: true,
            template: None,
            template_file: None,
            template_values: None,
            jinja: true,
            conversation_file: None,
            now: None,
            reasoning: Toggle::Auto,
            reasoning_effort: None,
            reasoning_format: "auto",
            reasoning_budget: None,
            reasoning_budget_message: String::new(),
        }
    }
}

/// How models are served.
#[derive(Clone, PartialEq, Debug)]
pub struct Server {
    /// Host name or address to listen on.
    pub host: String,
    /// Port to listen on; 0 for any that is free.
    pub port: u16,
    /// Requests answered at once; `None` leaves the choice to the program.
    pub parallel: Option<u32>,
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// Keys that clients need.
    pub api_keys: Vec<String>,
    /// A file with keys, one a line.
    pub api_key_file: Option<PathBuf>,
    /// A JSON file of keys with names, models, ends and limits.
    pub key_file: Option<PathBuf>,
    /// A file to which a line of JSON is written for each request.
    pub audit_log: Option<PathBuf>,
    /// Rules that tell how risky a prompt is.
    pub audit_rules: Option<PathBuf>,
    /// Write prompts into the audit log, too.
    pub audit_prompts: bool,
    /// Serve other machines without a key.
    pub allow_unauthenticated: bool,
    /// Origins of web pages that may use the server.
    pub origins: Vec<String>,
    /// Text before every path.
    pub prefix: String,
    /// Name of the model in answers.
    pub alias: Option<String>,
    /// Answer `/metrics`.
    pub metrics: bool,
    /// Answer `/slots`.
    pub slots: bool,
    /// Answer `POST /props`.
    pub properties: bool,
    /// Folder for saved slots.
    pub slot_folder: Option<PathBuf>,
    /// Largest body of a request in MiB.
    pub body_mebibytes: u32,
    /// Seconds that a client may take to send a body, or leave an answer untaken.
    pub timeout: u32,
    /// Seconds of silence in a stream after which a comment is sent; -1 means never.
    pub ping: i32,
    /// Reuse what a slot holds of the same beginning.
    pub cache_prompt: bool,
    /// MiB of memory for what slots held before; -1 for no limit.
    pub cache_mebibytes: i64,
    /// Folder in which what slots hold outlives the program.
    pub cache_folder: Option<PathBuf>,
    /// MiB that this folder may have.
    pub cache_folder_mebibytes: u32,
    /// Least tokens of later parts of a prompt that are moved; 0 for none.
    pub cache_reuse: u32,
    /// The text after a gap comes first.
    pub suffix_first: bool,
    /// Continue a conversation's last message if it is the assistant's.
    pub prefill: bool,
    /// Answer with a web page at `/`.
    pub page: bool,
    /// Private key for TLS.
    pub tls_key: Option<PathBuf>,
    /// Certificate chain for TLS.
    pub tls_certificate: Option<PathBuf>,
    /// A folder of models that are all served.
    pub models_folder: Option<PathBuf>,
    /// An INI file of models that are all served.
    pub models_preset: Option<PathBuf>,
    /// Models that may be loaded at the same time; 0 for any number.
    pub models_most: usize,
    /// Requests load the models that they name.
    pub models_autoload: bool,
    /// Seconds without requests after which the model's memory is freed.
    pub sleep: Option<u32>,
    /// A router started this server.
    pub routed: bool,
    /// Adapters do not count at first.
    pub adapters_off: bool,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            parallel: None,
            queue: 512,
            api_keys: Vec::new(),
            api_key_file: None,
            key_file: None,
            audit_log: None,
            audit_rules: None,
            audit_prompts: false,
            allow_unauthenticated: false,
            origins: vec!["localhost".into()],
            prefix: String::new(),
            alias: None,
            metrics: false,
            slots: true,
            properties: false,
            slot_folder: None,
            body_mebibytes: 16,
            timeout: 60,
            ping: 30,
            cache_prompt: true,
            cache_mebibytes: 2048,
            cache_folder: None,
            cache_folder_mebibytes: 4096,
            cache_reuse: 0,
            suffix_first: false,
            prefill: true,
            page: true,
            tls_key: None,
            tls_certificate: None,
            models_folder: None,
            models_preset: None,
            models_most: 4,
            models_autoload: true,
            sleep: None,
            routed: false,
            adapters_off: false,
        }
    }
}

/// What `tokenize` prints.
#[derive(Clone, PartialEq, Debug)]
pub struct Tokenize {
    /// Read the text from the standard input.
    pub stdin: bool,
    /// Print the ids as one list.
    pub ids: bool,
    /// Add a beginning token if the model wants one.
    pub add_bos: bool,
    /// Recognise special tokens in the text.
    pub parse_special: bool,
    /// Print the number of tokens last.
    pub show_count: bool,
}

impl Default for Tokenize {
    fn default() -> Self {
        Self { stdin: false, ids: false, add_bos: true, parse_special: true, show_count: false }
    }
}

/// What `logits` computes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Logits {
    /// Token ids of each sequence.
    pub tokens: Vec<Vec<u32>>,
    /// Token ids that the decoder is given, in models that have an encoder, too.
    pub decoder_tokens: Vec<u32>,
    /// File for the logits or embeddings, rows x columns, little-endian f32.
    pub output: Option<PathBuf>,
    /// Tokens to generate greedily after the prompt.
    pub greedy: u32,
    /// Tokens fed at once; 0 means the whole prompt.
    pub step: u32,
}
