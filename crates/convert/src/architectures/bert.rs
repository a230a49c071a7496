//! BERT and RoBERTa encoders.

use super::{Architecture, PLAIN};
use crate::ConvertError;
use crate::keys::Keys;
use crate::rules::{Rule, copy, map, skip};

pub(super) const ROWS: &[Architecture] = &[Architecture {
    name: "bert",
    classes: &[
        "BertModel",
        "BertForMaskedLM",
        "BertForSequenceClassification",
        "RobertaModel",
        "RobertaForSequenceClassification",
        "XLMRobertaModel",
        "XLMRobertaForSequenceClassification",
        "CamembertModel",
    ],
    defaults: &[("layer_norm_eps", 1e-12)],
    keys: bert,
    rules: &[BERT],
    ..PLAIN
}];

pub(super) const BERT: &[Rule] = &[
    copy("embeddings.word_embeddings", "token_embd"),
    copy("embeddings.token_type_embeddings", "token_types"),
    map("embeddings.position_embeddings", "position_embd", |model, recipe| {
        // RoBERTa counts positions from behind the padding token.
        let padded = model.config.text(&["model_type"]).is_some_and(|kind| kind.contains("roberta"));
        let first = match padded {
            true => u64::from(model.config.optional_u32(&["pad_token_id"])?.unwrap_or(1)) + 1,
            false => 0,
        };
        let rows = recipe.shape.first().copied().unwrap_or(0);
        if first == 0 { Ok(recipe) } else { recipe.take(0, first, rows.saturating_sub(first)) }
    }),
    copy("embeddings.LayerNorm", "token_embd_norm"),
    skip("embeddings.position_ids"),
    skip("pooler.dense.weight"),
    skip("pooler.dense.bias"),
    copy("L.attention.self.query", "attn_q"),
    copy("L.attention.self.key", "attn_k"),
    copy("L.attention.self.value", "attn_v"),
    copy("L.attention.output.dense", "attn_output"),
    copy("L.attention.output.LayerNorm", "attn_output_norm"),
    copy("L.intermediate.dense", "ffn_up"),
    copy("L.output.dense", "ffn_down"),
    copy("L.output.LayerNorm", "layer_output_norm"),
    copy("classifier.dense", "cls"),
    copy("classifier.out_proj", "cls.output"),
    copy("classifier", "cls.output"),
    skip("cls.predictions.bias"),
    skip("cls.predictions.decoder.bias"),
    skip("cls.predictions.decoder.weight"),
    skip("cls.predictions.transform.dense.weight"),
    skip("cls.predictions.transform.dense.bias"),
    skip("cls.predictions.transform.LayerNorm.weight"),
    skip("cls.predictions.transform.LayerNorm.bias"),
    skip("cls.seq_relationship.weight"),
    skip("cls.seq_relationship.bias"),
];

fn bert(keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    keys.sizes()?;
    keys.number("feed_forward_length", &["intermediate_size"])?;
    keys.number("attention.head_count", crate::model::HEADS)?;
    keys.set("attention.causal", false);
    Ok(())
}
