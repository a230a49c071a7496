//! MiniCPM 5: `<function name="…"><param name="…">…</param></function>`.

use super::form::{Blank, Parameter, tagged_call, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

const CALL: Tagged = Tagged {
    until: &["\">"],
    then: "",
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
                (text(format!("<param name=\"{}\">", parameter.key)), "</param>".to_owned())
            };
            let open = text(format!("<function name=\"{}\">", tool.name));
            tagged_call(tool, open, parameter, text("</function>"))
        };
        calls.several(Blank, each)
    },
    between: None,
    read: |body| CALL.read(body),
};
