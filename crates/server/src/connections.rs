//! Connections: limits on what comes before a body, and an end that lets running answers finish.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;

/// Headers of a request at most.
const MOST_HEADERS: usize = 100;
/// Bytes of a request before its body at most.
const LARGEST_HEAD: usize = 32 << 10;

/// Serves connections until it is told to stop, and then those that are there until their answers are complete.
/// A connection on which no whole head of a request comes for `patience` is closed, so that idle and slow clients
/// hold none for ever.
pub async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    stopped: watch::Receiver<bool>,
    patience: Duration,
) {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_headers(MOST_HEADERS)
        .max_header_size(LARGEST_HEAD);
    // Each connection holds a receiver, so that the sender knows when none is left.
    let (left, open) = watch::channel(());
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = asked(stopped.clone()) => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = protocol.serve_connection(TokioIo::new(stream), service);
        let (stopped, open) = (stopped.clone(), open.clone());
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            // How a connection ended is its client's business.
            tokio::select! {
                result = connection.as_mut() => drop(result),
                () = asked(stopped) => {
                    connection.as_mut().graceful_shutdown();
                    drop(connection.await);
                }
            }
            drop(open);
        });
    }
    drop((listener, open));
    left.closed().await;
}

/// Waits until the server is asked to stop, or its handle is gone.
pub async fn asked(mut stopped: watch::Receiver<bool>) {
    // An error means that the handle is gone.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
