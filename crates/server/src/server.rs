//! A running server: its address, its thread pool, its end.

use std::future::Future;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::serve::{Listener, ListenerExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::{App, Front};
use crate::audit::Audit;
use crate::connections::{self, asked};
use crate::error::ServerError;
use crate::keys;
use crate::many::{self, Many, Offer};
use crate::options::{Options, Served, Warnings};
use crate::patience::PatientListener;
use crate::report::Report;
use crate::routes::router;
use crate::tls;

/// Threads that serve connections; the work is done elsewhere.
const CONNECTION_THREADS: usize = 2;
/// Threads for templates, tokenizers and files.
const WORK_THREADS: usize = 8;
/// How long what was answered may take to leave when the server ends.
const LAST_BYTES: std::time::Duration = std::time::Duration::from_millis(200);

/// What is left to do when nobody is served any more.
type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A running server. Dropping it ends it without waiting for answers.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
    audit: Option<Arc<Audit>>,
}

/// Asks a server to stop, from anywhere.
#[derive(Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// The server takes no more requests, lets running answers finish for a while, and ends.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Listens and serves a model until stopped.
    pub fn start(served: Served, options: Options) -> Result<Self, ServerError> {
        Self::launch(options, |front| {
            let app = Arc::new(App::new(front, served));
            tokio::spawn(app.served.engine.clone().nap());
            (router(&app), Box::pin(async {}))
        })
    }

    /// Listens and serves many models, each in a process of its own.
    pub fn start_many(offer: Offer, options: Options) -> Result<Self, ServerError> {
        let entries = Many::entries(&offer).map_err(|reason| ServerError::Models { reason })?;
        if entries.is_empty() {
            options.warnings.say("there is no model to serve yet; GET /models?reload=1 looks again");
        }
        Self::launch(options, move |front| {
            let models = Many::new(front, offer, entries);
            models.begin();
            let router = many::router(&models);
            (router, Box::pin(async move { models.close().await }))
        })
    }

    fn launch(
        options: Options,
        make: impl FnOnce(Arc<Front>) -> (Router, Closing),
    ) -> Result<Self, ServerError> {
        let (host, port) = (options.host.clone(), options.port);
        let bind = |reason| ServerError::Bind { host: host.clone(), port, reason };
        let addresses: Vec<SocketAddr> = (host.as_str(), port).to_socket_addrs().map_err(bind)?.collect();
        let guarded =
            options.allow_unauthenticated || !options.api_keys.is_empty() || options.key_file.is_some();
        if !guarded && !addresses.iter().all(|address| address.ip().is_loopback()) {
            return Err(ServerError::Open { host });
        }
        let listener = TcpListener::bind(addresses.as_slice()).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(CONNECTION_THREADS)
            .max_blocking_threads(WORK_THREADS)
            .thread_name("server")
            .enable_all()
            .build()
            .map_err(|reason| ServerError::Runtime { reason })?;
        let acceptor = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let front = Front::new(options)?;
        let inside = runtime.enter();
        if front.keys.changeable() {
            tokio::spawn(watch_keys(front.keys.clone(), front.options.warnings.clone()));
        }
        let (stop, stopped) = watch::channel(false);
        let listener = tokio::net::TcpListener::from_std(listener).map_err(bind)?;
        let routed = front.options.routed.clone();
        let audit = front.audit.clone();
        let (router, closing) = make(front.clone());
        let task = match acceptor {
            None => {
                // Small parts of streams leave at once. A connection that refuses is served all the same.
                let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
                tokio::spawn(run(listener, router, front, stopped, closing))
            }
            Some(acceptor) => {
                let listener = tls::TlsListener::new(listener, acceptor).map_err(bind)?;
                tokio::spawn(run(listener, router, front, stopped, closing))
            }
        };
        drop(inside);
        if let Some(reports) = routed {
            reports.say(&Report::Listening(address));
        }
        Ok(Self { address, stop, task: Some(task), runtime: Some(runtime), audit })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks it to stop, from anywhere.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Takes no more requests, lets running answers finish for a while, and ends.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    /// Serves until the user, the system or a [`Stopper`] asks for the end, then does as [`Server::stop`].
    pub fn serve_until_signal(mut self) -> Result<(), ServerError> {
        if let (Some(runtime), Some(task)) = (&self.runtime, &mut self.task) {
            let stopped = self.stop.subscribe();
            let ended = runtime.block_on(async {
                tokio::select! {
                    () = signal() => None,
                    () = asked(stopped) => None,
                    result = task => Some(result),
                }
            });
            if let Some(result) = ended {
                self.task = None;
                self.close();
                return flatten(result);
            }
        }
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        self.stop.send_replace(true);
        let result = match (&self.runtime, self.task.take()) {
            (Some(runtime), Some(task)) => flatten(runtime.block_on(task)),
            _ => Ok(()),
        };
        self.close();
        result
    }

    /// Ends what is still going on. The log is complete then, also if something does not end in time.
    fn close(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_BYTES);
        }
        if let Some(audit) = self.audit.take() {
            audit.close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn flatten(result: Result<(), tokio::task::JoinError>) -> Result<(), ServerError> {
    result.map_err(|error| ServerError::Stopped { reason: error.to_string() })
}

/// Serves until asked to stop, then what was begun for a while.
async fn run<L: Listener<Addr = SocketAddr>>(
    listener: L,
    router: Router,
    front: Arc<Front>,
    stopped: watch::Receiver<bool>,
    closing: Closing,
) {
    let options = &front.options;
    let listener = PatientListener { listener, limit: options.write_time };
    let patient = asked(stopped.clone());
    tokio::select! {
        () = connections::serve(listener, router, stopped, options.head_time) => {}
        () = async { patient.await; tokio::time::sleep(options.grace).await } => {}
    }
    closing.await;
}

/// Looks at the file of keys from time to time.
async fn watch_keys(all: Arc<keys::Keys>, warnings: Warnings) {
    loop {
        tokio::time::sleep(keys::LOOK).await;
        let all = all.clone();
        if let Ok(Err(reason)) = tokio::task::spawn_blocking(move || all.refresh()).await {
            warnings.say(&format!("API keys: {reason}"));
        }
    }
}

/// Waits for Ctrl-C or for the system's wish that the program ends.
async fn signal() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // Without the signal there is nothing to wait for.
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let terminate = async {
            match signal(SignalKind::terminate()) {
                Ok(mut stream) => drop(stream.recv().await),
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! { () = interrupt => {}, () = terminate => {} }
    }
    #[cfg(not(unix))]
    interrupt.await;
}
