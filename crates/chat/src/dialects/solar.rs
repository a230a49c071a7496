//! Solar Open: an id, a name and the arguments, each after a mark.

use super::Dialect;
use super::named::Named;

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
    read: |body| CALL.read(body),
};
