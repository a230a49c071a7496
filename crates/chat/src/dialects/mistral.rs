//! Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}` since 2025.

use super::form::{Blank, Form, Identifier, arguments, call_with_id, optional, text};
use super::named::{Named, first_byte};
use super::{Dialect, json_calls};

const NAMED: Named =
    Named { before: None, until: &["[CALL_ID]", "[ARGS]", "{"], then: &["[ARGS]", "{"], ends: &["</s>"] };

pub(super) const DIALECT: Dialect = Dialect {
    name: "mistral",
    detect: |template| template.contains("[TOOL_CALLS]"),
    begin: &["[TOOL_CALLS]"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    form: |calls| match calls.template.contains("[ARGS]") {
        true => calls.several(Form::All(Vec::new()), |tool| {
            let id = optional(Form::All(vec![text("[CALL_ID]"), Identifier]));
            Form::All(vec![text(format!("[TOOL_CALLS]{}", tool.name)), id, text("[ARGS]"), arguments(tool)])
        }),
        false => Form::All(vec![text("[TOOL_CALLS]"), Blank, calls.list(call_with_id)]),
    },
    between: None,
    read: |body| match first_byte(body.text) {
        Some(b'[' | b'{' | b'`') => json_calls::read(body, &["</s>"]),
        _ => NAMED.read(body),
    },
};
