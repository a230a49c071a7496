//! Connections whose clients must take what is sent: one that does not is closed after a while.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that a client must take per second to be forgiven a second of waiting.
const RATE: f64 = 1024.0;

/// Hands out connections that lose their patience.
pub struct PatientListener<L> {
    /// Where they come from.
    pub listener: L,
    /// How long what is written may wait for the client.
    pub limit: Duration,
}

impl<L: Listener> Listener for PatientListener<L> {
    type Io = Patient<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = self.listener.accept().await;
        (Patient::new(stream, self.limit), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection. Time in which a write waits adds up, and bytes that are taken reduce it; above the limit writing
/// fails, so that a client that takes a byte now and then cannot hold a connection for ever.
pub struct Patient<S> {
    stream: S,
    limit: Duration,
    waited: Duration,
    /// Since when a write waits, and what wakes it.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> Patient<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waited: Duration::ZERO, waiting: None }
    }

    /// So many bytes could be written.
    fn moved(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        self.waited = self.waited.saturating_sub(Duration::from_secs_f64(bytes as f64 / RATE));
    }

    /// Nothing can be written now.
    fn stalled<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let left = self.limit.saturating_sub(self.waited);
        let (_, timer) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take what is sent")))
    }

    fn done<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        match result {
            Poll::Pending => self.stalled(context),
            Poll::Ready(Ok(value)) => {
                self.moved(bytes(&value));
                Poll::Ready(Ok(value))
            }
            error => error,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.done(context, result, |count| *count)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.done(context, result, |count| *count)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.done(context, result, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.done(context, result, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::runtime::Builder;

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// Writes so many bytes to a client that takes so many each time, after a pause; whether all came.
    async fn write(bytes: usize, taken: usize, pause: Duration, limit: Duration) -> io::Result<()> {
        let (near, mut far) = duplex(64);
        let mut patient = Patient::new(near, limit);
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; taken.max(1)];
            while taken == 0 || far.read(&mut buffer).await.is_ok_and(|count| count > 0) {
                tokio::time::sleep(pause).await;
            }
        });
        let result = patient.write_all(&vec![7; bytes]).await;
        reader.abort();
        result
    }

    #[test]
    fn who_takes_nothing_or_too_little_is_left() {
        let (short, limit) = (Duration::from_millis(5), Duration::from_millis(200));
        run(async {
            write(20_000, 64, short, limit).await.unwrap();
            for taken in [0, 1] {
                let start = Instant::now();
                // A byte every five milliseconds would take 100 seconds.
                let error = write(20_000, taken, short, limit).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                assert!(start.elapsed() >= limit && start.elapsed() < 20 * limit, "{:?}", start.elapsed());
            }
            // What waits for nobody is never late.
            let (near, _far) = duplex(64);
            let mut patient = Patient::new(near, Duration::ZERO);
            poll_fn(|context| Pin::new(&mut patient).poll_flush(context)).await.unwrap();
        });
    }
}
