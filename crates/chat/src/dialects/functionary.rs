//! Functionary 3.1: `<function=name>{…}</function>`; 3.2: `>>>name` and the arguments on the lines below.

use super::form::{Blank, Form, arguments, text};
use super::named::Named;
use super::{Body, Dialect, Reading, Tool};

const TAG: Named = Named { before: None, until: &[">"], then: &[], ends: &["</function>"] };

pub(super) const TAGS: Dialect = Dialect {
    name: "functionary-3.1",
    detect: |template| template.contains("<function="),
    begin: &["<function="],
    frame: &[],
    opened: None,
    always: false,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| {
            Form::All(vec![text(format!("<function={}>", tool.name)), arguments(tool), text("</function>")])
        };
        calls.several(Blank, each)
    },
    between: None,
    read: |body| TAG.read(body),
};

const LINE: Named = Named { before: None, until: &["\n"], then: &[], ends: &[] };

pub(super) const RECIPIENTS: Dialect = Dialect {
    name: "functionary-3.2",
    detect: |template| template.contains(">>>all"),
    begin: &[">>>"],
    frame: &[],
    opened: Some(">>>"),
    always: true,
    bare: false,
    form: |calls| {
        let each = |tool: &Tool| Form::All(vec![text(format!("{}\n", tool.name)), arguments(tool)]);
        // The prompt ends with the first mark.
        calls.several(Form::All(vec![Blank, text(">>>")]), each)
    },
    between: None,
    read,
};

/// What goes to all is text.
fn read(body: &mut Body<'_>) -> Reading {
    const ALL: &str = "all\n";
    if body.text.starts_with(ALL) {
        return Reading::Complete(ALL.len());
    }
    LINE.read(body)
}
