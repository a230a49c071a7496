//! MiniCPM 5: `<function name="…"><param name="…">…</param></function>`.

use super::Dialect;
use super::tagged::Tagged;

const CALL: Tagged = Tagged {
    until: &["\">"],
    parameter: "<param name=\"",
    key_end: "\"",
    open_end: ">",
    value_end: "</param>",
    close_end: "",
    ends: &["</function>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "minicpm",
    detect: |template| template.contains("<function name=") && template.contains("<param name="),
    begin: &["<function name=\""],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    read: |body| CALL.read(body),
};
