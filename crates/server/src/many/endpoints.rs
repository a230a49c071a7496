//! The endpoints of a server of many models: its own, and those that are handed on to the model that a request names.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Loading, Many, State, proxy};
use crate::api::information::{build, enabled, no_tools, page_response};
use crate::api::{audio, ollama};
use crate::edge::{self, Call};
use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, missing, wrong};
use crate::metrics::METRICS;
use crate::openapi;
use crate::routes::{ROUTES, Route, add, get, post, with_fallback};
use crate::stream::json_response;

/// Runs one of the own endpoints.
type Handler = fn(Arc<Many>, Call) -> Pin<Box<dyn Future<Output = ApiResult<Response>> + Send>>;

const fn open(route: Route<Handler>) -> Route<Handler> {
    Route { key: false, ..route }
}

const fn plain_errors(route: Route<Handler>) -> Route<Handler> {
    Route { error: ApiError::plain, ..route }
}

/// The endpoints that a server of many models answers itself. All others go to the model that the request names.
pub static OWN_ROUTES: &[Route<Handler>] = &[
    open(get(&["/"], "the web page", |many, _| {
        Box::pin(async move { page_response(many.front.options.page) })
    })),
    open(get(&["/health", "/v1/health"], "whether the server answers", |_, _| {
        Box::pin(async { Ok(json_response(&json!({ "status": "ok" }))) })
    })),
    get(&["/openapi.json"], "these endpoints, as OpenAPI describes them", |many, _| {
        Box::pin(async move { Ok(json_response(&openapi::of_many(&many.front.options.prefix, &build()))) })
    }),
    get(&["/models", "/v1/models"], "the models and how they are", |many, call| Box::pin(models(many, call))),
    post(&["/models/load"], "loads a model", |many, call| Box::pin(load(many, call))),
    post(&["/models/unload"], "unloads a model", |many, call| Box::pin(unload(many, call))),
    get(&["/props"], "settings of the server, or of a model", |many, call| Box::pin(properties(many, call))),
    get(&["/metrics"], "counters of the loaded models for Prometheus", |many, call| {
        Box::pin(metrics(many, call))
    }),
    get(&["/tools", "/cors-proxy"], "nothing: the server runs no tools", |_, _| {
        Box::pin(async { Err(no_tools()) })
    }),
    post(&["/tools", "/cors-proxy"], "nothing: the server runs no tools", |_, _| {
        Box::pin(async { Err(no_tools()) })
    }),
    post(
        &["/audio/transcriptions", "/v1/audio/transcriptions"],
        "the text of sound, where a model hears",
        |_, _| Box::pin(async { Err(audio::no_hearing()) }),
    ),
    plain_errors(get(&["/api/tags"], "the models, Ollama's way", |many, _| {
        Box::pin(async move { Ok(json_response(&json!({ "models": many.ollama(false) }))) })
    })),
    plain_errors(get(&["/api/ps"], "the models that are loaded", |many, _| {
        Box::pin(async move { Ok(json_response(&json!({ "models": many.ollama(true) }))) })
    })),
    plain_errors(get(&["/api/version"], "the program's version", |_, _| {
        Box::pin(async { Ok(json_response(&ollama::program_version())) })
    })),
];

/// The router of a server of many models.
pub fn router(many: &Arc<Many>) -> Router {
    let mut router = Router::new();
    for route in OWN_ROUTES {
        let shared = many.clone();
        router = add(router, &many.front, route, move |request| {
            let many = shared.clone();
            async move {
                let front = many.front.clone();
                edge::serve(&front, route, request, None, |call| (route.handler)(many, call)).await
            }
        });
    }
    for route in ROUTES.iter().filter(|route| !is_own(route)) {
        let shared = many.clone();
        router = add(router, &many.front, route, move |request| {
            let many = shared.clone();
            async move {
                let front = many.front.clone();
                edge::serve(&front, route, request, None, |call| hand_on(many, route, call)).await
            }
        });
    }
    with_fallback(router, &many.front)
}

/// Whether this server answers an endpoint of one model itself.
pub fn is_own<H>(route: &Route<H>) -> bool {
    OWN_ROUTES.iter().any(|own| own.method == route.method && own.paths[0] == route.paths[0])
}

/// Hands a request on to the model that it names.
async fn hand_on<H>(many: Arc<Many>, route: &'static Route<H>, call: Call) -> ApiResult<Response> {
    let name = many.named(route.method, &call)?;
    forward(many, route, call, &name).await
}

