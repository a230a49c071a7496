//! Flags of single tools.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{integer, integers, path};

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::switch("--stdin", "Read the text from the standard input", |c: &mut Config, on| {
        c.tokenize.stdin = on
    })
    .tools(ToolSet::TOKENIZE),
    Flag::switch("--ids", "Print the ids as one list", |c: &mut Config, on| c.tokenize.ids = on)
        .tools(ToolSet::TOKENIZE),
    Flag::switch("--no-bos", "Add no beginning token", |c: &mut Config, on| c.tokenize.add_bos = !on)
        .tools(ToolSet::TOKENIZE),
    Flag::switch("--no-parse-special", "Treat special tokens as text", |c: &mut Config, on| {
        c.tokenize.parse_special = !on;
    })
    .tools(ToolSet::TOKENIZE),
    Flag::switch("--show-count", "Print the number of tokens last", |c: &mut Config, on| {
        c.tokenize.show_count = on
    })
    .tools(ToolSet::TOKENIZE),
    Flag::value(
        "--tokens",
        "ID,ID,...;...",
        "Token ids of the prompt; several sequences, separated by semicolons, run in one batch",
        |c: &mut Config, v| {
            c.logits.tokens = v.split(';').map(integers).collect::<Result<_, _>>()?;
            Ok(())
        },
    )
    .tools(ToolSet::LOGITS),
    Flag::value(
        "--decoder-tokens",
        "ID,ID,...",
        "Token ids that the decoder is given, in models whose encoder reads --tokens",
        |c: &mut Config, v| {
            c.logits.decoder_tokens = integers(v)?;
            Ok(())
        },
    )
    .tools(ToolSet::LOGITS),
    Flag::value(
        "-o --output --output-file",
        "FILE",
        "File for the logits (positions x vocabulary) or embeddings, little-endian f32",
        |c: &mut Config, v| {
            c.logits.output = Some(path(v)?);
            Ok(())
        },
    )
    .tools(ToolSet::LOGITS),
    Flag::value("--greedy", "N", "Tokens to generate greedily after the prompt", |c: &mut Config, v| {
        c.logits.greedy = integer(v)?;
        Ok(())
    })
    .default("0")
    .tools(ToolSet::LOGITS),
    Flag::value("--step", "N", "Tokens fed at once; 0 means the whole prompt", |c: &mut Config, v| {
        c.logits.step = integer(v)?;
        Ok(())
    })
    .default("0")
    .tools(ToolSet::LOGITS),
];
