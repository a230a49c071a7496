//! Apriel and MiniMax M1: `<tool_calls>` around a list or lines of JSON objects.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "apriel",
    detect: |template| template.contains("<tool_calls>"),
    begin: &["<tool_calls>", "<tool_call>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    read: |body| json_calls::read(body, &["</tool_calls>", "</tool_call>"]),
};
