//! GLM 4.5 and later, Ling 3, Laguna, Spark:
//! `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

use super::form::{Blank, Form, Parameter, tagged_call, text};
use super::named::{LONGEST_NAME, first_byte};
use super::tagged::Tagged;
use super::{Dialect, Reading, Tool, json_calls};

const CALL: Tagged = Tagged {
    until: &["<arg_key>", "\n", "</tool_call>"],
    then: "",
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
                (Form::All(vec![key, Blank, text("<arg_value>")]), "</arg_value>".to_owned())
            };
            tagged_call(tool, text(format!("<tool_call>{}", tool.name)), parameter, text("</tool_call>"))
        };
        calls.several(Blank, each)
    },
    between: None,
    read: |body| match first_byte(body.text) {
        Some(b'{') => json_calls::read(body, &["</tool_call>"]),
        // Which of both it is, is not seen yet.
        None if !body.done && body.text.len() < LONGEST_NAME => Reading::Partial,
        _ => CALL.read(body),
    },
};
