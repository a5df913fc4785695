//! A socket of a node that is followed: its connection, and what the store lists of it.

use std::sync::Arc;

use super::Entries;
use super::listing::Listing;
use crate::connection::{Connection, Event, Nodes};
use crate::side::{Both, Side};
use crate::stream::Record;
use crate::time::Timestamp;

/// Bytes that a search authenticates at a time, in about three milliseconds.
const SEARCH: u64 = 10 << 20;

/// A socket of a node. Events of the connection go to its listing.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) connection: Connection,
    pub(super) listing: Listing,
    /// Time of the last record.
    pub(super) last: Timestamp,
    /// When it came, by the steady clock.
    pub(super) touched: Timestamp,
}

impl Followed {
    pub(super) fn record(
        &mut self,
        sender: Side,
        record: &Record<'_>,
        now: Timestamp,
        entries: &mut Entries<'_>,
    ) {
        (self.last, self.touched) = (record.time, now);
        let listing = &mut self.listing;
        let sink = &mut |event: Event<'_>| listing.take(event, entries);
        self.connection.record(sender, record, now, sink);
    }

    /// Does what time brings: late records and searches. Returns true if there is more to do now.
    pub(super) fn tick(&mut self, now: Timestamp, entries: &mut Entries<'_>) -> bool {
        let (connection, listing) = (&mut self.connection, &mut self.listing);
        let sink = &mut |event: Event<'_>| listing.take(event, entries);
        let deadline = connection.deadline();
        if deadline.is_some_and(|deadline| deadline <= now) {
            connection.expire(now, sink);
        }
        connection.is_searching() && connection.search(SEARCH, sink)
    }

    pub(super) fn set_nodes(&mut self, nodes: Arc<Nodes>, entries: &mut Entries<'_>) {
        let listing = &mut self.listing;
        let sink = &mut |event: Event<'_>| listing.take(event, entries);
        self.connection.set_nodes(nodes, sink);
    }

    /// Ends the connection, after what is still to be searched for if `search`. `sent` is the number of bytes that each side sent, if
    /// it is known.
    pub(super) fn end(&mut self, sent: Both<Option<u64>>, search: bool, entries: &mut Entries<'_>) {
        let (connection, listing) = (&mut self.connection, &mut self.listing);
        let sink = &mut |event: Event<'_>| listing.take(event, entries);
        while search && connection.search(SEARCH, sink) {}
        connection.end(sent, sink);
    }

    /// Notes the connection's sums in its listing.
    pub(super) fn update(&mut self) {
        let traffic = Both {
            local: self.connection.traffic(Side::Local),
            remote: self.connection.traffic(Side::Remote),
        };
        self.listing
            .update(traffic, self.connection.initiator(), self.last);
    }
}
