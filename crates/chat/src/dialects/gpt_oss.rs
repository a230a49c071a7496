//! gpt-oss: `to=functions.name` in the header of a message whose text are the arguments.

use super::form::{Form, arguments, text};
use super::named::Named;
use super::{Dialect, Tool};

const CALL: Named =
    Named { before: None, until: &["<", " "], then: &["<|message|>"], ends: &["<|call|>", "<|end|>"] };

pub(super) const DIALECT: Dialect = Dialect {
    name: "gpt-oss",
    detect: |template| template.contains("<|channel|>"),
    begin: &[" to=functions.", "<|channel|>commentary to=functions.", "<|channel|>analysis to=functions."],
    frame: &[
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    ],
    opened: None,
    always: true,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            let name = &tool.name;
            let header = Form::Any(vec![
                text(format!(" to=functions.{name}<|channel|>commentary json<|message|>")),
                text(format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>")),
            ]);
            Form::All(vec![header, arguments(tool)])
        };
        // A call ends the turn: the next one comes after its result.
        Form::Any(calls.tools.iter().map(each).collect())
    },
    between: Some("<|start|>assistant"),
    read: |body| CALL.read(body),
};
