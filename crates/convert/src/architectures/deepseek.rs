//! DeepSeek and models with its experts.

use super::qwen::POST_ATTENTION;
use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{
    INTERLEAVED, Named, Rule, copy, equal_parts, map, plus_one, split, split_gate_up_suffixed,
};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "deepseek",
        classes: &["DeepseekForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.grouped_experts()?;
            keys.set("expert_weights_scale", 1.0f32);
            Ok(())
        },
        rules: &[INTERLEAVED],
        ..PLAIN
    },
    Architecture {
        name: "deepseek2",
        classes: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiVLForConditionalGeneration"],
        ahead: true,
        keys: latent,
        rules: &[LATENT],
        ..PLAIN
    },
    Architecture {
        name: "deepseek32",
        classes: &["DeepseekV32ForCausalLM"],
        ahead: true,
        keys: sparse,
        rules: &[LATENT, INDEXER],
        ..PLAIN
    },
    Architecture {
        name: "glm-dsa",
        classes: &["GlmMoeDsaForCausalLM"],
        ahead: true,
        keys: sparse,
        rules: &[LATENT, INDEXER],
        ..PLAIN
    },
    Architecture {
        name: "mistral4",
        classes: &["Mistral4ForCausalLM"],
        keys: |keys| {
            latent(keys)?;
            keys.gating(1);
            let config = keys.model.config;
            // Queries of far positions are scaled by the logarithm of their distance.
            const LENGTH: &str = "rope_parameters.original_max_position_embeddings";
            if let Some(beta) = config.optional_f32(&["rope_parameters.llama_4_scaling_beta"])? {
                keys.set("attention.temperature_scale", beta);
                keys.number("attention.temperature_length", &[LENGTH])?;
            }
            Ok(())
        },
        rules: &[
            LATENT,
            &[
                split("L.mlp.experts.gate_up_proj", |_, recipe| split_gate_up_suffixed(recipe)),
                copy("L.mlp.experts.down_proj", "ffn_down_exps.weight"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "minicpm3",
        classes: &["MiniCPM3ForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.number("attention.kv_lora_rank", &["kv_lora_rank"])?;
            keys.number("attention.q_lora_rank", &["q_lora_rank"])?;
            let rotary = keys.number("rope.dimension_count", &["qk_rope_head_dim"])?;
            let plain = keys.model.config.u32(&["qk_nope_head_dim"])?;
            keys.set("attention.key_length", plain.saturating_add(rotary));
            let value = keys.model.config.optional_u32(&["v_head_dim"])?;
            let shared_out = keys.model.width()? / keys.model.heads()?;
            keys.set("attention.value_length", value.unwrap_or(shared_out as u32));
            Ok(())
        },
        rules: &[&[copy("L.self_attn.kv_b_proj", "attn_kv_b")], LATENT],
        ..PLAIN
    },
    Architecture {
        name: "plm",
        classes: &["PLMForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.number("attention.kv_lora_rank", &["kv_lora_rank"])?;
            let rotary = keys.number("rope.dimension_count", &["qk_rope_head_dim"])?;
            let plain = keys.model.config.u32(&["qk_nope_head_dim"])?;
            keys.set("attention.key_length", plain.saturating_add(rotary));
            keys.number("attention.value_length", &["v_head_dim"])?;
            Ok(())
        },
        rules: &[&[copy("L.self_attn.kv_b_proj", "attn_kv_b")], LATENT],
        ..PLAIN
    },
    Architecture {
        name: "deepseek2-ocr",
        classes: &["DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.grouped_experts()
        },
        ..PLAIN
    },
    Architecture {
        name: "dots1",
        classes: &["Dots1ForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.grouped_experts()?;
            keys.gating(2);
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "bailingmoe2",
        classes: &["BailingMoeV2ForCausalLM"],
        ahead: true,
        keys: |keys| {
            keys.decoder()?;
            keys.grouped_experts()?;
            keys.gating(2);
            Ok(())
        },
        rules: &[&[
            copy("L.attention.query_key_value", "attn_qkv"),
            copy("L.attention.query_layernorm", "attn_q_norm"),
            copy("L.attention.key_layernorm", "attn_k_norm"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "minimax-m2",
        classes: &["MiniMaxM2ForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.number("expert_feed_forward_length", &["intermediate_size"])?;
            keys.optional_number("rope.dimension_count", &["rotary_dim"])?;
            keys.set("expert_gating_func", 2u32);
            Ok(())
        },
        ..PLAIN
    },
    Architecture {
        name: "minimax-m3",
        classes: &[
            "MiniMaxM3ForCausalLM",
            "MiniMaxM3VLForCausalLM",
            "MiniMaxM3SparseForCausalLM",
            "MiniMaxM3SparseForConditionalGeneration",
            "MiniMaxM3VLForConditionalGeneration",
        ],
        keys: minimax_m3,
        rules: &[&[
            map("norm", "output_norm", plus_one),
            map("L.input_layernorm", "attn_norm", plus_one),
            map("L.post_attention_layernorm", "ffn_norm", plus_one),
            map("L.self_attn.q_norm", "attn_q_norm", plus_one),
            map("L.self_attn.k_norm", "attn_k_norm", plus_one),
            split("L.mlp.gate_up_proj", |_, recipe| equal_parts(recipe, ["ffn_gate", "ffn_up"])),
            split("L.mlp.shared_experts.gate_up_proj", |_, recipe| {
                equal_parts(recipe, ["ffn_gate_shexp", "ffn_up_shexp"])
            }),
            split("L.mlp.experts.gate_up_proj", |_, recipe| split_gate_up_suffixed(recipe)),
            copy("L.mlp.experts.down_proj", "ffn_down_exps.weight"),
            copy("L.mlp.e_score_correction_bias", "exp_probs_b.bias"),
            copy("L.block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
            copy("L.block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
            copy("L.block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
            // What selects positions, kept for other engines.
            copy("L.self_attn.indexer.q_proj", "indexer.q_proj"),
            copy("L.self_attn.indexer.k_proj", "indexer.k_proj"),
            map("L.self_attn.indexer.q_norm", "indexer.q_norm", plus_one),
            map("L.self_attn.indexer.k_norm", "indexer.k_norm", plus_one),
            copy("L.self_attn.index_q_proj", "indexer.q_proj"),
            copy("L.self_attn.index_k_proj", "indexer.k_proj"),
            map("L.self_attn.index_q_norm", "indexer.q_norm", plus_one),
            map("L.self_attn.index_k_norm", "indexer.k_norm", plus_one),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "hy_v3",
        classes: &["HYV3ForCausalLM"],
        ahead: true,
        keys: |keys| {
            keys.decoder()?;
            keys.grouped_experts()?;
            keys.gating(2);
            Ok(())
        },
        rules: &[POST_ATTENTION, &[copy("L.final_layernorm", "nextn.shared_head_norm")]],
        ..PLAIN
    },
];

fn minimax_m3(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    keys.grouped_experts()?;
    keys.gating(2);
    keys.set("expert_weights_norm", true);
    keys.optional_number("rope.dimension_count", &["rotary_dim"])?;
    let config = keys.model.config;
    let dense = match (config.text_list(&["mlp_layer_types"]), config.u32_list(&["moe_layer_freq"])) {
        (Some(kinds), _) => Some(kinds.iter().take_while(|kind| **kind == "dense").count()),
        (None, Some(flags)) => Some(flags.iter().take_while(|flag| **flag == 0).count()),
        (None, None) => None,
    };
    if let Some(dense) = dense {
        keys.set("leading_dense_block_count", dense as u32);
    }
    // The width of experts bears the usual name, that of dense layers another.
    let width = keys.number("expert_feed_forward_length", &["moe_intermediate_size", "intermediate_size"])?;
    let dense = config.optional_u32(&["dense_intermediate_size", "intermediate_size_mlp"])?;
    keys.set("feed_forward_length", dense.unwrap_or(width));
    // The shared experts are one matrix, as wide as so many.
    let shared = config.optional_u32(&["n_shared_experts"])?;
    let shared_width = config.optional_u32(&["shared_intermediate_size"])?;
    let counted = shared_width.map(|shared_width| shared_width / width.max(1));
    keys.set("expert_shared_count", shared.or(counted).unwrap_or(1));
    for (key, names) in [
        ("attention.indexer.head_count", ["index_n_heads", "sparse_attention_config.sparse_num_index_heads"]),
        ("attention.indexer.key_length", ["index_head_dim", "sparse_attention_config.sparse_index_dim"]),
        ("attention.indexer.top_k", ["index_topk_blocks", "sparse_attention_config.sparse_topk_blocks"]),
        ("attention.indexer.block_size", ["index_block_size", "sparse_attention_config.sparse_block_size"]),
        (
            "attention.indexer.local_blocks",
            ["index_local_blocks", "sparse_attention_config.sparse_local_block"],
        ),
    ] {
        keys.optional_number(key, &names)?;
    }
    Ok(())
}

pub(super) const LATENT: &[Rule] = &[
    copy("L.self_attn.q_a_proj", "attn_q_a"),
    copy("L.self_attn.q_a_layernorm", "attn_q_a_norm"),
    copy("L.self_attn.q_b_proj", "attn_q_b"),
    copy("L.self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    copy("L.self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    split("L.self_attn.kv_b_proj", split_latent),
];

/// What selects positions.
pub(super) const INDEXER: &[Rule] = &[
    copy("L.self_attn.indexer.wq_b", "indexer.attn_q_b"),
    copy("L.self_attn.indexer.wk", "indexer.attn_k"),
    copy("L.self_attn.indexer.k_norm", "indexer.k_norm"),
    copy("L.self_attn.indexer.weights_proj", "indexer.proj"),
];

pub(super) fn sparse(keys: &mut Keys<'_>) -> Result<()> {
    latent(keys)?;
    indexer(keys)
}

pub(super) fn indexer(keys: &mut Keys<'_>) -> Result<()> {
    keys.number("attention.indexer.head_count", &["index_n_heads"])?;
    keys.number("attention.indexer.key_length", &["index_head_dim"])?;
    keys.number("attention.indexer.top_k", &["index_topk"])?;
    Ok(())
}

pub(super) fn latent(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    latent_widths(keys)
}

/// Widths of latent attention, and the router.
pub(super) fn latent_widths(keys: &mut Keys<'_>) -> Result<()> {
    keys.grouped_experts()?;
    let config = keys.model.config;
    let second = config.classes().contains(&"DeepseekV2ForCausalLM");
    keys.gating(if second { 1 } else { 2 });
    let rank = keys.number("attention.kv_lora_rank", &["kv_lora_rank"])?;
    keys.optional_number("attention.q_lora_rank", &["q_lora_rank"])?;
    let rotary = keys.number("rope.dimension_count", &["qk_rope_head_dim"])?;
    let plain = config.u32(&["qk_nope_head_dim"])?;
    // The caches hold one head of latent vectors.
    keys.set("attention.head_count_kv", 1u32);
    keys.set("attention.key_length", rank.saturating_add(rotary));
    keys.set("attention.value_length", rank);
    keys.set("attention.key_length_mla", plain.saturating_add(rotary));
    keys.number("attention.value_length_mla", &["v_head_dim"])?;
    let all = config.optional_f32(&["rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"])?;
    if let Some(all) = all {
        keys.set("rope.scaling.yarn_log_multiplier", 0.1 * all);
    }
    Ok(())
}

/// Projections of keys and values by head; that of keys is applied to queries, so it is transposed.
pub(super) fn split_latent(model: &Model<'_>, recipe: Recipe) -> Result<Named> {
    let (heads, rank) = (model.heads()?, model.count(&["kv_lora_rank"])?);
    let (plain, value) = (model.count(&["qk_nope_head_dim"])?, model.count(&["v_head_dim"])?);
    split_heads(recipe, heads, [plain, value, rank])
}

/// The same for so many heads, with the widths of keys, values and latent vectors.
pub(super) fn split_heads(recipe: Recipe, heads: u64, [plain, value, rank]: [u64; 3]) -> Result<Named> {
    let by_head = recipe.reshape(&[heads, plain + value, rank])?;
    let keys = by_head.clone().take(1, 0, plain)?.transpose()?;
    Ok(vec![("attn_k_b", keys), ("attn_v_b", by_head.take(1, plain, value)?)])
}
