//! Hermes, Qwen 2.5 and 3, Granite 4, MiMo and many others: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::form::{Blank, Form, call, text};
use super::{Dialect, Tool, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "hermes",
    detect: |template| template.contains("<tool_call>"),
    begin: &["<tool_call>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    form: |calls| {
        let each = |tool: &Tool| {
            let call = call(tool, "name", "arguments");
            Form::All(vec![text("<tool_call>"), Blank, call, Blank, text("</tool_call>")])
        };
        calls.several(Blank, each)
    },
    between: None,
    read: |body| json_calls::read(body, &["</tool_call>"]),
};
