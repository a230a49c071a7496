//! gpt-oss: `to=functions.name` in the header of a message whose text are the arguments.

use super::Dialect;
use super::named::Named;

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
    read: |body| CALL.read(body),
};
