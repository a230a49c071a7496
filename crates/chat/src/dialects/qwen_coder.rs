//! Qwen 3 Coder, Qwen 3.5, Nemotron 3, StepFun, Seed-OSS:
//! `<function=name><parameter=key>value</parameter></function>` within `<tool_call>`.

use super::form::{Blank, Parameter, framed, tagged_call, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

const CALL: Tagged = Tagged {
    until: &[">"],
    then: "",
    parameter: "<parameter=",
    key_end: ">",
    open_end: "",
    value_end: "</parameter>",
    close_end: "",
    ends: &["</function>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "qwen-coder",
    detect: |template| template.contains("<function=") && template.contains("<parameter="),
    begin: &["<function="],
    frame: &["<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>"],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let frame = if calls.template.contains("<seed:tool_call>") { "seed:tool_call" } else { "tool_call" };
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                (text(format!("<parameter={}>", parameter.key)), "</parameter>".to_owned())
            };
            let open = text(format!("<function={}>", tool.name));
            let call = tagged_call(tool, open, parameter, text("</function>"));
            framed(format!("<{frame}>"), call, format!("</{frame}>"))
        };
        calls.several(Blank, each)
    },
    between: None,
    read: |body| CALL.read(body),
};
