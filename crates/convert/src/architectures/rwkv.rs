//! RWKV 6 and 7, and their mixers in a Qwen 2 decoder.

use super::{Architecture, PLAIN};
use crate::keys::Keys;
use crate::model::{HEADS, KV_HEADS, LAYERS, Model, WIDTH};
use crate::rules::{Name, Named, copy, map, skip, split, squeeze, transposed};
use crate::{ConvertError, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "rwkv6",
        classes: &["Rwkv6ForCausalLM"],
        keys: |keys| {
            sizes(keys)?;
            keys.float("attention.layer_norm_epsilon", &["layer_norm_epsilon"])?;
            keys.number("wkv.head_size", &["head_size"])?;
            keys.optional_number("rescale_every_n_layers", &["rescale_every"])?;
            let width = keys.model.width()?;
            if !keys.has("feed_forward_length") {
                keys.set("feed_forward_length", (width as f64 * 3.5) as u32 / 32 * 32);
            }
            ranks(keys, "blocks.0.attention.")
        },
        rules: &[&[
            copy("L.pre_ln", "/token_embd_norm"),
            copy("L.ln1", "attn_norm"),
            copy("L.ln2", "attn_norm_2"),
            copy("ln_out", "output_norm"),
            copy("head", "output"),
            copy("L.attention.time_maa_x", "time_mix_lerp_x.weight"),
            map("L.attention.time_maa_w", "time_mix_lerp_fused.weight", |m, r| fused(m, r, SIX)),
            skip("L.attention.time_maa_k"),
            skip("L.attention.time_maa_v"),
            skip("L.attention.time_maa_r"),
            skip("L.attention.time_maa_g"),
            transposed("L.attention.time_maa_w1", "time_mix_w1.weight"),
            map("L.attention.time_maa_w2", "time_mix_w2.weight", |_, recipe| recipe.transpose()),
            map("L.attention.time_decay", "time_mix_decay.weight", squeeze),
            transposed("L.attention.time_decay_w1", "time_mix_decay_w1.weight"),
            transposed("L.attention.time_decay_w2", "time_mix_decay_w2.weight"),
            copy("L.attention.time_faaaa", "time_mix_first.weight"),
            copy("L.attention.receptance", "time_mix_receptance"),
            copy("L.attention.key", "time_mix_key"),
            copy("L.attention.value", "time_mix_value"),
            copy("L.attention.gate", "time_mix_gate"),
            map("L.attention.output", "time_mix_output", rescaled),
            copy("L.attention.ln_x", "time_mix_ln"),
            copy("L.feed_forward.time_maa_k", "channel_mix_lerp_k.weight"),
            copy("L.feed_forward.time_maa_r", "channel_mix_lerp_r.weight"),
            copy("L.feed_forward.key", "channel_mix_key"),
            copy("L.feed_forward.receptance", "channel_mix_receptance"),
            map("L.feed_forward.value", "channel_mix_value", rescaled),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "rwkv6qwen2",
        classes: &["RWKV6Qwen2ForCausalLM"],
        keys: |keys| {
            sizes(keys)?;
            keys.float("attention.layer_norm_rms_epsilon", &["rms_norm_eps"])?;
            let model = keys.model;
            keys.set("wkv.head_size", (model.width()? / model.heads()?) as u32);
            keys.number("attention.head_count", HEADS)?;
            keys.number("attention.head_count_kv", KV_HEADS)?;
            keys.set("token_shift_count", 1u32);
            ranks(keys, "model.layers.0.self_attn.")
        },
        rules: &[&[
            copy("L.self_attn.time_maa_x", "time_mix_lerp_x.weight"),
            map("L.self_attn.time_maa_w", "time_mix_lerp_fused.weight", |m, r| fused(m, r, SIX)),
            skip("L.self_attn.time_maa_k"),
            skip("L.self_attn.time_maa_v"),
            skip("L.self_attn.time_maa_r"),
            skip("L.self_attn.time_maa_g"),
            map("L.self_attn.time_maa_w1", "time_mix_w1.weight", |_, recipe| by_mixture(recipe.transpose()?)),
            map("L.self_attn.time_maa_w2", "time_mix_w2.weight", |_, recipe| by_mixture(recipe.transpose()?)),
            map("L.self_attn.time_decay", "time_mix_decay.weight", squeeze),
            transposed("L.self_attn.time_decay_w1", "time_mix_decay_w1.weight"),
            transposed("L.self_attn.time_decay_w2", "time_mix_decay_w2.weight"),
            copy("L.self_attn.q_proj", "time_mix_receptance"),
            copy("L.self_attn.k_proj", "time_mix_key"),
            copy("L.self_attn.v_proj", "time_mix_value"),
            copy("L.self_attn.gate", "time_mix_gate"),
            copy("L.self_attn.o_proj", "time_mix_output"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "rwkv7",
        classes: &["RWKV7ForCausalLM", "Rwkv7ForCausalLM"],
        keys: |keys| {
            sizes(keys)?;
            keys.float("attention.layer_norm_epsilon", &["norm_eps", "layer_norm_epsilon"])?;
            keys.number("wkv.head_size", &["head_dim", "head_size"])?;
            let width = keys.model.width()? as u32;
            if !keys.has("feed_forward_length") {
                keys.set("feed_forward_length", width.saturating_mul(4));
            }
            // The tensors of the first layer have all ranks but one.
            low_ranks(keys, "model.layers.0.attn.", "model.layers.1.attn.", |name| {
                format!("{name}_lora.lora.0.weight")
            })
        },
        rules: &[&[
            copy("L.pre_norm", "/token_embd_norm"),
            copy("L.attn_norm", "attn_norm"),
            copy("L.ffn_norm", "attn_norm_2"),
            map("L.attn.x_r", "time_mix_lerp_fused.weight", |m, r| fused(m, r, SEVEN)),
            skip("L.attn.x_w"),
            skip("L.attn.x_k"),
            skip("L.attn.x_v"),
            skip("L.attn.x_a"),
            skip("L.attn.x_g"),
            map("L.attn.x_x", "time_mix_lerp_fused.weight", |model, recipe| {
                let width = model.width()?;
                let mixtures = recipe.elements() / width;
                recipe.reshape(&[mixtures, 1, 1, width])
            }),
            copy("L.attn.r_proj", "time_mix_receptance"),
            copy("L.attn.k_proj", "time_mix_key"),
            copy("L.attn.v_proj", "time_mix_value"),
            copy("L.attn.o_proj", "time_mix_output"),
            copy("L.attn.g_norm", "time_mix_ln"),
            copy("L.attn.k_k", "time_mix_k_k.weight"),
            copy("L.attn.k_a", "time_mix_k_a.weight"),
            map("L.attn.r_k", "time_mix_r_k.weight", flat),
            copy("L.attn.w_lora.lora.0", "time_mix_w1"),
            copy("L.attn.w_lora.lora.2.weight", "time_mix_w2.weight"),
            copy("L.attn.w_lora.lora.2.bias", "time_mix_w0.weight"),
            copy("L.attn.v_lora.lora.0", "time_mix_v1"),
            copy("L.attn.v_lora.lora.2.weight", "time_mix_v2.weight"),
            copy("L.attn.v_lora.lora.2.bias", "time_mix_v0.weight"),
            copy("L.attn.g_lora.lora.0", "time_mix_g1"),
            copy("L.attn.g_lora.lora.2", "time_mix_g2"),
            split("L.attn.a_lora.lora.0", |m, r| rates(m, r, ["time_mix_a1", "time_mix_v1"])),
            split("L.attn.a_lora.lora.2.weight", |m, r| {
                rates(m, r, ["time_mix_a2.weight", "time_mix_v2.weight"])
            }),
            split("L.attn.a_lora.lora.2.bias", |m, r| {
                rates(m, r, ["time_mix_a0.weight", "time_mix_v0.weight"])
            }),
            map("L.ffn.x_k", "channel_mix_lerp_k.weight", |model, r| r.reshape(&[1, 1, model.width()?])),
            copy("L.ffn.key", "channel_mix_key"),
            copy("L.ffn.value", "channel_mix_value"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "arwkv7",
        classes: &["RwkvHybridForCausalLM"],
        keys: |keys| {
            sizes(keys)?;
            keys.float("attention.layer_norm_rms_epsilon", &["rms_norm_eps"])?;
            keys.number("wkv.head_size", &["head_size"])?;
            keys.set("token_shift_count", 1u32);
            let [first, second] = [0, 1].map(|layer| format!("model.layers.{layer}.self_attn.time_mixer."));
            low_ranks(keys, &first, &second, |name| format!("{name}1"))
        },
        rules: &[&[
            map("L.self_attn.time_mixer.x_r", "time_mix_lerp_fused.weight", |m, r| fused(m, r, SEVEN)),
            skip("L.self_attn.time_mixer.x_w"),
            skip("L.self_attn.time_mixer.x_k"),
            skip("L.self_attn.time_mixer.x_v"),
            skip("L.self_attn.time_mixer.x_a"),
            skip("L.self_attn.time_mixer.x_g"),
            map("L.self_attn.time_mixer.w0", "time_mix_w0.weight", flat),
            transposed("L.self_attn.time_mixer.w1", "time_mix_w1.weight"),
            transposed("L.self_attn.time_mixer.w2", "time_mix_w2.weight"),
            map("L.self_attn.time_mixer.a0", "time_mix_a0.weight", flat),
            transposed("L.self_attn.time_mixer.a1", "time_mix_a1.weight"),
            transposed("L.self_attn.time_mixer.a2", "time_mix_a2.weight"),
            map("L.self_attn.time_mixer.v0", "time_mix_v0.weight", flat),
            transposed("L.self_attn.time_mixer.v1", "time_mix_v1.weight"),
            transposed("L.self_attn.time_mixer.v2", "time_mix_v2.weight"),
            transposed("L.self_attn.time_mixer.g1", "time_mix_g1.weight"),
            transposed("L.self_attn.time_mixer.g2", "time_mix_g2.weight"),
            map("L.self_attn.time_mixer.k_k", "time_mix_k_k.weight", flat),
            map("L.self_attn.time_mixer.k_a", "time_mix_k_a.weight", flat),
            map("L.self_attn.time_mixer.r_k", "time_mix_r_k.weight", flat),
            copy("L.self_attn.time_mixer.receptance", "time_mix_receptance"),
            copy("L.self_attn.time_mixer.key", "time_mix_key"),
            copy("L.self_attn.time_mixer.value", "time_mix_value"),
            copy("L.self_attn.time_mixer.output", "time_mix_output"),
            copy("L.self_attn.time_mixer.ln_x", "time_mix_ln"),
        ]],
        ..PLAIN
    },
];

/// Order of the mixtures of RWKV 6 in the file.
const SIX: &[&str] = &["w", "k", "v", "r", "g"];
/// That of RWKV 7; the gate may be missing.
const SEVEN: &[&str] = &["r", "w", "k", "v", "a", "g"];

/// Shares of all mixtures, of which the folder has a tensor each.
fn fused(model: &Model<'_>, recipe: Recipe, order: &[&str]) -> Result<Recipe> {
    let stem = recipe.name().get(..recipe.name().len().saturating_sub(1)).unwrap_or_default().to_owned();
    let width = model.width()?;
    let names = order.iter().map(|letter| format!("{stem}{letter}"));
    let names = names.filter(|name| model.source.has(name) || !name.ends_with("_g"));
    let parts = names.map(|name| Recipe::source(model.source, &name)?.reshape(&[1, 1, 1, width]));
    Recipe::join(parts.collect::<Result<Vec<Recipe>>>()?)
}

/// QRWKV's mixtures are in the order receptance, key, value, decay, gate.
fn by_mixture(recipe: Recipe) -> Result<Recipe> {
    let shape = recipe.shape.clone();
    let each = recipe.elements() / 5;
    let recipe = recipe.reshape(&[5, each])?;
    let parts = [3, 1, 2, 0, 4].map(|mixture| recipe.clone().take(0, mixture, 1));
    Recipe::join(parts.into_iter().collect::<Result<Vec<Recipe>>>()?)?.reshape(&shape)
}

fn flat(_: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let elements = recipe.elements();
    recipe.reshape(&[elements])
}

/// What makes rates, which in the first layer also stands where later ones have what mixes values: llama.cpp wants it there.
fn rates(model: &Model<'_>, recipe: Recipe, [name, values]: [&'static str; 2]) -> Result<Named> {
    let is_first = Name::parse(recipe.name()).layer == Some(0);
    let has_own = model.source.has(&recipe.name().replace("a_lora", "v_lora"));
    let mut named = vec![(name, recipe.clone())];
    if is_first && !has_own {
        named.push((values, recipe));
    }
    Ok(named)
}

/// Results are halved every so many layers, for half precision's sake; so are the weights of what is added to them.
fn rescaled(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let every = model.config.optional_u32(&["rescale_every"])?.unwrap_or(0);
    let layer = Name::parse(recipe.name()).layer.unwrap_or(0);
    Ok(recipe.multiply(0.5f32.powi(layer.checked_div(every).unwrap_or(0) as i32)))
}

fn sizes(keys: &mut Keys<'_>) -> Result<()> {
    // No limit is the model's own.
    keys.set("context_length", 1u32 << 20);
    keys.number("embedding_length", WIDTH)?;
    keys.number("block_count", LAYERS)?;
    keys.optional_number("feed_forward_length", &["intermediate_size"])?;
    keys.optional_number("vocab_size", &["vocab_size"])?;
    Ok(())
}

/// An extent of a tensor of the folder.
fn extent(keys: &Keys<'_>, name: &str, axis: usize) -> Result<u32> {
    let entry = keys.model.source.entry(name);
    let found = entry.and_then(|entry| entry.shape.get(axis)).and_then(|extent| u32::try_from(*extent).ok());
    found.ok_or_else(|| ConvertError::MissingKey { key: name.to_owned() })
}

/// Ranks of RWKV 6's matrices, which settings need not name.
fn ranks(keys: &mut Keys<'_>, place: &str) -> Result<()> {
    let prefix = if keys.model.source.has(&format!("rwkv.{place}time_maa_w1")) { "rwkv." } else { "" };
    let mixtures = extent(keys, &format!("{prefix}{place}time_maa_w1"), 1)?;
    let decay = extent(keys, &format!("{prefix}{place}time_decay_w1"), 1)?;
    keys.set("time_mix_extra_dim", mixtures / 5);
    keys.set("time_decay_extra_dim", decay);
    Ok(())
}

/// Ranks of RWKV 7's, of which the gate's is 0 where there is none; the first layer mixes no values.
fn low_ranks(keys: &mut Keys<'_>, first: &str, second: &str, name: impl Fn(&str) -> String) -> Result<()> {
    let names_rows = name("w").ends_with("weight");
    let axis = usize::from(!names_rows);
    let rank =
        |keys: &Keys<'_>, place: &str, letter: &str| extent(keys, &format!("{place}{}", name(letter)), axis);
    for (key, letter) in [("attention.decay_lora_rank", "w"), ("attention.iclr_lora_rank", "a")] {
        let found = rank(keys, first, letter)?;
        keys.set(key, found);
    }
    let values = rank(keys, second, "v").or_else(|_| rank(keys, first, "v"))?;
    keys.set("attention.value_residual_mix_lora_rank", values);
    let gate = rank(keys, first, "g").unwrap_or(0);
    keys.set("attention.gate_lora_rank", gate);
    Ok(())
}
