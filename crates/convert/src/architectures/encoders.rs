//! Encoders that make embeddings, beside those of BERT's names; and T5.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::model::Model;
use crate::rules::{Named, Rule, copy, map, skip, split, ungroup_heads};
use crate::{Config, Recipe};

type Result<T> = std::result::Result<T, ConvertError>;

pub(super) const ROWS: &[Architecture] = &[
    Architecture {
        name: "modern-bert",
        classes: &["ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"],
        keys: modern,
        rules: &[MODERN],
        ..PLAIN
    },
    Architecture {
        name: "eurobert",
        classes: &["EuroBertModel", "EuroBertForMaskedLM"],
        keys: |keys| {
            keys.decoder()?;
            keys.set("attention.causal", false);
            Ok(())
        },
        rules: &[&[skip("lm_head")]],
        ..PLAIN
    },
    Architecture {
        name: "nomic-bert",
        classes: &["NomicBertModel", "NomicBertForMaskedLM"],
        applies: |config| !matches!(config.optional_u32(&["num_experts"]), Ok(Some(1..))),
        keys: |keys| rotated(keys, 1000.0),
        rules: &[
            ROTATED,
            &[copy("L.mlp.fc11", "ffn_up"), copy("L.mlp.fc12", "ffn_gate"), copy("L.mlp.fc2", "ffn_down")],
        ],
        ..PLAIN
    },
    Architecture {
        name: "nomic-bert-moe",
        classes: &["NomicBertModel", "NomicBertForMaskedLM"],
        keys: |keys| {
            rotated(keys, 10_000.0)?;
            keys.number("moe_every_n_layers", &["moe_every_n_layers"])?;
            Ok(())
        },
        applies: |config| matches!(config.optional_u32(&["num_experts"]), Ok(Some(1..))),
        rules: &[
            ROTATED,
            &[
                copy("L.mlp.router.layer", "ffn_gate_inp"),
                map("L.mlp.experts.mlp.w1", "ffn_up_exps.weight", by_expert),
                map("L.mlp.experts.mlp.w2", "ffn_down_exps.weight", |model, recipe| {
                    by_expert(model, recipe)?.transpose()
                }),
                // Which the model's users do not add.
                skip("L.mlp.experts.bias"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "jina-bert-v2",
        classes: &["JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"],
        defaults: &[("layer_norm_eps", 1e-12)],
        keys: |keys| {
            keys.sizes()?;
            keys.number("feed_forward_length", &["intermediate_size"])?;
            keys.number("attention.head_count", crate::model::HEADS)?;
            keys.set("attention.causal", false);
            Ok(())
        },
        rules: &[super::bert::BERT, JINA],
        ..PLAIN
    },
    Architecture {
        name: "neo-bert",
        classes: &["NeoBERT", "NeoBERTLMHead", "NeoBERTForSequenceClassification"],
        keys: |keys| {
            keys.decoder()?;
            own_keys(keys)?;
            keys.set("attention.causal", false);
            // The setting counts the gate with two thirds.
            let width = keys.model.config.u32(&["intermediate_size"])?;
            keys.set("feed_forward_length", (u64::from(width) * 2 / 3) as u32);
            let epsilon = keys.model.config.optional_f32(&["norm_eps"])?.unwrap_or(1e-6);
            keys.set("attention.layer_norm_rms_epsilon", epsilon);
            keys.set("rope.freq_base", 10_000.0f32);
            keys.set("rope.scaling.type", "none");
            keys.set("pooling_type", 2u32);
            Ok(())
        },
        rules: &[&[
            copy("encoder", "token_embd"),
            copy("layer_norm", "enc.output_norm"),
            map("L.qkv", "attn_qkv", ungroup_heads),
            copy("L.wo", "attn_output"),
            copy("L.ffn.w12", "ffn_up"),
            copy("L.ffn.w3", "ffn_down"),
            skip("decoder"),
            copy("dense", "cls"),
            copy("classifier", "cls.output"),
        ]],
        ..PLAIN
    },
    Architecture {
        name: "jina-bert-v3",
        classes: &["JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"],
        keys: |keys| rotated(keys, 20_000.0),
        rules: &[
            ROTATED,
            &[
                copy("L.mixer.Wqkv", "attn_qkv"),
                copy("L.mixer.out_proj", "attn_output"),
                skip("lm_head.dense"),
                skip("lm_head.layer_norm"),
                skip("lm_head.decoder"),
                skip("lm_head.bias"),
            ],
        ],
        ..PLAIN
    },
    Architecture {
        name: "t5",
        classes: &[
            "T5ForConditionalGeneration",
            "MT5ForConditionalGeneration",
            "UMT5ForConditionalGeneration",
        ],
        keys: |keys| {
            t5(keys)?;
            let layers = keys.model.layers()? as u32;
            let decoder = keys.model.config.optional_u32(&["num_decoder_layers"])?;
            keys.set("decoder_block_count", decoder.unwrap_or(layers));
            let first = keys.model.config.optional_u32(&["decoder_start_token_id"])?;
            keys.set("decoder_start_token_id", first.unwrap_or(0));
            Ok(())
        },
        rules: &[T5],
        ..PLAIN
    },
    Architecture {
        name: "t5encoder",
        classes: &["T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel"],
        keys: t5,
        rules: &[T5],
        ..PLAIN
    },
];

const MODERN: &[Rule] = &[
    copy("embeddings.tok_embeddings", "token_embd"),
    copy("embeddings.norm", "token_embd_norm"),
    copy("L.attn_norm", "attn_norm"),
    copy("L.attn.Wo", "attn_output"),
    copy("L.mlp_norm", "ffn_norm"),
    copy("L.mlp.Wi", "ffn_up"),
    copy("L.mlp.Wo", "ffn_down"),
    copy("final_norm", "output_norm"),
    split("head.dense", |model, recipe| Ok(head(model.config, "cls", recipe))),
    split("head.norm", |model, recipe| Ok(head(model.config, "cls.norm", recipe))),
    copy("classifier", "cls.output"),
    skip("decoder"),
];

/// The head of a classifier; that of a model which fills gaps is left out.
fn head(config: &Config, name: &'static str, recipe: Recipe) -> Named {
    let classifies = config.classes().iter().any(|class| class.ends_with("ForSequenceClassification"));
    if classifies { vec![(name, recipe)] } else { Vec::new() }
}

/// Every query head has keys of its own, whatever the settings say.
fn own_keys(keys: &mut Keys<'_>) -> Result<()> {
    let heads = keys.number("attention.head_count", crate::model::HEADS)?;
    keys.set("attention.head_count_kv", heads);
    Ok(())
}

fn modern(keys: &mut Keys<'_>) -> Result<()> {
    keys.decoder()?;
    own_keys(keys)?;
    keys.float("attention.layer_norm_epsilon", &["norm_eps"])?;
    keys.set("attention.causal", false);
    let config = keys.model.config;
    keys.number("attention.sliding_window", &["local_attention"])?;
    let local = config.rope_of("sliding_attention", "rope_theta");
    let local = local.or(config.optional_f32(&["local_rope_theta"])?);
    keys.set("rope.freq_base_swa", local.unwrap_or(10_000.0));
    keys.window_pattern();
    if config.text_list(&["layer_types"]).is_none() {
        keys.optional_number("attention.sliding_window_pattern", &["global_attn_every_n_layers"])?;
    }
    let function = config.text(&["hidden_activation"]).unwrap_or("gelu").to_owned();
    keys.set("hidden_activation", function);
    // How the rows are pooled that a classifier reads.
    if config.text(&["classifier_pooling"]) == Some("mean") {
        keys.set("classifier.pooling_type", 1u32);
    }
    Ok(())
}

/// What Jina 2 has beside BERT's names, with those of its model for code.
const JINA: &[Rule] = &[
    copy("L.attention.self.layer_norm_q", "attn_q_norm"),
    copy("L.attention.self.layer_norm_k", "attn_k_norm"),
    copy("L.layer_norm_1", "attn_norm_2"),
    copy("L.layer_norm_2", "layer_output_norm"),
    copy("L.mlp.layernorm", "layer_output_norm"),
    copy("L.mlp.gated_layers", "ffn_up"),
    copy("L.mlp.wo", "ffn_down"),
    copy("L.mlp.up_gated_layer", "ffn_up"),
    copy("L.mlp.down_layer", "ffn_down"),
];

/// The rows of all experts, one after another.
fn by_expert(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    let experts = model.count(&["num_experts"])?;
    let columns = recipe.shape.last().copied().unwrap_or(1).max(1);
    let rows = recipe.elements() / columns / experts;
    recipe.reshape(&[experts, rows, columns])
}

/// Names of encoders with a norm after each branch and rotation.
const ROTATED: &[Rule] = &[
    copy("embeddings.word_embeddings", "token_embd"),
    copy("embeddings.token_type_embeddings", "token_types"),
    copy("emb_ln", "token_embd_norm"),
    copy("L.norm1", "attn_output_norm"),
    copy("L.norm2", "layer_output_norm"),
    skip("pooler.dense"),
    skip("cls.predictions.bias"),
    skip("cls.predictions.decoder"),
    skip("cls.predictions.transform.dense"),
    skip("cls.predictions.transform.layer_norm"),
];

fn rotated(keys: &mut Keys<'_>, base: f32) -> Result<()> {
    keys.decoder()?;
    own_keys(keys)?;
    keys.set("attention.causal", false);
    if !keys.has("rope.freq_base") {
        keys.set("rope.freq_base", base);
    }
    Ok(())
}

/// Names of layers are those of the encoder or of the decoder.
const T5: &[Rule] = &[
    copy("shared", "token_embd"),
    skip("encoder.embed_tokens"),
    skip("decoder.embed_tokens"),
    copy("encoder.final_layer_norm", "enc.output_norm"),
    map("decoder.final_layer_norm", "dec.output_norm", scaled_where_tied),
    copy("L.layer.0.SelfAttention.q", "attn_q"),
    copy("L.layer.0.SelfAttention.k", "attn_k"),
    copy("L.layer.0.SelfAttention.v", "attn_v"),
    copy("L.layer.0.SelfAttention.o", "attn_o"),
    copy("L.layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"),
    copy("L.layer.0.layer_norm", "attn_norm"),
    copy("L.layer.1.EncDecAttention.q", "cross_attn_q"),
    copy("L.layer.1.EncDecAttention.k", "cross_attn_k"),
    copy("L.layer.1.EncDecAttention.v", "cross_attn_v"),
    copy("L.layer.1.EncDecAttention.o", "cross_attn_o"),
    split("L.layer.1.layer_norm", |_, recipe| {
        // In the decoder cross attention comes second, in the encoder the network.
        let decoder = recipe.name().contains("decoder.");
        Ok(vec![(if decoder { "cross_attn_norm" } else { "ffn_norm" }, recipe)])
    }),
    copy("L.layer.2.layer_norm", "ffn_norm"),
    copy("L.layer.1.DenseReluDense.wi", "ffn_up"),
    copy("L.layer.1.DenseReluDense.wi_0", "ffn_gate"),
    copy("L.layer.1.DenseReluDense.wi_1", "ffn_up"),
    copy("L.layer.1.DenseReluDense.wo", "ffn_down"),
    copy("L.layer.2.DenseReluDense.wi", "ffn_up"),
    copy("L.layer.2.DenseReluDense.wi_0", "ffn_gate"),
    copy("L.layer.2.DenseReluDense.wi_1", "ffn_up"),
    copy("L.layer.2.DenseReluDense.wo", "ffn_down"),
];

/// Where the embeddings are the output matrix, too, what it reads is divided by the root of the width. The norm before
/// it can hold that factor: nothing else reads the norm.
fn scaled_where_tied(model: &Model<'_>, recipe: Recipe) -> Result<Recipe> {
    // mT5 was trained without. Folders of newer libraries say that all are tied, and whether to divide on its own.
    let divides = model.config.classes().first() != Some(&"MT5ForConditionalGeneration");
    let tied = divides && model.config.bool_or(&["tie_word_embeddings"], true);
    match model.config.bool_or(&["scale_decoder_outputs"], tied) {
        true => Ok(recipe.multiply((model.width()? as f32).sqrt().recip())),
        false => Ok(recipe),
    }
}

fn t5(keys: &mut Keys<'_>) -> Result<()> {
    keys.sizes()?;
    keys.metadata.remove(&format!("{}.attention.layer_norm_epsilon", keys.model.architecture.name));
    keys.float("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"])?;
    keys.number("feed_forward_length", &["d_ff"])?;
    keys.number("attention.head_count", crate::model::HEADS)?;
    keys.number("attention.key_length", &["d_kv"])?;
    keys.number("attention.value_length", &["d_kv"])?;
    keys.number("attention.relative_buckets_count", &["relative_attention_num_buckets"])?;
    Ok(())
}
