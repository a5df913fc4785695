//! Serves one connection, from its first to its last byte.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use super::ServerOptions;
use super::access::Access;
use super::registry::{Connection, Phase};
use super::respond::Rest;
use super::service::{Body as Reply, Refusal, SMALL_BODY, Service};

/// Maximum bytes of a body to pass to hyper at once. A piece counts as sent although hyper may still buffer it, so
/// pieces are small.
const PIECE: usize = 64 << 10;

/// Admits one large request body at a time, because it occupies memory until it is parsed.
static LARGE_BODY: Semaphore = Semaphore::const_new(1);

/// State shared by all connections.
pub(super) struct Connections<S> {
    pub(super) service: Arc<S>,
    pub(super) access: Access,
    pub(super) options: ServerOptions,
}

/// Deadline of the current exchange; `None` between exchanges.
type Deadline = watch::Sender<Option<Instant>>;

impl<S: Service> Connections<S> {
    pub(super) fn warn(&self, message: &str) {
        if let Some(warn) = &self.options.warn {
            warn(message);
        }
    }

    /// Serves until the client or a time limit ends the connection, or until `stop`, after the current exchange.
    /// `local` tells whether the client is on this machine.
    pub(super) async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        local: bool,
        registered: Arc<Connection>,
        mut stop: watch::Receiver<bool>,
    ) {
        let (deadline, watched) = watch::channel(None);
        let service = service_fn(|request| {
            let under_way = UnderWay {
                deadline: deadline.clone(),
                connection: Arc::clone(&registered),
            };
            self.exchange(request, local, under_way)
        });
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
            // A request may have arrived without having been read. While the task yields, the runtime learns of it, and
            // then `connection` reads it first.
            let told_to_go = async {
                registered.told_to_go().await;
                yield_now().await;
            };
            tokio::select! {
                biased;
                // The result is ignored: the client determines how the connection ends.
                _ = connection.as_mut() => return,
                () = overdue.as_mut() => return,
                () = told_to_go => if registered.is_going() {
                    return;
                },
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
        local: bool,
        under_way: UnderWay,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let limit = self.options.exchange_timeout;
        let deadline = Some(Instant::now() + limit);
        under_way.set_deadline(deadline);
        let (head, body) = request.into_parts();
        let arrived = Instant::now();
        // Read before a slot is taken: a request is complete only when its body has arrived.
        let body = self.body(&head, body, local).await;
        let response = match self.turn(&head, &under_way.connection).await {
            true => {
                let (body, _large) = match body {
                    Ok((body, large)) => (Ok(body), large),
                    Err(refusal) => (Err(refusal), None),
                };
                let rest = body.map(|body| Rest { body, local });
                self.respond(&head, rest).await
            }
            false => self.too_many(&head),
        };
        let (method, path, status) = (&head.method, head.uri.path(), response.status().as_u16());
        tracing::debug!(%method, path, status, took = ?arrived.elapsed(), "answered");
        under_way.connection.enter(match response.body() {
            Reply::Live(_) => Phase::Live,
            Reply::Whole(_) | Reply::Two(..) => Phase::Sending,
        });
        Ok(response.map(|rest| ResponseBody {
            rest,
            limit,
            under_way,
        }))
    }

    /// Waits until the request may be answered; returns false if it may not be answered.
    async fn turn(&self, head: &Parts, connection: &Connection) -> bool {
        let vital = S::VITAL.contains(&head.uri.path());
        let limit = self.options.answer_timeout;
        let began = timeout(limit, connection.begin(vital)).await;
        began.unwrap_or(false)
    }

    /// The body of a request, if the route uses one, and the permit for a large one.
    async fn body(
        &self,
        head: &Parts,
        body: Incoming,
        local: bool,
    ) -> Result<(Bytes, Option<SemaphorePermit<'static>>), Refusal> {
        let Some(limit) = self.largest_body(head) else {
            return Ok((Bytes::new(), None));
        };
        let large = match limit > SMALL_BODY {
            // The route will refuse a request from another machine; do not read the body.
            true if !(local && self.is_from_here(head)) => return Ok((Bytes::new(), None)),
            true => Some(LARGE_BODY.try_acquire().map_err(|_| {
                Refusal::busy("another large request is being read: try again later")
            })?),
            false => None,
        };
        match Limited::new(body, limit).collect().await {
            Ok(body) => Ok((body.to_bytes(), large)),
            Err(e) if e.is::<LengthLimitError>() => {
                let message = format!("the body is larger than {limit} bytes");
                Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, message))
            }
            Err(e) => {
                let message = format!("cannot read the request body: {e}");
                Err(Refusal(StatusCode::BAD_REQUEST, message))
            }
        }
    }
}

/// Completes when an exchange exceeds its deadline.
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

/// An exchange, from the end of the request's header to the end of the reply.
struct UnderWay {
    deadline: Deadline,
    connection: Arc<Connection>,
}

impl UnderWay {
    /// Sets the deadline. The task that waits for it is the one that polls the body, so an unchanged deadline must not
    /// wake it: the task would run without pause while a reply waits for its next piece.
    fn set_deadline(&self, until: Option<Instant>) {
        self.deadline.send_if_modified(|deadline| {
            let before = std::mem::replace(deadline, until);
            before != until
        });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.set_deadline(None);
        self.connection.enter(Phase::Idle);
    }
}

/// The body of a response. Dropping it ends the exchange.
pub(super) struct ResponseBody {
    rest: Reply,
    limit: Duration,
    under_way: UnderWay,
}

type Piece = Option<Result<Frame<Bytes>, Infallible>>;

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Piece> {
        match &mut self.rest {
            Reply::Two(first, second) if first.is_empty() => {
                self.rest = Reply::Whole(std::mem::take(second));
                self.poll_frame(cx)
            }
            Reply::Two(rest, _) => {
                let piece = rest.len().min(PIECE);
                Poll::Ready(Some(Ok(Frame::data(rest.split_to(piece)))))
            }
            Reply::Whole(rest) if rest.is_empty() => Poll::Ready(None),
            Reply::Whole(rest) => {
                let piece = rest.len().min(PIECE);
                Poll::Ready(Some(Ok(Frame::data(rest.split_to(piece)))))
            }
            Reply::Live(pieces) => match pieces.poll_recv(cx) {
                Poll::Ready(piece) => {
                    // The time limit applies to receiving this piece; the client is not responsible for the wait for
                    // the next one.
                    self.under_way
                        .set_deadline(Some(Instant::now() + self.limit));
                    Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
                }
                Poll::Pending => {
                    self.under_way.set_deadline(None);
                    Poll::Pending
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.rest, Reply::Whole(rest) if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            Reply::Whole(rest) => SizeHint::with_exact(rest.len() as u64),
            Reply::Two(first, second) => SizeHint::with_exact((first.len() + second.len()) as u64),
            Reply::Live(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests;
