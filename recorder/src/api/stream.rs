//! `/v4/stream`: new messages and lines of the log as Server-Sent Events.
//!
//! Nothing waits for a client: one that reads too slowly, or comes back too late, is told how many records it has missed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use memprof_server::{Body, Reply};
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::Shared;
use super::failure::Failure;
use super::filters::{self, Form, STREAM};
use super::items::{LogItem, MessageItem};
use super::nodes::ApiNode;
use super::peers::Peers;
use super::query::{Query, Unknown};
use super::reply::internal;
use super::rows::Question;
use super::v4;
use crate::store::{Direction, Found, Heads, LogQuery, MessageQuery, Reader};

/// Maximum number of clients.
pub(super) const MAX_CLIENTS: usize = 32;

/// Records that a client may be behind; it misses what is older.
const MAX_BEHIND: u64 = 10_000;

/// Messages and lines that are read at once.
const BATCH: Heads = Heads {
    messages: 256,
    logs: 32,
};

/// Size of the pieces that are sent, in bytes.
const PIECE: usize = 32 << 10;

/// Pieces that wait for a client.
const PIECES: usize = 4;

/// Interval of comments that keep the connection open while nothing happens.
const ALIVE: Duration = Duration::from_secs(15);

/// What a client has missed.
#[derive(Serialize)]
struct Lost {
    messages: u64,
    logs: u64,
}

/// A client of the stream.
struct Client {
    shared: Arc<Shared>,
    node: ApiNode,
    messages: Option<MessageQuery>,
    logs: Option<LogQuery>,
    /// The next message and the next line.
    at: Heads,
    pieces: mpsc::Sender<Bytes>,
}

/// Begins a stream.
pub(super) fn answer(
    shared: &Arc<Shared>,
    query: &str,
    headers: &HeaderMap,
) -> Result<Reply, Failure> {
    let query = Query::read(query, STREAM, Unknown::Refused)?;
    let node = v4::node(shared, &query)?.clone();
    let messages = MessageQuery {
        direction: Direction::Forward,
        ..filters::messages(&query, Form::New)?
    };
    let logs = LogQuery {
        direction: Direction::Forward,
        ..filters::logs(&query, Form::New)?
    };
    let wants = |name, usual| Ok::<_, Failure>(query.flag(&[name])?.unwrap_or(usual));
    let permit = Arc::clone(&shared.clients)
        .try_acquire_owned()
        .map_err(|_| Failure::Busy("too many clients follow the stream: try again later"))?;
    let (send, pieces) = mpsc::channel(PIECES);
    let heads = node.store.subscribe();
    let newest = *heads.borrow();
    let client = Client {
        shared: Arc::clone(shared),
        messages: wants("messages", true)?.then_some(messages),
        logs: wants("logs", false)?.then_some(logs),
        at: last_event(headers).map_or(newest, |last| Heads {
            messages: last.messages.min(newest.messages),
            logs: last.logs.min(newest.logs),
        }),
        node,
        pieces: send,
    };
    tokio::spawn(async move {
        client.follow(heads).await;
        drop(permit);
    });
    Ok(Reply {
        body: Body::Live(pieces),
        ..Reply::new("text/event-stream", "")
    })
}

/// The records that follow the last event that the client has received.
fn last_event(headers: &HeaderMap) -> Option<Heads> {
    let (messages, logs) = headers
        .get("last-event-id")?
        .to_str()
        .ok()?
        .split_once('-')?;
    Some(Heads {
        messages: messages.parse().ok()?,
        logs: logs.parse().ok()?,
    })
}

