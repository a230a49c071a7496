//! Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]`.

use super::form::{Blank, Form, call, text};
use super::{Dialect, Tool, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "granite",
    detect: |template| template.contains("<|tool_call|>"),
    begin: &["<|tool_call|>", "<tool_call>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    form: |calls| {
        let each = |tool: &Tool| call(tool, "name", "arguments");
        Form::All(vec![text("<|tool_call|>"), Blank, calls.list(each)])
    },
    between: None,
    read: |body| json_calls::read(body, &["</tool_call>"]),
};
