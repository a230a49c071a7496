//! The edge: keys, origins, size and time of bodies, and errors as bodies. What passes is a [`Call`].

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ApiResult, Kind};
use crate::fields::Fields;
use crate::routes::Route;

/// A request that has passed the edge.
pub struct Call {
    body: Bytes,
    query: String,
    parameters: Vec<(String, String)>,
    /// Whose it is.
    pub caller: Arc<Caller>,
}

impl Call {
    /// A member of the query, as it is written there.
    pub fn query(&self, name: &str) -> Option<&str> {
        let mut pairs = self.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The part of the path that stands for `{name}`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Checks the body's fields away from the threads that serve connections: templates and tokenizers take
    /// their time.
    pub async fn prepare<T: Send + 'static>(
        &self,
        app: &Arc<App>,
        check: impl FnOnce(&App, &Fields) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        self.work(app, move |app, body| check(app, &Fields::parse(body)?)).await
    }

    /// Does something that takes its time with the body.
    pub async fn work<T: Send + 'static>(
        &self,
        app: &Arc<App>,
        work: impl FnOnce(&App, &[u8]) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let (app, body) = (app.clone(), self.body.clone());
        match tokio::task::spawn_blocking(move || work(&app, &body)).await {
            Ok(result) => result,
            Err(_) => Err(fault()),
        }
    }
}

fn fault() -> ApiError {
    ApiError::new(Kind::Internal, "internal error: this request met a fault of the server")
}

/// Serves one request of a route.
pub async fn serve(app: Arc<App>, route: &'static Route, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let origin = allowed_origin(&app.options.origins, &parts.headers);
    let caller = Caller::new(&app, route.key, format!("{} {}", route.method, parts.uri.path()));
    let answered = unwinding(async {
        if route.key {
            // What is posted runs the model or asks what it holds.
            let model = (route.method == "POST").then_some(app.served.facts.name.as_str());
            if let Some(key) = app.keys.check(&parts.headers, model)? {
                caller.identify(key);
            }
            if app.audit.as_ref().is_some_and(|audit| !audit.keeps_up()) {
                return Err(ApiError::new(Kind::Unavailable, "the audit log cannot be written"));
            }
        }
        let query = parts.uri.query().unwrap_or("").to_owned();
        let length =
            parts.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let mut parts = parts;
        let parameters = match RawPathParams::from_request_parts(&mut parts, &()).await {
            Ok(found) => found.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            Err(_) => return Err(ApiError::invalid("the path is not valid UTF-8")),
        };
        let reading = read(body, length, app.options.body_bytes);
        let body = match tokio::time::timeout(app.options.body_time, reading).await {
            Ok(body) => body?,
            Err(_) => return Err(ApiError::new(Kind::Timeout, "the body did not come in time")),
        };
        (route.handler)(app.clone(), Call { body, query, parameters, caller: caller.clone() }).await
    });
    let mut response = answered.await.unwrap_or_else(|error| {
        caller.failed(error.row().name);
        let body = (route.error)(&error);
        error.response(&body)
    });
    caller.answered(response.status().as_u16());
    finish(response.headers_mut(), origin);
    response
}

/// Answers what no route takes: a browser's question whether it may ask, or nothing.
pub async fn fallback(app: Arc<App>, request: Request) -> Response {
    let origin = allowed_origin(&app.options.origins, request.headers());
    let mut response = if request.method() == Method::OPTIONS {
        let headers = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS")),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, authorization")),
            (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
        ];
        (StatusCode::NO_CONTENT, headers).into_response()
    } else {
        let message = format!("there is no {} {}", request.method(), request.uri().path());
        let error = ApiError::new(Kind::NotFound, message);
        error.response(&error.body())
    };
    finish(response.headers_mut(), origin);
    response
}

fn finish(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    headers.insert(header::SERVER, HeaderValue::from_static("puna"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
}

/// The origin that may read the answer, if the request comes from one.
fn allowed_origin(allowed: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let text = origin.to_str().ok()?;
    let fits = allowed.iter().any(|allowed| match allowed.as_str() {
        "*" => true,
        "localhost" => is_local(text),
        exact => exact.trim_end_matches('/') == text,
    });
    fits.then(|| origin.clone())
}

/// Whether an origin is a page of this machine.
fn is_local(origin: &str) -> bool {
    let Some((_, host)) = origin.split_once("://") else { return false };
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    matches!(host, "localhost" | "127.0.0.1" | "::1")
}

/// Reads a body. One that is too large is read on for a while without being kept, because a client that is
/// still sending does not see the answer.
async fn read(body: Body, length: Option<u64>, limit: usize) -> ApiResult<Bytes> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(length.unwrap_or(0).min(64 << 10) as usize);
    let mut seen = 0usize;
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| ApiError::invalid(format!("the body cannot be read: {error}")))?;
        seen = seen.saturating_add(part.len());
        if seen <= limit {
            bytes.extend_from_slice(&part);
        } else {
            bytes = Vec::new();
            if seen > limit.saturating_mul(4) {
                break;
            }
        }
    }
    if seen > limit {
        let message = format!("the body is larger than {limit} bytes");
        return Err(ApiError::new(Kind::TooLarge, message));
    }
    Ok(Bytes::from(bytes))
}

/// Runs a handler; a panic becomes an error of its request.
async fn unwinding(future: impl Future<Output = ApiResult<Response>>) -> ApiResult<Response> {
    let mut future = pin!(future);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(_) => Poll::Ready(Err(fault())),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        let headers = |origin: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            headers
        };
        let allowed =
            |allowed: &str, origin: &str| allowed_origin(&[allowed.to_owned()], &headers(origin)).is_some();
        for origin in ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8080"] {
            assert!(allowed("localhost", origin), "{origin}");
        }
        for origin in ["http://localhost.example", "http://example.org", "null", "http://127.0.0.1.x", ""] {
            assert!(!allowed("localhost", origin), "{origin}");
        }
        assert!(allowed("*", "http://example.org"));
        assert!(allowed("http://example.org/", "http://example.org"));
        assert!(allowed_origin(&["*".into()], &HeaderMap::new()).is_none());
    }
}
