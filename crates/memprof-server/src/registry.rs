//! The registry of open connections: what each connection is doing, and which one to close when there are too many.
//!
//! - The number of open connections is limited. When another one arrives, the server closes a connection without a
//!   request: of the client with the most connections, the one that has waited longest.
//! - A request is answered when it has a slot. Some slots are reserved for health and metrics, and no client can take
//!   all of the others.
//! - While other clients cannot connect, a request that waits for a slot is refused with the advice to retry later, and
//!   connections of slow readers are closed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, hash_map};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long a connection may stay open without a request, or wait for a slot, while others cannot connect.
const PATIENCE: Duration = Duration::from_secs(3);

/// Replaces [`PATIENCE`] for waiting requests when no slot has become free for that time.
const STUCK: Duration = Duration::from_millis(100);

/// How long a client may take to read a reply while other replies need its memory.
const READING: Duration = Duration::from_secs(15);

/// 1/`SHARE` of all connections is reserved for health and metrics; 1/`SHARE` of the other slots is out of reach for a
/// single client.
const SHARE: usize = 8;

/// The owner of connections that count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// An IP address.
    Address(IpAddr),
    /// A process on this machine. The user id alone does not identify a client: all clients of a Unix socket may have
    /// the same user.
    Process {
        /// The user id.
        uid: u32,
        /// The process id, or 0 if the process is in a pid namespace that the server cannot see.
        pid: i32,
    },
}

impl Client {
    /// Clients whose credentials the kernel does not report.
    pub(super) const UNKNOWN: Client = Client::Process {
        uid: u32::MAX,
        pid: 0,
    };
}

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Registry {
    limits: Limits,
    state: Mutex<RegistryState>,
    /// Notified when a connection or a slot becomes free.
    freed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    open: usize,
    /// Ordinary slots, in total and per client.
    slots: usize,
    of_client: usize,
    /// Slots for health and metrics.
    reserved: usize,
}

impl Limits {
    fn new(open: usize) -> Limits {
        let open = open.max(2);
        let reserved = (open / SHARE).max(1);
        let slots = open - reserved;
        Limits {
            open,
            slots,
            of_client: slots - slots / SHARE,
            reserved,
        }
    }
}

#[derive(Debug)]
struct RegistryState {
    next: u64,
    /// When a slot was last freed.
    moved: Instant,
    open: BTreeMap<u64, Entry>,
    /// Usage by each client in `open`, and in total.
    clients: HashMap<Client, SlotShare>,
    all: SlotShare,
}

#[derive(Clone, Copy, Debug, Default)]
struct SlotShare {
    open: usize,
    slots: usize,
    reserved: usize,
}

impl SlotShare {
    fn count_mut(&mut self, slot: Slot) -> &mut usize {
        match slot {
            Slot::Any => &mut self.slots,
            Slot::Reserved => &mut self.reserved,
        }
    }
}

#[derive(Debug)]
struct Entry {
    client: Client,
    phase: Phase,
    since: Instant,
    slot: Option<Slot>,
    /// Whether the connection has been told to close, in its present phase.
    going: bool,
    signals: Arc<Signals>,
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for a complete request.
    Idle,
    /// The request waits for a slot.
    Waiting,
    /// The request is being answered.
    Answering,
    /// The reply is being sent.
    Sending,
    /// An endless reply is being sent, piece by piece.
    Live,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Any,
    Reserved,
}

#[derive(Debug, Default)]
struct Signals {
    close: Notify,
    refuse: Notify,
}

/// Handle of an open connection; dropping it removes the connection from the registry.
#[derive(Debug)]
pub(super) struct Connection {
    registry: Arc<Registry>,
    id: u64,
    signals: Arc<Signals>,
}

