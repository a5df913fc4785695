//! From captured bytes to entries of the stores: all connections of all nodes.
//!
//! Does no I/O and reads no clock. Connections that are none of a node's leave nothing behind but a number.

mod counts;
mod followed;
mod listing;
mod settings;
mod unrecorded;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::captured::{Captured, Socket, What};
use crate::connection::{Connection, Nodes, Opening};
use crate::reconnect::Note;
use crate::side::{Both, Side};
use crate::store::Entry;
use crate::stream::Record;
use crate::time::Timestamp;
pub use counts::Counts;
use followed::Followed;
use listing::Listing;
pub use settings::{ConnectionIds, Settings};
use unrecorded::Unrecorded;

/// A receiver of entries, with the name of the node.
pub type Entries<'a> = dyn FnMut(&str, Entry) + 'a;

/// Interval at which changed connections are given to the store.
const INTERVAL: Duration = Duration::from_secs(1);

/// The connections of one worker.
#[derive(Debug)]
pub struct Recording {
    settings: Settings,
    nodes: Arc<Nodes>,
    followed: HashMap<Socket, Followed>,
    unrecorded: Unrecorded,
    /// Sockets that were not among the open ones, and of which nothing came since.
    missing: HashSet<Socket>,
    counts: Counts,
    flushed: Timestamp,
}

impl Recording {
    /// A recording of these nodes.
    pub fn new(settings: Settings, nodes: Arc<Nodes>) -> Self {
        let unrecorded = Unrecorded::new(settings.max_connections, settings.reports.clone());
        Self {
            settings,
            nodes,
            followed: HashMap::new(),
            unrecorded,
            missing: HashSet::new(),
            counts: Counts::default(),
            flushed: Timestamp::default(),
        }
    }

    /// Takes what was captured. `now` is the present time of a clock that is never set, here and in [`Self::tick`].
    pub fn take(&mut self, captured: &Captured<'_>, now: Timestamp, entries: &mut Entries<'_>) {
        let Captured { socket, time, .. } = *captured;
        self.missing.remove(&socket);
        match captured.what {
            What::Opened { initiator } => {
                // The number of a socket is new, unless the end of its last connection was lost.
                self.close(socket, None, Both::default(), entries);
                let opening = Opening {
                    initiator,
                    seen: true,
                };
                self.follow(captured, opening, now, entries);
            }
            What::Data {
                sender,
                offset,
                in_order,
                data,
                initiator,
            } => {
                if self.unrecorded.has(socket) {
                    return;
                }
                if !self.followed.contains_key(&socket) {
                    let seen = false;
                    self.follow(captured, Opening { initiator, seen }, now, entries);
                }
                let record = Record {
                    offset,
                    in_order,
                    time,
                    data,
                };
                self.record(socket, sender, &record, now, entries);
            }
            What::Closed { sent } => self.close(socket, Some(time), sent, entries),
        }
    }

    fn follow(
        &mut self,
        captured: &Captured<'_>,
        opening: Opening,
        now: Timestamp,
        entries: &mut Entries<'_>,
    ) {
        while self.followed.len() >= self.settings.max_connections {
            self.give_up_oldest(captured.time, entries);
        }
        let id = self.settings.ids.next(captured.time);
        let addresses = (captured.local, captured.remote);
        let followed = Followed {
            connection: Connection::new(self.nodes.clone(), opening, self.settings.budget.clone()),
            listing: Listing::new(id, addresses, opening.initiator),
            last: captured.time,
            touched: now,
        };
        self.followed.insert(captured.socket, followed);
    }

    fn record(
        &mut self,
        socket: Socket,
        sender: Side,
        record: &Record<'_>,
        now: Timestamp,
        entries: &mut Entries<'_>,
    ) {
        let Some(followed) = self.followed.get_mut(&socket) else {
            return;
        };
        followed.record(sender, record, now, entries);
        if followed.connection.is_ignored() {
            self.ignore(socket, entries);
        }
    }

    /// Stops to follow a connection that is ignored. It is listed if its ports say whose it is.
    fn ignore(&mut self, socket: Socket, entries: &mut Entries<'_>) {
        let Some(mut followed) = self.followed.remove(&socket) else {
            return;
        };
        followed.update();
        self.assign_by_ports(&mut followed.listing);
        self.unrecorded.add(socket, followed.listing, entries);
    }

    /// Takes a note on a connection that is not recorded, which is listed from then on.
    pub fn note(&mut self, note: Note, now: Timestamp, entries: &mut Entries<'_>) {
        self.unrecorded.note(note, now, entries);
    }

