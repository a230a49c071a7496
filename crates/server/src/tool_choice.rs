//! Whether and which functions an answer must call: `tool_choice` and `parallel_tool_calls`, enforced by a grammar in the
//! model's own way of writing calls.

use std::sync::LazyLock;

use puna_chat::dialects::{Demand, Start, Tool, Tools};
use puna_grammar::{Grammar, Patience, Trigger, lark_schema};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::grammar;

/// What `tool_choice` says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The model decides.
    Auto,
    /// No calls.
    None,
    /// At least one call.
    Required,
    /// Calls of this function.
    Function(String),
}

/// Reads `tool_choice` and checks that what it asks for can be called.
pub fn read(fields: &Fields) -> ApiResult<Choice> {
    let choice = match fields.get(&["tool_choice"]) {
        None => Choice::Auto,
        Some((_, Value::String(text))) => match text.as_str() {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "required" => Choice::Required,
            other => return Err(refused(&format!("'{other}', expected auto, none, required or a function"))),
        },
        Some((_, object @ Value::Object(_))) => {
            match (object["type"].as_str(), object["function"]["name"].as_str()) {
                (Some("function"), Some(name)) => Choice::Function(name.to_owned()),
                _ => return Err(refused(&format!("{object}, expected the type function and its name"))),
            }
        }
        Some((_, other)) => return Err(refused(&format!("{other}, expected a string or an object"))),
    };
    let tools = declared(fields)?;
    match &choice {
        Choice::Required if tools.is_empty() => Err(refused("required, but there are no tools")),
        Choice::Function(name) if !tools.iter().any(|tool| tool.name == *name) => {
            Err(refused(&format!("no tool is named '{name}'")))
        }
        _ => Ok(choice),
    }
}

fn refused(problem: &str) -> ApiError {
    ApiError::invalid(format!("field 'tool_choice': {problem}"))
}

fn declared(fields: &Fields) -> ApiResult<Vec<Tool>> {
    let listed = fields.list(&["tools"])?.map_or(&[][..], Vec::as_slice);
    listed.iter().enumerate().try_for_each(|(index, tool)| check(&format!("tools[{index}]"), tool))?;
    Ok(Tools::from_json(listed).0)
}

/// Refuses what is no function: it would be left out without a word.
fn check(place: &str, tool: &Value) -> ApiResult<()> {
    let (inside, function) = match tool.get("function") {
        Some(function) => (format!("{place}.function"), function),
        None => (place.to_owned(), tool),
    };
    if let Some(kind) = tool.get("type").filter(|kind| *kind != "function") {
        return Err(ApiError::invalid(format!("field '{place}.type': {kind}, expected \"function\"")));
    }
    let Value::Object(function) = function else { return Err(wrong(&inside, function, "an object")) };
    match function.get("name") {
        Some(Value::String(_)) => {}
        None | Some(Value::Null) => return Err(missing(&format!("{inside}.name"))),
        Some(other) => return Err(wrong(&format!("{inside}.name"), other, "a string")),
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(other) => Err(wrong(&format!("{inside}.parameters"), other, "a schema, which is an object")),
    }
}

/// The schema of a function's arguments.
fn parameters(tool: &Tool) -> &Value {
    static ANY: LazyLock<Value> = LazyLock::new(|| json!({ "type": "object" }));
    if tool.parameters.is_null() { &ANY } else { &tool.parameters }
}

/// What of a function's schema can be enforced: that is better than no answer because of one tool in thirty.
fn loosely(tool: &Tool) -> Value {
    lark_schema(parameters(tool), true).unwrap_or_else(|_| json!({ "type": "object" }))
}

/// The grammar for answers to this prompt, if calls, or JSON after reasoning, are to be held to one. Where the model
/// decides, it begins with a call.
pub fn grammar(app: &App, fields: &Fields, choice: &Choice, prompt: &str) -> ApiResult<Option<Grammar>> {
    // Whoever names a function wants it called, once; small models would go on and on.
    let once = matches!(choice, Choice::Function(_));
    let parallel = fields.boolean(&["parallel_tool_calls"])?.unwrap_or(!once);
    let required = matches!(choice, Choice::Required | Choice::Function(_));
    let mut tools = declared(fields)?;
    if let Choice::Function(name) = choice {
        tools.retain(|tool| tool.name == *name);
    }
    if *choice == Choice::None {
        tools.clear();
    }
    let answer = grammar::schema(fields)?.filter(|_| !required);
    // JSON that is asked for comes after the reasoning, which a prompt may have begun.
    let reasons = tools.is_empty() && answer.is_some() && app.speech.passage(prompt).is_some();
    let own = app.served.defaults.grammar.is_some();
    if !reasons && (tools.is_empty() || (own && !required)) {
        return Ok(None);
    }
    let strict = |name: &str| {
        let listed = fields.get(&["tools"]).and_then(|(_, tools)| tools.as_array());
        let mut functions = listed.into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool));
        functions.any(|function| function["name"] == name && function["strict"] == true)
    };
    let given = tools.clone();
    for tool in &mut tools {
        tool.parameters = match lark_schema(parameters(tool), false) {
            Ok(schema) => schema,
            Err(error) if strict(&tool.name) => {
                let message = format!("field 'tools': the parameters of '{}': {error}", tool.name);
                return Err(ApiError::invalid(message));
            }
            Err(_) => loosely(tool),
        };
    }
    let answer = match answer.as_ref().map(|answer| lark_schema(answer, false)) {
        None => None,
        Some(Ok(schema)) => Some(schema),
        Some(Err(error)) => return Err(ApiError::invalid(format!("field 'response_format': {error}"))),
    };
    let demand = |tools: &[Tool]| {
        let asked = Demand { tools, parallel, required, answer: answer.as_ref() };
        app.speech.demand(prompt, &asked, &app.served.tokenizer)
    };
    let (text, starts) = demand(&tools);
    let forced = required || answer.is_some();
    if !forced && starts.is_empty() {
        return Ok(None);
    }
    let mut made = app.grammars.calls(&app.served.tokenizer, text);
    if made.is_err() {
        // Which schema it was is not known; those that need not be enforced exactly give way.
        for (tool, given) in tools.iter_mut().zip(&given).filter(|(tool, _)| !strict(&tool.name)) {
            tool.parameters = loosely(given);
        }
        made = app.grammars.calls(&app.served.tokenizer, demand(&tools).0);
    }
    let made = match made {
        Err(error) if forced => return Err(ApiError::invalid(format!("field 'tools': {error}"))),
        Err(error) => {
            app.front.options.warnings.say(&format!("calls are not held to their schemas: {error}"));
            return Ok(None);
        }
        Ok(grammar) => grammar,
    };
    if forced {
        return Ok(Some(made));
    }
    let trigger = |start| match start {
        Start::Word(text) => Trigger::Word(text),
        Start::Pattern(text) => Trigger::Pattern(text),
    };
    let triggers: Vec<Trigger> = starts.into_iter().map(trigger).collect();
    let patience = Patience { passage: app.speech.passage(prompt), lenient: true };
    let lazy = made.lazy_with(&triggers, patience);
    lazy.map(Some).map_err(|error| ApiError::invalid(format!("field 'tools': {error}")))
}
