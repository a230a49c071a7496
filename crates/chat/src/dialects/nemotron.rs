//! Nemotron Nano 2: `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "nemotron",
    detect: |template| template.contains("<TOOLCALL>"),
    begin: &["<TOOLCALL>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    read: |body| json_calls::read(body, &["</TOOLCALL>"]),
};
