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
    Architecture {
        name: "deci",
        classes: &["DeciLMForCausalLM"],
        keys: deci,
        rules: &[INTERLEAVED, &[copy("L.self_attn.linear_attn", "attn_output")]],
        ..PLAIN
    },
    Architecture {
        name: "chameleon",
        classes: &["ChameleonForConditionalGeneration"],
        keys: |keys| {
            keys.decoder()?;
            keys.optional_flag("swin_norm", &["swin_norm"]);
            Ok(())
        },
        rules: &[
            INTERLEAVED,
            &[
                // Each head has norms of its own, whose elements are in the order of the projections' rows.
                map("L.self_attn.q_norm", "attn_q_norm", interleave_by_head),
                map("L.self_attn.k_norm", "attn_k_norm", interleave_by_head),
            ],
        ],
        ..PLAIN
    },
];

fn interleave_by_head(_: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let shape = recipe.shape.clone();
    let (heads, elements) = (shape.first().copied().unwrap_or(0), recipe.elements());
    recipe.reshape(&[elements])?.interleave(heads)?.reshape(&shape)
}

/// Layers may lack attention or keys and values; the settings describe each, or give the key heads of each.
fn deci(keys: &mut Keys<'_>) -> Result<()> {
    let model = keys.model;
    let config = model.config;
    let heads = model.heads()? as u32;
    let blocks = config.get(&["block_configs"]).and_then(serde_json::Value::as_array);
    let Some(blocks) = blocks else {
        keys.decoder()?;
        if let Some(kv) = config.u32_list(&["num_key_value_heads_per_layer"]) {
            keys.set("attention.head_count_kv", kv);
        }
        return Ok(());
    };
    keys.sizes()?;
    keys.rope()?;
    let number =
        |block: &serde_json::Value, path: &str| block.pointer(path).and_then(serde_json::Value::as_f64);
    let flag = |block: &serde_json::Value, path: &str| {
        block.pointer(path).and_then(serde_json::Value::as_bool).unwrap_or(false)
    };
    let attention = blocks.iter().map(|block| match number(block, "/attention/n_heads_in_group") {
        Some(group) => (heads, (f64::from(heads) / group.max(1.0)) as u32),
        None if flag(block, "/attention/replace_with_linear") => (heads, 0),
        None => (0, 0),
    });
    let (query, kv): (Vec<u32>, Vec<u32>) = attention.unzip();
    keys.set("attention.head_count", query);
    keys.set("attention.head_count_kv", kv);
    let width = model.width()?;
    let networks =
        blocks.iter().map(|block| number(block, "/ffn/ffn_mult").map_or(0, |times| hidden(width, times)));
    keys.set("feed_forward_length", networks.collect::<Vec<u32>>());
    let dim = model.head_dim()? as u32;
    keys.set("attention.key_length", dim);
    keys.set("attention.value_length", dim);
    Ok(())
}

/// Two thirds of a multiple of the width, rounded up to a multiple of 256.
fn hidden(width: u64, times: f64) -> u32 {
    let exact = (2.0 * times * width as f64 / 3.0).clamp(0.0, f64::from(1u32 << 28)) as u32;
    exact.next_multiple_of(256)
}

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

#[cfg(test)]
mod tests {
    #[test]
    fn widths_of_pruned_networks() {
        // Layers of Llama 3.1 Nemotron 51B.
        assert_eq!(super::hidden(8192, 5.25), 28672);
        assert_eq!(super::hidden(8192, 1.3125), 7168);
        assert_eq!(super::hidden(8192, 0.5), 2816);
    }
}
