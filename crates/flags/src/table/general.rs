//! Help, messages and lists.

use crate::config::Config;
use crate::flag::{Action, Flag, ToolSet};
use crate::values::{TOGGLE_WORDS, at_least, path, toggle};

const HUB: ToolSet = ToolSet::MODEL.or(ToolSet::LIST);

pub(super) static FLAGS: &[Flag<Config>] = &[
    Flag::action("-h --help --usage", "Print this help", Action::Help),
    Flag::action("--version", "Print version and build", Action::Version),
    Flag::action("--completion-bash", "Print a completion script for bash", Action::CompletionBash),
    Flag::action("-cl --cache-list", "List the models in the cache folder", Action::ListModels).tools(HUB),
    Flag::action("--list-devices", "List the devices that were found", Action::ListDevices)
        .tools(ToolSet::ENGINE),
    Flag::switch("--json", "Print JSON", |c: &mut Config, on| c.json = on)
        .tools(ToolSet::INFO.or(ToolSet::DEVICES).or(ToolSet::LIST).or(ToolSet::RERANK)),
    Flag::switch("--log-disable", "Print no messages", |c: &mut Config, on| c.log.disable = on),
    Flag::value("--log-file", "FILE", "Write messages to this file, too", |c: &mut Config, v| {
        c.log.file = Some(path(v)?);
        Ok(())
    })
    .env("LLAMA_ARG_LOG_FILE"),
    Flag::word("--log-colors", "on|off|auto", TOGGLE_WORDS, "Colours of messages", |c: &mut Config, v| {
        c.log.colors = toggle(v)?;
        Ok(())
    })
    .env("LLAMA_ARG_LOG_COLORS")
    .default("auto"),
    Flag::switch("-v --verbose --log-verbose", "Print all messages", |c: &mut Config, _| {
        c.log.verbosity = Some(5)
    }),
    Flag::value(
        "-lv --verbosity --log-verbosity",
        "N",
        "Most talkative level of messages: 0 none, 1 errors, 2 warnings, 3 information, 4 trace, 5 debug",
        |c: &mut Config, v| {
            c.log.verbosity = Some(at_least(v, 0)?);
            Ok(())
        },
    )
    .env("LLAMA_ARG_LOG_VERBOSITY"),
    Flag::switch(
        "--log-prefix",
        "A letter for the level before each message: W or I",
        |c: &mut Config, on| c.log.prefix = on,
    )
    .negative("--no-log-prefix")
    .env("LLAMA_ARG_LOG_PREFIX")
    .default("off"),
    Flag::switch("--log-timestamps", "The time (UTC) before each message", |c: &mut Config, on| {
        c.log.times = on;
    })
    .negative("--no-log-timestamps")
    .env("LLAMA_ARG_LOG_TIMESTAMPS")
    .default("off"),
    Flag::switch(
        "--log-jsonl",
        "Messages as JSON, one object a line: time, level, message",
        |c: &mut Config, on| c.log.json = on,
    )
    .negative("--no-log-jsonl")
    .env("LLAMA_ARG_LOG_JSONL")
    .default("off"),
    Flag::not_yet("--log-prompts-dir", "DIR", "Write prompts to this folder").tools(ToolSet::CLI),
    Flag::switch("--offline", "Never use the network", |c: &mut Config, on| c.model.offline = on)
        .env("LLAMA_ARG_OFFLINE")
        .tools(HUB),
    Flag::switch("--perf", "Timings after the output", |_, _| ())
        .negative("--no-perf")
        .env("LLAMA_ARG_PERF")
        .inert("timings are among the messages, which --log-disable hides")
        .tools(ToolSet::ENGINE),
];
