//! Input text, its limits and the saved state.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{at_least, filled, path};

const TEXT: ToolSet = ToolSet::CHAT
    .or(ToolSet::SIMPLE)
    .or(ToolSet::TOKENIZE)
    .or(ToolSet::PERPLEXITY)
    .or(ToolSet::EMBED)
    .or(ToolSet::DIFFUSION);

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::text("-p --prompt", "TEXT", "The prompt", |c: &mut Config, v| {
        c.prompt.text = Some(v.to_owned());
        Ok(())
    })
    .tools(TEXT),
    Flag::value("-f --file", "FILE", "File with the prompt", |c: &mut Config, v| {
        c.prompt.file = Some(path(v)?);
        Ok(())
    })
    .tools(TEXT),
    Flag::value(
        "-bf --binary-file",
        "FILE",
        "File with the prompt, used byte for byte",
        |c: &mut Config, v| {
            c.prompt.binary_file = Some(path(v)?);
            Ok(())
        },
    )
    .tools(TEXT),
    Flag::switch(
        "-e --escape",
        "Replace \\n, \\r, \\t, \\', \\\", \\\\ and \\xHH in prompts",
        |c: &mut Config, on| {
            c.prompt.escape = on;
        },
    )
    .negative("--no-escape")
    .default("on")
    .tools(TEXT),
    Flag::value(
        "-n --predict --n-predict",
        "N",
        "Tokens to generate; -1 means no limit, -2 until the context is full",
        |c: &mut Config, v| {
            c.prompt.predict = Some(at_least(v, -2)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_N_PREDICT")
    .tools(ToolSet::GENERATE.or(ToolSet::DIFFUSION)),
    Flag::text("-r --reverse-prompt", "TEXT", "Stop at this text; may be repeated", |c: &mut Config, v| {
        c.prompt.reverse.push(filled(v)?);
        Ok(())
    })
    .tools(ToolSet::CHAT),
    Flag::switch("-sp --special", "Print special tokens", |c: &mut Config, on| c.prompt.special = on)
        .tools(ToolSet::CHAT.or(ToolSet::DIFFUSION)),
    Flag::switch("--display-prompt", "Print the prompt before the text", |c: &mut Config, on| {
        c.prompt.display = on
    })
    .negative("--no-display-prompt")
    .default("on")
    .tools(ToolSet::CLI.or(ToolSet::COMPLETION)),
    Flag::switch("--verbose-prompt", "Print the prompt's tokens first", |c: &mut Config, on| {
        c.prompt.verbose = on
    })
    .tools(ToolSet::CLI.or(ToolSet::COMPLETION)),
    Flag::value(
        "-ptc --print-token-count",
        "N",
        "Print the token count every N tokens; -1 means never",
        |c: &mut Config, v| {
            c.prompt.print_token_count = at_least(v, -1)?;
            Ok(())
        },
    )
    .default("-1")
    .tools(ToolSet::COMPLETION),
    Flag::value("--prompt-cache", "FILE", "Load and save the state of the prompt", |c: &mut Config, v| {
        c.prompt.cache_file = Some(path(v)?);
        Ok(())
    })
    .tools(ToolSet::COMPLETION),
    Flag::switch("--prompt-cache-all", "Save the generated text, too", |c: &mut Config, on| {
        c.prompt.cache_all = on
    })
    .tools(ToolSet::COMPLETION),
    Flag::switch("--prompt-cache-ro", "Never write that file", |c: &mut Config, on| {
        c.prompt.cache_read_only = on
    })
    .tools(ToolSet::COMPLETION),
];
