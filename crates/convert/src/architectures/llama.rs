//! Llama and models with its names: rotary positions in halves that GGUF stores interleaved.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{
    INTERLEAVED, Rule, copy, interleave_keys, interleave_queries, map, rows, skip, split, split_by_key_head,
};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "llama",
        classes: &[
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "InternLM3ForCausalLM",
            "YiForCausalLM",
            "LlavaForConditionalGeneration",
            "VoxtralForConditionalGeneration",
            "IQuestCoderForCausalLM",
        ],
        rules: &[INTERLEAVED],
        ..PLAIN
    },
    Architecture {
        name: "llama-embed",
        classes: &["LlamaBidirectionalModel"],
        keys: |keys| {
            keys.decoder()?;
            keys.set("attention.causal", false);
            Ok(())
        },
        rules: &[INTERLEAVED],
        ..PLAIN
    },
    Architecture {
        name: "mistral3",
        classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        keys: mistral3,
        rules: &[INTERLEAVED],
        ..PLAIN
    },
    Architecture { name: "smollm3", classes: &["SmolLM3ForCausalLM"], rules: &[INTERLEAVED], ..PLAIN },
    Architecture { name: "arcee", classes: &["ArceeForCausalLM"], rules: &[INTERLEAVED], ..PLAIN },
    Architecture { name: "xverse", classes: &["XverseForCausalLM"], rules: &[INTERLEAVED], ..PLAIN },
    Architecture {
        name: "baichuan",
        classes: &["BaichuanForCausalLM", "BaiChuanForCausalLM"],
        rules: &[&[split("L.self_attn.W_pack", split_packed)]],
        ..PLAIN
    },
    Architecture {
        name: "internlm2",
        classes: &["InternLM2ForCausalLM"],
        rules: &[&[
            split("L.attention.wqkv", split_internlm),
            copy("L.attention.wo", "attn_output"),
            skip("L.attention.rotary_emb.inv_freq"),
        ]],
        ..PLAIN
    },
    Architecture { name: "ernie4_5", classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"], ..PLAIN },
    Architecture {
        name: "ernie4_5-moe",
        classes: &["Ernie4_5_MoeForCausalLM"],
        keys: ernie_experts,
        rules: &[&[map("L.mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias", |_, r| r.squeeze())]],
        ..PLAIN
    },
    Architecture { name: "llada", classes: &["LLaDAModelLM"], rules: &[LLADA], keys: llada, ..PLAIN },
    Architecture {
        name: "llama4",
        classes: &["Llama4ForConditionalGeneration", "Llama4ForCausalLM"],
        keys: llama4,
        // Here the folders have the order of GGUF already.
        rules: &[&[
            copy("L.feed_forward.router", "ffn_gate_inp"),
            copy("L.feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
            copy("L.feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
            copy("L.feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
            split("L.feed_forward.experts.gate_up_proj", |_, recipe| {
                crate::rules::split_gate_up_suffixed(recipe.transpose()?)
            }),
            map("L.feed_forward.experts.down_proj", "ffn_down_exps.weight", |_, recipe| recipe.transpose()),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "nanbeige",
        classes: &["NanbeigeForCausalLM"],
        rules: &[INTERLEAVED],
        keys: |keys| {
            keys.decoder()?;
            keys.optional_number("num_loops", &["num_loops"])?;
            keys.optional_flag("skip_loop_final_norm", &["skip_loop_final_norm"]);
            Ok(())
        },
        ..PLAIN
    },
];

/// The names of LLaDA 8B (OLMo's).
const LLADA: &[Rule] = &[
    copy("ff_out", "output"),
    copy("L.attn_norm", "attn_norm"),
    copy("L.ff_norm", "ffn_norm"),
    rows("L.q_proj", "attn_q", interleave_queries),
    rows("L.k_proj", "attn_k", interleave_keys),
    copy("L.v_proj", "attn_v"),
    copy("L.attn_out", "attn_output"),
    copy("L.ff_proj", "ffn_gate"),
    copy("L.up_proj", "ffn_up"),
    copy("L.ff_out", "ffn_down"),
];

fn llada(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    keys.number("feed_forward_length", &["mlp_hidden_size", "intermediate_size"])?;
    keys.set("attention.causal", false);
    Ok(())
}

fn mistral3(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let config = keys.model.config;
    if let Some(beta) =
        config.optional_f32(&["rope_parameters.llama_4_scaling_beta", "rope_scaling.llama_4_scaling_beta"])?
    {
        keys.set("attention.temperature_scale", beta);
    }
    if let Some(all) =
        config.optional_f32(&["rope_parameters.mscale_all_dim", "rope_scaling.mscale_all_dim"])?
    {
        keys.set("rope.scaling.yarn_log_multiplier", all);
    }
    Ok(())
}

fn llama4(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let dense = keys.model.config.optional_u32(&["intermediate_size_mlp"])?;
    let width = keys.number("expert_feed_forward_length", &["intermediate_size"])?;
    keys.set("feed_forward_length", dense.unwrap_or(width));
    keys.optional_number("interleave_moe_layer_step", &["interleave_moe_layer_step"])?;
    Ok(())
}

fn ernie_experts(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    keys.grouped_experts()?;
    keys.optional_number("interleave_moe_layer_step", &["moe_layer_interval"])?;
    let config = keys.model.config;
    if let (Some(width), Some(shared)) = (
        config.optional_u32(&["moe_intermediate_size"])?,
        config.optional_u32(&["moe_num_shared_experts", "n_shared_experts"])?,
    ) {
        keys.set("expert_shared_count", shared);
        keys.set("expert_shared_feed_forward_length", width.saturating_mul(shared));
    }
    Ok(())
}

/// Queries, keys and values of equal width in one tensor.
fn split_packed(model: &Model<'_>, recipe: Recipe) -> Result<Vec<(&'static str, Recipe)>> {
    let third = recipe.shape.first().copied().unwrap_or(0) / 3;
    let mut parts = recipe.split_rows(&[third; 3])?.into_iter();
    let mut next = || parts.next().ok_or_else(|| ConvertError::MissingKey { key: "W_pack".into() });
    let (q, k, v) = (next()?, next()?, next()?);
    // The larger models have ALiBi and no rotation.
    let rotates = model.layers()? != 40;
    let order = |recipe: Recipe, heads| if rotates { recipe.interleave(heads) } else { Ok(recipe) };
    Ok(vec![("attn_q", order(q, model.heads()?)?), ("attn_k", order(k, model.kv_heads()?)?), ("attn_v", v)])
}

fn split_internlm(model: &Model<'_>, recipe: Recipe) -> Result<Vec<(&'static str, Recipe)>> {
    let [q, k, v] = split_by_key_head(model, recipe)?;
    Ok(vec![
        ("attn_q", q.interleave(model.heads()?)?),
        ("attn_k", k.interleave(model.kv_heads()?)?),
        ("attn_v", v),
    ])
}
