//! The table of endpoints, from which the router, the check of keys and the docs derive.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use serde_json::Value;

use crate::api::{
    adapters, anthropic, audio, embeddings, infill, information, native, ollama, openai, responses, slots,
    text,
};
use crate::app::{App, Front};
use crate::edge::{self, Call};
use crate::error::{ApiError, ApiResult};

/// Runs an endpoint.
pub type Handler = fn(Arc<App>, Call) -> Pin<Box<dyn Future<Output = ApiResult<Response>> + Send>>;

/// One endpoint; `H` runs it.
pub struct Route<H = Handler> {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Its paths; `{name}` stands for any part.
    pub paths: &'static [&'static str],
    /// Whether it needs a key, if there are keys.
    pub key: bool,
    /// Errors as its clients expect them.
    pub error: fn(&ApiError) -> Value,
    /// What it does, for the docs.
    pub summary: &'static str,
    /// Does it.
    pub handler: H,
}

/// An endpoint that is asked.
pub const fn get<H: Copy>(paths: &'static [&'static str], summary: &'static str, handler: H) -> Route<H> {
    Route { method: "GET", paths, key: true, error: ApiError::body, summary, handler }
}

/// An endpoint that something is posted to.
pub const fn post<H: Copy>(paths: &'static [&'static str], summary: &'static str, handler: H) -> Route<H> {
    Route { method: "POST", paths, key: true, error: ApiError::body, summary, handler }
}

const fn anthropic(route: Route) -> Route {
    Route { error: ApiError::anthropic, ..route }
}

const fn ollama(route: Route) -> Route {
    Route { error: ApiError::plain, ..route }
}

