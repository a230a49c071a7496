//! Qwen 3 Coder, Qwen 3.5, Nemotron 3, StepFun, Seed-OSS:
//! `<function=name><parameter=key>value</parameter></function>` within `<tool_call>`.

use super::Dialect;
use super::tagged::Tagged;

const CALL: Tagged = Tagged {
    until: &[">"],
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
    read: |body| CALL.read(body),
};
