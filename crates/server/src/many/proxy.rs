//! Requests handed on to a model's process, and its answers as they come.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{Lease, Loading, Many};
use crate::caller::Caller;
use crate::edge::{Call, KEY_NAME, KEY_PRIORITY, NUMBER, key_name};
use crate::error::{ApiError, ApiResult, Kind};
use crate::keys::Key;

/// Headers of an answer that are handed on; the edge adds its own.
const KEPT: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CACHE_CONTROL,
    header::RETRY_AFTER,
    HeaderName::from_static("process-start-time-unix"),
];

/// The error that the audit log gives for an answer that a process did not live to end.
pub(super) const PROCESS_ENDED: &str = "process_ended";
/// Attempts to reach a process before that is given up.
const ATTEMPTS: usize = 3;
/// How long it may take until the end of a process is known.
const KNOWN: Duration = Duration::from_secs(5);
/// How long a process may take to tell of a request whose client has left.
const TOLD: Duration = Duration::from_secs(5);
/// Bytes of a text that is read as a whole.
const LARGEST_TEXT: usize = 1 << 20;

/// A connection to a process. Dropping it closes it, so that the process learns that nobody listens any more.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A model's process and a connection to it. One that has just ended is loaded again.
pub async fn reach(many: &Arc<Many>, name: &str, loading: Loading) -> ApiResult<(Lease, TcpStream)> {
    for _ in 0..ATTEMPTS {
        let lease = many.lease(name, loading).await?;
        if let Ok(stream) = TcpStream::connect(lease.target.address).await {
            // A connection that refuses small parts at once works all the same.
            drop(stream.set_nodelay(true));
            return Ok((lease, stream));
        }
        let target = lease.target.clone();
        drop(lease);
        // It will be known soon. Otherwise the next attempt fails in the same way.
        let _ = tokio::time::timeout(KNOWN, many.ended_at(name, &target)).await;
    }
    Err(ApiError::new(Kind::Unavailable, format!("the process of the model '{name}' ends again and again")))
}

/// Hands a request on. `error` makes the body of an error for its client.
pub async fn forward(
    (lease, stream): (Lease, TcpStream),
    method: &'static str,
    call: Call,
    error: fn(&ApiError) -> Value,
) -> ApiResult<Response> {
    let caller = call.caller.clone();
    let died = {
        let name = lease.name.clone();
        move || {
            let message =
                format!("the process of the model '{name}' ended while it answered; it is loaded again");
            ApiError::new(Kind::Internal, message)
        }
    };
    // From now on the process knows of the request, and tells what it took.
    let number = lease.many.hand_over(&lease.target.key, &caller);
    let mut on_its_way = OnItsWay { many: lease.many.clone(), caller: caller.clone(), number };
    let of = Origin { key: caller.key(), number };
    let answer = send(&lease, stream, method, &call.target, of, call.body).await;
    // Its client is still there.
    on_its_way.number = None;
    let (parts, body, connection) = match answer {
        Some(answer) => answer,
        None => {
            lease.many.take_back(number);
            caller.failed(PROCESS_ENDED);
            return Err(died());
        }
    };
    let relay = Relay {
        body: body.into_data_stream(),
        format: Format::of(&parts.headers, &call.target),
        error,
        died: died(),
        caller,
        number,
        over: false,
        lease,
        _connection: connection,
    };
    let mut response = Response::new(Body::from_stream(stream::unfold(relay, Relay::next)));
    *response.status_mut() = parts.status;
    for name in KEPT {
        if let Some(value) = parts.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

/// A request whose process has not begun to answer. If its client leaves now, the process may tell what it took so far, or
/// may never have heard of it.
struct OnItsWay {
    many: Arc<Many>,
    caller: Arc<Caller>,
    number: Option<u64>,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else { return };
        self.caller.left();
        let many = self.many.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TOLD).await;
            many.take_back(Some(number));
        });
    }
}

