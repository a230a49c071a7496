//! Solar Open: an id, a name and the arguments, each after a mark.

use super::form::{Form, Identifier, arguments, text};
use super::named::Named;
use super::{Dialect, Tool};

const CALL: Named = Named {
    before: Some("<|tool_call:name|>"),
    until: &["<|tool_call:args|>"],
    then: &[],
    ends: &["<|tool_call:end|>"],
};

pub(super) const DIALECT: Dialect = Dialect {
    name: "solar",
    detect: |template| template.contains("<|tool_call:begin|>"),
    begin: &["<|tool_call:begin|>"],
    frame: &["<|tool_calls|>", "<|calls|>", "<|content|>", "<|begin|>assistant", "<|end|>"],
    opened: None,
    always: true,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            Form::All(vec![
                text("<|tool_call:begin|>"),
                Identifier,
                text(format!("<|tool_call:name|>{}<|tool_call:args|>", tool.name)),
                arguments(tool),
                text("<|tool_call:end|>"),
            ])
        };
        Form::All(vec![text("<|tool_calls|>"), calls.several(Form::All(Vec::new()), each)])
    },
    between: Some("<|begin|>assistant"),
    read: |body| CALL.read(body),
};