async fn forward<H>(
    many: Arc<Many>,
    route: &'static Route<H>,
    call: Call,
    name: &str,
) -> ApiResult<Response> {
    // What is posted runs the model or asks what it holds.
    let permitted = call.caller.choose(name);
    if route.method == "POST" {
        permitted?;
    }
    let autoload =
        call.query("autoload").map_or(many.offer.autoload, |value| !["0", "false"].contains(&value));
    let reached =
        proxy::reach(&many, name, if autoload { Loading::AsNeeded } else { Loading::Never }).await?;
    proxy::forward(reached, route.method, call, route.error).await
}

/// What of a body names a model. The rest is the model's to check.
#[derive(Deserialize)]
struct Names {
    model: Option<Value>,
    name: Option<Value>,
}

impl Many {
    /// The name of the model that a request is for.
    fn named(&self, method: &str, call: &Call) -> ApiResult<String> {
        let mut name = None;
        if method == "POST" && !call.body.is_empty() {
            let names: Names = serde_json::from_slice(&call.body)
                .map_err(|error| ApiError::invalid(format!("the body is not valid JSON: {error}")))?;
            let members = [("model", names.model), ("name", names.name)];
            if let Some((member, value)) = members
                .into_iter()
                .find_map(|(member, value)| Some((member, value.filter(|value| !value.is_null())?)))
            {
                let Value::String(text) = value else { return Err(wrong(member, &value, "a string")) };
                name = Some(text);
            }
        }
        let name = match name {
            Some(name) => Some(name),
            None => call.query_text("model")?,
        };
        match name.filter(|name| !name.is_empty()) {
            Some(name) => self.resolve(&name),
            None => self.only().ok_or_else(|| {
                let ApiError { message, .. } = missing("model");
                ApiError::invalid(format!("{message}: there are several models, GET /v1/models lists them"))
            }),
        }
    }

    /// The models as Ollama lists them: all, or those that are loaded.
    fn ollama(&self, loaded: bool) -> Vec<Value> {
        let table = self.table();
        let listed = table.slots.iter().filter(|slot| !slot.gone);
        let shown = listed.filter(|slot| !loaded || matches!(slot.state, State::Loaded { .. }));
        let model = |slot: &super::Slot| {
            let (entry, time) = (&slot.entry, ollama::time(self.front.started));
            let details = json!({
                "parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": "",
                "quantization_level": "",
            });
            let mut model = json!({
                "name": entry.name, "model": entry.name, "modified_at": time, "size": entry.bytes, "digest": "",
                "details": details,
            });
            if loaded {
                model["expires_at"] = json!("9999-12-31T23:59:59Z");
                model["size_vram"] = json!(0);
            }
            model
        };
        shown.map(model).collect()
    }
}

/// `GET /models`, with `?reload=1` after looking again which there are.
async fn models(many: Arc<Many>, call: Call) -> ApiResult<Response> {
    if call.query("reload").is_some_and(|value| value != "0") {
        let shared = many.clone();
        let looking = tokio::task::spawn_blocking(move || shared.reload());
        looking.await.map_err(|_| edge::fault())??;
    }
    let table = many.table();
    let created = many.front.started;
    let model = |slot: &super::Slot| {
        let entry = &slot.entry;
        let value = match &slot.state {
            State::Unloaded(_) => "unloaded",
            State::Loading => "loading",
            State::Loaded { asleep: true, .. } => "sleeping",
            // Until it is gone it answers what it has.
            State::Loaded { .. } | State::Leaving => "loaded",
        };
        let mut status = json!({ "value": value, "args": entry.arguments });
        if let State::Unloaded(Some(ended)) = &slot.state
            && !ended.asked
        {
            status["failed"] = json!(true);
            status["exit_code"] = json!(ended.code);
            status["reason"] = json!(ended.reason);
        }
        json!({
            "id": entry.name, "aliases": entry.aliases, "tags": [], "object": "model", "created": created,
            "owned_by": "llamacpp", "path": entry.path, "status": status,
            "architecture": { "input_modalities": ["text"], "output_modalities": ["text"] },
        })
    };
    let data: Vec<Value> = table.slots.iter().filter(|slot| !slot.gone).map(model).collect();
    drop(table);
    Ok(json_response(&json!({ "object": "list", "data": data })))
}

