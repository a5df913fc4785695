//! `/v2/events`: live totals as Server-Sent Events.
//!
//! Each event is built once for all clients. Slow clients miss events.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, watch};
use tokio::time::sleep;

use super::reply::EVENTS;
use super::request::RequestContext;
use super::{Api, ApiError, Body, BoxFuture, Endpoint, Reply, Request, summary};
use crate::http::series::{FIGURES, Sample};

/// Maximum number of connected clients.
pub(super) const CLIENTS: usize = 32;

/// Events buffered per client; a slower client misses the oldest ones.
const WAITING: usize = 8;

/// Interval of keep-alive messages on an idle stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The connected clients.
pub(super) struct Events {
    send: broadcast::Sender<Bytes>,
    places: Arc<Semaphore>,
    closed: watch::Sender<bool>,
    /// The newest summary event and the number of its report.
    newest: Mutex<Option<(u64, Bytes)>>,
}

impl Default for Events {
    fn default() -> Events {
        Events {
            send: broadcast::channel(WAITING).0,
            places: Arc::new(Semaphore::new(CLIENTS)),
            closed: watch::channel(false).0,
            newest: Mutex::default(),
        }
    }
}

impl Events {
    /// Whether no client is connected.
    pub(super) fn nobody(&self) -> bool {
        self.send.receiver_count() == 0
    }

    /// Number of connected clients.
    pub(super) fn clients(&self) -> usize {
        CLIENTS - self.places.available_permits()
    }

    /// Whether the newest summary is of this report.
    pub(super) fn has(&self, report: u64) -> bool {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.as_ref().is_some_and(|(number, _)| *number == report)
    }

    /// Sends a sample to all clients.
    pub(super) fn sample(&self, sample: &Sample) {
        let values = FIGURES.iter().zip(sample.values);
        let values = values.filter(|(figure, value)| !figure.optional || value.is_some());
        let values = values.map(|(figure, value)| (figure.name.to_owned(), value.into()));
        let mut data: Map<String, Value> = values.collect();
        data.insert("time".to_owned(), sample.at.into());
        self.tell(event("sample", Value::from(data).to_string().as_bytes()));
    }

    fn tell(&self, event: Bytes) {
        // Fails only if no client is connected.
        let _ = self.send.send(event);
    }

    /// Ends all current and future streams.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }
}

/// Formats an event; `data` contains no line break.
fn event(name: &str, data: &[u8]) -> Bytes {
    let mut event = format!("event: {name}\ndata: ").into_bytes();
    event.extend_from_slice(data);
    event.extend_from_slice(b"\n\n");
    event.into()
}

impl Api {
    /// Makes a report, and sends its summary to all clients if the report is new.
    pub(super) async fn publish_summary(&self) {
        if let Some((event, true)) = self.newest_summary().await {
            self.events.tell(event);
        }
    }

    /// The summary event of a new request for a report, and whether the report is new. `None` if there is no report.
    async fn newest_summary(&self) -> Option<(Bytes, bool)> {
        let report = self.provider().profile().await.ok()?;
        let mut newest = match self.events.newest.lock() {
            Ok(newest) => newest,
            Err(poisoned) => poisoned.into_inner(),
        };
        match newest.as_ref() {
            Some((number, event)) if *number >= report.sequence => Some((event.clone(), false)),
            _ => {
                let made = event("summary", &summary::json(&report)?);
                *newest = Some((report.sequence, made.clone()));
                Some((made, true))
            }
        }
    }
}

/// `/v2/events`.
pub(super) fn read(_: &RequestContext<'_>) -> Result<Request, ApiError> {
    Ok(Arc::new(Listen))
}

#[derive(Debug)]
struct Listen;

impl Endpoint for Listen {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            let place = Arc::clone(&api.events.places).try_acquire_owned();
            let place = place.map_err(|_| {
                ApiError::Busy(format!(
                    "all {CLIENTS} event streams are in use: close one, or poll /v2/summary instead"
                ))
            })?;
            let heard = api.events.send.subscribe();
            let closed = api.events.closed.subscribe();
            let (send, pieces) = mpsc::channel(1);
            let first = api.newest_summary().await;
            let first = first.map_or_else(|| Bytes::from_static(b": no report yet\n\n"), |f| f.0);
            tokio::spawn(pass_on(first, heard, closed, send, place));
            Ok(Reply {
                status: 200,
                content_type: EVENTS,
                file_name: None,
                header: None,
                body: Body::Live(pieces),
            })
        })
    }
}

/// Forwards events until the client disconnects or the server shuts down.
async fn pass_on(
    first: Bytes,
    mut heard: broadcast::Receiver<Bytes>,
    mut closed: watch::Receiver<bool>,
    send: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    let mut next = first;
    loop {
        tokio::select! {
            sent = send.send(next) => if sent.is_err() {
                return;
            },
            _ = closed.wait_for(|closed| *closed) => return,
        }
        next = tokio::select! {
            event = next_event(&mut heard) => match event {
                Some(event) => event,
                None => return,
            },
            () = sleep(HEARTBEAT) => Bytes::from_static(b": still here\n\n"),
            () = send.closed() => return,
            _ = closed.wait_for(|closed| *closed) => return,
        };
    }
}

/// The next event; skips missed events.
async fn next_event(heard: &mut broadcast::Receiver<Bytes>) -> Option<Bytes> {
    loop {
        match heard.recv().await {
            Ok(event) => return Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return None,
        }
    }
}