/// The text that a process answers to a plain question.
pub async fn text(lease: &Lease, target: &str) -> Option<String> {
    let stream = TcpStream::connect(lease.target.address).await.ok()?;
    let (_, body, _connection) = send(lease, stream, "GET", target, Origin::default(), Bytes::new()).await?;
    let bytes = axum::body::to_bytes(body, LARGEST_TEXT).await.ok()?;
    String::from_utf8(bytes.to_vec()).ok()
}

/// Where a request comes from.
#[derive(Clone, Copy, Default)]
struct Origin<'a> {
    /// The client's key.
    key: Option<&'a Key>,
    /// Number of the request, if there is a log.
    number: Option<u64>,
}

/// The head of the answer and its body; nothing if the process is not there any more.
async fn send(
    lease: &Lease,
    stream: TcpStream,
    method: &'static str,
    target: &str,
    of: Origin<'_>,
    body: Bytes,
) -> Option<(axum::http::response::Parts, Body, Connection)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    // How it ends is seen from the answer.
    let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        .header(header::HOST, lease.target.address.to_string())
        .header(header::AUTHORIZATION, format!("Bearer {}", lease.target.key));
    if method == "POST" {
        request = request.header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if let Some(key) = of.key {
        request = request.header(KEY_NAME, key_name(&key.name));
        if let Some(priority) = key.priority {
            request = request.header(KEY_PRIORITY, priority);
        }
    }
    if let Some(number) = of.number {
        request = request.header(NUMBER, number);
    }
    let request = request.body(Body::from(body)).ok()?;
    let (parts, body) = sender.send_request(request).await.ok()?.into_parts();
    Some((parts, Body::new(body), connection))
}

/// How an error within an answer is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// As server-sent events.
    Events,
    /// As those with names.
    NamedEvents,
    /// As a line of JSON.
    Lines,
    /// Not at all: it has one value.
    Whole,
}

impl Format {
    fn of(headers: &HeaderMap, target: &str) -> Self {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        match kind {
            "text/event-stream" if target.starts_with("/v1/messages") => Self::NamedEvents,
            "text/event-stream" => Self::Events,
            "application/x-ndjson" => Self::Lines,
            _ => Self::Whole,
        }
    }

    fn frame(self, error: &Value) -> Option<String> {
        match self {
            Self::Events => Some(format!("data: {error}\n\n")),
            Self::NamedEvents => Some(format!("event: error\ndata: {error}\n\n")),
            Self::Lines => Some(format!("{error}\n")),
            Self::Whole => None,
        }
    }
}

/// An answer on its way.
struct Relay {
    body: BodyDataStream,
    format: Format,
    error: fn(&ApiError) -> Value,
    died: ApiError,
    caller: Arc<Caller>,
    number: Option<u64>,
    over: bool,
    lease: Lease,
    _connection: Connection,
}

impl Relay {
    /// The next part. If the process ends before the answer does, a stream ends with an error, anything else breaks off.
    async fn next(mut self) -> Option<(Result<Bytes, axum::Error>, Self)> {
        if self.over {
            return None;
        }
        match self.body.next().await? {
            Ok(part) => Some((Ok(part), self)),
            Err(broken) => {
                self.over = true;
                self.caller.failed(PROCESS_ENDED);
                self.lease.many.take_back(self.number);
                let last = match self.format.frame(&(self.error)(&self.died)) {
                    Some(text) => Ok(Bytes::from(text)),
                    None => Err(broken),
                };
                Some((last, self))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_fit_the_answers_that_they_end() {
        let frame = |kind: &'static str, target: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            Format::of(&headers, target).frame(&json!({"error": 1}))
        };
        let events = frame("text/event-stream", "/v1/chat/completions").unwrap();
        assert_eq!(events, "data: {\"error\":1}\n\n");
        let named = frame("text/event-stream", "/v1/messages?x=1").unwrap();
        assert_eq!(named, "event: error\ndata: {\"error\":1}\n\n");
        assert_eq!(frame("application/x-ndjson", "/api/chat").unwrap(), "{\"error\":1}\n");
        assert_eq!(frame("application/json; charset=utf-8", "/v1/messages"), None);
    }
}
