//! Embeddings and ranks.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, choice, filled};

const POOLING: &[&str] = &["none", "mean", "cls", "last", "rank"];
const ATTENTION: &[&str] = &["causal", "non-causal"];
const FORMATS: &[&str] = &["", "array", "json", "json+", "raw"];
const EMBEDDING: ToolSet = ToolSet::EMBEDDING;

/// A separator; `\n` and `\t` may be written with a backslash.
fn separator(value: &str) -> Result<String, String> {
    filled(value).map(|text| text.replace("\\n", "\n").replace("\\t", "\t"))
}

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::word(
        "--pooling",
        "none|mean|cls|last|rank",
        POOLING,
        "How a text's tokens become its embedding, by default as the model's file says; rank gives scores",
        |c: &mut Config, v| {
            c.embedding.pooling = Some(choice(v, POOLING)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_POOLING")
    .tools(EMBEDDING.or(ToolSet::LOGITS).or(ToolSet::SERVE)),
    Flag::word(
        "--attention",
        "causal|non-causal",
        ATTENTION,
        "Whether tokens see only earlier ones or all, by default as the model's file says",
        |c: &mut Config, v| {
            c.embedding.causal = Some(choice(v, ATTENTION)? == "causal");
            Ok(())
        },
    )
    .tools(ToolSet::EMBED.or(ToolSet::LOGITS).or(ToolSet::SERVE)),
    Flag::value(
        "--embd-normalize",
        "N",
        "Norm that embeddings are divided by: -1 none, 0 the largest number to 32760, 1 the sum, 2 the root of squares, N the p-norm",
        |c: &mut Config, v| {
            c.embedding.normalize = at_least(v, -1)?;
            Ok(())
        },
    )
    .default("2")
    .tools(EMBEDDING.or(ToolSet::SERVE)),
    Flag::word(
        "--embd-output-format",
        "FORMAT",
        FORMATS,
        "empty for a list with similarities, array, json, json+ (with similarities) or raw",
        |c: &mut Config, v| {
            c.embedding.format = choice(v, FORMATS)?;
            Ok(())
        },
    )
    .tools(EMBEDDING),
    Flag::text(
        "--embd-separator",
        "TEXT",
        "Text between prompts or documents, by default a line break",
        |c: &mut Config, v| {
            c.embedding.separator = separator(v)?;
            Ok(())
        },
    )
    .tools(ToolSet::EMBED),
    Flag::text(
        "--cls-separator",
        "TEXT",
        "Text between the parts of a pair that is ranked, by default a tabulator",
        |c: &mut Config, v| {
            c.embedding.class_separator = separator(v)?;
            Ok(())
        },
    )
    .tools(EMBEDDING),
    Flag::value("--top", "N", "Print the best N documents only", |c: &mut Config, v| {
        c.embedding.top = Some(at_least::<u32>(v, 1)? as usize);
        Ok(())
    })
    .tools(ToolSet::RERANK),
    Flag::switch(
        "--embedding --embeddings",
        "Serve embeddings instead of text",
        |c: &mut Config, on| c.embedding.serve = on,
    )
    .env("LLAMA_ARG_EMBEDDINGS")
    .tools(ToolSet::SERVE),
    Flag::switch(
        "--rerank --reranking",
        "Serve the ranks of documents instead of text",
        |c: &mut Config, on| c.embedding.serve_ranks = on,
    )
    .env("LLAMA_ARG_RERANKING")
    .tools(ToolSet::SERVE),
];
