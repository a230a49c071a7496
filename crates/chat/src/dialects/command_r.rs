//! Command R7B and Command A: `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>`;
//! Command R+: a fenced list after `Action:`.

use super::form::{Form, Identifier, arguments, call, object, text};
use super::{Dialect, Tool, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "command-r",
    detect: |template| template.contains("<|START_ACTION|>"),
    begin: &["<|START_ACTION|>"],
    frame: &[
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
    ],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let id = Form::All(vec![text("\""), Identifier, text("\"")]);
            let name = text(serde_json::json!(tool.name).to_string());
            object(vec![("tool_call_id", id), ("tool_name", name), ("parameters", arguments(tool))])
        };
        Form::All(vec![text("<|START_ACTION|>"), calls.list(each), text("<|END_ACTION|>")])
    },
    between: None,
    read: |body| json_calls::read(body, &["<|END_ACTION|>"]),
};

pub(super) const PLUS: Dialect = Dialect {
    name: "command-r-plus",
    detect: |template| template.contains("Action:") && template.contains("directly-answer"),
    begin: &["Action:"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| call(tool, "tool_name", "parameters");
        Form::All(vec![text("Action: ```json\n"), calls.list(each), text("\n```")])
    },
    between: None,
    read: |body| json_calls::read(body, &[]),
};
