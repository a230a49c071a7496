//! Mamba 1 and 2.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{Rule, copy, map};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "mamba",
        classes: &["MambaForCausalLM", "MambaLMHeadModel"],
        defaults: &[("layer_norm_epsilon", 1e-5)],
        keys: |keys| {
            recurrent(keys)?;
            let (width, config) = (keys.model.width()? as u32, keys.model.config);
            let inner = config.optional_u32(&["intermediate_size", "d_inner"])?;
            keys.set("ssm.inner_size", inner.unwrap_or(2 * width));
            let rank = config.optional_u32(&["time_step_rank", "dt_rank"])?;
            keys.set("ssm.time_step_rank", rank.unwrap_or(width.div_ceil(16)));
            Ok(())
        },
        rules: &[NORM],
        ..PLAIN
    },
    Architecture {
        name: "mamba2",
        classes: &["Mamba2ForCausalLM"],
        defaults: &[("layer_norm_epsilon", 1e-5), ("expand", 2.0), ("n_groups", 1.0), ("head_dim", 64.0)],
        keys: |keys| {
            recurrent(keys)?;
            let width = keys.model.width()?.saturating_mul(keys.model.count(&["expand"])?);
            let heads = keys.model.config.optional_u32(&["num_heads"])?;
            let heads = heads.map_or(width / keys.model.count(&["head_dim", "headdim"])?, u64::from);
            keys.set("ssm.inner_size", width.min(1 << 30) as u32);
            keys.set("ssm.time_step_rank", heads as u32);
            keys.number("ssm.group_count", &["n_groups", "ngroups"])?;
            Ok(())
        },
        rules: &[NORM, &[map("L.mixer.norm", "ssm_norm", by_group)]],
        ..PLAIN
    },
];

const NORM: &[Rule] = &[copy("L.norm", "attn_norm")];

/// The norm of a Mamba 2 layer has a row for each group.
pub(super) fn by_group(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let groups = model.config.optional_u32(&["n_groups", "ngroups", "mamba_n_groups"])?.unwrap_or(1);
    let groups = u64::from(groups.max(1));
    let shape = [groups, recipe.elements() / groups];
    recipe.reshape(&shape)
}

fn recurrent(keys: &mut Keys<'_>) -> Result<()> {
    keys.sizes()?;
    let epsilon = keys.model.config.f32(&["layer_norm_epsilon", "rms_norm_eps"])?;
    keys.set("attention.layer_norm_rms_epsilon", epsilon);
    keys.set("feed_forward_length", 0u32);
    keys.set("attention.head_count", 0u32);
    keys.number("ssm.conv_kernel", &["conv_kernel", "d_conv"])?;
    keys.number("ssm.state_size", &["state_size", "d_state"])?;
    Ok(())
}
