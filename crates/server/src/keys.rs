//! Keys of clients: those of flags, and those of a file with names, models, ends and limits, which is read again
//! when it changes.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{HeaderMap, header};
use serde::Deserialize;

use crate::app::now;
use crate::clock;
use crate::error::{ApiError, ApiResult, Kind, ServerError};
use crate::options::Options;

/// Largest file of keys in bytes.
const LARGEST: u64 = 4 << 20;
/// How often the file is looked at.
pub const LOOK: Duration = Duration::from_secs(1);

/// One key of the file. Unknown members are refused: a misspelt limit would be none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    key: String,
    models: Option<Vec<String>>,
    expires: Option<String>,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    priority: Option<i32>,
}

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    keys: Vec<Row>,
}

/// A key and what it allows.
pub struct Key {
    /// Names its owner in the audit log.
    pub name: String,
    secret: String,
    /// Models that it opens; `None` for all.
    models: Option<Vec<String>>,
    /// Seconds since 1970 at which it ends.
    expires: Option<u64>,
    requests: Option<u32>,
    tokens: Option<u32>,
    /// That of its requests, whatever they say.
    pub priority: Option<i32>,
    usage: Arc<Usage>,
}

/// What is left of a key's limits.
#[derive(Debug, Default)]
struct Usage {
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

/// Fills with a minute's limit within a minute, and holds no more than that. May be overdrawn.
#[derive(Debug)]
struct Bucket {
    level: f64,
    seen: Instant,
}

impl Bucket {
    /// The bucket now; a new one is full.
    fn filled(place: &mut Option<Self>, limit: u32, now: Instant) -> &mut Self {
        let limit = f64::from(limit);
        let bucket = place.get_or_insert(Self { level: limit, seen: now });
        let since = now.saturating_duration_since(bucket.seen).as_secs_f64();
        bucket.level = (bucket.level + since * limit / 60.0).min(limit);
        bucket.seen = now;
        bucket
    }

    /// Seconds until so much is there; nothing if it is.
    fn wait(&self, wanted: f64, limit: u32) -> Option<u64> {
        let seconds = (wanted - self.level) * 60.0 / f64::from(limit.max(1));
        // A millionth of a second is an error of rounding.
        (seconds > 1e-6).then(|| (seconds - 1e-6).ceil().max(1.0) as u64)
    }
}

impl fmt::Debug for Key {
    /// Without the secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({})", self.name)
    }
}

impl Key {
    /// A key without limits.
    pub fn plain(name: String, secret: String) -> Self {
        let usage = Arc::default();
        Self {
            name,
            secret,
            models: None,
            expires: None,
            requests: None,
            tokens: None,
            priority: None,
            usage,
        }
    }

    /// A key of which a router says name and priority.
    pub fn said(name: String, priority: Option<i32>) -> Self {
        Self { priority, ..Self::plain(name, String::new()) }
    }

    fn from_row(row: Row) -> Result<Self, String> {
        let name = row.name;
        if name.is_empty() || row.key.is_empty() {
            return Err(format!("key '{name}': name and key must not be empty"));
        }
        if row.key.trim() != row.key {
            return Err(format!("key '{name}': blanks around a key cannot be sent"));
        }
        let expires = match row.expires {
            None => None,
            Some(text) => Some(clock::parse(&text).ok_or_else(|| {
                format!("key '{name}': expires '{text}', expected a time such as 2027-01-31T12:00:00Z")
            })?),
        };
        Ok(Self {
            expires,
            models: row.models,
            requests: row.requests_per_minute,
            tokens: row.tokens_per_minute,
            priority: row.priority,
            ..Self::plain(name, row.key)
        })
    }

