//! How long the answers to a chat may reason: `reasoning_budget_tokens` and `reasoning_budget_message`.

use puna_grammar::Budget;

use crate::app::App;
use crate::error::ApiResult;
use crate::fields::Fields;

const INT: i64 = i32::MAX as i64;

/// The limit that a request, or else a flag, sets to the reasoning of answers to this prompt, if they may reason.
pub fn of(app: &App, fields: &Fields, prompt: &str) -> ApiResult<Option<Budget>> {
    let defaults = &app.served.defaults;
    let names = ["reasoning_budget_tokens", "thinking_budget_tokens"];
    let limit = match fields.integer(&names, -1..=INT)? {
        None => defaults.reasoning_budget,
        Some(tokens) => usize::try_from(tokens).ok(),
    };
    let message = fields.text(&["reasoning_budget_message"])?.unwrap_or(&defaults.reasoning_budget_message);
    let (Some(limit), Some(passage)) = (limit, app.speech.passage(prompt)) else { return Ok(None) };
    let closing = app.served.tokenizer.encode(&format!("{message}{}", passage.end), false, true);
    Ok(Some(Budget::new(app.grammars.tokens(&app.served.tokenizer), passage, limit, closing)))
}
