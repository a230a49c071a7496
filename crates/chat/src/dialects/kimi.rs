//! Kimi K2: `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`; K3: tags.

use super::form::{Form, Number, Parameter, arguments, each_parameter, text};
use super::named::Named;
use super::tagged::Tagged;
use super::{Dialect, Tool};

const K2_CALL: Named =
    Named { before: None, until: &["<|tool_call_argument_begin|>"], then: &[], ends: &["<|tool_call_end|>"] };

pub(super) const K2: Dialect = Dialect {
    name: "kimi-k2",
    detect: |template| template.contains("<|tool_call_argument_begin|>"),
    begin: &["<|tool_call_begin|>"],
    frame: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            Form::All(vec![
                text(format!("<|tool_call_begin|>functions.{}:", tool.name)),
                Number,
                text("<|tool_call_argument_begin|>"),
                arguments(tool),
                text("<|tool_call_end|>"),
            ])
        };
        let calls = calls.several(Form::All(Vec::new()), each);
        Form::All(vec![text("<|tool_calls_section_begin|>"), calls, text("<|tool_calls_section_end|>")])
    },
    between: None,
    read: |body| K2_CALL.read(body),
};

const K3_CALL: Tagged = Tagged {
    until: &["\""],
    // The number of the call.
    then: "<|sep|>",
    parameter: "<|open|>argument key=\"",
    key_end: "\"",
    open_end: "<|sep|>",
    value_end: "<|close|>argument<|sep|>",
    close_end: "",
    ends: &["<|close|>call<|sep|>"],
};

pub(super) const K3: Dialect = Dialect {
    name: "kimi-k3",
    detect: |template| template.contains("<|open|>") && template.contains("<|end_of_msg|>"),
    begin: &["<|open|>call tool=\""],
    frame: &[
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
    ],
    opened: None,
    always: true,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let parameter = |parameter: &Parameter<'_>| {
                let kind =
                    parameter.schema.get("type").and_then(serde_json::Value::as_str).unwrap_or("string");
                let open = format!("<|open|>argument key=\"{}\" type=\"{kind}\"<|sep|>", parameter.key);
                Form::All(vec![text(open), parameter.value("<|close|>argument<|sep|>")])
            };
            Form::All(vec![
                text(format!("<|open|>call tool=\"{}\" index=\"", tool.name)),
                Number,
                text("\"<|sep|>"),
                each_parameter(tool, None, parameter),
                text("<|close|>call<|sep|>"),
            ])
        };
        let calls = calls.several(Form::All(Vec::new()), each);
        Form::All(vec![text("<|open|>tools<|sep|>"), calls, text("<|close|>tools<|sep|>")])
    },
    between: Some("<|open|>response<|sep|><|close|>response<|sep|>"),
    read: |body| K3_CALL.read(body),
};
