//! What calls look like when they are written, so that a grammar can demand them.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Tool;

/// What a text has to look like.
#[derive(Clone, Debug)]
pub(super) enum Form {
    /// This text. Names of control tokens in it are these tokens.
    Text(String),
    /// JSON of a schema.
    Json(Value),
    /// A string of a schema as it is, and then this mark, which it does not hold.
    Plain(Value, String),
    /// A string in single quotes, as Python writes it.
    Quoted,
    /// An id.
    Identifier,
    /// The number of a call.
    Number,
    /// White space or none.
    Blank,
    /// One after the other.
    All(Vec<Form>),
    /// One of them.
    Any(Vec<Form>),
    /// It or nothing.
    Optional(Box<Form>),
    /// One or more, with the second between them.
    Several(Box<Form>, Box<Form>),
    /// What stands in several places.
    Shared(Arc<Form>),
}

pub(super) use Form::{Blank, Identifier, Number};

/// A text.
pub(super) fn text(text: impl Into<String>) -> Form {
    Form::Text(text.into())
}

/// It or nothing.
pub(super) fn optional(form: Form) -> Form {
    Form::Optional(Box::new(form))
}

/// Calls that are demanded.
pub(super) struct Calls<'a> {
    /// The template of the model, which shows which of a dialect's ways is its own.
    pub(super) template: &'a str,
    /// The functions of which one is to be called.
    pub(super) tools: &'a [Tool],
    /// More than one call may be written.
    pub(super) parallel: bool,
}

impl Calls<'_> {
    /// One call, or several with this between them.
    pub(super) fn several(&self, between: Form, each: impl Fn(&Tool) -> Form) -> Form {
        let one = Form::Any(self.tools.iter().map(each).collect());
        match self.parallel {
            true => Form::Several(Box::new(one), Box::new(between)),
            false => one,
        }
    }

    /// Calls as JSON objects in brackets.
    pub(super) fn list(&self, each: impl Fn(&Tool) -> Form) -> Form {
        let between = Form::All(vec![text(","), Blank]);
        Form::All(vec![text("["), Blank, self.several(between, each), Blank, text("]")])
    }
}

/// The schema of a function's arguments.
pub(super) fn arguments(tool: &Tool) -> Form {
    Form::Json(match &tool.parameters {
        Value::Object(members) if !members.is_empty() => tool.parameters.clone(),
        _ => json!({ "type": "object" }),
    })
}

/// A JSON object with exactly these members.
pub(super) fn object(members: Vec<(&str, Form)>) -> Form {
    let mut parts = vec![text("{"), Blank];
    for (index, (name, value)) in members.into_iter().enumerate() {
        if index > 0 {
            parts.extend([text(","), Blank]);
        }
        parts.extend([text(format!("{}:", json!(name))), Blank, value, Blank]);
    }
    parts.push(text("}"));
    Form::All(parts)
}

/// `{"name": "f", "arguments": {…}}` with these names of its members.
pub(super) fn call(tool: &Tool, name: &str, parameters: &str) -> Form {
    object(vec![(name, text(json!(tool.name).to_string())), (parameters, arguments(tool))])
}

/// The same with an id behind the arguments, if the model likes.
pub(super) fn call_with_id(tool: &Tool) -> Form {
    let id =
        Form::All(vec![text(","), Blank, text("\"id\":"), Blank, text("\""), Identifier, text("\""), Blank]);
    Form::All(vec![
        text("{"),
        Blank,
        text("\"name\":"),
        Blank,
        text(json!(tool.name).to_string()),
        Blank,
        text(","),
        Blank,
        text("\"arguments\":"),
        Blank,
        arguments(tool),
        Blank,
        optional(id),
        text("}"),
    ])
}

/// A call whose arguments stand one by one between tags: what opens it, for each parameter what stands before its value
/// and the mark after it, and what closes the call.
pub(super) fn tagged_call(
    tool: &Tool,
    open: Form,
    parameter: impl Fn(&Parameter<'_>) -> (Form, String),
    close: Form,
) -> Form {
    let each = |one: &Parameter<'_>| {
        let (before, after) = parameter(one);
        Form::All(vec![before, one.value(&after), Blank])
    };
    Form::All(vec![open, Blank, each_parameter(tool, None, each), close])
}

/// Between two marks, with blanks if the model likes.
pub(super) fn framed(open: impl Into<String>, inner: Form, close: impl Into<String>) -> Form {
    Form::All(vec![text(open), Blank, inner, Blank, text(close)])
}

/// One parameter of a function.
pub(super) struct Parameter<'a> {
    /// Its name.
    pub(super) key: &'a str,
    /// Its schema, with all that it refers to.
    pub(super) schema: Value,
    /// Whether it is a text: as it is written between tags it needs no quotes. Nothing if it may be one.
    pub(super) textual: Option<bool>,
    required: bool,
}

