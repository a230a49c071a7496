//! A small HTTP server for tests: one request per connection, answers from a function.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// What the client sent.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub range: Option<String>,
    pub if_range: Option<String>,
    pub authorization: Option<String>,
}

/// What the server answers; `cut` closes the connection after so many bytes of the body.
#[derive(Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub cut: Option<usize>,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn cut(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    /// The body or the part of it that is asked for.
    pub fn ranged(body: &[u8], seen: &Seen) -> Self {
        let start = seen
            .range
            .as_ref()
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        match start {
            None => Self::new(200, body),
            Some(start) if start >= body.len() => Self::new(416, ""),
            Some(start) => Self::new(206, &body[start..])
                .header("Content-Range", format!("bytes {start}-{}/{}", body.len() - 1, body.len())),
        }
    }
}

pub struct Server {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Seen) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    continue;
                }
                let path = line.split_whitespace().nth(1).unwrap_or("").to_owned();
                let mut request = Seen { path, range: None, if_range: None, authorization: None };
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                        break;
                    }
                    let (name, value) = line.split_once(':').unwrap();
                    let value = Some(value.trim().to_owned());
                    match name.to_ascii_lowercase().as_str() {
                        "range" => request.range = value,
                        "if-range" => request.if_range = value,
                        "authorization" => request.authorization = value,
                        _ => {}
                    }
                }
                log.lock().unwrap().push(request.clone());
                let reply = answer(&request);
                let mut head = format!(
                    "HTTP/1.1 {} X\r\nConnection: close\r\nContent-Length: {}\r\n",
                    reply.status,
                    reply.body.len()
                );
                for (name, value) in &reply.headers {
                    head.push_str(&format!("{name}: {value}\r\n"));
                }
                head.push_str("\r\n");
                let body = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
                // A client that has seen enough may have gone.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
            }
        });
        Self { url, seen }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}
