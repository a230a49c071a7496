//! Llama 3.1 to 3.3 and models whose template shows no marks: `{"name": …, "parameters": {…}}` alone.

use super::form::{call, text};
use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "llama",
    detect: |template| {
        template.contains("tools") && (template.contains("parameters") || template.contains("ipython"))
    },
    begin: &["<|python_tag|>"],
    frame: &[],
    opened: None,
    always: false,
    bare: true,
    form: |calls| calls.several(text("; "), |tool| call(tool, "name", "parameters")),
    between: None,
    read: |body| json_calls::read(body, &["<|eom_id|>", "<|eot_id|>"]),
};