impl Parameter<'_> {
    /// The value up to a mark, the mark included.
    pub(super) fn value(&self, mark: &str) -> Form {
        match self.textual {
            Some(false) => Form::All(vec![Blank, Form::Json(self.schema.clone()), Blank, text(mark)]),
            Some(true) => match choices(&self.schema) {
                Some(texts) => {
                    let line = || optional(text("\n"));
                    let texts = texts.into_iter().map(text).collect();
                    Form::All(vec![line(), Form::Any(texts), line(), text(mark)])
                }
                None => Form::Plain(self.schema.clone(), mark.to_owned()),
            },
            // What it is, is seen from what is written.
            None => Form::Plain(Value::Null, mark.to_owned()),
        }
    }
}

/// The texts that a schema names, if it does.
pub(super) fn choices(schema: &Value) -> Option<Vec<String>> {
    let texts = |list: &[Value]| list.iter().map(|text| text.as_str().map(str::to_owned)).collect();
    match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(list)), _) if !list.is_empty() => texts(list),
        (_, Some(only)) => texts(std::slice::from_ref(only)),
        _ => None,
    }
}

/// The parameters of a function in the order of its schema; nothing if the schema does not simply list them.
pub(super) fn parameters(tool: &Tool) -> Option<Vec<Parameter<'_>>> {
    let members = tool.parameters.as_object()?;
    let closed = ["allOf", "anyOf", "oneOf", "$ref"].iter().all(|name| !members.contains_key(*name));
    let properties = members.get("properties")?.as_object().filter(|_| closed)?;
    let required = members.get("required").and_then(Value::as_array);
    let shared: Map<String, Value> = ["$defs", "x-guidance"]
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), members.get(*name)?.clone())))
        .collect();
    let parameter = |(key, schema): (&'_ String, &Value)| {
        let mut whole = schema.as_object().cloned().unwrap_or_default();
        whole.extend(shared.clone());
        let textual = match schema.get("type") {
            Some(Value::String(kind)) => Some(kind == "string"),
            Some(Value::Array(kinds)) if !kinds.iter().any(|kind| kind == "string") => Some(false),
            _ => None,
        };
        // Parsers ask the schema in the same way.
        let required = required.is_some_and(|names| names.iter().any(|name| name == key));
        (whole, textual, required)
    };
    Some(
        properties
            .iter()
            .map(|(key, schema)| {
                let (schema, textual, required) = parameter((key, schema));
                Parameter { key, schema: Value::Object(schema), textual, required }
            })
            .collect(),
    )
}

/// The arguments of a call one by one, in the order of the schema; what is not required may be left out. `between` stands
/// between two of them.
pub(super) fn each_parameter(
    tool: &Tool,
    between: Option<Form>,
    each: impl Fn(&Parameter<'_>) -> Form,
) -> Form {
    let Some(parameters) = parameters(tool) else {
        return any_parameters(tool, between, each);
    };
    let Some(between) = between else {
        let part = |parameter: &Parameter<'_>| match parameter.required {
            true => each(parameter),
            false => optional(each(parameter)),
        };
        return Form::All(parameters.iter().map(part).collect());
    };
    // From the last to the first: what may follow when something stands before it already, and when nothing does.
    let nothing = || Form::Shared(Arc::new(Form::All(Vec::new())));
    let (mut rest, mut begin) = (nothing(), nothing());
    for parameter in parameters.iter().rev() {
        let first = Form::All(vec![each(parameter), rest.clone()]);
        let behind = Form::All(vec![between.clone(), each(parameter), rest.clone()]);
        let shared = |written: Form, without: Form| {
            Form::Shared(Arc::new(match parameter.required {
                true => written,
                false => Form::Any(vec![written, without]),
            }))
        };
        (begin, rest) = (shared(first, begin), shared(behind, rest));
    }
    begin
}

/// Any of the parameters, in any order and number.
fn any_parameters(tool: &Tool, between: Option<Form>, each: impl Fn(&Parameter<'_>) -> Form) -> Form {
    let known = parameters(tool).unwrap_or_default();
    let forms: Vec<Form> = known.iter().map(each).collect();
    if forms.is_empty() {
        return Form::All(Vec::new());
    }
    let between = between.unwrap_or(Form::All(Vec::new()));
    optional(Form::Several(Box::new(Form::Any(forms)), Box::new(between)))
}

/// The texts with which a form begins, as far as they are known, and whether they are all of it.
pub(super) fn beginnings(form: &Form) -> (Vec<String>, bool) {
    match form {
        Form::Text(text) => (vec![text.clone()], true),
        Form::All(forms) => {
            let mut all = vec![String::new()];
            for form in forms {
                let (next, complete) = beginnings(form);
                all = all
                    .iter()
                    .flat_map(|first| next.iter().map(move |next| format!("{first}{next}")))
                    .collect();
                if !complete {
                    return (all, false);
                }
            }
            (all, true)
        }
        Form::Any(forms) => {
            let parts: Vec<_> = forms.iter().map(beginnings).collect();
            let complete = parts.iter().all(|(_, complete)| *complete);
            (parts.into_iter().flat_map(|(texts, _)| texts).collect(), complete)
        }
        Form::Several(form, _) => (beginnings(form).0, false),
        Form::Shared(form) => beginnings(form),
        _ => (vec![String::new()], false),
    }
}