    fn buckets<T>(&self, act: impl FnOnce(&mut Buckets) -> T) -> T {
        // Numbers are valid after any panic.
        act(&mut self.usage.buckets.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a request, or tells in how many seconds it may come.
    fn admit(&self, now: Instant) -> ApiResult<()> {
        self.buckets(|buckets| {
            if let Some(limit) = self.tokens {
                let bucket = Bucket::filled(&mut buckets.tokens, limit, now);
                // A limit below one would never be reached by a level that is capped by it.
                if let Some(seconds) =
                    bucket.wait(f64::from(limit.min(1)), limit).or((limit == 0).then_some(60))
                {
                    return Err(exceeded(&self.name, limit, "tokens", seconds));
                }
            }
            if let Some(limit) = self.requests {
                let bucket = Bucket::filled(&mut buckets.requests, limit, now);
                if let Some(seconds) = bucket.wait(1.0, limit).or((limit == 0).then_some(60)) {
                    return Err(exceeded(&self.name, limit, "requests", seconds));
                }
                bucket.level -= 1.0;
            }
            Ok(())
        })
    }

    /// Counts tokens of a prompt or an answer. What exceeds the limit is paid by waiting.
    pub fn spend(&self, tokens: u64) {
        if let Some(limit) = self.tokens {
            self.buckets(|buckets| {
                Bucket::filled(&mut buckets.tokens, limit, Instant::now()).level -= tokens as f64;
            });
        }
    }

    /// An error if it does not open this model.
    pub fn permit(&self, model: &str) -> ApiResult<()> {
        match &self.models {
            Some(models) if !models.iter().any(|allowed| allowed == model) => {
                let message = format!("key '{}' may not use the model '{model}'", self.name);
                Err(ApiError::new(Kind::Permission, message))
            }
            _ => Ok(()),
        }
    }
}

fn exceeded(name: &str, limit: u32, what: &str, seconds: u64) -> ApiError {
    let message = format!("key '{name}' may use {limit} {what} a minute; try again in {seconds} s");
    ApiError { retry_after: Some(seconds), ..ApiError::new(Kind::RateLimit, message) }
}

/// When the file was written and how long it is.
type Stamp = (Option<SystemTime>, u64);

struct Source {
    path: PathBuf,
    /// Of what was read last, good or not; `None` if there was no file.
    stamp: Mutex<Option<Stamp>>,
}

/// All keys.
pub struct Keys {
    required: bool,
    plain: Vec<Arc<Key>>,
    file: Option<Source>,
    listed: RwLock<Vec<Arc<Key>>>,
}

impl Keys {
    /// The keys of the options. A file that cannot be used is an error here.
    pub fn open(options: &Options) -> Result<Self, ServerError> {
        let plain = options.api_keys.iter().enumerate();
        let plain = plain.map(|(index, key)| Arc::new(Key::plain(format!("key {}", index + 1), key.clone())));
        let mut keys = Self {
            required: !options.api_keys.is_empty() || options.key_file.is_some(),
            plain: plain.collect(),
            file: None,
            listed: RwLock::default(),
        };
        if let Some(path) = &options.key_file {
            let stamp = stamp(path);
            let fault = |reason| ServerError::Keys { file: path.clone(), reason };
            keys.listed = RwLock::new(read(path, &[]).map_err(fault)?);
            keys.file = Some(Source { path: path.clone(), stamp: Mutex::new(stamp) });
        }
        Ok(keys)
    }

    /// Whether there is a file to look at from time to time.
    pub fn changeable(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file again if it has changed. If it cannot be used, the keys stay as they are, and the reason
    /// comes back once.
    pub fn refresh(&self) -> Result<(), String> {
        let Some(source) = &self.file else { return Ok(()) };
        let mut seen = source.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        let current = stamp(&source.path);
        if *seen == current {
            return Ok(());
        }
        *seen = current;
        let old = self.listed();
        let new = read(&source.path, &old)
            .map_err(|reason| format!("{}: {reason}; the old keys stay", source.path.display()))?;
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Counts tokens that somebody else says a key has used.
    pub fn spend(&self, name: &str, tokens: u64) {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = listed.iter().find(|key| key.name == name) {
            key.spend(tokens);
        }
    }

    fn listed(&self) -> Vec<Arc<Key>> {
        self.listed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The key of a request, if one is needed: it exists, is valid, opens the model (if the request runs it) and
    /// has requests left.
    pub fn check(&self, headers: &HeaderMap, model: Option<&str>) -> ApiResult<Option<Arc<Key>>> {
        if !self.required {
            return Ok(None);
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        // Names of schemes have no case (RFC 9110, 11.1).
        let bearer = bearer
            .and_then(|value| value.split_once(' '))
            .and_then(|(scheme, secret)| scheme.eq_ignore_ascii_case("bearer").then_some(secret));
        let plain = headers.get("x-api-key").and_then(|value| value.to_str().ok());
        let given = [bearer, plain];
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        // Every key is compared, and every byte of it, so that the time taken says nothing.
        for given in given.iter().flatten() {
            for key in self.plain.iter().chain(listed.iter()) {
                if equal(key.secret.as_bytes(), given.trim().as_bytes()) {
                    found = Some(key);
                }
            }
        }
        let key = found.ok_or_else(|| ApiError::new(Kind::Authentication, "Invalid API Key"))?;
        if key.expires.is_some_and(|end| end <= now()) {
            let message = format!("Invalid API Key: key '{}' has expired", key.name);
            return Err(ApiError::new(Kind::Authentication, message));
        }
        if let Some(model) = model {
            key.permit(model)?;
        }
        key.admit(Instant::now())?;
        Ok(Some(key.clone()))
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok(), data.len()))
}

/// Reads the file. Keys that were there before go on with what is left of their limits.
fn read(path: &Path, old: &[Arc<Key>]) -> Result<Vec<Arc<Key>>, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > LARGEST {
        return Err(format!("larger than {LARGEST} bytes"));
    }
    let rows: Rows = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let (mut names, mut secrets) = (HashSet::new(), HashSet::new());
    let mut keys = Vec::with_capacity(rows.keys.len());
    for row in rows.keys {
        let mut key = Key::from_row(row)?;
        if !names.insert(key.name.clone()) {
            return Err(format!("two keys are named '{}'", key.name));
        }
        if !secrets.insert(key.secret.clone()) {
            return Err(format!("key '{}' equals another one", key.name));
        }
        if let Some(before) = old.iter().find(|before| before.name == key.name) {
            key.usage = before.usage.clone();
        }
        keys.push(Arc::new(key));
    }
    Ok(keys)
}

/// Compares in a time that depends on the lengths only.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn keys_of_flags() {
        let options = Options { api_keys: vec!["one".into(), "two".into()], ..Options::default() };
        let keys = Keys::open(&options).unwrap();
        let check = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            keys.check(&headers, Some("any")).is_ok_and(|key| key.is_some())
        };
        assert!(check("authorization", "Bearer two"));
        assert!(check("authorization", "bearer two"), "names of schemes have no case");
        assert!(!check("authorization", "Basic two"));
        assert!(check("x-api-key", "one"));
        assert!(!check("authorization", "two"));
        assert!(!check("authorization", "Bearer twos"));
        assert!(!check("x-api-key", ""));
        let none = Keys::open(&Options::default()).unwrap();
        assert!(none.check(&HeaderMap::new(), None).is_ok_and(|key| key.is_none()));
    }

    #[test]
    fn limits_fill_again() {
        let start = Instant::now();
        let key = Key { requests: Some(2), tokens: Some(60), ..Key::plain("a".into(), "b".into()) };
        let after =
            |seconds: u64| key.admit(start + Duration::from_secs(seconds)).map_err(|error| error.retry_after);
        assert_eq!((after(0), after(0), after(0)), (Ok(()), Ok(()), Err(Some(30))));
        assert_eq!((after(29), after(30), after(31)), (Err(Some(1)), Ok(()), Err(Some(29))));
        let owing = Key { requests: None, ..key };
        owing.spend(100);
        let wait = owing.admit(Instant::now()).unwrap_err().retry_after.unwrap();
        assert!((40..=42).contains(&wait), "{wait}");
        assert!(owing.admit(Instant::now() + Duration::from_secs(43)).is_ok());
        let closed = Key { requests: Some(0), ..Key::plain("a".into(), "b".into()) };
        assert!(closed.admit(start + Duration::from_secs(600)).is_err());
    }

    #[test]
    fn files_that_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        for (text, part) in [
            ("", "EOF"),
            ("[]", "expected struct"),
            (r#"{"keys":[{"name":"a"}]}"#, "missing field `key`"),
            (r#"{"keys":[{"name":"a","key":""}]}"#, "must not be empty"),
            (r#"{"keys":[{"name":"a","key":"k","expire":"x"}]}"#, "unknown field"),
            (r#"{"keys":[{"name":"a","key":"k","expires":"tomorrow"}]}"#, "expected a time"),
            (r#"{"keys":[{"name":"a","key":"k"},{"name":"a","key":"l"}]}"#, "two keys are named 'a'"),
            (r#"{"keys":[{"name":"a","key":"k"},{"name":"b","key":"k"}]}"#, "equals another"),
            (r#"{"keys":[{"name":"a","key":"k","requests_per_minute":-1}]}"#, "invalid value"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path, &[]).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let missing = Options { key_file: Some(folder.path().join("none")), ..Options::default() };
        assert!(matches!(Keys::open(&missing), Err(ServerError::Keys { .. })));
    }
}