    /// Assigns an ignored connection to the node that its ports tell, if they tell one.
    fn assign_by_ports(&mut self, listing: &mut Listing) {
        self.counts.ignored += 1;
        if let Some(node) = self.settings.node_of_ports(listing.addresses()) {
            listing.assign(node);
        }
    }

    /// Ends a connection, at that time if its end was seen.
    fn close(
        &mut self,
        socket: Socket,
        time: Option<Timestamp>,
        sent: Both<Option<u64>>,
        entries: &mut Entries<'_>,
    ) {
        self.unrecorded.close(socket, time, sent, entries);
        if let Some(mut followed) = self.followed.remove(&socket) {
            followed.end(sent, true, entries);
            if followed.listing.is_ignored() {
                self.assign_by_ports(&mut followed.listing);
            }
            followed.update();
            followed.listing.end(time);
            followed.listing.flush(entries);
        }
    }

    /// Ends a connection whose end was not seen.
    fn end_unseen(
        &mut self,
        socket: Socket,
        time: Timestamp,
        remark: &str,
        entries: &mut Entries<'_>,
    ) {
        let listing = match self.followed.get_mut(&socket) {
            Some(followed) => Some(&mut followed.listing),
            None => self.unrecorded.listing(socket),
        };
        if let Some(listing) = listing {
            listing.remark(time, remark.into());
        }
        self.close(socket, None, Both::default(), entries);
    }

    fn give_up_oldest(&mut self, time: Timestamp, entries: &mut Entries<'_>) {
        let oldest = self.followed.iter().min_by_key(|(_, f)| f.touched);
        if let Some(socket) = oldest.map(|(socket, _)| *socket) {
            self.counts.given_up += 1;
            let remark = "not recorded any further: there are too many connections";
            self.end_unseen(socket, time, remark, entries);
        }
    }

    /// Takes the sockets whose connections have not ended, as the kernel has them now and then. Connections that were not among them twice,
    /// and of which nothing came meanwhile, have ended at a time that was not seen.
    pub fn keep_open(
        &mut self,
        open: &HashSet<Socket>,
        time: Timestamp,
        entries: &mut Entries<'_>,
    ) {
        let known = self.followed.keys().chain(self.unrecorded.sockets());
        let missing = known
            .filter(|socket| !open.contains(socket))
            .copied()
            .collect();
        let before = std::mem::replace(&mut self.missing, missing);
        let ended: Vec<_> = before.intersection(&self.missing).copied().collect();
        for socket in ended {
            let remark = "ended some time before: its end was not seen";
            self.end_unseen(socket, time, remark, entries);
        }
    }

    /// Does what time brings: late records, searches, changed connections. Returns true if there is more to do now.
    pub fn tick(&mut self, now: Timestamp, entries: &mut Entries<'_>) -> bool {
        let flush = now >= self.flushed.after(INTERVAL);
        let (mut more, mut ignored) = (false, Vec::new());
        for (socket, followed) in &mut self.followed {
            more |= followed.tick(now, entries);
            if followed.connection.is_ignored() {
                ignored.push(*socket);
            } else if flush {
                followed.update();
                followed.listing.flush(entries);
            }
        }
        for socket in ignored {
            self.ignore(socket, entries);
        }
        if flush {
            self.flushed = now;
        }
        more
    }

    /// Replaces the nodes, because an identity was found.
    pub fn set_nodes(&mut self, nodes: Arc<Nodes>, entries: &mut Entries<'_>) {
        self.nodes = nodes;
        for followed in self.followed.values_mut() {
            followed.set_nodes(self.nodes.clone(), entries);
        }
    }

    /// The sockets of which nothing more needs to be captured, since the last call.
    pub fn take_ignored(&mut self) -> Vec<Socket> {
        self.unrecorded.take_new()
    }

    /// The numbers of connections.
    pub fn counts(&self) -> Counts {
        let recognised = |f: &&Followed| f.connection.node().is_some();
        Counts {
            open: self.followed.values().filter(recognised).count() as u64,
            ..self.counts
        }
    }

    /// Gives all that is held to the stores: the recorder ends at that time, the connections do not.
    pub fn stop(&mut self, time: Timestamp, entries: &mut Entries<'_>) {
        for followed in self.followed.values_mut() {
            followed.end(Both::default(), false, entries);
            followed.update();
            let remark = "not recorded any further: the recorder has ended";
            followed.listing.remark(time, remark.into());
            followed.listing.end(None);
            followed.listing.flush(entries);
        }
        self.followed.clear();
        self.unrecorded.stop(entries);
    }
}
