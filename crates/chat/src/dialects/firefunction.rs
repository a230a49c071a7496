//! Firefunction 2: `functools[{"name": …, "arguments": {…}}]`.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "firefunction",
    detect: |template| template.contains(" functools["),
    begin: &["functools"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    read: |body| json_calls::read(body, &[]),
};
