//! GPT-2 and models with its names.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::Recipe;
use crate::keys::Keys;
use crate::model::{KV_HEADS, Model};
use crate::rules::{Rule, copy, map, plus_one, rows, skip, split_by_key_head, transposed, ungroup_heads};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "gpt2",
        classes: &["GPT2LMHeadModel"],
        rules: &[&[
            transposed("L.attn.c_attn", "attn_qkv"),
            transposed("L.attn.c_proj", "attn_output"),
            transposed("L.mlp.c_fc", "ffn_up"),
            transposed("L.mlp.c_proj", "ffn_down"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "starcoder",
        classes: &["GPTBigCodeForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            one_key_head(keys)
        },
        rules: &[&[map("L.attn.c_attn", "attn_qkv", |model, recipe| {
            let shared = model.config.bool_or(&["multi_query"], true);
            if shared { Ok(recipe) } else { ungroup_heads(model, recipe) }
        })]],
        ..PLAIN
    },
    Architecture {
        name: "gptj",
        classes: &["GPTJForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.optional_number("rope.dimension_count", &["rotary_dim"])?;
            Ok(())
        },
        rules: &[&[
            copy("L.attn.q_proj", "attn_q"),
            copy("L.attn.k_proj", "attn_k"),
            copy("L.attn.v_proj", "attn_v"),
            copy("L.mlp.fc_in", "ffn_up"),
            copy("L.mlp.fc_out", "ffn_down"),
            skip("L.attn.embed_positions"),
        ]],
        ..PLAIN
    },
    Architecture { name: "starcoder2", classes: &["Starcoder2ForCausalLM"], ..PLAIN },
    Architecture {
        name: "gptneox",
        classes: &["GPTNeoXForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            let heads = keys.model.heads()? as u32;
            keys.set("attention.head_count_kv", heads);
            let parallel = keys.model.config.bool_or(&["use_parallel_residual"], true);
            keys.set("use_parallel_residual", parallel);
            Ok(())
        },
        rules: &[&[rows("L.attention.query_key_value", "attn_qkv", ungroup_heads)]],
        ..PLAIN
    },
    Architecture {
        name: "falcon",
        classes: &["FalconForCausalLM", "RWForCausalLM"],
        keys: falcon,
        rules: &[FALCON],
        ..PLAIN
    },
    Architecture {
        name: "stablelm",
        classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM", "LlavaStableLMEpochForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.optional_flag("use_parallel_residual", &["use_parallel_residual"]);
            Ok(())
        },
        rules: &[&[
            copy("L.self_attn.q_layernorm.norms.#", "attn_q_norm"),
            copy("L.self_attn.k_layernorm.norms.#", "attn_k_norm"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "nemotron",
        classes: &["NemotronForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.float("attention.layer_norm_epsilon", &["norm_eps"])?;
            Ok(())
        },
        rules: &[&[
            map("norm.weight", "output_norm.weight", plus_one),
            map("L.input_layernorm.weight", "attn_norm.weight", plus_one),
            map("L.post_attention_layernorm.weight", "ffn_norm.weight", plus_one),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "codeshell",
        classes: &["CodeShellForCausalLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.optional_number("attention.head_count_kv", &["num_query_groups"])?;
            keys.set("rope.freq_base", 10000.0f32);
            keys.set("rope.scaling.type", "linear");
            keys.set("rope.scaling.factor", 1.0f32);
            Ok(())
        },
        ..PLAIN
    },
    Architecture { name: "jais2", classes: &["Jais2ForCausalLM"], ..PLAIN },
];

/// All query heads share one key head.
fn one_key_head(keys: &mut Keys<'_>) -> Result<()> {
    let shared = keys.model.config.bool_or(&["multi_query"], true);
    let heads = keys.model.heads()? as u32;
    keys.set("attention.head_count_kv", if shared { 1 } else { heads });
    Ok(())
}

/// The larger models have a norm for each branch.
const FALCON: &[Rule] = &[
    copy("L.ln_attn", "attn_norm_2"),
    copy("L.ln_mlp", "attn_norm"),
    rows("L.self_attention.query_key_value", "attn_qkv", falcon_heads),
    skip("L.self_attention.maybe_rotary.inv_freq"),
];

fn falcon(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    if keys.model.config.bool_or(&["alibi"], false) {
        return Err(ConvertError::KeyValue {
            key: "alibi".into(),
            found: "true".into(),
            expected: "false, as the engine's Falcon rotates",
        });
    }
    if keys.model.config.bool_or(&["new_decoder_architecture"], false) {
        keys.number("attention.head_count_kv", KV_HEADS)?;
        return Ok(());
    }
    one_key_head(keys)
}

fn falcon_heads(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    if model.config.bool_or(&["new_decoder_architecture"], false) {
        return Recipe::join(split_by_key_head(model, recipe)?.into());
    }
    // Here all queries come first, unless each head has keys of its own.
    if model.config.bool_or(&["multi_query"], true) { Ok(recipe) } else { ungroup_heads(model, recipe) }
}
