//! From captured bytes to entries of the stores: all connections of all nodes.
//!
//! Does no I/O and reads no clock. Connections that are none of a node's leave nothing behind but a number.

mod listing;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::budget::Budget;
use crate::captured::{Captured, Socket, What};
use crate::connection::{Connection, Nodes, Opening};
use crate::reconnect::{Note, Report, Reports};
use crate::side::{Both, Side};
use crate::store::{ConnectionId, Entry};
use crate::stream::Record;
use crate::time::Timestamp;
use listing::Listing;

/// A receiver of entries, with the name of the node.
pub type Entries<'a> = dyn FnMut(&str, Entry) + 'a;

/// A time of a connection that is so much earlier than that of the one before was taken after the wall clock was set back. It is more
/// than one decoder lags behind another.
const SET_BACK: Duration = Duration::from_secs(10);
/// Interval at which changed connections are given to the store.
const INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that a search authenticates at a time, in about three milliseconds.
const SEARCH: u64 = 10 << 20;

/// Settings that all workers share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of the nodes and the ports on which their peers reach them, to list connections whose first bytes were not seen.
    pub ports: Vec<(String, u16)>,
    /// Limit of the bytes that connections hold.
    pub budget: Budget,
    /// Maximum number of connections that a worker follows; the one without traffic for the longest time is given up first.
    pub max_connections: usize,
    /// Ids of connections.
    pub ids: ConnectionIds,
    /// Receivers of reports about connections that were opened before the recorder.
    pub reports: Reports,
}

/// Gives connections their ids.
#[derive(Clone, Debug, Default)]
pub struct ConnectionIds(Arc<AtomicU64>);

impl ConnectionIds {
    /// The id of a connection that was first seen at that time: the time itself, or the next one that is free. If the wall clock was set
    /// back, the ids go back, too, so that they are still times.
    fn next(&self, time: Timestamp) -> ConnectionId {
        let after = |last: u64| match last.saturating_sub(time.0) {
            ahead if u128::from(ahead) > SET_BACK.as_nanos() => time.0,
            _ => time.0.max(last + 1),
        };
        let update = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(after(last))
            });
        ConnectionId(after(update.unwrap_or_default()))
    }
}

/// Numbers of connections that a worker has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of a node that are followed now.
    pub open: u64,
    /// Connections that turned out to be none of a node's, or cannot be recorded.
    pub ignored: u64,
    /// Connections that were given up because there were too many.
    pub given_up: u64,
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            open: self.open + other.open,
            ignored: self.ignored + other.ignored,
            given_up: self.given_up + other.given_up,
        }
    }
}

/// A socket of a node.
#[derive(Debug)]
struct Followed {
    connection: Connection,
    listing: Listing,
    /// Time of the last record.
    last: Timestamp,
    /// When it came, by the steady clock.
    touched: Timestamp,
}

/// The connections of one worker.
#[derive(Debug)]
pub struct Recording {
    settings: Settings,
    nodes: Arc<Nodes>,
    followed: HashMap<Socket, Followed>,
    /// Ignored connections until they end, with what is listed of them nevertheless.
    ignored: HashMap<Socket, Option<Listing>>,
    /// Those of which the source does not know yet that nothing more needs to be captured.
    newly_ignored: Vec<Socket>,
    /// Sockets that were not among the open ones, and of which nothing came since.
    missing: HashSet<Socket>,
    counts: Counts,
    flushed: Timestamp,
}

