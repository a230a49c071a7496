//! MiniMax M2: `<invoke name="…"><parameter name="…">…</parameter></invoke>`; M3 puts a mark before each tag and
//! names the tags after the parameters.

use super::form::{Blank, Form, Parameter, each_parameter, text};
use super::tagged::Tagged;
use super::{Dialect, Tool};

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
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let open = text(format!("<parameter name=\"{}\">", parameter.key));
                Form::All(vec![open, parameter.value("</parameter>"), Blank])
            };
            let open = text(format!("<invoke name=\"{}\">", tool.name));
            Form::All(vec![open, Blank, each_parameter(tool, None, parameter), text("</invoke>")])
        };
        let (open, close) = (text("<minimax:tool_call>"), text("</minimax:tool_call>"));
        Form::All(vec![open, Blank, calls.several(Blank, each), Blank, close])
    },
    between: None,
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
    form: |calls| {
        let mark = |tag: &str| text(format!("]<]minimax[>[<{tag}>"));
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let end = format!("]<]minimax[>[</{}>", parameter.key);
                Form::All(vec![mark(parameter.key), parameter.value(&end), Blank])
            };
            let open = mark(&format!("invoke name=\"{}\"", tool.name));
            Form::All(vec![open, Blank, each_parameter(tool, None, parameter), mark("/invoke")])
        };
        Form::All(vec![mark("tool_call"), Blank, calls.several(Blank, each), Blank, mark("/tool_call")])
    },
    between: None,
    read: |body| M3_CALL.read(body),
};
