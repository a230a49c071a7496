//! `llama rerank`: documents by how well they answer a query.

use crate::embedder::Embedder;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{files, interrupt, pages};
use puna_flags::{Config, FLAGS, Positional, Spec, ToolSet};
use puna_runtime::Pooling;

/// Flags of `rerank`.
pub const SPEC: Spec<Config> = Spec {
    name: "rerank",
    tool: ToolSet::RERANK,
    about: "Print documents in the order of how well they answer a query, with their scores. The query is -p, the \
            documents are arguments, or the lines of the file of -f",
    groups: FLAGS,
    positional: Some(Positional {
        placeholder: "DOCUMENT...",
        help: "Documents to rank",
        set: |config, value| config.positional.push(value.to_owned()),
    }),
};

/// `llama rerank`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let Some(query) = config.prompt.text.as_deref().filter(|query| !query.is_empty()) else {
        return Err(invocation.usage("no query: give -p TEXT"));
    };
    let documents = documents(&config)?;
    if documents.is_empty() {
        return Err(invocation.usage("no documents: give them as arguments, or -f FILE"));
    }
    interrupt::install();
    let embedder = Embedder::open(invocation, &config, &console)?;
    let tokenizer = &embedder.tokenizer;
    let texts: Vec<Vec<u32>> = documents.iter().map(|text| tokenizer.encode_pair(query, text)).collect();
    if texts.iter().any(Vec::is_empty) {
        return Err(Failure::Failed("query and document are empty".into()));
    }
    let embedded = embedder.embed(&config, &console, Pooling::Rank, &texts)?;
    // The first score is that of relevance.
    let score = |index: usize| embedded.rows[index].first().copied().unwrap_or(f32::NAN);
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
    order.truncate(config.embedding.top.unwrap_or(usize::MAX));
    let text = if config.json {
        let result = |index: &usize| serde_json::json!({ "index": index, "score": score(*index), "document": documents[*index] });
        format!("{}\n", serde_json::Value::Array(order.iter().map(result).collect()))
    } else {
        let line = |index: &usize| {
            let document = documents[*index].replace(['\n', '\r', '\t'], " ");
            format!("{:8.3}\t{index}\t{document}\n", score(*index))
        };
        order.iter().map(line).collect()
    };
    pages::print(text.as_bytes())
}

/// The arguments, then the parts of the file, less empty ones.
fn documents(config: &Config) -> Result<Vec<String>, Failure> {
    let mut documents = config.positional.clone();
    if let Some(path) = &config.prompt.file {
        let text = files::read_text(path, files::PROMPT)?;
        documents.extend(text.split(&config.embedding.separator).map(str::to_owned));
    }
    documents.retain(|document| !document.trim().is_empty());
    Ok(documents)
}