impl Recording {
    /// A recording of these nodes.
    pub fn new(settings: Settings, nodes: Arc<Nodes>) -> Self {
        Self {
            settings,
            nodes,
            followed: HashMap::new(),
            ignored: HashMap::new(),
            newly_ignored: Vec::new(),
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
                if self.ignored.contains_key(&socket) {
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
        let Followed {
            connection,
            listing,
            last,
            touched,
        } = followed;
        (*last, *touched) = (record.time, now);
        connection.record(sender, record, now, &mut |event| {
            listing.take(event, entries);
        });
        if connection.is_ignored() {
            self.ignore(socket, entries);
        }
    }

    /// Stops to follow a connection that is ignored. It is listed if its ports say whose it is.
    fn ignore(&mut self, socket: Socket, entries: &mut Entries<'_>) {
        let Some(mut followed) = self.followed.remove(&socket) else {
            return;
        };
        self.newly_ignored.push(socket);
        followed.update();
        let listed = self.assign_by_ports(&mut followed.listing);
        followed.listing.flush(entries);
        if self.ignored.len() >= self.settings.max_connections {
            // Any of them: at worst it is seen again, and ignored again.
            let forgotten = self.ignored.keys().next().copied();
            forgotten.and_then(|socket| self.ignored.remove(&socket));
        }
        let listing = followed.listing;
        if listing.is_older() {
            let (_, remote) = listing.addresses();
            let report = Report::Found { socket, remote };
            self.settings.reports.send(listing.node(), report);
        }
        // A note may say later whose an older one is.
        let listing = (listed || listing.is_older()).then_some(listing);
        self.ignored.insert(socket, listing);
    }

    /// Takes a note on an ignored connection, which is listed from then on.
    pub fn note(&mut self, note: Note, now: Timestamp, entries: &mut Entries<'_>) {
        if let Some(Some(listing)) = self.ignored.get_mut(&note.socket) {
            listing.note(note, now);
            listing.flush(entries);
        }
    }

    /// Assigns an ignored connection to the node that its ports tell, if they tell one.
    fn assign_by_ports(&mut self, listing: &mut Listing) -> bool {
        self.counts.ignored += 1;
        let node = self.node_of_ports(listing.addresses());
        if let Some(node) = &node {
            listing.assign(node);
        }
        node.is_some()
    }

    /// The node one of whose ports is that of the connection: the local port, else the peer's.
    fn node_of_ports(&self, (local, remote): (SocketAddr, SocketAddr)) -> Option<String> {
        let ports = &self.settings.ports;
        let of = |port| ports.iter().find(|(_, own)| *own == port && port != 0);
        let found = of(local.port()).or_else(|| of(remote.port()));
        found.map(|(node, _)| node.clone())
    }

    /// Ends a connection, at that time if its end was seen.
    fn close(
        &mut self,
        socket: Socket,
        time: Option<Timestamp>,
        sent: Both<Option<u64>>,
        entries: &mut Entries<'_>,
    ) {
        if let Some(Some(mut listing)) = self.ignored.remove(&socket) {
            if listing.is_older() {
                let report = Report::Ended(socket);
                self.settings.reports.send(listing.node(), report);
            }
            listing.end_unrecorded(time, sent);
            listing.flush(entries);
        }
        if let Some(mut followed) = self.followed.remove(&socket) {
            let Followed {
                connection,
                listing,
                ..
            } = &mut followed;
            let mut sink = |event: crate::connection::Event<'_>| listing.take(event, entries);
            while connection.search(SEARCH, &mut sink) {}
            connection.end(sent, &mut sink);
            if listing.is_ignored() {
                self.assign_by_ports(&mut followed.listing);
            }
            followed.update();
            followed.listing.end(time);
            followed.listing.flush(entries);
        }
    }

    fn give_up_oldest(&mut self, time: Timestamp, entries: &mut Entries<'_>) {
        let oldest = self.followed.iter().min_by_key(|(_, f)| f.touched);
        let oldest = oldest.map(|(socket, _)| *socket);
        if let Some(followed) = oldest.and_then(|socket| self.followed.get_mut(&socket)) {
            self.counts.given_up += 1;
            followed.listing.remark(
                time,
                "not recorded any further: there are too many connections".into(),
            );
        }
        if let Some(socket) = oldest {
            self.close(socket, None, Both::default(), entries);
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
        let known = self.followed.keys().chain(self.ignored.keys());
        let missing = known
            .filter(|socket| !open.contains(socket))
            .copied()
            .collect();
        let before = std::mem::replace(&mut self.missing, missing);
        let ended: Vec<_> = before.intersection(&self.missing).copied().collect();
        for socket in ended {
            let followed = self
                .followed
                .get_mut(&socket)
                .map(|followed| &mut followed.listing);
            let ignored = self.ignored.get_mut(&socket).and_then(Option::as_mut);
            for listing in followed.into_iter().chain(ignored) {
                listing.remark(time, "ended some time before: its end was not seen".into());
            }
            self.close(socket, None, Both::default(), entries);
        }
    }

    /// Does what time brings: late records, searches, changed connections. Returns true if there is more to do now.
    pub fn tick(&mut self, now: Timestamp, entries: &mut Entries<'_>) -> bool {
        let flush = now >= self.flushed.after(INTERVAL);
        let (mut more, mut ignored) = (false, Vec::new());
        for (socket, followed) in &mut self.followed {
            let Followed {
                connection,
                listing,
                ..
            } = followed;
            if connection
                .deadline()
                .is_some_and(|deadline| deadline <= now)
            {
                connection.expire(now, &mut |event| listing.take(event, entries));
            }
            if connection.is_searching() {
                more |= connection.search(SEARCH, &mut |event| listing.take(event, entries));
            }
            if connection.is_ignored() {
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
            let Followed {
                connection,
                listing,
                ..
            } = followed;
            connection.set_nodes(self.nodes.clone(), &mut |event| {
                listing.take(event, entries);
            });
        }
    }

    /// The sockets of which nothing more needs to be captured, since the last call.
    pub fn take_ignored(&mut self) -> Vec<Socket> {
        std::mem::take(&mut self.newly_ignored)
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
            let Followed {
                connection,
                listing,
                ..
            } = followed;
            connection.end(Both::default(), &mut |event| listing.take(event, entries));
            followed.update();
            let remark = "not recorded any further: the recorder has ended";
            followed.listing.remark(time, remark.into());
            followed.listing.end(None);
            followed.listing.flush(entries);
        }
        self.followed.clear();
        for listing in self.ignored.values_mut().flatten() {
            listing.end(None);
            listing.flush(entries);
        }
        self.ignored.clear();
    }
}

impl Followed {
    /// Notes the connection's sums in its listing.
    fn update(&mut self) {
        let traffic = Both {
            local: self.connection.traffic(Side::Local),
            remote: self.connection.traffic(Side::Remote),
        };
        self.listing
            .update(traffic, self.connection.initiator(), self.last);
    }
}
