//! Hermes, Qwen 2.5 and 3, Granite 4, MiMo and many others: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "hermes",
    detect: |template| template.contains("<tool_call>"),
    begin: &["<tool_call>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    read: |body| json_calls::read(body, &["</tool_call>"]),
};
