//! Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, and `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}` since 2025.

use super::named::Named;
use super::{Dialect, json_calls};

const NAMED: Named =
    Named { before: None, until: &["[CALL_ID]", "[ARGS]", "{"], then: &["[ARGS]", "{"], ends: &["</s>"] };

pub(super) const DIALECT: Dialect = Dialect {
    name: "mistral",
    detect: |template| template.contains("[TOOL_CALLS]"),
    begin: &["[TOOL_CALLS]"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    read: |body| match body.text.trim_start().as_bytes().first() {
        Some(b'[' | b'{' | b'`') => json_calls::read(body, &["</s>"]),
        _ => NAMED.read(body),
    },
};
