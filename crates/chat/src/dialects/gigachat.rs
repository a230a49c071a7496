//! GigaChat 3: a message of the role `function call`, or a mark of its own since 3.1, with a JSON object.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "gigachat",
    detect: |template| template.contains("<|role_sep|>") && template.contains("<|message_sep|>"),
    begin: &["function call<|role_sep|>", "<|function_call|>"],
    frame: &["<|message_sep|>"],
    opened: None,
    always: false,
    bare: false,
    read: |body| json_calls::read(body, &["<|message_sep|>"]),
};
