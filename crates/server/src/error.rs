//! Errors of the server and of requests, and the table from which status codes and bodies derive.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use puna_engine::EngineError;
use serde_json::{Map, Value, json};

/// Why a server cannot start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be used.
    #[error("cannot listen on {host}:{port}: {reason}")]
    Bind {
        /// Host asked for.
        host: String,
        /// Port asked for; 0 for any.
        port: u16,
        /// The system's message.
        reason: std::io::Error,
    },
    /// Everybody in the network could use the model.
    #[error(
        "{host} is not a loopback address and there is no API key: give --api-key or --api-keys, or --allow-unauthenticated \
         to serve everybody who can reach this machine"
    )]
    Open {
        /// Host asked for.
        host: String,
    },
    /// The key or the certificate cannot be used.
    #[error("TLS: {}: {reason}", file.display())]
    Tls {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file of keys cannot be used.
    #[error("API keys: {}: {reason}", file.display())]
    Keys {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The audit log or its rules cannot be used.
    #[error("audit log: {}: {reason}", file.display())]
    Audit {
        /// The file.
        file: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system gives no threads or no event queue.
    #[error("cannot start the server's threads: {reason}")]
    Runtime {
        /// The system's message.
        reason: std::io::Error,
    },
    /// The models that shall be served cannot be found.
    #[error("{reason}")]
    Models {
        /// Which and why.
        reason: String,
    },
    /// Serving ended by itself.
    #[error("the server stopped: {reason}")]
    Stopped {
        /// What happened.
        reason: String,
    },
}

/// Kinds of errors that a client can see: the rows of [`ERRORS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each is the row of that name
pub enum Kind {
    Invalid,
    Authentication,
    Permission,
    RateLimit,
    NotFound,
    Disabled,
    ContextSize,
    TooLarge,
    Timeout,
    NotSupported,
    Unavailable,
    Internal,
}

/// One kind of error.
pub struct ErrorRow {
    /// The kind.
    pub kind: Kind,
    /// `type` in the body.
    pub name: &'static str,
    /// HTTP status, and `code` in the body.
    pub status: u16,
    /// When it occurs, for the docs.
    pub meaning: &'static str,
}

const fn row(kind: Kind, name: &'static str, status: u16, meaning: &'static str) -> ErrorRow {
    ErrorRow { kind, name, status, meaning }
}

/// Every kind of error with its status and its name in bodies.
pub const ERRORS: &[ErrorRow] = &[
    row(
        Kind::Invalid,
        "invalid_request_error",
        400,
        "the body, a field, or the file of a slot cannot be used; the message names it",
    ),
    row(Kind::ContextSize, "exceed_context_size_error", 400, "the prompt does not fit"),
    row(Kind::Authentication, "authentication_error", 401, "no key, or one that is unknown or has expired"),
    row(Kind::Permission, "permission_error", 403, "the key does not open this model"),
    row(Kind::Disabled, "feature_disabled", 403, "a flag switches the endpoint on"),
    row(Kind::NotFound, "not_found_error", 404, "no such path, method or slot file"),
    row(
        Kind::Timeout,
        "timeout_error",
        408,
        "the body did not come in time, or the answer did not begin before its deadline",
    ),
    row(Kind::TooLarge, "request_too_large", 413, "the body is larger than the limit"),
    row(
        Kind::RateLimit,
        "rate_limit_error",
        429,
        "the key has used its requests or tokens of this minute; `Retry-After` tells when to try again",
    ),
    row(
        Kind::Internal,
        "server_error",
        500,
        "a fault of the server, or a model that cannot be loaded or whose process ended",
    ),
    row(Kind::NotSupported, "not_supported_error", 501, "this model or this build cannot do it"),
    row(Kind::Unavailable, "unavailable_error", 503, "the queue is full or the server ends; try again"),
];

/// What a client is told instead of a result.
#[derive(Clone, PartialEq, Debug)]
pub struct ApiError {
    /// Its row.
    pub kind: Kind,
    /// For people.
    pub message: String,
    /// More members of the body.
    pub extra: Map<String, Value>,
    /// Seconds after which the client may try again.
    pub retry_after: Option<u64>,
}

/// Result of a request.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// An error of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), extra: Map::new(), retry_after: None }
    }

    /// The request cannot be used as it is.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// The same error with the names that fields have in the protocol that the client speaks: its own for ours.
    pub fn in_terms_of<A: AsRef<str>, B: AsRef<str>>(mut self, names: &[(A, B)]) -> Self {
        let mut message = String::with_capacity(self.message.len());
        // Every other part stands in quotes; the others begin with no name.
        for (index, part) in self.message.split('\'').enumerate() {
            message.push_str(if index > 0 { "'" } else { "" });
            let find = |own: &str| names.iter().find(|(name, _)| name.as_ref() == own);
            let root = part.find(['.', '[']).unwrap_or(part.len());
            match (find(part), find(&part[..root])) {
                (Some((_, theirs)), _) => message.push_str(theirs.as_ref()),
                (None, Some((_, theirs))) => {
                    message.push_str(theirs.as_ref());
                    message.push_str(&part[root..]);
                }
                (None, None) => message.push_str(part),
            }
        }
        self.message = message;
        self
    }

    /// A prompt of `tokens` in a context of `context` tokens; `learned` says whether these are all positions of the model.
    pub fn context_size(tokens: usize, context: u32, learned: bool) -> Self {
        let advice = match learned {
            true => "shorten it, since the model has learned no more positions",
            false => "shorten it or start the server with a larger context (-c)",
        };
        let message = format!(
            "the prompt has {tokens} tokens (n_prompt_tokens) and the context {context} (n_ctx): {advice}"
        );
        let mut error = Self::new(Kind::ContextSize, message);
        error.extra.insert("n_prompt_tokens".into(), json!(tokens));
        error.extra.insert("n_ctx".into(), json!(context));
        error
    }

    /// Its row of the table.
    pub fn row(&self) -> &'static ErrorRow {
        ERRORS.iter().find(|row| row.kind == self.kind).unwrap_or(&ERRORS[0])
    }

    /// The body.
    pub fn body(&self) -> Value {
        let row = self.row();
        let mut error = Map::new();
        error.insert("code".into(), json!(row.status));
        error.insert("message".into(), json!(self.message));
        error.insert("type".into(), json!(row.name));
        error.extend(self.extra.clone());
        json!({ "error": error })
    }

    /// The body as Anthropic's clients expect it.
    pub fn anthropic(&self) -> Value {
        let mut body = self.body();
        if let Value::Object(members) = &mut body {
            members.insert("type".into(), json!("error"));
        }
        body
    }

    /// The body as Ollama's clients expect it.
    pub fn plain(&self) -> Value {
        json!({ "error": self.message })
    }

    /// The answer with this body.
    pub fn response(&self, body: &Value) -> Response {
        let status = StatusCode::from_u16(self.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = HeaderValue::from_static("application/json; charset=utf-8");
        let mut response = (status, [(header::CONTENT_TYPE, json)], body.to_string()).into_response();
        if let Some(seconds) = self.retry_after.or((self.kind == Kind::Unavailable).then_some(1)) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == Kind::Authentication {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let kind = match &error {
            EngineError::PromptTooLong { tokens, context, learned } => {
                return Self::context_size(*tokens, *context, *learned);
            }
            EngineError::TextTooLong { tokens, most } => {
                let message = error.to_string();
                return Self { message, ..Self::context_size(*tokens, *most, false) };
            }
            EngineError::Purpose { .. } => Kind::NotSupported,
            EngineError::EmptyPrompt
            | EngineError::NotSaved { .. }
            | EngineError::TokenOutOfRange { .. }
            | EngineError::NoSequence { .. }
            | EngineError::Sampling(puna_sampling::SamplingError::Parameter { .. })
            | EngineError::Sampling(puna_sampling::SamplingError::TokenOutOfRange { .. })
            // Too ambiguous, or its trigger came where it cannot begin: both lie in the request.
            | EngineError::Grammar(_)
            | EngineError::Busy { .. } => Kind::Invalid,
            EngineError::Late => Kind::Timeout,
            EngineError::NoRoom { .. } | EngineError::Stopped => Kind::Unavailable,
            EngineError::Sampling(_)
            | EngineError::Runtime(_)
            | EngineError::Panic { .. }
            | EngineError::NotWritten { .. }
            // Those before an engine starts reach no request.
            | EngineError::UnknownSpeculation { .. }
            | EngineError::NoDraftModel { .. }
            | EngineError::DiskCache { .. }
            | EngineError::Thread(_) => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<puna_chat::Error> for ApiError {
    fn from(error: puna_chat::Error) -> Self {
        // A template that refuses a conversation or cannot cope with it: the conversation is the client's.
        Self::invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_names_of_the_client() {
        let names = [("json_schema", "format"), ("a.b", "c.d"), ("a", "x"), ("x", "y")];
        for (message, expected) in [
            ("field 'json_schema': no", "field 'format': no"),
            ("field 'json_schema.schema' is missing", "field 'format.schema' is missing"),
            ("field 'a[3].b': 'a'", "field 'x[3].b': 'x'"),
            ("'a.b' and 'a.b.c', a", "'c.d' and 'x.b.c', a"),
            ("it's json_schema", "it's json_schema"),
            ("", ""),
        ] {
            assert_eq!(ApiError::invalid(message).in_terms_of(&names).message, expected);
        }
    }
}
