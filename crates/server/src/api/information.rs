//! What the server says of itself: health, models, properties, slots, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::{App, View};
use crate::edge::Call;
use crate::error::{ApiError, ApiResult, Kind};
use crate::openapi;
use crate::sampling;
use crate::stream::json_response;

/// The page, built from `web/`.
const PAGE: &[u8] = include_bytes!("../../page/index.html");
/// What the page may load: nothing from elsewhere, so that an answer cannot make it tell others what was said.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    font-src data:; img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `GET /`.
pub async fn page(app: Arc<App>, _: Call) -> ApiResult<Response> {
    page_response(app.front.options.page)
}

/// The page, if it is on.
pub fn page_response(on: bool) -> ApiResult<Response> {
    if !on {
        return Err(ApiError::new(Kind::NotFound, "the web page is off"));
    }
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY)),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, PAGE).into_response())
}

/// `GET /health`.
pub async fn health(_: Arc<App>, _: Call) -> ApiResult<Response> {
    Ok(json_response(&json!({ "status": "ok" })))
}

/// `GET /openapi.json`.
pub async fn description(app: Arc<App>, _: Call) -> ApiResult<Response> {
    Ok(json_response(&openapi::of_one(&app.front.options.prefix, &app.served.facts.build)))
}

/// `GET /v1/models`.
pub async fn models(app: Arc<App>, _: Call) -> ApiResult<Response> {
    let (facts, engine) = (&app.served.facts, &app.served.engine);
    let capabilities = json!(["completion"]);
    Ok(json_response(&json!({
        "models": [{
            "name": facts.name, "model": facts.name, "modified_at": "", "size": "", "digest": "",
            "type": "model", "description": "", "tags": [], "capabilities": capabilities, "parameters": "",
            "details": {
                "parent_model": "", "format": "gguf", "family": facts.architecture, "families": [facts.architecture],
                "parameter_size": "", "quantization_level": facts.file_type,
            },
        }],
        "object": "list",
        "data": [{
            "id": facts.name, "aliases": [facts.name], "tags": [], "object": "model", "created": app.front.started,
            "owned_by": "llamacpp",
            "meta": {
                "n_vocab": engine.vocabulary(), "n_ctx": engine.context(), "n_ctx_train": facts.context_train,
                "n_embd": facts.embedding, "n_params": facts.parameters, "size": facts.bytes,
                "ftype": facts.file_type,
            },
        }],
    })))
}

/// `GET /props`.
pub async fn properties(app: Arc<App>, _: Call) -> ApiResult<Response> {
    let (served, options) = (&app.served, &app.front.options);
    let mut settings = sampling::echo(&served.defaults.sampling);
    settings.insert("seed".into(), json!(served.defaults.seed.unwrap_or(u32::MAX)));
    settings.insert("n_predict".into(), json!(served.defaults.predict));
    settings.insert("max_tokens".into(), json!(served.defaults.predict));
    settings.insert("ignore_eos".into(), json!(served.defaults.ignore_end));
    settings.insert("n_discard".into(), json!(0));
    settings.insert("n_probs".into(), json!(0));
    for off in ["stream", "timings_per_token", "post_sampling_probs"] {
        settings.insert(off.into(), json!(false));
    }
    settings.insert("n_keep".into(), json!(served.defaults.keep));
    Ok(json_response(&json!({
        "default_generation_settings": { "params": settings, "n_ctx": served.engine.context() },
        "total_slots": app.slot_count(),
        "model_alias": served.facts.name,
        "model_ftype": served.facts.file_type,
        "model_path": served.facts.path,
        "modalities": { "vision": false, "video": false, "audio": false },
        "endpoint_slots": options.slots,
        "endpoint_props": options.properties,
        "endpoint_metrics": options.metrics,
        "ui": options.page,
        "chat_template": served.template.source(),
        "bos_token": served.template.bos(),
        "eos_token": served.template.eos(),
        "build_info": served.facts.build,
        "is_sleeping": served.engine.is_asleep(),
        "cors_proxy_enabled": false,
    })))
}

/// `POST /props`.
pub async fn set_properties(app: Arc<App>, _: Call) -> ApiResult<Response> {
    enabled(app.front.options.properties, "--props")?;
    Ok(json_response(&json!({ "success": true })))
}

/// `GET /slots`.
pub async fn slots(app: Arc<App>, call: Call) -> ApiResult<Response> {
    enabled(app.front.options.slots, "--slots")?;
    let views = app.slots.list();
    let busy = |view: &Arc<View>| view.done.load(Ordering::Relaxed) == 0;
    let none_free = views.iter().all(|view| view.as_ref().is_some_and(busy));
    if call.query("fail_on_no_slot").is_some_and(|value| value != "0") && none_free {
        return Err(ApiError::new(Kind::Unavailable, "no slot is free"));
    }
    let (context, speculative) = (app.served.engine.context(), app.served.engine.speculates());
    let slot = |(id, view): (usize, &Option<Arc<View>>)| match view {
        None => json!({ "id": id, "n_ctx": context, "speculative": speculative, "is_processing": false }),
        Some(view) => {
            let load = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed);
            let decoded = load(&view.decoded);
            let predict = view.settings["n_predict"].as_i64().unwrap_or(-1);
            json!({
                "id": id, "n_ctx": context, "speculative": speculative, "is_processing": busy(view),
                "id_task": view.task, "n_prompt_tokens": view.prompt,
                "n_prompt_tokens_processed": load(&view.processed), "n_prompt_tokens_cache": load(&view.cached),
                "params": view.settings,
                "next_token": [{
                    "has_next_token": busy(view), "n_decoded": decoded,
                    "n_remain": if predict < 0 { -1 } else { predict - decoded as i64 },
                }],
            })
        }
    };
    Ok(json_response(&Value::Array(views.iter().enumerate().map(slot).collect())))
}

/// `GET /metrics`.
pub async fn metrics(app: Arc<App>, _: Call) -> ApiResult<Response> {
    enabled(app.front.options.metrics, "--metrics")?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4")),
        (HeaderName::from_static("process-start-time-unix"), HeaderValue::from(app.front.started)),
    ];
    app.metrics.meter(&app.served.engine.meters());
    Ok((headers, app.metrics.text()).into_response())
}

/// Name and version of the program.
pub fn build() -> String {
    format!("puna-{}", env!("CARGO_PKG_VERSION"))
}

/// `/tools` and `/cors-proxy`, which this server never has: the peer's page asks whether they are on.
pub async fn never(_: Arc<App>, _: Call) -> ApiResult<Response> {
    Err(no_tools())
}

/// The error of `/tools` and `/cors-proxy`.
pub fn no_tools() -> ApiError {
    ApiError::new(Kind::Disabled, "this server runs no tools and asks no other servers")
}

/// The error of an endpoint that a flag switches on.
pub fn enabled(on: bool, flag: &str) -> ApiResult<()> {
    match on {
        true => Ok(()),
        false => {
            Err(ApiError::new(Kind::Disabled, format!("this endpoint is off: start the server with {flag}")))
        }
    }
}
