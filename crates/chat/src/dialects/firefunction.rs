//! Firefunction 2: `functools[{"name": …, "arguments": {…}}]`.

use super::form::{Form, call, text};
use super::{Dialect, Tool, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "firefunction",
    detect: |template| template.contains(" functools["),
    begin: &["functools"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| call(tool, "name", "arguments");
        Form::All(vec![text(" functools"), calls.list(each)])
    },
    between: None,
    read: |body| json_calls::read(body, &[]),
};
