//! MiniCPM 5: `<function name="…"><param name="…">…</param></function>`.

use super::form::{Blank, Form, Parameter, each_parameter, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

const CALL: Tagged = Tagged {
    until: &["\">"],
    parameter: "<param name=\"",
    key_end: "\"",
    open_end: ">",
    value_end: "</param>",
    close_end: "",
    ends: &["</function>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "minicpm",
    detect: |template| template.contains("<function name=") && template.contains("<param name="),
    begin: &["<function name=\""],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let open = text(format!("<param name=\"{}\">", parameter.key));
                Form::All(vec![open, parameter.value("</param>"), Blank])
            };
            let open = text(format!("<function name=\"{}\">", tool.name));
            Form::All(vec![open, Blank, each_parameter(tool, None, parameter), text("</function>")])
        };
        calls.several(Blank, each)
    },
    between: None,
    read: |body| CALL.read(body),
};
