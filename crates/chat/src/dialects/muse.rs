//! Muse Glimmer: a recipient before each part, and calls as `<atem:invoke name="…">`.

use super::form::{Blank, Form, Parameter, optional, tagged_call, text};
use super::tagged::Tagged;
use super::{Body, Dialect, Reading, Tool};

const CALL: Tagged = Tagged {
    until: &["\">"],
    then: "",
    parameter: "<atem:parameter name=\"",
    key_end: "\"",
    open_end: ">",
    value_end: "</atem:parameter>",
    close_end: "",
    ends: &["</atem:invoke>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "muse",
    detect: |template| template.contains("<atem:function_calls>"),
    begin: &["<atem:invoke name=\"", " to="],
    frame: &["<atem:function_calls>", "</atem:function_calls>", "<|start|>assistant", "<|eom|>"],
    opened: None,
    always: true,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                (text(format!("<atem:parameter name=\"{}\">", parameter.key)), "</atem:parameter>".to_owned())
            };
            let open = text(format!("<atem:invoke name=\"{}\">", tool.name));
            tagged_call(tool, open, parameter, text("</atem:invoke>"))
        };
        // The first function is the recipient.
        let first = |tool: &Tool| {
            let open = text(format!(" to={}<|message|><atem:function_calls>", tool.name));
            Form::All(vec![open, Blank, each(tool)])
        };
        let first = Form::Any(calls.tools.iter().map(first).collect());
        let more = match calls.parallel {
            true => optional(Form::All(vec![Blank, calls.several(Blank, each)])),
            false => Form::All(Vec::new()),
        };
        Form::All(vec![first, more, Blank, text("</atem:function_calls>")])
    },
    between: Some("<|start|>assistant"),
    read,
};

/// A recipient ends with the mark of the message and is no call.
fn read(body: &mut Body<'_>) -> Reading {
    const MESSAGE: &str = "<|message|>";
    const LONGEST: usize = 128;
    let named = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-*".contains(byte);
    let length = body.text.bytes().take(LONGEST).take_while(|byte| named(byte)).count();
    match (1..LONGEST).contains(&length) && body.rest(length).starts_with(MESSAGE) {
        true => Reading::Complete(length + MESSAGE.len()),
        false => CALL.read(body),
    }
}
