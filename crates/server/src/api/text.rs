//! Text and tokens without generation: `/tokenize`, `/detokenize`, `/apply-template`, counting.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value, json};

use crate::api::{anthropic, responses};
use crate::app::App;
use crate::edge::Call;
use crate::error::ApiResult;
use crate::fields::{Fields, missing};
use crate::stream::json_response;
use crate::{chat, prompt};

/// `POST /tokenize`.
pub async fn tokenize(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let body = call.prepare(&app, |app, fields| {
        let tokenizer = &app.served.tokenizer;
        let (name, content) = fields.get(&["content"]).ok_or_else(|| missing("content"))?;
        let add_special = fields.boolean(&["add_special"])?.unwrap_or(false);
        let parse_special = fields.boolean(&["parse_special"])?.unwrap_or(true);
        let tokens = prompt::tokens(name, content, tokenizer, add_special, parse_special)?;
        if !fields.boolean(&["with_pieces"])?.unwrap_or(false) {
            return Ok(json!({ "tokens": tokens }));
        }
        let piece = |token: &u32| {
            let bytes = tokenizer.piece(*token, true);
            match String::from_utf8(bytes) {
                Ok(text) => json!({ "id": token, "piece": text }),
                Err(error) => json!({ "id": token, "piece": error.into_bytes() }),
            }
        };
        Ok(json!({ "tokens": tokens.iter().map(piece).collect::<Vec<_>>() }))
    });
    Ok(json_response(&body.await?))
}

/// `POST /detokenize`.
pub async fn detokenize(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let body = call.prepare(&app, |app, fields| {
        let tokenizer = &app.served.tokenizer;
        let list = fields.list(&["tokens"])?.ok_or_else(|| missing("tokens"))?;
        let tokens: Vec<u32> =
            list.iter().map(|value| prompt::id("tokens", value, tokenizer)).collect::<ApiResult<_>>()?;
        Ok(json!({ "content": String::from_utf8_lossy(&tokenizer.decode(&tokens, true)) }))
    });
    Ok(json_response(&body.await?))
}

/// `POST /apply-template`.
pub async fn apply_template(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let body = call.prepare(&app, |app, fields| Ok(json!({ "prompt": chat::render(app, fields)? })));
    Ok(json_response(&body.await?))
}

fn count(app: &App, fields: &Fields) -> ApiResult<usize> {
    Ok(chat::tokens(app, &chat::render(app, fields)?).len())
}

/// `POST /v1/messages/count_tokens`.
pub async fn count_messages(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let body = call.prepare(&app, |app, fields| {
        let counted = count(app, &anthropic::to_chat(fields)?);
        Ok(json!({ "input_tokens": counted.map_err(|error| error.in_terms_of(anthropic::NAMES))? }))
    });
    Ok(json_response(&body.await?))
}

/// `POST /v1/chat/completions/input_tokens`.
pub async fn count_chat(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let body = call.prepare(&app, |app, fields| Ok(input_tokens(count(app, fields)?)));
    Ok(json_response(&body.await?))
}

/// `POST /v1/responses/input_tokens`.
pub async fn count_responses(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let body = call.prepare(&app, |app, fields| {
        let counted = count(app, &responses::to_chat(fields)?);
        counted.map(input_tokens).map_err(|error| error.in_terms_of(responses::NAMES))
    });
    Ok(json_response(&body.await?))
}

fn input_tokens(count: usize) -> Value {
    json!({ "object": "response.input_tokens", "input_tokens": count })
}