impl Registry {
    /// A registry of at most `open` connections.
    pub(super) fn new(open: usize) -> Arc<Registry> {
        Arc::new(Registry {
            limits: Limits::new(open),
            state: Mutex::new(RegistryState {
                next: 0,
                moved: Instant::now(),
                open: BTreeMap::new(),
                clients: HashMap::new(),
                all: SlotShare::default(),
            }),
            freed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection as soon as the limits allow it.
    pub(super) async fn admit(self: &Arc<Registry>, client: Client) -> Connection {
        loop {
            let freed = self.freed.notified();
            if let Some(connection) = self.try_admit(client) {
                return connection;
            }
            self.let_one_go(Instant::now());
            // In the meantime another connection may exceed its patience.
            let _ = tokio::time::timeout(PATIENCE / 30, freed).await;
        }
    }

    fn try_admit(self: &Arc<Registry>, client: Client) -> Option<Connection> {
        let mut state = self.lock();
        if state.open.len() >= self.limits.open {
            return None;
        }
        let signals = Arc::new(Signals::default());
        let id = state.next;
        state.next += 1;
        let entry = Entry {
            client,
            phase: Phase::Idle,
            since: Instant::now(),
            slot: None,
            going: false,
            signals: Arc::clone(&signals),
        };
        state.open.insert(id, entry);
        state.all.open += 1;
        state.clients.entry(client).or_default().open += 1;
        Some(Connection {
            registry: Arc::clone(self),
            id,
            signals,
        })
    }

    /// Tells the least valuable connection to close.
    fn let_one_go(&self, now: Instant) {
        let mut state = self.lock();
        let stuck = now.saturating_duration_since(state.moved) >= PATIENCE;
        let RegistryState { open, clients, .. } = &mut *state;
        let all = open.values_mut().filter(|entry| entry.may_go(now, stuck));
        let least = all.min_by_key(|entry| {
            let has = clients.get(&entry.client).map(|share| share.open);
            (entry.phase.worth(), Reverse(has), entry.since)
        });
        if let Some(entry) = least {
            entry.tell();
        }
    }

    /// Tells all connections of slow readers to close.
    pub(super) fn let_slow_readers_go(&self) {
        let now = Instant::now();
        for entry in self.lock().open.values_mut() {
            if entry.phase == Phase::Sending && entry.may_go(now, false) {
                entry.tell();
            }
        }
    }
}

impl Phase {
    /// The cost of closing a connection now; `None` if it must stay open.
    fn worth(self) -> Option<u8> {
        match self {
            Phase::Idle => Some(0),
            Phase::Waiting => Some(1),
            Phase::Sending => Some(2),
            Phase::Answering | Phase::Live => None,
        }
    }
}

impl Entry {
    fn may_go(&self, now: Instant, stuck: bool) -> bool {
        let patience = match self.phase {
            Phase::Sending => READING,
            Phase::Waiting if stuck => STUCK,
            _ => PATIENCE,
        };
        let spent = now.saturating_duration_since(self.since);
        !self.going && self.phase.worth().is_some() && spent >= patience
    }

    fn tell(&mut self) {
        self.going = true;
        match self.phase {
            Phase::Waiting => self.signals.refuse.notify_one(),
            _ => self.signals.close.notify_one(),
        }
    }
}

impl RegistryState {
    /// Sets or clears the slot of a connection; returns whether the slot changed.
    fn set_slot(&mut self, id: u64, slot: Option<Slot>) -> bool {
        let Some(entry) = self.open.get_mut(&id) else {
            return false;
        };
        let before = std::mem::replace(&mut entry.slot, slot);
        let share = self.clients.entry(entry.client).or_default();
        for share in [share, &mut self.all] {
            before
                .into_iter()
                .for_each(|slot| *share.count_mut(slot) -= 1);
            slot.into_iter()
                .for_each(|slot| *share.count_mut(slot) += 1);
        }
        before != slot
    }

    fn remove(&mut self, id: u64) {
        self.set_slot(id, None);
        let Some(entry) = self.open.remove(&id) else {
            return;
        };
        self.all.open -= 1;
        if let hash_map::Entry::Occupied(mut share) = self.clients.entry(entry.client) {
            share.get_mut().open -= 1;
            if share.get().open == 0 {
                share.remove();
            }
        }
    }

    /// A free slot for a request on this connection, if any.
    fn free_slot(&self, limits: &Limits, id: u64, vital: bool) -> Option<Slot> {
        let client = self.open.get(&id)?.client;
        let of_client = self.clients.get(&client).map_or(0, |share| share.slots);
        if of_client < limits.of_client && self.all.slots < limits.slots {
            return Some(Slot::Any);
        }
        (vital && self.all.reserved < limits.reserved).then_some(Slot::Reserved)
    }
}

impl Connection {
    /// Waits for a slot, which may be a reserved one if the request is `vital`. Returns false if the connection must
    /// give way to others.
    pub(super) async fn begin(&self, vital: bool) -> bool {
        self.enter(Phase::Waiting);
        loop {
            let freed = self.registry.freed.notified();
            if self.take_slot(vital) {
                return true;
            }
            tokio::select! {
                () = freed => {}
                // Ignore a notification left over from when the previous request got its slot.
                () = self.signals.refuse.notified() => if self.is_going() {
                    return false;
                },
            }
        }
    }

    fn take_slot(&self, vital: bool) -> bool {
        let mut state = self.registry.lock();
        let slot = state.free_slot(&self.registry.limits, self.id, vital);
        if slot.is_none() || !state.set_slot(self.id, slot) {
            return false;
        }
        if let Some(entry) = state.open.get_mut(&self.id) {
            entry.phase = Phase::Answering;
            entry.going = false;
        }
        true
    }

    /// Whether the connection has been told to close and has not entered another phase since.
    pub(super) fn is_going(&self) -> bool {
        let state = self.registry.lock();
        state.open.get(&self.id).is_none_or(|entry| entry.going)
    }

    /// Sets the phase. `Idle` frees the slot.
    pub(super) fn enter(&self, phase: Phase) {
        let mut state = self.registry.lock();
        let Some(entry) = state.open.get_mut(&self.id) else {
            return;
        };
        entry.phase = phase;
        entry.since = Instant::now();
        entry.going = false;
        if phase == Phase::Idle && state.set_slot(self.id, None) {
            state.moved = Instant::now();
            drop(state);
            self.registry.freed.notify_waiters();
        }
    }

    /// Completes when the connection is told to close.
    pub(super) async fn told_to_go(&self) {
        self.signals.close.notified().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.registry.lock().remove(self.id);
        self.registry.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
