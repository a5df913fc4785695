//! Connections that are not recorded: none of a node's, or opened before the recorder.

use std::collections::HashMap;

use super::Entries;
use super::listing::Listing;
use crate::captured::Socket;
use crate::reconnect::{Note, Report, Reports};
use crate::side::Both;
use crate::time::Timestamp;

/// The connections of one worker that are not recorded.
#[derive(Debug)]
pub(super) struct Unrecorded {
    /// Until they end, with what is listed of them nevertheless.
    connections: HashMap<Socket, Option<Listing>>,
    /// Connections of which the source still captures bytes, until it is told that none are needed.
    new: Vec<Socket>,
    max: usize,
    reports: Reports,
}

impl Unrecorded {
    /// At most `max` connections; those that were opened before the recorder are reported.
    pub(super) fn new(max: usize, reports: Reports) -> Self {
        Self {
            connections: HashMap::new(),
            new: Vec::new(),
            max,
            reports,
        }
    }

    pub(super) fn has(&self, socket: Socket) -> bool {
        self.connections.contains_key(&socket)
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.connections.keys()
    }

    pub(super) fn listing(&mut self, socket: Socket) -> Option<&mut Listing> {
        self.connections.get_mut(&socket)?.as_mut()
    }

    /// Adds a connection, which is listed if its node is known.
    pub(super) fn add(&mut self, socket: Socket, mut listing: Listing, entries: &mut Entries<'_>) {
        self.new.push(socket);
        listing.flush(entries);
        if self.connections.len() >= self.max {
            // Any of them: at worst it is seen again, and ignored again.
            let forgotten = self.connections.keys().next().copied();
            forgotten.and_then(|socket| self.connections.remove(&socket));
        }
        if listing.is_older() {
            let (_, remote) = listing.addresses();
            let report = Report::Found { socket, remote };
            self.reports.send(listing.node(), report);
        }
        // A note may say later whose an older one is.
        let is_kept = listing.node().is_some() || listing.is_older();
        self.connections.insert(socket, is_kept.then_some(listing));
    }

    /// Takes a note on a connection, which is listed from then on.
    pub(super) fn note(&mut self, note: Note, now: Timestamp, entries: &mut Entries<'_>) {
        if let Some(listing) = self.listing(note.socket) {
            listing.note(note, now);
            listing.flush(entries);
        }
    }

    /// Ends a connection, at that time if its end was seen. `sent` is the number of bytes that each side sent, if it is known.
    pub(super) fn close(
        &mut self,
        socket: Socket,
        time: Option<Timestamp>,
        sent: Both<Option<u64>>,
        entries: &mut Entries<'_>,
    ) {
        let Some(Some(mut listing)) = self.connections.remove(&socket) else {
            return;
        };
        if listing.is_older() {
            self.reports.send(listing.node(), Report::Ended(socket));
        }
        listing.end_unrecorded(time, sent);
        listing.flush(entries);
    }

    /// Gives all that is listed to the stores: the recorder ends, the connections do not.
    pub(super) fn stop(&mut self, entries: &mut Entries<'_>) {
        for listing in self.connections.values_mut().flatten() {
            listing.end(None);
            listing.flush(entries);
        }
        self.connections.clear();
    }

    /// Those that were added since the last call.
    pub(super) fn take_new(&mut self) -> Vec<Socket> {
        std::mem::take(&mut self.new)
    }
}
