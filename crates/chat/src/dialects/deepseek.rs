//! DeepSeek R1 to V3.1: a call between marks, named before its arguments, which R1 fences.

use super::form::{Blank, Form, arguments, text};
use super::named::{LONGEST_NAME, Named};
use super::{Body, Dialect, Reading, Tool};

const CALL: Named = Named {
    before: None,
    until: &["<｜tool▁sep｜>", "\n", "```", "{"],
    then: &[],
    ends: &["<｜tool▁call▁end｜>"],
};
/// R1 writes the kind of the call first, which is always `function`.
const KIND: &str = "function<｜tool▁sep｜>";

pub(super) const DIALECT: Dialect = Dialect {
    name: "deepseek",
    detect: |template| {
        template.contains("<｜tool▁call▁begin｜>") || template.contains("<｜tool▁calls▁begin｜>")
    },
    begin: &["<｜tool▁call▁begin｜>"],
    frame: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"],
    opened: None,
    always: false,
    bare: true,
    form: |calls| {
        let fenced = calls.template.contains("```json");
        let each = |tool: &Tool| {
            let (before, after, end) = match fenced {
                true => (KIND, "\n```json\n", "\n```"),
                false => ("", "<｜tool▁sep｜>", ""),
            };
            Form::All(vec![
                text(format!("<｜tool▁call▁begin｜>{before}{}{after}", tool.name)),
                arguments(tool),
                text(format!("{end}<｜tool▁call▁end｜>")),
            ])
        };
        let calls = calls.several(Blank, each);
        Form::All(vec![text("<｜tool▁calls▁begin｜>"), calls, text("<｜tool▁calls▁end｜>")])
    },
    between: None,
    read,
};

fn read(body: &mut Body<'_>) -> Reading {
    if body.bare {
        return super::json_calls::read(body, &[]);
    }
    let text = body.text;
    if !body.done && text.len() < LONGEST_NAME && KIND.starts_with(text) {
        return Reading::Partial;
    }
    if !text.starts_with(KIND) {
        return CALL.read(body);
    }
    match CALL.read(&mut body.from(KIND.len())) {
        Reading::Complete(length) => Reading::Complete(length + KIND.len()),
        other => other,
    }
}
