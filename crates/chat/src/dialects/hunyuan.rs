//! Hunyuan 3: GLM's form with marks of its own.

use super::form::{Blank, Form, Parameter, each_parameter, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

const CALL: Tagged = Tagged {
    until: &["<tool_sep:opensource>", "<arg_key:opensource>", "</tool_call:opensource>"],
    parameter: "<arg_key:opensource>",
    key_end: "</arg_key:opensource>",
    open_end: "<arg_value:opensource>",
    value_end: "</arg_value:opensource>",
    close_end: "",
    ends: &["</tool_call:opensource>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "hunyuan",
    detect: |template| template.contains("hy_Assistant"),
    begin: &["<tool_call:opensource>"],
    frame: &["<tool_calls:opensource>", "</tool_calls:opensource>"],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let mark = |name: &str| text(format!("<{name}:opensource>"));
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let key = text(format!("<arg_key:opensource>{}</arg_key:opensource>", parameter.key));
                let value = parameter.value("</arg_value:opensource>");
                Form::All(vec![key, Blank, mark("arg_value"), value, Blank])
            };
            let open = text(format!("<tool_call:opensource>{}<tool_sep:opensource>", tool.name));
            Form::All(vec![open, Blank, each_parameter(tool, None, parameter), mark("/tool_call")])
        };
        Form::All(vec![mark("tool_calls"), Blank, calls.several(Blank, each), Blank, mark("/tool_calls")])
    },
    between: None,
    read: |body| CALL.read(body),
};
