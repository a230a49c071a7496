//! `llama embedding`: embeddings of texts, or scores of pairs.

use crate::embedder::{self, Embedded, Embedder};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{interrupt, pages};
use puna_engine::normalize;
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_runtime::Pooling;
use std::fmt::Write;

/// Flags of `embedding`.
pub const SPEC: Spec<Config> = Spec {
    name: "embedding",
    tool: ToolSet::EMBEDDING,
    about: "Print the embeddings of texts, or with --pooling rank the scores of pairs",
    groups: FLAGS,
    positional: None,
};

/// Numbers that are shown of each of several embeddings, and at either end of a token's.
const SHOWN: usize = 16;
const SHOWN_OF_TOKEN: usize = 3;

/// `llama embedding`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    if config.prompt.text.is_none() && config.prompt.file.is_none() && config.prompt.binary_file.is_none() {
        return Err(invocation.usage("no text: give -p TEXT or -f FILE"));
    }
    interrupt::install();
    let embedder = Embedder::open(invocation, &config, &console)?;
    let pooling = embedder.pooling(&config)?;
    let prompts = embedder::prompts(&config, &config.embedding.separator)?;
    let tokenizer = &embedder.tokenizer;
    let tokens = |prompt: &String| match prompt.split_once(&config.embedding.class_separator) {
        Some((query, document)) if pooling == Pooling::Rank => tokenizer.encode_pair(query, document),
        _ => tokenizer.encode(prompt, true, true),
    };
    let texts: Vec<Vec<u32>> = prompts.iter().map(tokens).collect();
    if let Some(index) = texts.iter().position(Vec::is_empty) {
        return Err(Failure::Failed(format!("prompt {index} is empty")));
    }
    embedder.check_ends(&texts, &console);
    let mut embedded = embedder.embed(&config, &console, pooling, &texts)?;
    if pooling != Pooling::Rank {
        for row in embedded.rows.iter_mut().flat_map(|rows| rows.chunks_mut(embedded.width.max(1))) {
            normalize(row, config.embedding.normalize);
        }
    }
    pages::print(show(&embedded, &prompts, &config).as_bytes())
}

/// Cosine of the angle between two embeddings; of two zeros 1, of one zero 0.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    match (product(a, a), product(b, b)) {
        (aa, bb) if aa == 0.0 && bb == 0.0 => 1.0,
        (aa, bb) if aa == 0.0 || bb == 0.0 => 0.0,
        (aa, bb) => product(a, b) / (aa.sqrt() * bb.sqrt()),
    }
}

/// The rows in the format that the flags ask for.
fn show(embedded: &Embedded, prompts: &[String], config: &Config) -> String {
    let rows: Vec<&[f32]> =
        embedded.rows.iter().flat_map(|rows| rows.chunks_exact(embedded.width.max(1))).collect();
    let whole = config.embedding.normalize == 0;
    let precise = |x: &f32| if whole { format!("{x:.0}") } else { format!("{x:.7}") };
    match config.embedding.format {
        "raw" => {
            let line = |row: &&[f32]| row.iter().map(precise).collect::<Vec<_>>().join(" ") + "\n";
            rows.iter().map(line).collect::<String>() + "\n"
        }
        "array" => {
            let list = |row: &&[f32]| format!("[{}]", row.iter().map(precise).collect::<Vec<_>>().join(","));
            format!("[{}]\n\n", rows.iter().map(list).collect::<Vec<_>>().join(","))
        }
        "json" => json(&rows, precise, false),
        "json+" => json(&rows, precise, prompts.len() > 1),
        _ => listed(embedded, &rows, prompts, whole),
    }
}

fn json(rows: &[&[f32]], number: impl Fn(&f32) -> String, similarities: bool) -> String {
    let mut text = String::from("{\n  \"object\": \"list\",\n  \"data\": [\n");
    let entry = |(index, row): (usize, &&[f32])| {
        let numbers = row.iter().map(&number).collect::<Vec<_>>().join(",");
        format!(
            "    {{\n      \"object\": \"embedding\",\n      \"index\": {index},\n      \"embedding\": [{numbers}]\n    }}"
        )
    };
    text += &rows.iter().enumerate().map(entry).collect::<Vec<_>>().join(",\n");
    text += "\n  ]";
    if similarities {
        text += ",\n  \"cosineSimilarity\": [\n";
        let line = |a: &&[f32]| {
            let line = rows.iter().map(|b| format!("{:6.2}", cosine(a, b))).collect::<Vec<_>>();
            format!("    [{} ]", line.join(", "))
        };
        text += &rows.iter().map(line).collect::<Vec<_>>().join(",\n");
        text += "\n  ]";
    }
    text + "\n}\n\n"
}

/// For people: the beginnings of embeddings and how alike they are, or scores.
fn listed(embedded: &Embedded, rows: &[&[f32]], prompts: &[String], whole: bool) -> String {
    let number = |x: &f32| if whole { format!("{x:6.0} ") } else { format!("{x:9.6} ") };
    let mut text = String::from("\n");
    // Writing to a text cannot fail.
    for (index, row) in rows.iter().enumerate() {
        let _ = match embedded.pooling {
            Pooling::Rank => {
                for (label, score) in row.iter().enumerate() {
                    let name = embedded.labels.get(label).filter(|name| !name.is_empty());
                    let name = name.cloned().unwrap_or_else(|| label.to_string());
                    let name = if row.len() == 1 { String::new() } else { format!(" [{name}]") };
                    let _ = writeln!(text, "rerank score {index}: {score:8.3}{name}");
                }
                Ok(())
            }
            Pooling::None => {
                let first = row.iter().take(SHOWN_OF_TOKEN).map(number).collect::<String>();
                let last = row.iter().skip(row.len().saturating_sub(SHOWN_OF_TOKEN)).map(number);
                writeln!(text, "embedding {index}: {first} ... {}", last.collect::<String>())
            }
            _ => {
                let shown = if prompts.len() > 1 { SHOWN } else { row.len() };
                let numbers = row.iter().take(shown).map(number).collect::<String>();
                writeln!(text, "embedding {index}: {numbers}")
            }
        };
    }
    let pooled = !matches!(embedded.pooling, Pooling::Rank | Pooling::None);
    if pooled && prompts.len() > 1 {
        let beginning = |prompt: &String, most: usize| prompt.chars().take(most).collect::<String>();
        text += "\ncosine similarity matrix:\n\n";
        text += &prompts.iter().map(|prompt| format!("{:>6} ", beginning(prompt, 6))).collect::<String>();
        text += "\n";
        for (a, prompt) in rows.iter().zip(prompts) {
            let line = rows.iter().map(|b| format!("{:6.2} ", cosine(a, b))).collect::<String>();
            let _ = writeln!(text, "{line}{}", beginning(prompt, 10));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines() {
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 0.0]), 0.0);
        assert_eq!(cosine(&[0.0, 0.0], &[0.0, 0.0]), 1.0);
        assert_eq!(cosine(&[2.0, 0.0], &[0.5, 0.0]), 1.0);
    }
}
