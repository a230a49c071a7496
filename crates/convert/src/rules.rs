//! From names of tensors in model folders to names in GGUF files.

use crate::model::Model;
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

/// Several tensors with their names.
pub(crate) type Named = Vec<(&'static str, Recipe)>;

/// What becomes of a tensor that a rule names.
#[derive(Clone, Copy)]
pub(crate) enum How {
    /// It keeps its data.
    Copy,
    /// It is left out, because the model computes it.
    Skip,
    /// It is stored `[input, output]`, unless it is a vector.
    Transposed,
    /// Its rows change places or are multiplied.
    Rows(fn(&Model<'_>, Recipe) -> Result<Recipe>),
    /// It is changed.
    Map(fn(&Model<'_>, Recipe) -> Result<Recipe>),
    /// It becomes several; their names replace the rule's.
    Split(fn(&Model<'_>, Recipe) -> Result<Named>),
}

/// One rule. Names are without what stands before the layers, layers are `L.` and expert numbers `#`; names without
/// their `.weight` or `.bias` stand for both. The name in the GGUF file is without `blk.N.` for tensors of layers.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) how: How,
}

pub(crate) const fn copy(from: &'static str, to: &'static str) -> Rule {
    Rule { from, to, how: How::Copy }
}

pub(crate) const fn skip(from: &'static str) -> Rule {
    Rule { from, to: "", how: How::Skip }
}

pub(crate) const fn map(
    from: &'static str,
    to: &'static str,
    function: fn(&Model<'_>, Recipe) -> Result<Recipe>,
) -> Rule {
    Rule { from, to, how: How::Map(function) }
}

pub(crate) const fn rows(
    from: &'static str,
    to: &'static str,
    function: fn(&Model<'_>, Recipe) -> Result<Recipe>,
) -> Rule {
    Rule { from, to, how: How::Rows(function) }
}

pub(crate) const fn transposed(from: &'static str, to: &'static str) -> Rule {
    Rule { from, to, how: How::Transposed }
}

pub(crate) const fn split(from: &'static str, function: fn(&Model<'_>, Recipe) -> Result<Named>) -> Rule {
    Rule { from, to: "", how: How::Split(function) }
}

/// A name in a model folder, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// With `L.` and `#`.
    pub(crate) pattern: String,
    pub(crate) layer: Option<u32>,
    pub(crate) expert: Option<usize>,
    /// What stands before the layer's number in the file.
    pub(crate) stack: &'static str,
}

/// Layers of most models.
pub(crate) const BLOCKS: &str = "blk";

/// Layers that follow those of another stack, and are counted from 0 again in the folder.
pub(crate) const SECOND_STACK: &str = "second stack";

/// What may stand before the names that rules know.
const PREFIXES: &[&str] = &[
    "model.language_model.",
    "language_model.",
    "model.",
    "transformer.",
    "backbone.",
    "gpt_neox.",
    "bert.",
    "roberta.",
    "new.",
    "rwkv.",
];

/// What may stand before the number of a layer, and what does in the file.
const LAYERS: &[(&str, &str)] = &[
    ("layers.", BLOCKS),
    ("h.", BLOCKS),
    ("blocks.", BLOCKS),
    ("layer.", BLOCKS),
    ("encoder.layers.", BLOCKS),
    ("encoder.layer.", BLOCKS),
    ("decoder.layers.", BLOCKS),
    ("encoder.block.", "enc.blk"),
    ("decoder.block.", "dec.blk"),
    ("layers.layers.", BLOCKS),
    ("decoder_layer.", BLOCKS),
    ("transformer_encoder.", BLOCKS),
    ("L_module.layers.", BLOCKS),
    ("H_module.layers.", SECOND_STACK),
];

impl Name {
    pub(crate) fn parse(name: &str) -> Self {
        let mut rest = name;
        while let Some(short) = PREFIXES.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
            rest = short;
        }
        let numbered = LAYERS.iter().find_map(|(prefix, stack)| {
            let (number, rest) = rest.strip_prefix(prefix)?.split_once('.')?;
            Some((number.parse::<u32>().ok()?, rest, *stack))
        });
        let (layer, rest, stack) = match numbered {
            Some((layer, rest, stack)) => (Some(layer), rest, stack),
            None => (None, rest, BLOCKS),
        };
        let mut expert = None;
        let mut pattern = String::from(if layer.is_some() { "L" } else { "" });
        let mut before = "";
        for part in rest.split('.') {
            if !pattern.is_empty() {
                pattern.push('.');
            }
            match part.parse::<usize>() {
                // Parts of T5's layers have numbers, too, and so have the factors of RWKV's matrices of low rank.
                Ok(number) if matches!(stack, BLOCKS | SECOND_STACK) && before != "lora" => {
                    expert = Some(number);
                    pattern.push('#');
                }
                _ => pattern.push_str(part),
            }
            before = part;
        }
        Self { pattern, layer, expert, stack }
    }

    /// Counts the layers of a second stack on from those of the first, which has this many.
    pub(crate) fn count_on(&mut self, first: u32) {
        if self.stack == SECOND_STACK {
            self.stack = BLOCKS;
            self.layer = self.layer.and_then(|layer| layer.checked_add(first));
        }
    }

    /// The rule for this name, and the ending that its new names get.
    pub(crate) fn rule(&self, lists: &[&'static [Rule]]) -> Option<(&'static Rule, &'static str)> {
        let find =
            |pattern: &str| lists.iter().copied().chain([COMMON]).flatten().find(|rule| rule.from == pattern);
        let endings: [(&str, &str); 4] =
            [("", ""), (".weight", ".weight"), (".weight_packed", ".weight"), (".bias", ".bias")];
        endings.iter().find_map(|(ending, kept)| Some((find(self.pattern.strip_suffix(ending)?)?, *kept)))
    }

    /// The name in the file. A slash in front stands for a tensor of no layer that the folder keeps with one.
    pub(crate) fn target(&self, to: &str, ending: &str) -> String {
        if let Some(to) = to.strip_prefix('/') {
            return format!("{to}{ending}");
        }
        match self.layer {
            Some(layer) => format!("{}.{layer}.{to}{ending}", self.stack),
            None => format!("{to}{ending}"),
        }
    }
}

// ------------------------------------------------------------------ changes that several architectures share

/// Rows of queries in the order of interleaved RoPE.
pub(crate) fn interleave_queries(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    recipe.interleave(model.heads()?)
}

/// Rows of keys in the order of interleaved RoPE.
pub(crate) fn interleave_keys(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    recipe.interleave(model.kv_heads()?)
}

/// Rows of one head or several of which the last `rotary` of each go from the order of halves to that of pairs.
pub(crate) fn interleave_last(recipe: Recipe, heads: u64, rotary: u64) -> Result<Recipe> {
    let shape = recipe.shape.clone();
    let rows = shape.first().copied().unwrap_or(0);
    let inner: u64 = shape.iter().skip(1).product();
    let dim = rows / heads.max(1);
    if rotary == 0 || rotary == dim {
        return if rotary == 0 { Ok(recipe) } else { recipe.interleave(heads) };
    }
    // With the rows of a head in front, those that change lie together.
    let by_row = recipe.reorder(&[heads, dim, inner], &[1, 0, 2], &[dim, heads * inner])?;
    let plain = by_row.clone().take(0, 0, dim.saturating_sub(rotary))?;
    let turned = by_row.take(0, dim - rotary, rotary)?.interleave(1)?;
    Recipe::join(vec![plain, turned])?.reorder(&[dim, heads, inner], &[1, 0, 2], &shape)
}

/// Rows in equal parts.
pub(crate) fn equal_parts<const N: usize>(recipe: Recipe, names: [&'static str; N]) -> Result<Named> {
    let part = recipe.shape.first().copied().unwrap_or(0) / N as u64;
    Ok(names.into_iter().zip(recipe.split_rows(&[part; N])?).collect())
}

/// Norms that are stored as the difference to 1.
pub(crate) fn plus_one(_: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    Ok(recipe.map(|x| x + 1.0))
}

/// Rates of decay are stored as logarithms.
pub(crate) fn negative_exponential(_: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    Ok(recipe.map(|x| -x.exp()))
}

pub(crate) fn squeeze(_: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    recipe.squeeze()
}

/// Gate and up of all experts in one tensor `[experts, 2 · width, input]`.
pub(crate) fn split_gate_up(_: &Model<'_>, recipe: Recipe) -> Result<Named> {
    let half = recipe.shape.get(1).copied().unwrap_or(0) / 2;
    let gate = recipe.clone().take(1, 0, half)?;
    Ok(vec![("ffn_gate_exps", gate), ("ffn_up_exps", recipe.take(1, half, half)?)])
}

/// The same for tensors whose names lack an ending.
pub(crate) fn split_gate_up_suffixed(recipe: Recipe) -> Result<Named> {
    let half = recipe.shape.get(1).copied().unwrap_or(0) / 2;
    let gate = recipe.clone().take(1, 0, half)?;
    Ok(vec![("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", recipe.take(1, half, half)?)])
}

/// Queries, keys and values stored by key head: `[kv heads, queries + 2, head]`.
pub(crate) fn split_by_key_head(model: &Model<'_>, recipe: Recipe) -> Result<[Recipe; 3]> {
    let (heads, kv, dim) = (model.heads()?, model.kv_heads()?, model.head_dim()?);
    let inner: u64 = recipe.shape.iter().skip(1).product();
    let group = (heads / kv).max(1);
    let by_head = recipe.clone().reshape(&[kv, group + 2, dim, inner])?;
    let part = |start, count| {
        let shape: Vec<u64> =
            std::iter::once(kv * count * dim).chain(recipe.shape.iter().skip(1).copied()).collect();
        by_head.clone().take(1, start, count)?.reshape(&shape)
    };
    Ok([part(0, group)?, part(group, 1)?, part(group + 1, 1)?])
}

/// Queries, keys and values stored by head: `[heads, 3, head]`, as all queries, all keys, all values.
pub(crate) fn ungroup_heads(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let heads = model.heads()?;
    let rows = recipe.shape.first().copied().unwrap_or(0);
    let inner: u64 = recipe.shape.iter().skip(1).product();
    let shape = recipe.shape.clone();
    recipe.reorder(&[heads, 3, rows / (3 * heads), inner], &[1, 0, 2, 3], &shape)
}

/// Queries and keys in the order of interleaved RoPE.
pub(crate) const INTERLEAVED: &[Rule] = &[
    rows("L.self_attn.q_proj", "attn_q", interleave_queries),
    rows("L.self_attn.k_proj", "attn_k", interleave_keys),
];

/// Names with the same meaning wherever they occur; the rules of an architecture come first.
pub(crate) const COMMON: &[Rule] = &[
    copy("embed_tokens", "token_embd"),
    copy("wte", "token_embd"),
    copy("word_embeddings", "token_embd"),
    copy("embeddings", "token_embd"),
    copy("embedding", "token_embd"),
    copy("tok_embeddings", "token_embd"),
    copy("embed_in", "token_embd"),
    copy("wpe", "position_embd"),
    copy("norm", "output_norm"),
    copy("ln_f", "output_norm"),
    copy("norm_f", "output_norm"),
    copy("final_layernorm", "output_norm"),
    copy("final_layer_norm", "output_norm"),
    copy("lm_head", "output"),
    copy("embed_out", "output"),
    copy("output", "output"),
    // Attention.
    copy("L.input_layernorm", "attn_norm"),
    copy("L.ln_1", "attn_norm"),
    copy("L.norm_1", "attn_norm"),
    copy("L.attention_norm", "attn_norm"),
    copy("L.self_attn.q_proj", "attn_q"),
    copy("L.self_attn.k_proj", "attn_k"),
    copy("L.self_attn.v_proj", "attn_v"),
    copy("L.self_attn.o_proj", "attn_output"),
    copy("L.self_attn.out_proj", "attn_output"),
    copy("L.self_attn.dense", "attn_output"),
    copy("L.self_attn.qkv_proj", "attn_qkv"),
    copy("L.self_attn.q_norm", "attn_q_norm"),
    copy("L.self_attn.k_norm", "attn_k_norm"),
    copy("L.self_attn.q_layernorm", "attn_q_norm"),
    copy("L.self_attn.k_layernorm", "attn_k_norm"),
    copy("L.self_attn.query_layernorm", "attn_q_norm"),
    copy("L.self_attn.key_layernorm", "attn_k_norm"),
    copy("L.attn.c_attn", "attn_qkv"),
    copy("L.attn.c_proj", "attn_output"),
    copy("L.attn.out_proj", "attn_output"),
    copy("L.attn.Wqkv", "attn_qkv"),
    copy("L.attention.dense", "attn_output"),
    copy("L.self_attention.dense", "attn_output"),
    copy("L.self_attention.query_key_value", "attn_qkv"),
    skip("L.self_attn.rotary_emb.inv_freq"),
    skip("L.attention.rotary_emb.inv_freq"),
    skip("L.attention.bias"),
    skip("L.attention.masked_bias"),
    skip("L.attn.bias"),
    skip("L.attn.masked_bias"),
    skip("rotary_emb.inv_freq"),
    skip("rotary_pos_emb.inv_freq"),
    // Feed-forward.
    copy("L.post_attention_layernorm", "ffn_norm"),
    copy("L.ln_2", "ffn_norm"),
    copy("L.norm_2", "ffn_norm"),
    copy("L.ffn_norm", "ffn_norm"),
    copy("L.pre_ff_layernorm", "ffn_norm"),
    copy("L.mlp.gate_proj", "ffn_gate"),
    copy("L.mlp.up_proj", "ffn_up"),
    copy("L.mlp.down_proj", "ffn_down"),
    copy("L.mlp.gate_up_proj", "ffn_up"),
    copy("L.mlp.c_fc", "ffn_up"),
    copy("L.mlp.c_proj", "ffn_down"),
    copy("L.mlp.fc1", "ffn_up"),
    copy("L.mlp.fc2", "ffn_down"),
    copy("L.mlp.dense_h_to_4h", "ffn_up"),
    copy("L.mlp.dense_4h_to_h", "ffn_down"),
    copy("L.ffn.up_proj", "ffn_up"),
    copy("L.ffn.down_proj", "ffn_down"),
    copy("L.feed_forward.gate_proj", "ffn_gate"),
    copy("L.feed_forward.up_proj", "ffn_up"),
    copy("L.feed_forward.down_proj", "ffn_down"),
    copy("L.feed_forward.w1", "ffn_gate"),
    copy("L.feed_forward.w2", "ffn_down"),
    copy("L.feed_forward.w3", "ffn_up"),
    // Experts.
    copy("L.mlp.gate", "ffn_gate_inp"),
    copy("L.mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    copy("L.mlp.gate.expert_bias", "exp_probs_b.bias"),
    copy("L.mlp.experts.#.gate_proj", "ffn_gate_exps"),
    copy("L.mlp.experts.#.up_proj", "ffn_up_exps"),
    copy("L.mlp.experts.#.down_proj", "ffn_down_exps"),
    copy("L.mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    copy("L.mlp.shared_expert.up_proj", "ffn_up_shexp"),
    copy("L.mlp.shared_expert.down_proj", "ffn_down_shexp"),
    copy("L.mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    copy("L.mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    copy("L.mlp.shared_experts.up_proj", "ffn_up_shexp"),
    copy("L.mlp.shared_experts.down_proj", "ffn_down_shexp"),
    copy("L.block_sparse_moe.gate", "ffn_gate_inp"),
    copy("L.block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"),
    copy("L.block_sparse_moe.experts.#.w1", "ffn_gate_exps"),
    copy("L.block_sparse_moe.experts.#.w2", "ffn_down_exps"),
    copy("L.block_sparse_moe.experts.#.w3", "ffn_up_exps"),
    // Around layers that guess tokens further ahead.
    copy("L.eh_proj", "nextn.eh_proj"),
    copy("L.enorm", "nextn.enorm"),
    copy("L.hnorm", "nextn.hnorm"),
    copy("L.embed_tokens", "nextn.embed_tokens"),
    copy("L.shared_head.norm", "nextn.shared_head_norm"),
    copy("L.shared_head.head", "nextn.shared_head_head"),
    copy("L.final_layernorm", "layer_output_norm"),
    // State space.
    copy("L.mixer.in_proj", "ssm_in"),
    map("L.mixer.conv1d", "ssm_conv1d", squeeze),
    copy("L.mixer.x_proj", "ssm_x"),
    copy("L.mixer.dt_proj", "ssm_dt"),
    copy("L.mixer.dt_bias", "ssm_dt.bias"),
    map("L.mixer.A_log", "ssm_a", negative_exponential),
    copy("L.mixer.D", "ssm_d"),
    copy("L.mixer.out_proj", "ssm_out"),
    copy("L.mamba.in_proj", "ssm_in"),
    map("L.mamba.conv1d", "ssm_conv1d", squeeze),
    copy("L.mamba.x_proj", "ssm_x"),
    copy("L.mamba.dt_proj", "ssm_dt"),
    copy("L.mamba.dt_bias", "ssm_dt.bias"),
    map("L.mamba.A_log", "ssm_a", negative_exponential),
    copy("L.mamba.D", "ssm_d"),
    copy("L.mamba.out_proj", "ssm_out"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        for (name, pattern, layer, expert) in [
            (
                "model.layers.3.mlp.experts.12.up_proj.weight",
                "L.mlp.experts.#.up_proj.weight",
                Some(3),
                Some(12),
            ),
            ("transformer.h.0.ln_1.bias", "L.ln_1.bias", Some(0), None),
            ("model.language_model.embed_tokens.weight", "embed_tokens.weight", None, None),
            ("encoder.layer.5.output.dense.bias", "L.output.dense.bias", Some(5), None),
            ("lm_head.weight", "lm_head.weight", None, None),
            ("", "", None, None),
        ] {
            let found = Name::parse(name);
            assert_eq!(
                (found.pattern.as_str(), found.layer, found.expert),
                (pattern, layer, expert),
                "{name}"
            );
        }
    }

    #[test]
    fn endings_are_kept_and_whole_names_come_first() {
        let rule = |name: &str| {
            let name = Name::parse(name);
            name.rule(&[]).map(|(rule, ending)| name.target(rule.to, ending))
        };
        assert_eq!(rule("model.layers.1.self_attn.q_proj.bias").as_deref(), Some("blk.1.attn_q.bias"));
        assert_eq!(rule("layers.1.mixer.dt_bias").as_deref(), Some("blk.1.ssm_dt.bias"));
        assert_eq!(rule("model.norm.weight").as_deref(), Some("output_norm.weight"));
        assert_eq!(rule("model.layers.1.what.weight"), None);
        assert_eq!(rule("model.layers.99999999999.self_attn.q_proj.bias"), None);
    }
}
