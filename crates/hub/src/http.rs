//! Requests with redirects followed by hand: the hub announces a file's digest in the answer that redirects, and
//! the access token may only go to the hub itself.

use crate::error::Error;
use std::time::Duration;
use ureq::Agent;
use ureq::http::{HeaderMap, Response, StatusCode, Uri};

const REDIRECTS: usize = 10;
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// One request.
pub(crate) struct Request<'a> {
    pub(crate) url: &'a str,
    /// What is asked for, in words for messages.
    pub(crate) what: &'a str,
    pub(crate) token: Option<&'a str>,
    /// First byte wanted.
    pub(crate) from: u64,
    /// Only if the file still has this entity tag.
    pub(crate) unchanged: Option<&'a str>,
}

/// An answer with a body.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: ureq::Body,
    /// `X-Linked-Etag` of any answer on the way.
    pub(crate) linked_digest: Option<String>,
    /// `X-Linked-Size` of any answer on the way.
    pub(crate) linked_size: Option<u64>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// An agent that gives up quickly where there is no network.
pub(crate) fn agent(connect_timeout: Duration, proxy: Option<&str>) -> Result<Agent, Error> {
    let proxy = match proxy {
        None => None,
        Some(url) => {
            Some(ureq::Proxy::new(url).map_err(|error| Error::BadProxy { reason: error.to_string() })?)
        }
    };
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(proxy)
        .accept_encoding("identity")
        .user_agent(concat!("puna/", env!("CARGO_PKG_VERSION")))
        .timeout_resolve(Some(connect_timeout))
        .timeout_connect(Some(connect_timeout))
        .timeout_recv_response(Some(READ_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
        .build();
    Ok(config.new_agent())
}

/// Sends a request and follows redirects. Statuses other than success are turned into errors, except 416.
pub(crate) fn get(agent: &Agent, request: &Request<'_>) -> Result<Answer, Error> {
    let mut url = parse(request.url)?;
    let origin = origin_of(&url);
    let (mut linked_digest, mut linked_size) = (None, None);
    for _ in 0..=REDIRECTS {
        let mut builder = agent.get(&url);
        if let Some(token) = request.token.filter(|_| origin_of(&url) == origin) {
            builder = builder.header("Authorization", format!("Bearer {token}"));
        }
        if request.from > 0 {
            builder = builder.header("Range", format!("bytes={}-", request.from));
            if let Some(tag) = request.unchanged {
                builder = builder.header("If-Range", tag);
            }
        }
        let response = builder.call().map_err(|error| failed(&url, request.what, error))?;
        let headers = response.headers();
        linked_digest =
            linked_digest.or_else(|| header(headers, "x-linked-etag").map(|tag| unquoted(tag).to_owned()));
        linked_size =
            linked_size.or_else(|| header(headers, "x-linked-size").and_then(|size| size.parse().ok()));
        let status = response.status();
        if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
            url = target(&url, &response, request.what)?;
            continue;
        }
        check(status, request.what)?;
        let (parts, body) = response.into_parts();
        return Ok(Answer { status, headers: parts.headers, body, linked_digest, linked_size });
    }
    Err(Error::Protocol { what: request.what.to_owned(), reason: format!("more than {REDIRECTS} redirects") })
}

fn check(status: StatusCode, what: &str) -> Result<(), Error> {
    let what = || what.to_owned();
    match status.as_u16() {
        200 | 206 | 416 => Ok(()),
        401 | 403 => Err(Error::Refused { what: what(), status: status.as_u16() }),
        404 => Err(Error::NotFound { what: what() }),
        status => Err(Error::Status { what: what(), status }),
    }
}

pub(crate) fn parse(url: &str) -> Result<Uri, Error> {
    let bad = |reason: &str| Error::BadUrl { url: url.to_owned(), reason: reason.to_owned() };
    let parsed: Uri = url.parse().map_err(|_| bad("it cannot be read"))?;
    match (parsed.scheme_str(), parsed.host()) {
        (Some("http" | "https"), Some(host)) if !host.is_empty() => Ok(parsed),
        _ => Err(bad("expected http:// or https:// and a host")),
    }
}

/// Scheme, host and port.
fn origin_of(url: &Uri) -> (String, String) {
    let scheme = url.scheme_str().unwrap_or("").to_ascii_lowercase();
    let port = url.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    (scheme, format!("{}:{port}", url.host().unwrap_or("").to_ascii_lowercase()))
}

/// Where a redirect leads.
fn target(from: &Uri, response: &Response<ureq::Body>, what: &str) -> Result<Uri, Error> {
    let bad = |reason: String| Error::Protocol { what: what.to_owned(), reason };
    let location =
        header(response.headers(), "location").ok_or_else(|| bad("a redirect without an address".into()))?;
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from.authority().map_or("", |authority| authority.as_str());
    let absolute = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        location.to_owned()
    };
    let next = parse(&absolute)?;
    if scheme == "https" && next.scheme_str() == Some("http") {
        return Err(bad("a redirect from https to http".into()));
    }
    Ok(next)
}

pub(crate) fn failed(url: &Uri, what: &str, error: ureq::Error) -> Error {
    let host = url.host().unwrap_or("").to_owned();
    match error {
        ureq::Error::Http(_)
        | ureq::Error::Protocol(_)
        | ureq::Error::BadUri(_)
        | ureq::Error::BodyExceedsLimit(_) => {
            Error::Protocol { what: what.to_owned(), reason: error.to_string() }
        }
        other => Error::Connection { host, reason: other.to_string() },
    }
}

/// An entity tag without quotes and weakness.
pub(crate) fn unquoted(tag: &str) -> &str {
    tag.trim_start_matches("W/").trim_matches('"')
}
