//! The edge: keys, origins, size and time of bodies, and errors as bodies. What passes is a [`Call`].

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use crate::app::{App, Front};
use crate::caller::Caller;
use crate::error::{ApiError, ApiResult, Kind};
use crate::fields::Fields;
use crate::keys::Key;
use crate::routes::Route;

/// Header with which a router says whose request it hands on: the key's name, a hexadecimal number for each byte.
pub const KEY_NAME: HeaderName = HeaderName::from_static("x-router-key");

/// Priority of the key of a router's client, if it has one.
pub const KEY_PRIORITY: HeaderName = HeaderName::from_static("x-router-priority");
/// Number that a router gives to a request.
pub const NUMBER: HeaderName = HeaderName::from_static("x-router-request");

/// The value of [`KEY_NAME`].
pub fn key_name(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// A key without limits with the name and the priority that a router says; the router knows its limits.
fn named(value: &HeaderValue, priority: Option<&HeaderValue>) -> Arc<Key> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or(0) as u8;
    let bytes =
        value.as_bytes().chunks(2).map(|pair| pair.iter().fold(0, |all, byte| all << 4 | digit(byte)));
    let name = String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned();
    let priority = priority.and_then(|priority| priority.to_str().ok()?.parse().ok());
    Arc::new(Key::said(name, priority))
}

/// How long a body that nobody wants may take, and how long nothing of it may come.
const DRAIN: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);

/// A request that has passed the edge.
pub struct Call {
    /// The body.
    pub body: Bytes,
    /// The path with the query, without the prefix of all paths.
    pub target: String,
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

    /// A member of the query as text.
    pub fn query_text(&self, name: &str) -> ApiResult<Option<String>> {
        let Some(written) = self.query(name) else { return Ok(None) };
        let text = decoded(written).and_then(|bytes| String::from_utf8(bytes).ok());
        let wrong = || ApiError::invalid(format!("'{name}' in the query is not encoded as text"));
        text.map(Some).ok_or_else(wrong)
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
        let checked = move |app: &App, body: &[u8]| {
            let fields = Fields::parse(body)?;
            // Whichever it names, there is one; but it names one.
            fields.text(&["model"])?;
            check(app, &fields)
        };
        self.work(app, checked).await
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

/// The error of a request that panicked.
pub fn fault() -> ApiError {
    ApiError::new(Kind::Internal, "internal error: this request met a fault of the server")
}

/// Bytes of a part of a query, whose `%` and two digits stand for one and whose `+` for a blank.
fn decoded(written: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(written.len());
    let mut rest = written.as_bytes().iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(*rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' => b' ',
            other => *other,
        });
    }
    Some(bytes)
}

/// Serves one request of a route. `model` is the one that it is for, if that is known already; what passes is handed
/// to `handle`.
pub async fn serve<H, F: Future<Output = ApiResult<Response>>>(
    front: &Front,
    route: &'static Route<H>,
    request: Request,
    model: Option<&str>,
    handle: impl FnOnce(Call) -> F,
) -> Response {
    let (parts, body) = request.into_parts();
    let origin = allowed_origin(&front.options.origins, &parts.headers);
    let caller = Caller::new(front, route.key, format!("{} {}", route.method, parts.uri.path()));
    let mut body = body.into_data_stream();
    // A client may ask first whether its body is wanted; looking for it would say yes.
    let mut expected = !parts.headers.contains_key(header::EXPECT);
    let answered = unwinding(async {
        // Nobody has shown a key yet that could be refused.
        drop(model.map(|model| caller.choose(model)));
        if route.key {
            // What is posted runs the model or asks what it holds.
            let model = model.filter(|_| route.method == "POST");
            let key = front.keys.check(&parts.headers, model)?;
            if front.options.routed.is_some()
                && let Some(number) =
                    parts.headers.get(NUMBER).and_then(|value| value.to_str().ok()?.parse().ok())
            {
                caller.number(number);
            }
            // The router's own key is nobody's.
            let priority = parts.headers.get(KEY_PRIORITY);
            let name = parts.headers.get(KEY_NAME);
            let said = front.options.routed.as_ref().map(|_| name.map(|name| named(name, priority)));
            if let Some(key) = said.unwrap_or(key) {
                caller.identify(key);
            }
            if front.audit.as_ref().is_some_and(|audit| !audit.keeps_up()) {
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
        let limit = front.options.body_bytes;
        if length.is_some_and(|length: u64| length > limit as u64) {
            return Err(too_large(limit));
        }
        expected = true;
        let reading = read(&mut body, limit);
        let body = match tokio::time::timeout(front.options.body_time, reading).await {
            Ok(body) => body?,
            Err(_) => return Err(ApiError::new(Kind::Timeout, "the body did not come in time")),
        };
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        let target = target.strip_prefix(&front.options.prefix).unwrap_or(target).to_owned();
        handle(Call { body, target, query, parameters, caller: caller.clone() }).await
    });
    let mut response = answered.await.unwrap_or_else(|error| {
        caller.failed(error.row().name);
        let body = (route.error)(&error);
        error.response(&body)
    });
    if expected {
        drain(body, front.options.body_bytes).await;
    }
    caller.answered(response.status().as_u16());
    finish(response.headers_mut(), origin);
    response
}

/// Answers what no route takes: a browser's question whether it may ask, or nothing.
pub async fn fallback(front: Arc<Front>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let origin = allowed_origin(&front.options.origins, &request.headers);
    let mut response = if request.method == Method::OPTIONS {
        let headers = [
            (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS")),
            (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, authorization")),
            (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
        ];
        (StatusCode::NO_CONTENT, headers).into_response()
    } else {
        let message = format!("there is no {} {}", request.method, request.uri.path());
        let error = ApiError::new(Kind::NotFound, message);
        error.response(&error.body())
    };
    drain(body.into_data_stream(), front.options.body_bytes).await;
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

fn too_large(limit: usize) -> ApiError {
    ApiError::new(Kind::TooLarge, format!("the body is larger than {limit} bytes"))
}

/// Reads a body. One that is too large is refused as soon as that is known.
async fn read(stream: &mut BodyDataStream, limit: usize) -> ApiResult<Bytes> {
    let mut bytes = Vec::new();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| ApiError::invalid(format!("the body cannot be read: {error}")))?;
        if part.len() > limit - bytes.len() {
            return Err(too_large(limit));
        }
        bytes.extend_from_slice(&part);
    }
    Ok(Bytes::from(bytes))
}

/// Reads what is left of a body that nobody wants, as far as it comes now: a client that is still sending would not see
/// the answer. One that waits, or goes on for ever, has to see it in time.
async fn drain(mut stream: BodyDataStream, limit: usize) {
    let mut seen = 0usize;
    let reading = async {
        while let Ok(Some(Ok(part))) = tokio::time::timeout(PAUSE, stream.next()).await {
            seen = seen.saturating_add(part.len());
            if seen > limit.saturating_mul(4) {
                break;
            }
        }
    };
    // Either way nobody wants it.
    let _ = tokio::time::timeout(DRAIN, reading).await;
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
    fn queries_and_names_come_back() {
        assert_eq!(decoded("a%2Fb+c%c3%A9").unwrap(), "a/b cé".as_bytes());
        assert_eq!(decoded(""), Some(Vec::new()));
        for wrong in ["%", "%2", "%zz", "a%"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
        let name = "ann é\n";
        let priority = HeaderValue::from(-7);
        let key = named(&HeaderValue::from_str(&key_name(name)).unwrap(), Some(&priority));
        assert_eq!((key.name.as_str(), key.priority), (name, Some(-7)));
    }

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
