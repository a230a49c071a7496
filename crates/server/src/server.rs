//! A running server: its address, its thread pool, its end.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::{Listener, ListenerExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::error::ServerError;
use crate::keys;
use crate::options::{Options, Served, Warnings};
use crate::patience::PatientListener;
use crate::routes::router;
use crate::tls;

/// Threads that serve connections; the work is done elsewhere.
const CONNECTION_THREADS: usize = 2;
/// Threads for templates, tokenizers and files.
const WORK_THREADS: usize = 8;
/// How long what was answered may take to leave when the server ends.
const LAST_BYTES: Duration = Duration::from_millis(200);

/// A running server. Dropping it ends it without waiting for answers.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<Result<(), ServerError>>>,
    runtime: Option<Runtime>,
}

impl Server {
    /// Listens and serves until stopped.
    pub fn start(served: Served, options: Options) -> Result<Self, ServerError> {
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
        let (grace, write_time) = (options.grace, options.write_time);
        let acceptor = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let app = Arc::new(App::new(served, options)?);
        if app.keys.changeable() {
            runtime.spawn(watch_keys(app.keys.clone(), app.options.warnings.clone()));
        }
        let (stop, stopped) = watch::channel(false);
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(bind)?
        };
        let task = match acceptor {
            None => {
                // Small parts of streams leave at once. A connection that refuses is served all the same.
                let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
                runtime.spawn(run(listener, app, stopped, grace, write_time))
            }
            Some(acceptor) => {
                let listener = {
                    let _inside = runtime.enter();
                    tls::TlsListener::new(listener, acceptor).map_err(bind)?
                };
                runtime.spawn(run(listener, app, stopped, grace, write_time))
            }
        };
        Ok(Self { address, stop, task: Some(task), runtime: Some(runtime) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, lets running answers finish for a while, and ends.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    /// Serves until the user or the system asks for the end, then does as [`Server::stop`].
    pub fn serve_until_signal(mut self) -> Result<(), ServerError> {
        if let (Some(runtime), Some(task)) = (&self.runtime, &mut self.task) {
            let ended = runtime.block_on(async {
                tokio::select! {
                    () = signal() => None,
                    result = task => Some(result),
                }
            });
            if let Some(result) = ended {
                self.task = None;
                return flatten(result);
            }
        }
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        // Nobody listens if it has ended already.
        let _ = self.stop.send(true);
        let result = match (&self.runtime, self.task.take()) {
            (Some(runtime), Some(task)) => flatten(runtime.block_on(task)),
            _ => Ok(()),
        };
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_BYTES);
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_BYTES);
        }
    }
}

fn flatten(result: Result<Result<(), ServerError>, tokio::task::JoinError>) -> Result<(), ServerError> {
    result.unwrap_or_else(|error| Err(ServerError::Stopped { reason: error.to_string() }))
}

async fn run<L: Listener<Addr = SocketAddr>>(
    listener: L,
    app: Arc<App>,
    stopped: watch::Receiver<bool>,
    grace: Duration,
    write_time: Duration,
) -> Result<(), ServerError> {
    let (asked, patient) = (asked(stopped.clone()), asked(stopped));
    let listener = PatientListener { listener, limit: write_time };
    let serving = axum::serve(listener, router(&app)).with_graceful_shutdown(asked);
    tokio::select! {
        result = serving.into_future() => {
            result.map_err(|error| ServerError::Stopped { reason: error.to_string() })
        }
        () = async { patient.await; tokio::time::sleep(grace).await } => Ok(()),
    }
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

/// Waits until the server is asked to stop, or its handle is gone.
async fn asked(mut stopped: watch::Receiver<bool>) {
    // An error means that the handle is gone.
    let _ = stopped.wait_for(|stopped| *stopped).await;
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
