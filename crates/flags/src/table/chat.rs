//! Conversation.

use crate::config::Config;
use crate::flag::{Flag, ToolSet};
use crate::values::{TOGGLE_WORDS, at_least, choice, filled, path, toggle};

const WITH_INPUT: ToolSet = ToolSet::CLI.or(ToolSet::COMPLETION);
const REASONING: ToolSet = ToolSet::CHAT.or(ToolSet::SERVE);

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::text("-sys --system-prompt", "TEXT", "System prompt", |c: &mut Config, v| {
        c.chat.system = Some(v.to_owned());
        Ok(())
    })
    .tools(ToolSet::CHAT.or(ToolSet::DIFFUSION)),
    Flag::value("-sysf --system-prompt-file", "FILE", "File with the system prompt", |c: &mut Config, v| {
        c.chat.system_file = Some(path(v)?);
        Ok(())
    })
    .tools(ToolSet::CHAT),
    Flag::switch("-st --single-turn", "One answer, then end", |c: &mut Config, on| c.chat.single_turn = on)
        .tools(WITH_INPUT),
    Flag::switch("-cnv --conversation", "Hold a conversation", |c: &mut Config, on| {
        c.chat.conversation = Some(on)
    })
    .negative("-no-cnv --no-conversation")
    .tools(WITH_INPUT.or(ToolSet::DIFFUSION)),
    Flag::switch("-i --interactive", "Take input between answers", |c: &mut Config, on| {
        c.chat.interactive = on
    })
    .tools(ToolSet::COMPLETION),
    Flag::switch("-if --interactive-first", "Take input first", |c: &mut Config, on| {
        c.chat.interactive_first = on
    })
    .tools(ToolSet::COMPLETION),
    Flag::switch("-mli --multiline-input", "Messages of several lines", |c: &mut Config, on| {
        c.chat.multiline_input = on;
    })
    .tools(WITH_INPUT),
    Flag::switch("--in-prefix-bos", "Put the beginning token before each input", |c: &mut Config, on| {
        c.chat.prefix_bos = on;
    })
    .tools(ToolSet::COMPLETION),
    Flag::text("--in-prefix", "TEXT", "Text before each input", |c: &mut Config, v| {
        c.chat.prefix = v.to_owned();
        Ok(())
    })
    .tools(ToolSet::COMPLETION),
    Flag::text("--in-suffix", "TEXT", "Text after each input", |c: &mut Config, v| {
        c.chat.suffix = v.to_owned();
        Ok(())
    })
    .tools(ToolSet::COMPLETION),
    Flag::switch("--simple-io", "No line editing", |c: &mut Config, on| c.chat.simple_io = on)
        .tools(WITH_INPUT),
    Flag::word(
        "-co --color",
        "on|off|auto",
        TOGGLE_WORDS,
        "Colours of prompt and answer",
        |c: &mut Config, v| {
            c.chat.color = toggle(v)?;
            Ok(())
        },
    )
    .default("auto")
    .tools(ToolSet::CHAT),
    Flag::switch("--show-timings", "Timings after each answer", |c: &mut Config, on| {
        c.chat.show_timings = on
    })
    .negative("--no-show-timings")
    .env("LLAMA_ARG_SHOW_TIMINGS")
    .default("on")
    .tools(ToolSet::CLI),
    Flag::text(
        "--chat-template",
        "TEMPLATE",
        "Chat template (Jinja) instead of the model's own, or the name of a built-in one",
        |c: &mut Config, v| {
            c.chat.template = Some(filled(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_CHAT_TEMPLATE")
    .tools(ToolSet::TEMPLATE),
    Flag::value("--chat-template-file", "FILE", "File with the chat template", |c: &mut Config, v| {
        c.chat.template_file = Some(path(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_CHAT_TEMPLATE_FILE")
    .tools(ToolSet::TEMPLATE),
    Flag::text(
        "--chat-template-kwargs",
        "JSON",
        "More values for the template, an object",
        |c: &mut Config, v| {
            c.chat.template_values = Some(filled(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_CHAT_TEMPLATE_KWARGS")
    .tools(ToolSet::TEMPLATE),
    Flag::switch(
        "--jinja",
        "Templates may be Jinja; with --no-jinja only built-in ones are used: the one named, or the one like the model's own",
        |c: &mut Config, on| c.chat.jinja = on,
    )
    .negative("--no-jinja")
    .env("LLAMA_ARG_JINJA")
    .default("on")
    .tools(ToolSet::TEMPLATE),
    Flag::value(
        "--conversation",
        "FILE",
        "JSON file with messages, tools and what else the template reads",
        |c: &mut Config, v| {
            c.chat.conversation_file = Some(path(v)?);
            Ok(())
        },
    )
    .tools(ToolSet::RENDER),
    Flag::value("--now", "TIME", "What time it is, as in 2026-07-04T09:05:03", |c: &mut Config, v| {
        c.chat.now = Some(filled(v)?);
        Ok(())
    })
    .tools(ToolSet::RENDER),
    Flag::word(
        "-rea --reasoning",
        "on|off|auto",
        TOGGLE_WORDS,
        "Reasoning, if the model can switch it",
        |c: &mut Config, v| {
            c.chat.reasoning = toggle(v)?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_REASONING")
    .default("auto")
    .tools(ToolSet::TEMPLATE),
    Flag::value(
        "--reasoning-format",
        "FORMAT",
        "Where a server puts reasoning: none (in the content), auto or deepseek (in reasoning_content), deepseek-legacy (the same, but in streams in the content, between its marks); elsewhere it is printed as it comes",
        |c: &mut Config, v| {
            c.chat.reasoning_format = choice(v, &["none", "auto", "deepseek", "deepseek-legacy"])?;
            Ok(())
        },
    )
    .env("LLAMA_ARG_THINK")
    .default("auto")
    .tools(ToolSet::TEMPLATE),
    Flag::value(
        "--reasoning-effort",
        "LEVEL",
        "How hard the model should think, in the words of its template (low, medium, high, ...)",
        |c: &mut Config, v| {
            c.chat.reasoning_effort = Some(filled(v)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_REASONING_EFFORT")
    .tools(ToolSet::TEMPLATE),
    Flag::value(
        "--reasoning-budget",
        "N",
        "Tokens of reasoning in an answer at most; then its end is forced (0 at once, -1 no limit)",
        |c: &mut Config, v| {
            c.chat.reasoning_budget = u32::try_from(at_least::<i32>(v, -1)?).ok();
            Ok(())
        },
    )
    .env("LLAMA_ARG_THINK_BUDGET")
    .default("-1")
    .tools(REASONING),
    Flag::text(
        "--reasoning-budget-message",
        "TEXT",
        "What the reasoning says before its forced end",
        |c: &mut Config, v| {
            c.chat.reasoning_budget_message = v.to_owned();
            Ok(())
        },
    )
    .env("LLAMA_ARG_THINK_BUDGET_MESSAGE")
    .tools(REASONING),
    Flag::switch("--skip-chat-parsing", "Print answers as they come", |_, _| ())
        .negative("--no-skip-chat-parsing")
        .env("LLAMA_ARG_SKIP_CHAT_PARSING")
        .inert("answers are always printed as they come")
        .tools(ToolSet::TEMPLATE),
    Flag::not_yet("--server-base", "URL", "Use this server").tools(ToolSet::CLI),
];
