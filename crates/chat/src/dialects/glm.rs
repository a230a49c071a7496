//! GLM 4.5 and later, Ling 3, Laguna, Spark:
//! `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

use super::form::{Blank, Form, Parameter, each_parameter, text};
use super::tagged::Tagged;
use super::{Dialect, Tool, json_calls};

const CALL: Tagged = Tagged {
    until: &["<arg_key>", "\n", "</tool_call>"],
    parameter: "<arg_key>",
    key_end: "</arg_key>",
    open_end: "<arg_value>",
    value_end: "</arg_value>",
    close_end: "",
    ends: &["</tool_call>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "glm",
    detect: |template| template.contains("<arg_key>"),
    begin: &["<tool_call>"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let key = text(format!("<arg_key>{}</arg_key>", parameter.key));
                Form::All(vec![key, Blank, text("<arg_value>"), parameter.value("</arg_value>"), Blank])
            };
            let open = text(format!("<tool_call>{}", tool.name));
            Form::All(vec![open, Blank, each_parameter(tool, None, parameter), text("</tool_call>")])
        };
        calls.several(Blank, each)
    },
    between: None,
    read: |body| match body.text.trim_start().starts_with('{') {
        true => json_calls::read(body, &["</tool_call>"]),
        false => CALL.read(body),
    },
};
