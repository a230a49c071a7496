//! Hunyuan 3: GLM's form with marks of its own.

use super::Dialect;
use super::tagged::Tagged;

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
    read: |body| CALL.read(body),
};
