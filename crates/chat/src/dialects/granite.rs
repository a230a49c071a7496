//! Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]`.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "granite",
    detect: |template| template.contains("<|tool_call|>"),
    begin: &["<|tool_call|>", "<tool_call>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    read: |body| json_calls::read(body, &["</tool_call>"]),
};
