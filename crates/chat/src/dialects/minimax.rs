//! MiniMax M2: `<invoke name="…"><parameter name="…">…</parameter></invoke>`; M3 puts a mark before each tag and
//! names the tags after the parameters.

use super::form::{Blank, Parameter, framed, tagged_call, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

const M2_CALL: Tagged = Tagged {
    until: &["\">"],
    then: "",
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
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                (text(format!("<parameter name=\"{}\">", parameter.key)), "</parameter>".to_owned())
            };
            let open = text(format!("<invoke name=\"{}\">", tool.name));
            tagged_call(tool, open, parameter, text("</invoke>"))
        };
        framed("<minimax:tool_call>", calls.several(Blank, each), "</minimax:tool_call>")
    },
    between: None,
    read: |body| M2_CALL.read(body),
};

const M3_CALL: Tagged = Tagged {
    until: &["\">"],
    then: "",
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
    form: |calls| {
        let mark = |tag: &str| format!("]<]minimax[>[<{tag}>");
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                (text(mark(parameter.key)), format!("]<]minimax[>[</{}>", parameter.key))
            };
            let open = text(mark(&format!("invoke name=\"{}\"", tool.name)));
            tagged_call(tool, open, parameter, text(mark("/invoke")))
        };
        framed(mark("tool_call"), calls.several(Blank, each), mark("/tool_call"))
    },
    between: None,
    read: |body| M3_CALL.read(body),
};
