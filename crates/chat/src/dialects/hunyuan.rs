//! Hunyuan 3: GLM's form with marks of its own.

use super::form::{Blank, Form, Parameter, framed, tagged_call, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

const CALL: Tagged = Tagged {
    until: &["<tool_sep:opensource>", "<arg_key:opensource>", "</tool_call:opensource>"],
    then: "",
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
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let key = text(format!("<arg_key:opensource>{}</arg_key:opensource>", parameter.key));
                let before = Form::All(vec![key, Blank, text("<arg_value:opensource>")]);
                (before, "</arg_value:opensource>".to_owned())
            };
            let open = text(format!("<tool_call:opensource>{}<tool_sep:opensource>", tool.name));
            tagged_call(tool, open, parameter, text("</tool_call:opensource>"))
        };
        framed("<tool_calls:opensource>", calls.several(Blank, each), "</tool_calls:opensource>")
    },
    between: None,
    read: |body| CALL.read(body),
};