impl Client {
    /// Sends what is new until the client goes or the recorder stops. After a failure the stream ends, and the client may come back.
    async fn follow(mut self, heads: watch::Receiver<Heads>) {
        let mut closed = self.shared.closed.subscribe();
        let pieces = self.pieces.clone();
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => {}
            () = pieces.closed() => {}
            _ = self.send_all(heads) => {}
        }
    }

    async fn send_all(&mut self, mut heads: watch::Receiver<Heads>) -> Result<(), Failure> {
        // So that a client can come back before its first event.
        self.send(format!("{}\n", self.id()).into()).await?;
        loop {
            let newest = *heads.borrow_and_update();
            self.skip(newest).await?;
            self.send_messages(newest.messages).await?;
            self.send_logs(newest.logs).await?;
            match timeout(ALIVE, heads.changed()).await {
                Ok(changed) => changed.map_err(internal)?,
                Err(_) => self.send(Bytes::from_static(b": alive\n\n")).await?,
            }
        }
    }

    /// The line that says which records follow.
    fn id(&self) -> String {
        id(self.at.messages, self.at.logs)
    }

    async fn send(&self, piece: Bytes) -> Result<(), Failure> {
        self.pieces.send(piece).await.map_err(internal)
    }

    /// Skips what is too old or not stored any more, and says how many records that are.
    async fn skip(&mut self, newest: Heads) -> Result<(), Failure> {
        if newest.messages.saturating_sub(self.at.messages) <= BATCH.messages
            && newest.logs.saturating_sub(self.at.logs) <= BATCH.logs
        {
            return Ok(());
        }
        let ask = |reader: &Reader| Ok(reader.counts()?);
        let stored = self.shared.nodes.ask(&self.node, ask).await?;
        let behind = |at: u64, newest: u64, first: u64| {
            let oldest = newest.saturating_sub(MAX_BEHIND).max(first.min(newest));
            oldest.saturating_sub(at)
        };
        let lost = Lost {
            messages: behind(self.at.messages, newest.messages, stored.messages.0),
            logs: behind(self.at.logs, newest.logs, stored.logs.0),
        };
        self.at.messages += lost.messages;
        self.at.logs += lost.logs;
        let lost = Lost {
            messages: self.messages.as_ref().map_or(0, |_| lost.messages),
            logs: self.logs.as_ref().map_or(0, |_| lost.logs),
        };
        if lost.messages + lost.logs > 0 {
            let mut text = Vec::new();
            event(&mut text, "lost", &self.id(), &lost)?;
            self.send(text.into()).await?;
        }
        Ok(())
    }

    async fn send_messages(&mut self, newest: u64) -> Result<(), Failure> {
        while let Some(question) = self.messages.clone()
            && self.at.messages < newest
        {
            let Heads { messages, logs } = self.at;
            let ask = move |reader: &Reader| {
                let mut peers = Peers::new(reader);
                batch(
                    reader,
                    question,
                    (messages, newest),
                    BATCH.messages,
                    |row, next, out| {
                        let item = MessageItem::new(row, &mut peers);
                        event(out, "message", &id(next, logs), &item)
                    },
                )
            };
            let (events, next) = self.shared.nodes.ask(&self.node, ask).await?;
            self.at.messages = next;
            self.send_events(events).await?;
        }
        self.at.messages = newest.max(self.at.messages);
        Ok(())
    }

    async fn send_logs(&mut self, newest: u64) -> Result<(), Failure> {
        while let Some(question) = self.logs.clone()
            && self.at.logs < newest
        {
            let Heads { messages, logs } = self.at;
            let ask = move |reader: &Reader| {
                batch(
                    reader,
                    question,
                    (logs, newest),
                    BATCH.logs,
                    |row, next, out| event(out, "log", &id(messages, next), &LogItem::from(row)),
                )
            };
            let (events, next) = self.shared.nodes.ask(&self.node, ask).await?;
            self.at.logs = next;
            self.send_events(events).await?;
        }
        self.at.logs = newest.max(self.at.logs);
        Ok(())
    }

    async fn send_events(&self, events: Vec<u8>) -> Result<(), Failure> {
        let mut events = Bytes::from(events);
        while !events.is_empty() {
            let piece = events.split_to(events.len().min(PIECE));
            self.send(piece).await?;
        }
        Ok(())
    }
}

/// Events of the first rows from `at` on, and the id from which to go on: behind `newest`, all that was known, if there are no
/// further rows.
fn batch<Q: Question>(
    reader: &Reader,
    mut question: Q,
    (at, newest): (u64, u64),
    limit: u64,
    mut event: impl FnMut(&Q::Row, u64, &mut Vec<u8>) -> Result<(), Failure>,
) -> Result<(Vec<u8>, u64), Failure> {
    *question.limit() = limit;
    question.begin_at(at);
    let Found { rows, cut } = question.ask(reader)?;
    let (mut events, mut behind) = (Vec::new(), at);
    for row in rows.iter().filter(|row| Q::id(row) >= at) {
        behind = Q::id(row).saturating_add(1);
        event(row, behind, &mut events)?;
    }
    let next = match cut {
        Some(cut) => cut.max(behind),
        None if rows.len() as u64 == limit && behind > at => behind,
        None => behind.max(newest),
    };
    Ok((events, next))
}

/// The line that says which records follow.
fn id(messages: u64, logs: u64) -> String {
    format!("id: {messages}-{logs}\n")
}

fn event(out: &mut Vec<u8>, name: &str, id: &str, data: &impl Serialize) -> Result<(), Failure> {
    out.extend_from_slice(format!("event: {name}\n{id}data: ").as_bytes());
    serde_json::to_writer(&mut *out, data).map_err(internal)?;
    out.extend_from_slice(b"\n\n");
    Ok(())
}
