//! Encoders built like decoders: norms before each branch, rotation, gated networks.

use puna_graph::Graph;
use puna_graph::PooledRows;
use puna_graph::ops::{Function, MaskRule, RopeKind};

use crate::blocks::{
    AttentionBlock, Classifier, Decoder, FeedForward, HeadNorms, Residuals, WindowDefaults, WindowRope,
};
use crate::{Architecture, Builder, ModelError};

/// ModernBERT (arXiv 2412.13663): two layers in three see a window to both sides.
pub const MODERN_BERT: Architecture = Architecture::new("modern-bert", modern_bert);
/// NeoBERT (arXiv 2502.19587).
pub const NEO_BERT: Architecture = Architecture::new("neo-bert", neo_bert);
/// EuroBERT (arXiv 2503.05500).
pub const EUROBERT: Architecture = Architecture::new("eurobert", |mut b| {
    b.see_both_directions();
    b.only_embeds()?;
    Decoder::new(RopeKind::Split).build(b)
});
/// Llama turned into an encoder (LLM2Vec, arXiv 2404.05961; Llama-Embed-Nemotron).
pub const LLAMA_EMBED: Architecture = Architecture::new("llama-embed", |mut b| {
    b.see_both_directions();
    b.only_embeds()?;
    Decoder::new(RopeKind::Interleaved).with_factors().build(b)
});
/// EmbeddingGemma (arXiv 2509.20354): Gemma 3 that sees both directions.
pub const GEMMA_EMBEDDING: Architecture = Architecture::new("gemma-embedding", gemma_embedding);

fn modern_bert(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    b.see_both_directions();
    b.set_classifier(Classifier { rows: Some(PooledRows::Mean), function: Function::Gelu, softmax: false });
    let function = match b.str_or("hidden_activation", "gelu")? {
        "gelu" => Function::Gelu,
        "silu" => Function::Silu,
        other => {
            let value = other.chars().take(64).collect::<String>();
            return Err(b.value_error("hidden_activation", value, "gelu or silu"));
        }
    };
    let windows = b.windows(WindowDefaults::every(3).or_length(0).full_first())?;
    let full = b.rope_settings(RopeKind::Split, b.key_dim()?, false)?;
    let window_rope = b.window_rope(&full, WindowRope::PlainWithBase(10000.0))?;
    let x = b.embed()?;
    let x = b.norm("token_embd_norm", x)?;
    let x = b.each_layer(x, |b, x| {
        let windowed = windows.limits(b.layer());
        let block = AttentionBlock {
            rope: Some(if windowed { window_rope } else { full }),
            mask: if windowed { MaskRule::SymmetricWindow(windows.length) } else { MaskRule::Causal },
            ..Default::default()
        };
        // The embeddings have just been normalised: the first layer has no norm of its own.
        let is_first = b.layer() == 0 && !b.has("attn_norm.weight");
        let h = if is_first { x } else { b.norm("attn_norm", x)? };
        let attended = b.self_attention(h, &block)?;
        let x = b.add(x, attended)?;
        let h = b.norm("ffn_norm", x)?;
        let fed = b.feed_forward(h, FeedForward::fused(function))?;
        b.add(x, fed)
    })?;
    let x = b.norm("output_norm", x)?;
    b.encoded(x)
}

fn neo_bert(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    b.see_both_directions();
    let rope = Some(b.rope_settings(RopeKind::Interleaved, b.key_dim()?, false)?);
    let x = b.embed()?;
    let x = b.decoder(
        x,
        Residuals::PRE,
        |b, x| b.self_attention(x, &AttentionBlock { rope, ..Default::default() }),
        |b, x| b.feed_forward(x, FeedForward::fused(Function::Silu)),
    )?;
    let x = b.norm("enc.output_norm", x)?;
    b.encoded(x)
}

fn gemma_embedding(mut b: Builder<'_>) -> Result<Graph, ModelError> {
    b.see_both_directions();
    b.only_embeds()?;
    let mut decoder = Decoder::new(RopeKind::Split)
        .with_network(FeedForward::gated(Function::Gelu))
        .with_residuals(Residuals::SANDWICH)
        .with_norms(HeadNorms::PerHead)
        .with_windows(WindowDefaults::every(6), WindowRope::PlainWithBase(10000.0));
    decoder.symmetric_windows = true;
    decoder.embedding_scale = Some((b.width_or("embedding_length", 0)? as f32).sqrt());
    decoder.build(b)
}
