//! From answers to bytes: one JSON value at the end, or server-sent events as they come.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use puna_engine::Timings;
use serde_json::{Value, json};

use crate::app::App;
use crate::caller::Caller;
use crate::error::{ApiError, ApiResult};
use crate::generate::{Ending, Generation, Output};
use crate::plan::Plan;

/// One server-sent event.
pub enum Frame {
    /// `data: JSON`.
    Data(Value),
    /// A line of JSON.
    Line(Value),
    /// `event: NAME` and `data: JSON`.
    Event(&'static str, Value),
    /// `data: [DONE]`.
    Done,
}

/// Server-sent events.
const EVENTS: &str = "text/event-stream";

/// How an endpoint shows answers.
pub trait Protocol: Send + 'static {
    /// What a stream is.
    fn content_type(&self) -> &'static str {
        EVENTS
    }
    /// What comes before everything else in a stream.
    fn begin(&mut self) -> Vec<Frame> {
        Vec::new()
    }
    /// What happened to one of the answers, in a stream.
    fn output(&mut self, choice: usize, output: &Output) -> Vec<Frame>;
    /// What comes after everything else in a stream.
    fn end(&mut self) -> Vec<Frame>;
    /// All answers, when they are done, without a stream.
    fn whole(&mut self, endings: Vec<Ending>) -> Value;
    /// An error within a stream.
    fn failure(&self, error: &ApiError) -> Frame {
        Frame::Data(error.body())
    }
}

impl Frame {
    fn write(&self, bytes: &mut Vec<u8>) {
        let text = match self {
            Self::Data(value) => format!("data: {value}\n\n"),
            Self::Line(value) => format!("{value}\n"),
            Self::Event(name, value) => format!("event: {name}\ndata: {value}\n\n"),
            Self::Done => "data: [DONE]\n\n".to_owned(),
        };
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// Runs a plan and answers in the endpoint's way.
pub async fn answer(
    app: &Arc<App>,
    caller: &Arc<Caller>,
    plan: Plan,
    mut protocol: impl Protocol,
) -> ApiResult<Response> {
    let plan = Arc::new(plan);
    caller.note(app, &plan).await;
    let mut generation = Generation::start(app, caller, &plan).await?;
    if !plan.stream {
        let endings = generation.complete().await?;
        return Ok(json_response(&protocol.whole(endings)));
    }
    // What fails at once still gets a status of its own.
    let first = generation.next().await.transpose()?;
    let mut bytes = Vec::new();
    protocol.begin().iter().for_each(|frame| frame.write(&mut bytes));
    if let Some((choice, output)) = &first {
        protocol.output(*choice, output).iter().for_each(|frame| frame.write(&mut bytes));
    }
    let content_type = protocol.content_type();
    // Only events have comments.
    let ping = plan.ping.filter(|_| content_type == EVENTS);
    let state = State { generation, protocol, ping, bytes, over: false };
    let body = Body::from_stream(stream::unfold(state, State::next));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, body).into_response())
}

struct State<P> {
    generation: Generation,
    protocol: P,
    ping: Option<Duration>,
    bytes: Vec<u8>,
    over: bool,
}

impl<P: Protocol> State<P> {
    /// The next bytes of the body; nothing at its end.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while self.bytes.is_empty() && !self.over {
            let next = self.generation.next();
            let output = match self.ping {
                None => next.await,
                Some(ping) => match tokio::time::timeout(ping, next).await {
                    Ok(output) => output,
                    Err(_) => {
                        self.bytes.extend_from_slice(b":\n\n");
                        break;
                    }
                },
            };
            let frames = match output {
                Some(Ok((choice, output))) => self.protocol.output(choice, &output),
                Some(Err(error)) => {
                    self.over = true;
                    vec![self.protocol.failure(&error)]
                }
                None => {
                    self.over = true;
                    self.protocol.end()
                }
            };
            frames.iter().for_each(|frame| frame.write(&mut self.bytes));
        }
        let bytes = std::mem::take(&mut self.bytes);
        (!bytes.is_empty()).then(|| (Ok(Bytes::from(bytes)), self))
    }
}

/// A JSON body with status 200.
pub fn json_response(value: &Value) -> Response {
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    ([(header::CONTENT_TYPE, json)], value.to_string()).into_response()
}

/// How far a prompt is.
pub fn progress(processed: usize, cached: usize, total: usize, time: Duration) -> Value {
    let time = time.as_millis() as u64;
    json!({ "total": total, "cache": cached, "processed": processed, "time_ms": time })
}

/// Counts and speeds of an answer.
pub fn timings(timings: &Timings) -> Value {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let each = |time: f64, count: usize| if count == 0 { 0.0 } else { time / count as f64 };
    let (prompt, generation) = (milliseconds(timings.prompt), milliseconds(timings.generation));
    let mut all = json!({
        "cache_n": timings.cached_tokens,
        "prompt_n": timings.prompt_tokens,
        "prompt_ms": prompt,
        "prompt_per_token_ms": each(prompt, timings.prompt_tokens),
        "prompt_per_second": timings.prompt_per_second(),
        "predicted_n": timings.generated_tokens,
        "predicted_ms": generation,
        "predicted_per_token_ms": each(generation, timings.generated_tokens),
        "predicted_per_second": timings.generated_per_second(),
    });
    if timings.guessed_tokens > 0 {
        all["draft_n"] = json!(timings.guessed_tokens);
        all["draft_n_accepted"] = json!(timings.accepted_tokens);
    }
    all
}
