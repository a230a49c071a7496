//! Which format each tensor gets: the rules by which mixtures are made.

use super::file_type::FileType;
use puna_gguf::{Metadata, Tensors, Value};
use puna_quant::DType;

/// What a tensor does, as far as its format depends on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    Output,
    TokenEmbedding,
    /// Values of attention, alone or together with others.
    Value,
    Key,
    Query,
    AttentionOutput,
    Up,
    Gate,
    Down,
    Other,
}

impl Role {
    /// The role that a name tells.
    pub fn of(name: &str) -> Self {
        match name {
            "output.weight" => return Self::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => return Self::TokenEmbedding,
            _ => {}
        }
        let parts = [
            ("attn_qkv.weight", Self::Value),
            ("attn_kv_b.weight", Self::Value),
            ("attn_v.weight", Self::Value),
            ("attn_k.weight", Self::Key),
            ("attn_q.weight", Self::Query),
            ("attn_output.weight", Self::AttentionOutput),
            ("ffn_up", Self::Up),
            ("ffn_gate", Self::Gate),
            ("ffn_down", Self::Down),
        ];
        parts.iter().find(|(part, _)| name.contains(part)).map_or(Self::Other, |(_, role)| *role)
    }
}

/// What the rules know about a model.
pub struct Facts {
    /// Layers, those that are left out included.
    pub layers: u32,
    /// Query heads for each head of keys and values.
    pub heads_per_kv: u32,
    pub experts: u32,
    pub falcon: bool,
    /// The size of models whose attention has eight times fewer heads of values.
    pub seventy_billion: bool,
    /// The output uses the token embeddings.
    pub tied: bool,
    /// Tensors of the role [`Role::Value`] that are not left out.
    pub values: u32,
    pub importance: bool,
}

impl Facts {
    /// Reads them from a file. What is missing counts as usual.
    pub fn new(metadata: &Metadata, tensors: &Tensors, importance: bool) -> Self {
        let architecture = metadata.get("general.architecture").and_then(Value::text).unwrap_or_default();
        let number = |name: &str| {
            let value = metadata.get(&format!("{architecture}.{name}"));
            let single = match value {
                Some(Value::Array(array)) => array.get(0),
                other => other.cloned(),
            };
            single.and_then(|value| value.integer()).and_then(|number| u32::try_from(number).ok())
        };
        let layers = number("block_count").unwrap_or(0);
        let heads = number("attention.head_count").unwrap_or(1);
        let kv_heads = number("attention.head_count_kv").unwrap_or(heads).max(1);
        let grouped = heads != kv_heads;
        Self {
            layers,
            heads_per_kv: heads / kv_heads,
            experts: number("expert_count").unwrap_or(0),
            falcon: architecture == "falcon",
            seventy_billion: layers == 80 && (architecture == "qwen2" || architecture == "llama" && grouped),
            tied: tensors.get("output.weight").is_none(),
            // Counted once it is known which are left out.
            values: 0,
            importance,
        }
    }
}

/// A tensor to choose a format for.
pub struct Subject<'a> {
    pub name: &'a str,
    pub role: Role,
    /// Elements in a row.
    pub row: u64,
    /// Experts in the tensor; 1 for an ordinary matrix.
    pub matrices: u64,
    /// Layer that the name tells.
    pub layer: u32,
    /// Number of this tensor among those of its role for which the mixture decides.
    pub number: u32,
}

impl Subject<'_> {
    /// The layer that counts for networks: of models with experts the name's; of others tensors are counted, which
    /// differs where layers lack them or flags decide.
    fn counted_layer(&self, facts: &Facts) -> u32 {
        if facts.experts > 1 { self.layer } else { self.number }
    }
}

/// Whether layer `i` of `count` is among those that get more bits: the first and last eighth and every third between.
fn more_bits(i: u32, count: u32) -> bool {
    let eighth = count / 8;
    i < eighth || i >= 7 * count / 8 || (i - eighth) % 3 == 2
}

/// The format of a tensor in a mixture.
pub fn mixture(file_type: FileType, default: DType, subject: &Subject<'_>, facts: &Facts) -> DType {
    use FileType::*;
    let unquantized = matches!(default, DType::F32 | DType::F16 | DType::BF16);
    if unquantized {
        return default;
    }
    let output = subject.role == Role::Output || facts.tied && subject.name == "token_embd.weight";
    if output {
        return match file_type {
            Mxfp4Moe => DType::Q8_0,
            _ if facts.falcon || !subject.row.is_multiple_of(default.block() as u64) => DType::Q8_0,
            Iq1S | Iq1M | Iq2Xxs | Iq2Xs | Iq2S | Iq2M | Iq3Xxs => DType::Q5_K,
            _ if default == DType::Q8_0 => DType::Q8_0,
            _ => DType::Q6_K,
        };
    }
    if file_type == Mxfp4Moe {
        return if subject.matrices > 1 { DType::MXFP4 } else { DType::Q8_0 };
    }
    if subject.role == Role::TokenEmbedding {
        return match file_type {
            Iq2Xxs | Iq2Xs | Iq1S | Iq1M => DType::Q2_K,
            Iq2S | Iq2M | Iq3Xxs => DType::IQ3_S,
            Tq1_0 | Tq2_0 | Q2_0 => DType::Q4_K,
            _ => default,
        };
    }
    match file_type {
        Iq1S | Iq1M | Iq2Xxs | Iq2Xs | Iq2S | Iq2M => lowest(file_type, default, subject, facts),
        _ => usual(file_type, default, subject, facts),
    }
}