/// Every endpoint.
pub static ROUTES: &[Route] = &[
    Route { key: false, ..get(&["/"], "the web page", |app, call| Box::pin(information::page(app, call))) },
    Route {
        key: false,
        ..get(&["/health", "/v1/health"], "whether the server answers", |app, call| {
            Box::pin(information::health(app, call))
        })
    },
    get(&["/openapi.json"], "these endpoints, as OpenAPI describes them", |app, call| {
        Box::pin(information::description(app, call))
    }),
    get(&["/models", "/v1/models"], "the model that is served", |app, call| {
        Box::pin(information::models(app, call))
    }),
    get(&["/props"], "settings of the server and its defaults", |app, call| {
        Box::pin(information::properties(app, call))
    }),
    post(&["/props"], "changes nothing so far", |app, call| Box::pin(information::set_properties(app, call))),
    get(&["/metrics"], "counters for Prometheus", |app, call| Box::pin(information::metrics(app, call))),
    get(&["/slots"], "what each slot does", |app, call| Box::pin(information::slots(app, call))),
    get(&["/lora-adapters"], "the adapters and how strongly each counts", |app, call| {
        Box::pin(adapters::list(app, call))
    }),
    post(&["/lora-adapters"], "changes how strongly adapters count", |app, call| {
        Box::pin(adapters::change(app, call))
    }),
    post(&["/slots/{id}"], "saves, restores or erases what a slot holds", |app, call| {
        Box::pin(slots::act(app, call))
    }),
    post(&["/completion", "/completions"], "continues a prompt", |app, call| {
        Box::pin(native::completion(app, call))
    }),
    post(&["/v1/completions"], "continues a prompt, OpenAI's way", |app, call| {
        Box::pin(openai::completions(app, call))
    }),
    post(
        &["/chat/completions", "/v1/chat/completions"],
        "answers a conversation, OpenAI's way",
        |app, call| Box::pin(openai::chat_completions(app, call)),
    ),
    post(
        &["/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"],
        "counts the tokens of a conversation",
        |app, call| Box::pin(text::count_chat(app, call)),
    ),
    post(&["/responses", "/v1/responses"], "answers a conversation, OpenAI's newer way", |app, call| {
        Box::pin(responses::responses(app, call))
    }),
    post(
        &["/responses/input_tokens", "/v1/responses/input_tokens"],
        "counts the tokens of its input",
        |app, call| Box::pin(text::count_responses(app, call)),
    ),
    anthropic(post(&["/v1/messages"], "answers a conversation, Anthropic's way", |app, call| {
        Box::pin(anthropic::messages(app, call))
    })),
    anthropic(post(&["/v1/messages/count_tokens"], "counts the tokens of its input", |app, call| {
        Box::pin(text::count_messages(app, call))
    })),
    ollama(post(&["/api/chat"], "answers a conversation, Ollama's way", |app, call| {
        Box::pin(ollama::chat(app, call))
    })),
    ollama(post(&["/api/generate"], "answers a prompt, Ollama's way", |app, call| {
        Box::pin(ollama::generate(app, call))
    })),
    ollama(get(&["/api/tags"], "the model that is served, Ollama's way", |app, call| {
        Box::pin(ollama::tags(app, call))
    })),
    ollama(get(&["/api/ps"], "the model that is loaded", |app, call| Box::pin(ollama::running(app, call)))),
    ollama(post(&["/api/show"], "what the model is", |app, call| Box::pin(ollama::show(app, call)))),
    ollama(get(&["/api/version"], "the program's version", |app, call| Box::pin(ollama::version(app, call)))),
    ollama(post(&["/api/embed", "/api/embeddings"], "embeddings of texts, Ollama's way", |app, call| {
        Box::pin(embeddings::ollama(app, call))
    })),
    get(&["/tools", "/cors-proxy"], "nothing: the server runs no tools", |app, call| {
        Box::pin(information::never(app, call))
    }),
    post(&["/tools", "/cors-proxy"], "nothing: the server runs no tools", |app, call| {
        Box::pin(information::never(app, call))
    }),
    post(&["/tokenize"], "tokens of a text", |app, call| Box::pin(text::tokenize(app, call))),
    post(&["/detokenize"], "text of tokens", |app, call| Box::pin(text::detokenize(app, call))),
    post(&["/apply-template"], "the prompt of a conversation", |app, call| {
        Box::pin(text::apply_template(app, call))
    }),
    post(&["/embedding", "/embeddings"], "embeddings of texts", |app, call| {
        Box::pin(embeddings::native(app, call))
    }),
    post(&["/v1/embeddings"], "embeddings of texts, OpenAI's way", |app, call| {
        Box::pin(embeddings::openai(app, call))
    }),
    post(
        &["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"],
        "documents by how well they answer a query",
        |app, call| Box::pin(embeddings::rerank(app, call)),
    ),
    post(
        &["/audio/transcriptions", "/v1/audio/transcriptions"],
        "the text of sound, where a model hears",
        |app, call| Box::pin(audio::transcriptions(app, call)),
    ),
    post(&["/infill"], "fills a gap in a text", |app, call| Box::pin(infill::infill(app, call))),
];

/// The router of the table.
pub fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let app = app.clone();
        router = add(router, &app.front.clone(), route, move |request| {
            let app = app.clone();
            async move {
                let (front, model) = (app.front.clone(), app.served.facts.name.clone());
                edge::serve(&front, route, request, Some(&model), |call| (route.handler)(app, call)).await
            }
        });
    }
    with_fallback(router, &app.front)
}

/// Adds an endpoint at its paths.
pub fn add<H, S, F>(mut router: Router, front: &Front, route: &Route<H>, serve: S) -> Router
where
    S: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let filter = if route.method == "GET" { MethodFilter::GET } else { MethodFilter::POST };
    for path in route.paths {
        router = router.route(&format!("{}{path}", front.options.prefix), on(filter, serve.clone()));
    }
    router
}

/// Answers everything else, too.
pub fn with_fallback(router: Router, front: &Arc<Front>) -> Router {
    let front = front.clone();
    let unknown = move |request: Request| edge::fallback(front, request);
    router.fallback(unknown.clone()).method_not_allowed_fallback(unknown)
}
