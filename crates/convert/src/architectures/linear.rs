//! Linear attention in most layers: MiniMax-01, Kimi Linear and K3, Ling 3. And DBRX, whose names are its own.

use super::deepseek::{LATENT, latent};
use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{Rule, copy, map, negative_exponential, skip, split, squeeze};
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
            DELTA,
            &[
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
        name: "kimi-k3",
        classes: &["KimiK3ForConditionalGeneration"],
        keys: kimi_k3,
        rules: &[
            LATENT,
            DELTA,
            &[
                // Of attention it is the gate of each value, of the recurrence that of each channel.
                split("L.self_attn.g_proj", |model, recipe| {
                    let recurrent = is_recurrent(model, &recipe);
                    Ok(vec![(if recurrent { "ssm_g" } else { "attn_gate" }, recipe)])
                }),
                skip("L.self_attention_res_norm"),
                map("L.self_attention_res_proj", "attn_res_score", times_norm),
                skip("L.mlp_res_norm"),
                map("L.mlp_res_proj", "ffn_res_score", times_norm),
                skip("output_attn_res_norm"),
                map("output_attn_res_proj", "output_res_score", times_norm),
                copy("L.block_sparse_moe.routed_expert_down_proj", "ffn_routed_down"),
                copy("L.block_sparse_moe.routed_expert_up_proj", "ffn_routed_up"),
                copy("L.block_sparse_moe.routed_expert_norm", "ffn_routed_norm"),
                copy("L.block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"),
                copy("L.block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"),
                copy("L.block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"),
                copy("L.block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "bailingmoe3",
        classes: &["BailingHybridForCausalLM"],
        ahead: true,
        keys: bailing,
        rules: &[BAILING],
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

/// The parts of delta attention.
pub(super) const DELTA: &[Rule] = &[
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
    map("L.self_attn.A_log", "ssm_a", |model, recipe| by_head(model, negative_exponential(model, recipe)?)),
];

/// Names of Ling 3, whose decays are bounded, so that the rate keeps its sign.
const BAILING: &[Rule] = &[
    copy("L.attention.q_proj", "attn_q"),
    copy("L.attention.k_proj", "attn_k"),
    copy("L.attention.v_proj", "attn_v"),
    map("L.attention.q_conv1d", "ssm_conv1d_q", squeeze),
    map("L.attention.k_conv1d", "ssm_conv1d_k", squeeze),
    map("L.attention.v_conv1d", "ssm_conv1d_v", squeeze),
    copy("L.attention.f_proj", "ssm_f_a"),
    copy("L.attention.b_proj", "ssm_beta"),
    copy("L.attention.dt_bias", "ssm_dt.bias"),
    copy("L.attention.o_norm", "ssm_norm"),
    map("L.attention.A_log", "ssm_a", |model, recipe| match model.config.bool_or(&["kda_safe_gate"], true) {
        true => by_head(model, recipe.map(f32::exp)),
        false => by_head(model, negative_exponential(model, recipe)?),
    }),
    split("L.attention.g_proj", |model, recipe| {
        let by_head = recipe.shape.first() == Some(&model.heads()?);
        Ok(vec![(if by_head { "attn_gate" } else { "ssm_g_a" }, recipe)])
    }),
    copy("L.attention.q_a_proj", "attn_q_a"),
    copy("L.attention.q_a_layernorm", "attn_q_a_norm"),
    copy("L.attention.q_b_proj", "attn_q_b"),
    copy("L.attention.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    copy("L.attention.kv_a_layernorm", "attn_kv_a_norm"),
    split("L.attention.kv_b_proj", super::deepseek::split_latent),
    copy("L.attention.o_proj", "attn_output"),
];

/// A number for each head; some folders have more than there are heads.
fn by_head(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let elements = recipe.elements();
    recipe.reshape(&[elements])?.take(0, 0, model.heads()?)
}

/// Whether a tensor is of a layer without attention, by the list that counts layers from 1.
fn is_recurrent(model: &Model<'_>, recipe: &Recipe) -> bool {
    let layer = crate::rules::Name::parse(recipe.name()).layer;
    let listed = model.config.u32_list(&["linear_attn_config.full_attn_layers"]).unwrap_or_default();
    layer.is_some_and(|layer| !listed.contains(&(layer + 1)))
}

/// A vector of scores times the weights of the norm before, which nothing else reads.
fn times_norm(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let norm = recipe.name().replace("_res_proj.", "_res_norm.");
    let factors = Recipe::source(model.source, &norm)?.floats(model.source)?;
    let elements = recipe.elements();
    recipe.reshape(&[elements])?.multiply_rows(factors)
}

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
    let config = keys.model.config;
    keys.optional_float("expert_weights_scale", &["routed_scaling_factor"])?;
    keys.set("expert_weights_norm", config.bool_or(&["moe_renormalize", "norm_topk_prob"], true));
    delta_attention(keys)
}

fn kimi_k3(keys: &mut Keys<'_>) -> Result<()> {
    kimi(keys)?;
    keys.optional_number("expert_latent_length", &["routed_expert_hidden_size"])?;
    keys.float("activation.situ_beta", &["activation_situ_beta"])?;
    keys.float("activation.situ_linear_beta", &["activation_situ_linear_beta"])?;
    keys.number("attn_res.block_size", &["attn_res_block_size"])?;
    Ok(())
}

fn bailing(keys: &mut Keys<'_>) -> Result<()> {
    latent(keys)?;
    let config = keys.model.config;
    keys.leading_dense();
    keys.set("expert_weights_norm", config.bool_or(&["norm_topk_prob", "moe_renormalize"], true));
    keys.set("kda.safe_gate", config.bool_or(&["kda_safe_gate"], true));
    keys.set("kda.gate_lower_bound", config.optional_f32(&["kda_lower_bound"])?.unwrap_or(-5.0));
    delta_attention(keys)
}

/// Sizes of delta attention, and which layers have it: those whose heads of keys and values are none.
pub(super) fn delta_attention(keys: &mut Keys<'_>) -> Result<()> {
    let model = keys.model;
    let config = model.config;
    let widths = ["linear_attn_config.head_dim", "linear_head_dim", "head_dim"];
    keys.number("kda.head_dim", &widths)?;
    let taps =
        ["linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim", "short_conv_kernel_size"];
    keys.number("ssm.conv_kernel", &taps)?;
    let bounds = ["linear_attn_config.gate_lower_bound", "linear_lower_bound"];
    keys.optional_float("kda.gate_lower_bound", &bounds)?;
    let heads = config.optional_u32(&["linear_attn_config.num_heads", "linear_num_heads"])?;
    if let Some(found) = heads.filter(|heads| u64::from(*heads) != model.heads().unwrap_or(0)) {
        let (key, found) = ("linear_num_heads".to_owned(), found.to_string());
        return Err(ConvertError::KeyValue { key, found, expected: "as many as attention has" });
    }
    // The list of older files counts layers from 1.
    let listed = config.u32_list(&["linear_attn_config.full_attn_layers"]);
    let kinds = config.text_list(&["layer_types"]);
    let group = config.optional_u32(&["layer_group_size"])?.map(u64::from);
    let attends = |layer: u64| match (&kinds, &listed, group) {
        (Some(kinds), ..) => kinds.get(layer as usize).is_some_and(|kind| *kind != "linear_attention"),
        (None, Some(listed), _) => listed.iter().any(|number| u64::from(*number) == layer + 1),
        (None, None, Some(group)) => (layer + 1).is_multiple_of(group.max(1)),
        (None, None, None) => layer > 0 && layer.is_multiple_of(4),
    };
    let heads: Vec<i32> = (0..model.layers()?).map(|layer| i32::from(attends(layer))).collect();
    keys.set("attention.head_count_kv", heads);
    Ok(())
}
