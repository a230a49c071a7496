//! Apertus: `<|tools_prefix|>[{"name": {arguments}}]<|tools_suffix|>`.

use super::form::{Form, arguments, object, text};
use super::{Dialect, Tool, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "apertus",
    detect: |template| template.contains("<|tools_prefix|>"),
    begin: &["<|tools_prefix|>"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| object(vec![(&tool.name, arguments(tool))]);
        Form::All(vec![text("<|tools_prefix|>"), calls.list(each), text("<|tools_suffix|>")])
    },
    between: None,
    read: |body| json_calls::read(body, &["<|tools_suffix|>"]),
};
