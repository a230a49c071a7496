//! DeepSeek V3.2 and V4: `<｜DSML｜invoke name="…"><｜DSML｜parameter name="…" string="true">…</｜DSML｜parameter></｜DSML｜invoke>`.

use super::form::{Blank, Parameter, framed, tagged_call, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

const CALL: Tagged = Tagged {
    until: &["\">"],
    then: "",
    parameter: "<｜DSML｜parameter name=\"",
    key_end: "\"",
    open_end: ">",
    value_end: "</｜DSML｜parameter>",
    close_end: "",
    ends: &["</｜DSML｜invoke>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "dsml",
    detect: |template| template.contains("DSML"),
    begin: &["<｜DSML｜invoke name=\""],
    frame: &[
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
    ],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let string = parameter.textual != Some(false);
                let open = format!("<｜DSML｜parameter name=\"{}\" string=\"{string}\">", parameter.key);
                (text(open), "</｜DSML｜parameter>".to_owned())
            };
            let open = text(format!("<｜DSML｜invoke name=\"{}\">", tool.name));
            tagged_call(tool, open, parameter, text("</｜DSML｜invoke>"))
        };
        let name = if calls.template.contains("function_calls") { "function_calls" } else { "tool_calls" };
        framed(format!("<｜DSML｜{name}>"), calls.several(Blank, each), format!("</｜DSML｜{name}>"))
    },
    between: None,
    read: |body| CALL.read(body),
};
