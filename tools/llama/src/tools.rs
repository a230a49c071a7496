//! The table of tools.

use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::{
    batched_bench, bench, cli, completion, convert, convert_legacy, cvector, devices, diffusion, embedding,
    export_lora, gguf_edit, gguf_hash, gguf_split, grammar, imatrix, info, logits, pages, perplexity, pull,
    quantize, render, rerank, run, serve, simple, tokenize,
};
use puna_flags::{Command, closest};

/// One tool.
pub struct Tool {
    /// Name after `llama ` and `llama-`.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// What it does, for the overview.
    pub summary: &'static str,
    /// Its flags; the argument is how the program was started.
    pub command: fn(&str) -> Command,
    /// Runs it.
    pub run: fn(&Invocation) -> Result<(), Failure>,
}

/// All tools, in the order of the overview.
pub static TOOLS: &[Tool] = &[
    Tool {
        name: "cli",
        aliases: &["chat", "client"],
        summary: "Chat with a model",
        command: |program| cli::SPEC.command(program),
        run: cli::run,
    },
    Tool {
        name: "run",
        aliases: &[],
        summary: "Run a model by its name, once or as a chat",
        command: |program| run::SPEC.command(program),
        run: run::run,
    },
    Tool {
        name: "completion",
        aliases: &["complete"],
        summary: "Continue a text",
        command: |program| completion::SPEC.command(program),
        run: completion::run,
    },
    Tool {
        name: "simple",
        aliases: &[],
        summary: "Continue a text greedily, with few flags",
        command: |program| simple::SPEC.command(program),
        run: simple::run,
    },
    Tool {
        name: "diffusion",
        aliases: &["diffusion-cli"],
        summary: "Write a text with a diffusion model",
        command: |program| diffusion::SPEC.command(program),
        run: diffusion::run,
    },
    Tool {
        name: "serve",
        aliases: &["server"],
        summary: "Serve models over HTTP",
        command: |program| serve::SPEC.command(program),
        run: serve::run,
    },
    Tool {
        name: "bench",
        aliases: &[],
        summary: "Measure speed",
        command: |program| puna_flags::bench::SPEC.command(program),
        run: bench::run,
    },
    Tool {
        name: "batched-bench",
        aliases: &[],
        summary: "Measure the speed of several sequences together",
        command: |program| batched_bench::SPEC.command(program),
        run: batched_bench::run,
    },
    Tool {
        name: "logits",
        aliases: &[],
        summary: "Write a model's logits for given tokens",
        command: |program| logits::SPEC.command(program),
        run: logits::run,
    },
    Tool {
        name: "embedding",
        aliases: &["embed"],
        summary: "Print the embeddings of texts",
        command: |program| embedding::SPEC.command(program),
        run: embedding::run,
    },
    Tool {
        name: "rerank",
        aliases: &[],
        summary: "Order documents by how well they answer a query",
        command: |program| rerank::SPEC.command(program),
        run: rerank::run,
    },
    Tool {
        name: "perplexity",
        aliases: &[],
        summary: "Measure how well a model predicts a text",
        command: |program| perplexity::SPEC.command(program),
        run: perplexity::run,
    },
    Tool {
        name: "imatrix",
        aliases: &[],
        summary: "Measure how much the columns of matrices matter",
        command: |program| imatrix::SPEC.command(program),
        run: imatrix::run,
    },
    Tool {
        name: "convert",
        aliases: &["convert-hf-to-gguf"],
        summary: "Write a model folder of the Hugging Face hub as a GGUF file",
        command: |program| convert::SPEC.command(program),
        run: convert::run,
    },
    Tool {
        name: "convert-lora",
        aliases: &["convert-lora-to-gguf"],
        summary: "Write a LoRA adapter of the PEFT library as a GGUF file",
        command: |program| convert::LORA.command(program),
        run: convert::run_lora,
    },
    Tool {
        name: "convert-legacy",
        aliases: &["convert-llama-ggml-to-gguf"],
        summary: "Write a llama file from before GGUF as a GGUF file",
        command: |program| convert_legacy::SPEC.command(program),
        run: convert_legacy::run,
    },
    Tool {
        name: "export-lora",
        aliases: &[],
        summary: "Write a model with the changes of LoRA adapters",
        command: |program| export_lora::SPEC.command(program),
        run: export_lora::run,
    },
    Tool {
        name: "cvector-generator",
        aliases: &[],
        summary: "Write the directions between two kinds of prompts",
        command: |program| cvector::SPEC.command(program),
        run: cvector::run,
    },
    Tool {
        name: "quantize",
        aliases: &[],
        summary: "Write a model in other number formats",
        command: |program| quantize::SPEC.command(program),
        run: quantize::run,
    },
    Tool {
        name: "gguf-hash",
        aliases: &[],
        summary: "Print or check hashes of a model file's tensors",
        command: |program| gguf_hash::SPEC.command(program),
        run: gguf_hash::run,
    },
    Tool {
        name: "gguf",
        aliases: &[],
        summary: "Print or change the metadata of a model file",
        command: |program| gguf_edit::SPEC.command(program),
        run: gguf_edit::run,
    },
    Tool {
        name: "gguf-split",
        aliases: &[],
        summary: "Cut a model file into several, or make one of several",
        command: |program| gguf_split::SPEC.command(program),
        run: gguf_split::run,
    },
    Tool {
        name: "tokenize",
        aliases: &[],
        summary: "Print the tokens of a text",
        command: |program| tokenize::SPEC.command(program),
        run: tokenize::run,
    },
    Tool {
        name: "template",
        aliases: &[],
        summary: "Print the prompt that a chat template makes of a conversation",
        command: |program| render::SPEC.command(program),
        run: render::run,
    },
    Tool {
        name: "grammar",
        aliases: &["gbnf-validator"],
        summary: "Check a text against a grammar or a JSON schema",
        command: |program| grammar::SPEC.command(program),
        run: grammar::run,
    },
    Tool {
        name: "info",
        aliases: &["show"],
        summary: "Describe a model file and the memory it needs",
        command: |program| info::SPEC.command(program),
        run: info::run,
    },
    Tool {
        name: "devices",
        aliases: &[],
        summary: "List the devices that can run models",
        command: |program| devices::SPEC.command(program),
        run: devices::run,
    },
    Tool {
        name: "pull",
        aliases: &["download", "get"],
        summary: "Download a model and print its path",
        command: |program| pull::PULL.command(program),
        run: pull::run,
    },
    Tool {
        name: "list",
        aliases: &["ls"],
        summary: "List the downloaded models",
        command: |program| pull::LIST.command(program),
        run: pull::list,
    },
    Tool {
        name: "completions",
        aliases: &[],
        summary: "Print a completion script: bash, elvish, fish, powershell or zsh",
        command: |program| pages::plain_command(program, "Print a completion script for a shell", "SHELL"),
        run: pages::completions,
    },
    Tool {
        name: "man",
        aliases: &[],
        summary: "Write the manual pages to a folder",
        command: |program| pages::plain_command(program, "Write the manual pages to a folder", "DIR"),
        run: pages::man,
    },
    Tool {
        name: "version",
        aliases: &[],
        summary: "Print version and build",
        command: |program| pages::plain_command(program, "Print version and build", ""),
        run: pages::version_tool,
    },
    Tool {
        name: "help",
        aliases: &[],
        summary: "Print this overview, or the help of a tool",
        command: |program| {
            pages::plain_command(program, "Print the overview, or the help of a tool", "[TOOL]")
        },
        run: pages::help,
    },
];

/// The tool with this name or alias; underscores count as dashes.
pub fn find(name: &str) -> Option<&'static Tool> {
    let name = name.replace('_', "-");
    TOOLS.iter().find(|tool| tool.name == name || tool.aliases.contains(&name.as_str()))
}

/// The error for a name that no tool has.
pub fn unknown(name: &str, program: &str) -> Failure {
    let names = TOOLS.iter().flat_map(|tool| std::iter::once(tool.name).chain(tool.aliases.iter().copied()));
    let hint = closest(name, names).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    let kind = if name.starts_with('-') { "flag" } else { "command" };
    let program = if program.is_empty() { "llama" } else { program };
    Failure::Usage(
        format!("unknown {kind} {name:?}{hint}"),
        program.split('-').next().unwrap_or(program).to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_commands_valid() {
        let mut names: Vec<_> =
            TOOLS.iter().flat_map(|tool| tool.aliases.iter().chain([&tool.name])).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for tool in TOOLS {
            (tool.command)(tool.name).debug_assert();
        }
    }
}
