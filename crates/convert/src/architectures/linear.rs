//! Linear attention in most layers: MiniMax-01, Kimi Linear. And DBRX, whose names are its own.

use super::deepseek::{LATENT, latent};
use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{copy, map, skip, squeeze};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "minimax-01",
        classes: &["MiniMaxForCausalLM"],
        keys: minimax,
        rules: &[&[
            copy("L.self_attn.norm", "attn_norm_2"),
            copy("L.self_attn.output_gate", "attn_gate"),
            skip("L.self_attn.slope_rate"),
            skip("L.self_attn.query_decay"),
            skip("L.self_attn.key_decay"),
            skip("L.self_attn.diagonal_decay"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "kimi-linear",
        classes: &["KimiLinearForCausalLM"],
        keys: kimi,
        rules: &[
            LATENT,
            &[
                map("L.self_attn.q_conv1d", "ssm_conv1d_q", squeeze),
                map("L.self_attn.k_conv1d", "ssm_conv1d_k", squeeze),
                map("L.self_attn.v_conv1d", "ssm_conv1d_v", squeeze),
                copy("L.self_attn.f_a_proj", "ssm_f_a"),
                copy("L.self_attn.f_b_proj", "ssm_f_b"),
                copy("L.self_attn.g_a_proj", "ssm_g_a"),
                copy("L.self_attn.g_b_proj", "ssm_g_b"),
                copy("L.self_attn.b_proj", "ssm_beta"),
                copy("L.self_attn.dt_bias", "ssm_dt.bias"),
                copy("L.self_attn.o_norm", "ssm_norm"),
                map("L.self_attn.A_log", "ssm_a", |model, recipe| {
                    crate::rules::negative_exponential(model, recipe)?.squeeze()
                }),
                copy("L.block_sparse_moe.gate_proj", "ffn_gate"),
                copy("L.block_sparse_moe.up_proj", "ffn_up"),
                copy("L.block_sparse_moe.down_proj", "ffn_down"),
                copy("L.block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
                copy("L.block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
                copy("L.block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
                copy("L.block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "dbrx",
        classes: &["DbrxForCausalLM"],
        defaults: &[("layer_norm_eps", 1e-5)],
        keys: |keys| {
            keys.decoder()?;
            keys.number("feed_forward_length", &["ffn_config.ffn_hidden_size"])?;
            keys.optional_float("attention.clamp_kqv", &["attn_config.clip_qkv"])?;
            Ok(())
        },
        rules: &[&[
            copy("L.norm_attn_norm.norm_1", "attn_norm"),
            copy("L.norm_attn_norm.norm_2", "attn_output_norm"),
            copy("L.norm_attn_norm.attn.Wqkv", "attn_qkv"),
            copy("L.norm_attn_norm.attn.out_proj", "attn_output"),
            copy("L.ffn.router.layer", "ffn_gate_inp"),
            map("L.ffn.experts.mlp.w1", "ffn_gate_exps.weight", by_expert),
            map("L.ffn.experts.mlp.v1", "ffn_up_exps.weight", by_expert),
            map("L.ffn.experts.mlp.w2", "ffn_down_exps.weight", |model, recipe| {
                by_expert(model, recipe)?.transpose()
            }),
        ]],
        ..PLAIN
    },
];

fn by_expert(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let experts = model.count(&["ffn_config.moe_num_experts"])?;
    let rows = recipe.shape.first().copied().unwrap_or(0) / experts;
    let shape: Vec<u64> = [experts, rows].into_iter().chain(recipe.shape.iter().skip(1).copied()).collect();
    recipe.reshape(&shape)
}

fn minimax(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    let config = keys.model.config;
    let factor = |name: &str| Ok::<f32, ConvertError>(config.optional_f32(&[name])?.unwrap_or(1.0));
    let residual = factor("full_attn_alpha_factor")?;
    for name in ["linear_attn_alpha_factor", "mlp_alpha_factor"] {
        if factor(name)? != residual {
            return Err(other_factor(name, factor(name)?, "the factor of full attention"));
        }
    }
    for name in ["full_attn_beta_factor", "linear_attn_beta_factor", "mlp_beta_factor"] {
        if factor(name)? != 1.0 {
            return Err(other_factor(name, factor(name)?, "1"));
        }
    }
    keys.set("residual_scale", residual);
    let kinds = config.text_list(&["layer_types"]).unwrap_or_default();
    let recurrent: Vec<bool> = kinds.iter().map(|kind| *kind == "linear_attention").collect();
    keys.set("attention.recurrent_layers", recurrent);
    Ok(())
}

fn other_factor(key: &str, found: f32, expected: &'static str) -> ConvertError {
    ConvertError::KeyValue { key: key.to_owned(), found: found.to_string(), expected }
}

fn kimi(keys: &mut Keys<'_>) -> Result<()> {
    latent(keys)?;
    let model = keys.model;
    let config = model.config;
    keys.number("kda.head_dim", &["linear_attn_config.head_dim", "linear_head_dim"])?;
    keys.number("ssm.conv_kernel", &["linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"])?;
    keys.optional_float("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.set("expert_weights_norm", config.bool_or(&["moe_renormalize", "norm_topk_prob"], true));
    // The list of older files counts layers from 1.
    let listed = config.u32_list(&["linear_attn_config.full_attn_layers"]);
    let kinds = config.text_list(&["layer_types"]);
    let heads: Vec<i32> = (0..model.layers()?)
        .map(|layer| {
            let attends = match (&kinds, &listed) {
                (Some(kinds), _) => kinds.get(layer as usize).is_some_and(|kind| *kind == "full_attention"),
                (None, Some(listed)) => listed.iter().any(|number| u64::from(*number) == layer + 1),
                (None, None) => layer > 0 && layer % 4 == 0,
            };
            i32::from(attends)
        })
        .collect();
    keys.set("attention.head_count_kv", heads);
    Ok(())
}
