//! GigaChat 3: a message of the role `function call`, or a mark of its own since 3.1, with a JSON object.

use super::form::{Form, call, text};
use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "gigachat",
    detect: |template| template.contains("<|role_sep|>") && template.contains("<|message_sep|>"),
    begin: &["function call<|role_sep|>", "<|function_call|>"],
    frame: &["<|message_sep|>"],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let own = calls.template.contains("<|function_call|>");
        let open = if own { "<|function_call|>" } else { "function call<|role_sep|>\n" };
        calls.several(text("<|message_sep|>"), |tool| {
            Form::All(vec![text(open), call(tool, "name", "arguments")])
        })
    },
    between: None,
    read: |body| json_calls::read(body, &["<|message_sep|>"]),
};
