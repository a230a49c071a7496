//! Apriel and MiniMax M1: `<tool_calls>` around a list or lines of JSON objects.

use super::form::{Blank, Form, call_with_id, text};
use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "apriel",
    detect: |template| template.contains("<tool_calls>"),
    begin: &["<tool_calls>", "<tool_call>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    form: |calls| {
        // MiniMax M1 writes the objects on lines.
        let body = match calls.template.contains("<tool_calls>[") {
            true => calls.list(call_with_id),
            false => calls.several(Blank, call_with_id),
        };
        Form::All(vec![text("<tool_calls>"), Blank, body, Blank, text("</tool_calls>")])
    },
    between: None,
    read: |body| json_calls::read(body, &["</tool_calls>", "</tool_call>"]),
};
