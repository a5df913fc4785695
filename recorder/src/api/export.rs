//! `/v4/export.pcapng`: messages and their chunks, for Wireshark and tcpdump, written while they are sent.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use bytes::Bytes;
use memprof_server::{Body, Reply};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::Shared;
use super::failure::Failure;
use super::filters::{self, Form, MAX_ROWS, MESSAGES};
use super::nodes::ApiNode;
use super::pcapng::Export;
use super::query::{Query, Unknown};
use super::{rows, v4};
use crate::side::Side;
use crate::store::{
    ConnectionEntry, ConnectionId, Direction, MessageQuery, MessageRow, Position, Reader,
    StoreError,
};

/// Exports at the same time.
pub(super) const AT_ONCE: usize = 2;

/// Size of the pieces that are sent, in bytes, and how many wait for the client.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4;

/// Messages of which the chunks are known at the same time.
const BATCH: usize = 256;

/// Bytes of a message beside its chunks.
const MAX_MESSAGE: usize = 256 << 10;

/// Begins an export.
pub(super) fn answer(shared: &Arc<Shared>, query: &str) -> Result<Reply, Failure> {
    let query = Query::read(query, MESSAGES, Unknown::Refused)?;
    let node = v4::node(shared, &query)?.clone();
    let mut question = filters::messages(&query, Form::New)?;
    if query.text(&["limit"]).is_none() {
        question.limit = MAX_ROWS;
    }
    let permit = Arc::clone(&shared.exports)
        .try_acquire_owned()
        .map_err(|_| Failure::Busy("other exports are being sent: try again later"))?;
    let (send, pieces) = mpsc::channel(PIECES);
    let name: String = node
        .name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    spawn_blocking(move || {
        // An error ends the reply: the client has gone, or the store fails, which its health tells.
        let _ = export(&node, question, send);
        drop(permit);
    });
    Ok(Reply {
        file_name: Some(format!("{name}.pcapng")),
        body: Body::Live(pieces),
        ..Reply::new("application/x-pcapng", "")
    })
}

/// Sends what is written.
struct Pieces(mpsc::Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(piece).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A message with the numbers of its chunks.
type Placed = (MessageRow, (u64, u64));

/// Sends the messages that a client asks for, of which there are at most [`MAX_ROWS`].
fn export(node: &ApiNode, question: MessageQuery, send: mpsc::Sender<Bytes>) -> io::Result<()> {
    let reader = node.store.reader().map_err(failed)?;
    let mut file = File::new(Pieces(send), &reader, &node.name, node.p2p_port)?;
    let backward = question.direction == Direction::Backward;
    let mut rows = Vec::new();
    let take = |row| {
        rows.push(row);
        Ok(true)
    };
    rows::each(&reader, question, take).map_err(|failure| io::Error::other(failure.message()))?;
    if backward {
        rows.reverse();
    }
    for rows in rows.chunks(BATCH) {
        file.messages(rows)?;
    }
    file.finish()
}

/// Writes all messages of a store that fit, however many there are, in the order of their ids, each behind those of its chunks that were
/// not written yet. Returns their number. `from` and `to` of `question` are used, not its position.
///
/// # Errors
///
/// The store cannot be read, or `out` not be written.
pub fn write(
    reader: &Reader,
    node: &str,
    question: &MessageQuery,
    out: impl Write,
) -> io::Result<u64> {
    let mut file = File::new(out, reader, node, 0)?;
    let mut question = MessageQuery {
        direction: Direction::Forward,
        position: Position::Id(0),
        limit: BATCH as u64,
        ..question.clone()
    };
    let mut written = 0;
    loop {
        let found = reader.find_messages(&question).map_err(failed)?;
        file.messages(&found.rows)?;
        written += found.rows.len() as u64;
        let last = found.rows.last().map(|row| row.id + 1);
        question.position = match (found.cut, last) {
            (Some(next), _) => Position::Id(next),
            (None, Some(next)) if found.rows.len() == BATCH => Position::Id(next),
            _ => break,
        };
    }
    file.finish()?;
    Ok(written)
}

fn failed(error: StoreError) -> io::Error {
    io::Error::other(error)
}

/// A file that is being written.
struct File<'a, W: Write> {
    export: Export<BufWriter<W>>,
    reader: &'a Reader,
    connections: HashMap<ConnectionId, Option<ConnectionEntry>>,
    /// The first chunk of each direction that was not written yet.
    next: HashMap<(ConnectionId, Side), u64>,
}

impl<'a, W: Write> File<'a, W> {
    fn new(out: W, reader: &'a Reader, node: &str, p2p_port: u16) -> io::Result<Self> {
        let out = BufWriter::with_capacity(PIECE, out);
        Ok(Self {
            export: Export::new(out, node, p2p_port)?,
            connections: HashMap::new(),
            next: HashMap::new(),
            reader,
        })
    }

    fn finish(self) -> io::Result<()> {
        self.export.finish()?.flush()
    }

    fn messages(&mut self, rows: &[MessageRow]) -> io::Result<()> {
        let mut placed: Vec<Placed> = Vec::new();
        for row in rows {
            let chunks = self.reader.chunks_of_message(row.id).map_err(failed)?;
            placed.extend(chunks.map(|chunks| (row.clone(), chunks)));
        }
        for (row, chunks) in &placed {
            self.chunks(row, *chunks, &placed)?;
            let details = self.reader.message(row.id, MAX_MESSAGE).map_err(failed)?;
            if let Some(details) = details {
                self.export.message(row, &details.plain)?;
            }
        }
        Ok(())
    }

    /// Writes the chunks of a message.
    fn chunks(
        &mut self,
        row: &MessageRow,
        (first, last): (u64, u64),
        all: &[Placed],
    ) -> io::Result<()> {
        let (id, sender) = (row.connection, row.sender);
        let connection = match self.connections.entry(id) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(self.reader.connection(id).map_err(failed)?)
            }
        };
        let Some(connection) = connection else {
            return Ok(());
        };
        let next = self.next.entry((id, sender)).or_default();
        for number in first.max(*next)..=last {
            let chunk = self.reader.chunk(id, sender, number).map_err(failed)?;
            let Some(chunk) = chunk else {
                continue;
            };
            let has = |(row, (first, last)): &&Placed| {
                (row.connection, row.sender) == (id, sender) && (*first..=*last).contains(&number)
            };
            let messages: Vec<_> = all.iter().filter(has).map(|(row, _)| row.clone()).collect();
            self.export.chunk(connection, &chunk, &messages)?;
        }
        *next = (*next).max(last.saturating_add(1));
        Ok(())
    }
}
