//! Apertus: `<|tools_prefix|>[{"name": {arguments}}]<|tools_suffix|>`.

use super::{Dialect, json_calls};

pub(super) const DIALECT: Dialect = Dialect {
    name: "apertus",
    detect: |template| template.contains("<|tools_prefix|>"),
    begin: &["<|tools_prefix|>"],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    read: |body| json_calls::read(body, &["<|tools_suffix|>"]),
};
