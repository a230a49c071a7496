//! `/lora-adapters`: which adapters there are and how strongly each counts.

use std::sync::Arc;

use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::edge::Call;
use crate::error::{ApiError, ApiResult, Kind};
use crate::fields::{missing, wrong};
use crate::stream::json_response;

/// `GET /lora-adapters`.
pub async fn list(app: Arc<App>, _: Call) -> ApiResult<Response> {
    let strengths = app.strengths();
    let adapters = app.served.adapters.iter().enumerate().map(|(id, adapter)| {
        let strength = strengths.get(id).copied().unwrap_or(adapter.scale);
        json!({ "id": id, "path": adapter.path, "scale": strength, "task_name": "", "prompt_prefix": "" })
    });
    Ok(json_response(&Value::Array(adapters.collect())))
}

/// `POST /lora-adapters`: how strongly each counts for requests from now on that say nothing else.
pub async fn change(app: Arc<App>, call: Call) -> ApiResult<Response> {
    let value: Value = serde_json::from_slice(&call.body)
        .map_err(|error| ApiError::invalid(format!("the body is not valid JSON: {error}")))?;
    let strengths = strengths(&app, "body", &value)?;
    app.set_strengths(strengths);
    Ok(json_response(&json!({ "success": true })))
}

/// How strongly each adapter shall count: a list of ids and scales, 0 for those that are not in it.
pub fn strengths(app: &App, field: &str, value: &Value) -> ApiResult<Arc<[f32]>> {
    let Value::Array(items) = value else {
        return Err(wrong(field, value, "a list of objects with id and scale"));
    };
    let count = app.served.adapters.len();
    if !items.is_empty() && app.strengths().len() != count {
        let message = "this back end cannot switch adapters: they count as --lora and --lora-scaled say";
        return Err(ApiError::new(Kind::NotSupported, message));
    }
    let mut strengths = vec![0.0; app.strengths().len()];
    for (index, item) in items.iter().enumerate() {
        let place = |name: &str| format!("{field}[{index}].{name}");
        let id = item.get("id").ok_or_else(|| missing(&place("id")))?;
        let scale = item.get("scale").ok_or_else(|| missing(&place("scale")))?;
        let known = id.as_u64().and_then(|id| strengths.get_mut(usize::try_from(id).ok()?));
        let strength = known.ok_or_else(|| {
            ApiError::invalid(format!("field '{}': there is no adapter {id}, there are {count}", place("id")))
        })?;
        let number = scale.as_f64().map(|scale| scale as f32).filter(|scale| scale.is_finite());
        *strength = number.ok_or_else(|| wrong(&place("scale"), scale, "a number"))?;
    }
    Ok(strengths.into())
}
