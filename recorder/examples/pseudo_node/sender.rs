//! The sending side of a connection: makes messages, cuts them into chunks, encrypts and sends these.

use std::time::{Duration, Instant};

use fastrand::Rng;
use tezos_recorder::p2p::cipher::Opener;

use crate::Result;
use crate::arguments::Options;
use crate::chunks::cut;
use crate::content::{Content, Made};
use crate::forms::{ChunkForm, Writes};
use crate::log::{ConnectionLog, Counts, Entry, now};
use crate::send::Writer;

/// A sender that is later than this does not catch up.
const MAX_LAG: Duration = Duration::from_secs(1);

/// Sends messages.
pub struct Sender<'a> {
    writer: Writer,
    opener: Opener,
    /// Number of the next chunk.
    number: u64,
    content: Content,
    log: ConnectionLog<'a>,
    rng: Rng,
    chunks: ChunkForm,
    writes: Writes,
    batch: u64,
    rate: Option<f64>,
    due: Instant,
    sent: u64,
}

impl<'a> Sender<'a> {
    pub fn new(
        writer: Writer,
        opener: Opener,
        options: &Options,
        log: ConnectionLog<'a>,
        mut rng: Rng,
    ) -> Self {
        let messages = &options.messages;
        let usual = match messages.chunks {
            ChunkForm::Message | ChunkForm::Byte | ChunkForm::Empty => 1,
            _ => 8,
        };
        Self {
            writer,
            opener,
            number: 3,
            content: Content::new(messages, options.handshake.layer(), rng.fork()),
            log,
            rng,
            chunks: messages.chunks,
            writes: options.io.writes,
            batch: messages.batch.unwrap_or(usual).max(1) as u64,
            rate: messages.rate.filter(|rate| *rate > 0.0),
            due: Instant::now(),
            sent: 0,
        }
    }

    /// Messages sent after the handshake.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Both addresses, the own one first.
    pub fn addresses(&self) -> String {
        self.log.addresses()
    }

    /// Sends a batch of at most `max` messages when it is due.
    pub fn step(&mut self, max: u64) -> Result<()> {
        let count = self.batch.min(max);
        if let Some(rate) = self.rate {
            let now = Instant::now();
            std::thread::sleep(self.due.saturating_duration_since(now));
            self.due += Duration::from_secs_f64(count as f64 / rate);
            self.due = self.due.max(now.checked_sub(MAX_LAG).unwrap_or(now));
        }
        let made: Vec<Made> = (0..count).map(|_| self.content.next()).collect();
        let stream = made
            .iter()
            .flat_map(|m| &m.bytes)
            .copied()
            .collect::<Vec<u8>>();
        let sizes: Vec<usize> = made.iter().map(|m| m.bytes.len()).collect();
        let cuts = cut(self.chunks, &sizes, &mut self.rng);
        let (first, time) = (self.number, now());
        let chunks = self.seal(&stream, &cuts)?;
        self.write(&chunks)?;
        self.sent += count;
        self.note(&made, first, &cuts, time);
        Ok(())
    }

    fn seal(&mut self, stream: &[u8], cuts: &[usize]) -> Result<Vec<Vec<u8>>> {
        let (mut chunks, mut rest) = (Vec::with_capacity(cuts.len()), stream);
        for size in cuts {
            let (plain, after) = rest.split_at(*size);
            let sealed = self.opener.seal(self.number, plain);
            chunks.push(sealed.ok_or("a chunk is too long")?);
            self.number += 1;
            rest = after;
        }
        Ok(chunks)
    }

    fn write(&mut self, chunks: &[Vec<u8>]) -> Result<()> {
        if self.writes == Writes::Chunk {
            for chunk in chunks {
                self.writer.write_all(chunk)?;
            }
            return Ok(());
        }
        let whole = chunks.concat();
        let mut rest = &whole[..];
        while !rest.is_empty() {
            let size = match self.writes {
                Writes::Pieces => self.rng.usize(1..=3000).min(rest.len()),
                _ => rest.len(),
            };
            self.writer.write_all(&rest[..size])?;
            rest = &rest[size..];
        }
        Ok(())
    }

    /// Writes a batch to the log.
    fn note(&mut self, made: &[Made], first: u64, cuts: &[usize], time: u64) {
        let mut ends = cuts.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        });
        let (mut number, mut end) = (first, ends.next().unwrap_or(0));
        let mut chunk_of = |byte| {
            while end <= byte {
                let Some(next) = ends.next() else { break };
                end = next;
                number += 1;
            }
            number
        };
        let mut from = 0;
        for made in made {
            let to = from + made.bytes.len();
            self.log.message(&Entry {
                time,
                sent: true,
                kind: made.kind,
                bytes: &made.bytes,
                chunks: (chunk_of(from), chunk_of(to - 1)),
                valid: made.valid,
            });
            from = to;
        }
        self.log.flush();
    }

    /// Writes what is left of the log, and returns the sums.
    pub fn finish(mut self) -> Counts {
        self.log.flush();
        Counts {
            bytes: self.writer.bytes(),
            chunks: self.number,
            messages: self.log.sent,
        }
    }
}
