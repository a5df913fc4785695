//! One connection from its first byte to its last.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::ServerOptions;
use super::access::Access;
use crate::api::Api;

/// How much of a body is handed out at a time, in bytes. What was handed out and is not sent yet
/// counts as sent, so it stays small.
const PIECE: usize = 64 << 10;

/// What all connections share.
pub(super) struct Connections {
    pub(super) api: Arc<Api>,
    pub(super) access: Access,
    pub(super) options: ServerOptions,
}

/// When the exchange under way must be over; `None` between exchanges.
type Deadline = watch::Sender<Option<Instant>>;

impl Connections {
    pub(super) fn warn(&self, message: &str) {
        if let Some(warn) = &self.options.warn {
            warn(message);
        }
    }

    /// Serves until the client or a time limit ends it, or `stop` does after the exchange under way.
    pub(super) async fn serve(&self, stream: TcpStream, mut stop: watch::Receiver<bool>) {
        // Only a matter of speed.
        let _ = stream.set_nodelay(true);
        let (deadline, watched) = watch::channel(None);
        let service = service_fn(|request| self.exchange(request, deadline.clone()));
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.options.header_timeout)
                .max_buf_size(self.options.max_header.max(8192))
                .serve_connection(TokioIo::new(stream), service)
        );
        let mut overdue = pin!(overdue(watched));
        let mut stopping = false;
        loop {
            tokio::select! {
                // How it ended is the client's affair.
                _ = connection.as_mut() => return,
                () = overdue.as_mut() => return,
                _ = stop.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    async fn exchange(
        &self,
        request: Request<Incoming>,
        deadline: Deadline,
    ) -> Result<Response<Shared>, Infallible> {
        deadline.send_replace(Some(Instant::now() + self.options.exchange_timeout));
        let (head, _) = request.into_parts();
        let response = self.respond(&head).await;
        Ok(response.map(|rest| Shared { rest, deadline }))
    }
}

/// Completes when an exchange is not over by its deadline.
async fn overdue(mut deadline: watch::Receiver<Option<Instant>>) {
    loop {
        let until = *deadline.borrow_and_update();
        let passed = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = passed => return,
            changed = deadline.changed() => if changed.is_err() {
                return;
            }
        }
    }
}

/// A body that many responses share. Its end is the end of the exchange.
pub(super) struct Shared {
    rest: Bytes,
    deadline: Deadline,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.deadline.send_replace(None);
    }
}

impl Body for Shared {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
