//! One message with its bytes, put together from its chunks.

use rusqlite::{OptionalExtension, params};

use super::error::StoreResult;
use super::pool::File;
use super::query::{MessageDetails, MessageRow};
use super::reader::Reader;
use super::rows::ListRow;
use super::segment::Segment;
use super::values::{int, side, uint};
use crate::p2p::json::json;
use crate::p2p::message::{Category, Decoded, Layer, decode, decode_handshake};

/// Where the bytes of a message are.
struct Location {
    /// First and last number of its chunks.
    chunks: (u64, u64),
    /// Where it begins in the plain text of the first.
    start: u64,
}

/// The bytes of chunks.
#[derive(Default)]
struct Bytes {
    raw: Vec<u8>,
    plain: Vec<u8>,
    /// The number of the next chunk.
    next: u64,
    cut: bool,
}

impl Reader {
    /// A message, with at most `limit` bytes of its chunks and of its plain text.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn message(&self, id: u64, limit: usize) -> StoreResult<Option<MessageDetails>> {
        let catalog = self.0.catalog();
        let segments = &catalog.messages;
        let has = |segment: &Segment| (segment.first..segment.next).contains(&id);
        let Some(at) = segments.iter().position(has) else {
            return Ok(None);
        };
        let found = self.ask(&segments[at], |file| find(file, id)).flatten();
        let Some((row, location)) = found else {
            return Ok(None);
        };
        // Chunks came before the message, so they are in its segment or in those before.
        let wanted = u64::try_from(row.kind.max_size())
            .unwrap_or(u64::MAX)
            .min(row.size);
        let first = self.first_segment(&segments[..=at], &row, location.chunks.0);
        let mut bytes = Bytes {
            next: location.chunks.0,
            ..Bytes::default()
        };
        for segment in &segments[first..=at] {
            let size = usize::try_from(location.start.saturating_add(wanted)).unwrap_or(usize::MAX);
            self.ask(segment, |file| {
                bytes.read(file, &row, location.chunks.1, (limit, size))
            });
        }
        bytes.cut |= bytes.next <= location.chunks.1;
        Ok(Some(details(row, &location, bytes, limit)))
    }

    /// First and last number of the chunks that have the bytes of a message.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn chunks_of_message(&self, id: u64) -> StoreResult<Option<(u64, u64)>> {
        let catalog = self.0.catalog();
        let has = |segment: &&Segment| (segment.first..segment.next).contains(&id);
        let found = catalog.messages.iter().find(has);
        let found = found.and_then(|segment| self.ask(segment, |file| find(file, id)));
        Ok(found.flatten().map(|(_, location)| location.chunks))
    }

    /// The index of the last segment that has the first chunk; of the message's own if none has it.
    fn first_segment(&self, segments: &[Segment], row: &MessageRow, number: u64) -> usize {
        let sql = "SELECT EXISTS (SELECT 1 FROM chunk WHERE connection = ? AND sender = ? AND number = ?)";
        let has = |segment: &Segment| {
            self.ask(segment, |file| {
                let values = params![int(row.connection.0), side(row.sender), int(number)];
                file.prepare_cached(sql)?
                    .query_row(values, |row| row.get::<_, bool>(0))
            })
        };
        let found = segments
            .iter()
            .rposition(|segment| has(segment).unwrap_or(false));
        found.unwrap_or(segments.len() - 1)
    }
}

fn find(file: &File, id: u64) -> rusqlite::Result<Option<(MessageRow, Location)>> {
    let Some(row) = MessageRow::read(file, int(id)).optional()? else {
        return Ok(None);
    };
    let sql = "SELECT first_chunk, last_chunk, start FROM message WHERE id = ?";
    let location = file.query_row(sql, [int(id)], |row| {
        Ok(Location {
            chunks: (uint(row.get(0)?), uint(row.get(1)?)),
            start: uint(row.get(2)?),
        })
    });
    Ok(location.optional()?.map(|location| (row, location)))
}

impl Bytes {
    /// Appends the chunks of a segment up to a number: raw bytes up to the first limit, plain bytes up to the second.
    fn read(
        &mut self,
        file: &File,
        row: &MessageRow,
        last: u64,
        (raw_limit, plain_limit): (usize, usize),
    ) -> rusqlite::Result<()> {
        let sql = "SELECT number, raw, plain FROM chunk
                   WHERE connection = ? AND sender = ? AND number BETWEEN ? AND ? ORDER BY number";
        let mut chunks = file.prepare_cached(sql)?;
        let range = params![
            int(row.connection.0),
            side(row.sender),
            int(self.next),
            int(last)
        ];
        let mut chunks = chunks.query(range)?;
        while let Some(chunk) = chunks.next()? {
            let number = uint(chunk.get(0)?);
            if number < self.next {
                continue;
            }
            self.cut |= number > self.next;
            self.next = number + 1;
            self.cut |= append(&mut self.raw, chunk.get_ref(1)?.as_blob()?, raw_limit);
            let plain = chunk.get_ref(2)?.as_blob_or_null()?.unwrap_or_default();
            append(&mut self.plain, plain, plain_limit);
            if self.raw.len() >= raw_limit && self.plain.len() >= plain_limit {
                break;
            }
        }
        Ok(())
    }
}

/// Appends bytes up to a limit; whether some were left out.
fn append(to: &mut Vec<u8>, bytes: &[u8], limit: usize) -> bool {
    let taken = bytes.len().min(limit.saturating_sub(to.len()));
    to.extend_from_slice(&bytes[..taken]);
    taken < bytes.len()
}

fn details(row: MessageRow, location: &Location, bytes: Bytes, limit: usize) -> MessageDetails {
    let Bytes {
        raw,
        mut plain,
        mut cut,
        ..
    } = bytes;
    let start = usize::try_from(location.start)
        .unwrap_or(usize::MAX)
        .min(plain.len());
    plain.drain(..start);
    let whole = plain.len() as u64 == row.size;
    let message = decoded(&row, location.chunks.0, &plain).and_then(|decoded| decoded.message);
    let json = message
        .filter(|_| whole)
        .map(|message| json(&message, Reader::MAX_JSON));
    let too_long = json.as_ref().is_some_and(|json| json.cut);
    let message = json.filter(|json| !json.cut).map(|json| json.text);
    cut |= !whole || plain.len() > limit;
    plain.truncate(limit);
    MessageDetails {
        row,
        message,
        too_long,
        raw,
        plain,
        cut,
    }
}

/// Decodes a message again. Which layer it is of is not stored: the kind tells.
fn decoded<'a>(row: &MessageRow, number: u64, plain: &'a [u8]) -> Option<Decoded<'a>> {
    if row.kind.category() != Category::P2p {
        return Some(decode_handshake(number, plain));
    }
    let layers = [Layer::Node, Layer::Dal].into_iter();
    layers
        .map(|layer| decode(plain, layer))
        .find(|decoded| decoded.kind == row.kind)
}
