//! TLS: connections whose handshakes are done aside, so that a slow client keeps nobody waiting.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::error::ServerError;
use crate::options::Tls;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Connections that are ready and wait to be served.
const READY: usize = 64;

/// Reads key and certificate.
pub fn acceptor(tls: &Tls) -> Result<TlsAcceptor, ServerError> {
    let fault = |file: &Path, reason: String| ServerError::Tls { file: file.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(&tls.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fault(&tls.certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(fault(&tls.certificate, "there is no certificate in it".into()));
    }
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| fault(&tls.key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(chain, key))
        .map_err(|error| fault(&tls.certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Hands out connections whose handshake is done.
pub struct TlsListener {
    address: SocketAddr,
    ready: Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    /// Takes connections from a listener until this is dropped.
    pub fn new(listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, ready) = channel(READY);
        tokio::spawn(async move {
            loop {
                let (stream, peer) = tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok(accepted) => accepted,
                        Err(_) => {
                            // Too many open files, or a client that left: both pass.
                            tokio::time::sleep(Duration::from_millis(50)).await;
                            continue;
                        }
                    },
                    () = sender.closed() => return,
                };
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    // A connection that refuses small parts at once is served all the same.
                    drop(stream.set_nodelay(true));
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        // Nobody takes it any more when the server ends.
                        let _ = sender.send((stream, peer)).await;
                    }
                });
            }
        });
        Ok(Self { address, ready })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The task ends only with this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}
