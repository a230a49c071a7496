//! Command R7B and Command A: `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>`;
//! Command R+: a fenced list after `Action:`.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "command-r",
    detect: |template| template.contains("<|START_ACTION|>"),
    begin: &["<|START_ACTION|>"],
    frame: &[
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
    ],
    opened: None,
    always: false,
    bare: false,
    read: |body| json_calls::read(body, &["<|END_ACTION|>"]),
};

pub(super) const PLUS: Dialect = Dialect {
    name: "command-r-plus",
    detect: |template| template.contains("Action:") && template.contains("directly-answer"),
    begin: &["Action:"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    read: |body| json_calls::read(body, &[]),
};