/// Mixtures of about two bits.
fn lowest(file_type: FileType, default: DType, subject: &Subject<'_>, facts: &Facts) -> DType {
    let larger = matches!(file_type, FileType::Iq2S | FileType::Iq2M);
    let eight = facts.experts == 8;
    match subject.role {
        Role::Value if facts.heads_per_kv >= 4 || facts.experts >= 4 => DType::Q4_K,
        Role::Value if larger => DType::IQ3_S,
        Role::Value => DType::Q2_K,
        Role::Key if eight => DType::Q4_K,
        Role::Down if subject.number < facts.layers / 8 => {
            if larger {
                DType::IQ3_S
            } else {
                DType::Q2_K
            }
        }
        Role::AttentionOutput if eight => DType::Q5_K,
        Role::AttentionOutput if matches!(file_type, FileType::Iq1S | FileType::Iq1M) => DType::IQ2_XXS,
        Role::AttentionOutput if larger => DType::IQ3_S,
        _ => default,
    }
}

/// Mixtures of three bits and more.
fn usual(file_type: FileType, default: DType, subject: &Subject<'_>, facts: &Facts) -> DType {
    use FileType::*;
    let eight = facts.experts == 8;
    let layer = subject.counted_layer(facts);
    let first_eighth = layer < facts.layers / 8;
    match subject.role {
        Role::Value => value(file_type, default, subject, facts),
        Role::Key if eight => DType::Q8_0,
        Role::Key | Role::Query => match file_type {
            Iq3Xs => DType::IQ3_XXS,
            Iq3Xxs => DType::IQ2_S,
            _ => default,
        },
        Role::Down => down(file_type, default, layer, facts),
        Role::AttentionOutput if facts.falcon => match file_type {
            Q3KL => DType::Q4_K,
            _ => default,
        },
        Role::AttentionOutput => match file_type {
            Q2K | Iq3Xs | Iq3Xxs | Q3KS | Q3KM | Iq4Nl | Q4KS | Q4KM | Iq3S | Iq3M | Iq4Xs if eight => {
                DType::Q5_K
            }
            Q2K => DType::Q3_K,
            Iq3Xxs => DType::IQ3_S,
            Q3KM | Iq3M => DType::Q4_K,
            Q3KL => DType::Q5_K,
            _ => default,
        },
        Role::Gate | Role::Up if file_type == Iq3Xs && !first_eighth && layer < 7 * facts.layers / 8 => {
            DType::IQ3_XXS
        }
        Role::Gate | Role::Up | Role::Output | Role::TokenEmbedding | Role::Other => default,
    }
}

fn value(file_type: FileType, default: DType, subject: &Subject<'_>, facts: &Facts) -> DType {
    use FileType::*;
    let grouped = facts.heads_per_kv >= 4;
    let number = subject.number;
    let chosen = match file_type {
        Q2K if grouped => DType::Q4_K,
        Q2K => DType::Q3_K,
        Q2KS if grouped => DType::Q4_K,
        Iq3Xxs if grouped => DType::Q4_K,
        Iq3Xxs if facts.importance => DType::IQ3_XXS,
        Iq3Xxs => DType::IQ3_S,
        Iq3Xs | Iq3S if grouped => DType::Q4_K,
        Iq3M => DType::Q4_K,
        Q3KM if number < 2 => DType::Q5_K,
        Q3KM => DType::Q4_K,
        Q3KL => DType::Q5_K,
        Iq4Nl | Iq4Xs if grouped => DType::Q5_K,
        Q4KM | Q5KM if more_bits(number, facts.values) => DType::Q6_K,
        Q4KS if number < 4 => DType::Q5_K,
        _ => default,
    };
    match chosen {
        _ if facts.experts == 8 => DType::Q8_0,
        DType::Q3_K | DType::Q4_K if facts.seventy_billion => DType::Q5_K,
        chosen => chosen,
    }
}

fn down(file_type: FileType, default: DType, layer: u32, facts: &Facts) -> DType {
    use FileType::*;
    let (layers, falcon) = (facts.layers, facts.falcon);
    let first_eighth = layer < layers / 8;
    let first_sixteenth = layer < layers / 16;
    let more = more_bits(layer, layers);
    match file_type {
        Q2K => DType::Q3_K,
        Q2KS if first_eighth => DType::Q4_K,
        Iq3Xxs if !facts.importance => {
            if first_eighth {
                DType::Q4_K
            } else {
                DType::Q3_K
            }
        }
        Q3KM if first_sixteenth => DType::Q5_K,
        Q3KM if !falcon || more => DType::Q4_K,
        Iq3M if first_eighth || facts.experts == 8 && more => DType::Q4_K,
        Q3KL if falcon => DType::Q4_K,
        Q3KL => DType::Q5_K,
        Q4KM if falcon && first_sixteenth => DType::Q6_K,
        Q4KM if falcon && more => DType::Q5_K,
        Q4KM if !falcon && more => DType::Q6_K,
        Q5KM if more => DType::Q6_K,
        Iq4Nl | Iq4Xs if !facts.importance && first_eighth => DType::Q5_K,
        Q4KS if !falcon && first_eighth => DType::Q5_K,
        Q4_0 if facts.importance && first_eighth => DType::Q4_1,
        Q5_0 if facts.importance && first_eighth => DType::Q5_1,
        _ => default,
    }
}

/// Whether a file of this type refuses a tensor of this format without importance: quality would be lost silently.
pub fn needs_importance(file_type: FileType, dtype: DType, role: Role) -> bool {
    let always = matches!(
        dtype,
        DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS
    );
    !matches!(role, Role::Output | Role::TokenEmbedding)
        && (always || dtype == DType::Q2_K && file_type == FileType::Q2KS)
}