/// The model that a body names; its key opens it.
fn posted(many: &Many, call: &Call) -> ApiResult<String> {
    let fields = Fields::parse(&call.body)?;
    let name = many.resolve(fields.text(&["model"])?.ok_or_else(|| missing("model"))?)?;
    call.caller.choose(&name)?;
    Ok(name)
}

/// `POST /models/load`: begins to load.
async fn load(many: Arc<Many>, call: Call) -> ApiResult<Response> {
    let name = posted(&many, &call)?;
    let running = many.table().slot(&name).is_some_and(|slot| !matches!(slot.state, State::Unloaded(_)));
    if running {
        return Err(ApiError::invalid(format!("the model '{name}' is loaded already")));
    }
    many.load_aside(name);
    Ok(json_response(&json!({ "success": true })))
}

/// `POST /models/unload`: takes no more requests for it; what it answers now is finished.
async fn unload(many: Arc<Many>, call: Call) -> ApiResult<Response> {
    let name = posted(&many, &call)?;
    many.unload(&name)?;
    Ok(json_response(&json!({ "success": true })))
}

/// `GET /props`: of a model if the query names one.
async fn properties(many: Arc<Many>, call: Call) -> ApiResult<Response> {
    if call.query("model").is_some() {
        return hand_on(many, own("/props"), call).await;
    }
    let options = &many.front.options;
    Ok(json_response(&json!({
        "role": "router", "max_instances": many.offer.most, "models_autoload": many.offer.autoload,
        "default_generation_settings": { "params": {}, "n_ctx": 0 }, "total_slots": 0, "model_alias": "",
        "model_path": "", "chat_template": "", "modalities": { "vision": false, "video": false, "audio": false },
        "endpoint_slots": options.slots, "endpoint_props": options.properties,
        "endpoint_metrics": options.metrics, "ui": options.page, "build_info": build(), "is_sleeping": false,
        "cors_proxy_enabled": false,
    })))
}

fn own(path: &str) -> &'static Route<Handler> {
    OWN_ROUTES.iter().find(|route| route.paths[0] == path).unwrap_or(&OWN_ROUTES[0])
}

/// `GET /metrics`: of a model if the query names one, else of all that are loaded, each value with its model's name.
async fn metrics(many: Arc<Many>, call: Call) -> ApiResult<Response> {
    enabled(many.front.options.metrics, "--metrics")?;
    if call.query("model").is_some() {
        return hand_on(many, own("/metrics"), call).await;
    }
    let names: Vec<String> = {
        let table = many.table();
        let loaded = table.slots.iter().filter(|slot| matches!(slot.state, State::Loaded { .. }));
        loaded.map(|slot| slot.entry.name.clone()).collect()
    };
    let texts = join_all(names.iter().map(|name| async {
        // One that has just ended has none.
        let lease = many.lease(name, Loading::Never).await.ok()?;
        Some((name.as_str(), proxy::text(&lease, "/metrics").await?))
    }));
    let texts: Vec<(&str, String)> = texts.await.into_iter().flatten().collect();
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((kind, merged(&texts)).into_response())
}

/// The metrics of several models as one text.
fn merged(texts: &[(&str, String)]) -> String {
    let mut all = String::new();
    for row in METRICS {
        let name = format!("llamacpp:{}", row.name);
        all.push_str(&format!("# HELP {name} {}.\n# TYPE {name} {}\n", row.help, row.kind));
        for (model, text) in texts {
            let label = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let value = text.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
            if let Some(value) = value {
                all.push_str(&format!("{name}{{model=\"{label}\"}} {value}\n"));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_own_endpoint_of_one_model_has_the_same_paths() {
        for own in OWN_ROUTES {
            let one =
                ROUTES.iter().find(|route| route.method == own.method && route.paths[0] == own.paths[0]);
            assert!(one.is_none_or(|one| one.paths == own.paths && one.key == own.key), "{}", own.paths[0]);
        }
    }

    #[test]
    fn metrics_of_several_models_are_one_text() {
        let text = |value: u32| {
            format!("# HELP x.\nllamacpp:tokens_predicted_total {value}\nllamacpp:n_tokens_max 7\n")
        };
        let all = merged(&[("a\"b", text(1)), ("c", text(2))]);
        assert!(all.contains("llamacpp:tokens_predicted_total{model=\"a\\\"b\"} 1\n"), "{all}");
        assert!(all.contains("llamacpp:tokens_predicted_total{model=\"c\"} 2\n"), "{all}");
        assert_eq!(all.matches("# TYPE llamacpp:tokens_predicted_total counter").count(), 1);
    }
}
