//! MiniMax M2: `<invoke name="…"><parameter name="…">…</parameter></invoke>`; M3 puts a mark before each tag and
//! names the tags after the parameters.

use super::Dialect;
use super::tagged::Tagged;

const M2_CALL: Tagged = Tagged {
    until: &["\">"],
    parameter: "<parameter name=\"",
    key_end: "\"",
    open_end: ">",
    value_end: "</parameter>",
    close_end: "",
    ends: &["</invoke>"],
};

pub(super) const M2: Dialect = Dialect {
    name: "minimax-m2",
    detect: |template| template.contains("minimax:tool_call"),
    begin: &["<invoke name=\""],
    frame: &["<minimax:tool_call>", "</minimax:tool_call>"],
    opened: None,
    always: false,
    bare: false,
    read: |body| M2_CALL.read(body),
};

const M3_CALL: Tagged = Tagged {
    until: &["\">"],
    parameter: "]<]minimax[>[<",
    key_end: ">",
    open_end: "",
    value_end: "]<]minimax[>[</",
    close_end: ">",
    ends: &["]<]minimax[>[</invoke>"],
};

pub(super) const M3: Dialect = Dialect {
    name: "minimax-m3",
    detect: |template| template.contains("]<]minimax[>["),
    begin: &["]<]minimax[>[<invoke name=\""],
    frame: &["]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"],
    opened: None,
    always: false,
    bare: false,
    read: |body| M3_CALL.read(body),
};
