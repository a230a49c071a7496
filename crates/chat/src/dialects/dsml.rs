//! DeepSeek V3.2 and V4: `<｜DSML｜invoke name="…"><｜DSML｜parameter name="…" string="true">…</｜DSML｜parameter></｜DSML｜invoke>`.

use super::Dialect;
use super::tagged::Tagged;

const CALL: Tagged = Tagged {
    until: &["\">"],
    parameter: "<｜DSML｜parameter name=\"",
    key_end: "\"",
    open_end: ">",
    value_end: "</｜DSML｜parameter>",
    close_end: "",
    ends: &["</｜DSML｜invoke>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "dsml",
    detect: |template| template.contains("DSML"),
    begin: &["<｜DSML｜invoke name=\""],
    frame: &[
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
    ],
    opened: None,
    always: false,
    bare: false,
    read: |body| CALL.read(body),
};
