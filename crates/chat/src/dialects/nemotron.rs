//! Nemotron Nano 2: `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`.

use super::form::{Form, call, text};
use super::{Dialect, Tool, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "nemotron",
    detect: |template| template.contains("<TOOLCALL>"),
    begin: &["<TOOLCALL>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    form: |calls| {
        let each = |tool: &Tool| call(tool, "name", "arguments");
        Form::All(vec![text("<TOOLCALL>"), calls.list(each), text("</TOOLCALL>")])
    },
    between: None,
    read: |body| json_calls::read(body, &["</TOOLCALL>"]),
};
