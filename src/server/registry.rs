//! Which connections there are, what each is doing, and which one has to go when there are too many.
//!
//! - So many connections are open at most. When one more comes, one that sends no request goes: of the
//!   client with the most connections, the one that has waited longest.
//! - A request is answered when it has a slot. Some slots are for health and metrics alone, and no client
//!   has all of the others.
//! - A request that waits for a slot while others cannot even connect is told to come back later, and a
//!   client that takes long to read is let go.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, hash_map};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How long a connection may be without a request, or wait for a slot, while others cannot connect.
const PATIENCE: Duration = Duration::from_secs(3);

/// As [`PATIENCE`], of requests that wait while no slot became free for that long.
const STUCK: Duration = Duration::from_millis(100);

/// How long a reply may take to be read while others need its room.
const READING: Duration = Duration::from_secs(15);

/// One part in so many of all connections is for health and metrics, and of the rest for other clients
/// than the one with the most.
const SHARE: usize = 8;

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Registry {
    limits: Limits,
    state: Mutex<State>,
    /// Told whenever a connection or a slot becomes free.
    freed: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    open: usize,
    /// Slots for any request, in all and of one client.
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
struct State {
    next: u64,
    /// When a slot became free last.
    moved: Instant,
    open: BTreeMap<u64, Entry>,
    /// What the clients of `open` have, and all of them together.
    clients: HashMap<IpAddr, Share>,
    all: Share,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    open: usize,
    slots: usize,
    reserved: usize,
}

impl Share {
    fn of(&mut self, slot: Slot) -> &mut usize {
        match slot {
            Slot::Any => &mut self.slots,
            Slot::Reserved => &mut self.reserved,
        }
    }
}

#[derive(Debug)]
struct Entry {
    client: IpAddr,
    phase: Phase,
    since: Instant,
    slot: Option<Slot>,
    /// It was told to go.
    going: bool,
    signals: Arc<Signals>,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No request is complete.
    Idle,
    /// Its request waits for a slot.
    Waiting,
    /// Its request is answered.
    Answering,
    /// Its reply is sent.
    Sending,
    /// Its reply is sent as it comes, without an end.
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

/// An open connection; it is taken out of the registry when it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    registry: Arc<Registry>,
    id: u64,
    signals: Arc<Signals>,
}

impl Registry {
    /// A registry of so many connections at most.
    pub(super) fn new(open: usize) -> Arc<Registry> {
        Arc::new(Registry {
            limits: Limits::new(open),
            state: Mutex::new(State {
                next: 0,
                moved: Instant::now(),
                open: BTreeMap::new(),
                clients: HashMap::new(),
                all: Share::default(),
            }),
            freed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in, once there is room for it.
    pub(super) async fn admit(self: &Arc<Registry>, client: IpAddr) -> Connection {
        loop {
            let freed = self.freed.notified();
            if let Some(connection) = self.try_admit(client) {
                return connection;
            }
            self.let_one_go(Instant::now());
            // Somebody's patience may end meanwhile.
            let _ = tokio::time::timeout(PATIENCE / 30, freed).await;
        }
    }

    fn try_admit(self: &Arc<Registry>, client: IpAddr) -> Option<Connection> {
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

    /// Tells the connection to go that others miss least.
    fn let_one_go(&self, now: Instant) {
        let mut state = self.lock();
        let stuck = now.saturating_duration_since(state.moved) >= PATIENCE;
        let State { open, clients, .. } = &mut *state;
        let all = open.values_mut().filter(|entry| entry.may_go(now, stuck));
        let least = all.min_by_key(|entry| {
            let has = clients.get(&entry.client).map(|share| share.open);
            (entry.phase.worth(), Reverse(has), entry.since)
        });
        if let Some(entry) = least {
            entry.tell();
        }
    }

    /// Tells all connections to go that have taken long to read.
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
    /// How much is lost when a connection goes now; `None` where it may not.
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

impl State {
    /// Gives a connection a slot, or takes the one it has; whether that changed anything.
    fn set_slot(&mut self, id: u64, slot: Option<Slot>) -> bool {
        let Some(entry) = self.open.get_mut(&id) else {
            return false;
        };
        let before = std::mem::replace(&mut entry.slot, slot);
        let share = self.clients.entry(entry.client).or_default();
        for share in [share, &mut self.all] {
            before.into_iter().for_each(|slot| *share.of(slot) -= 1);
            slot.into_iter().for_each(|slot| *share.of(slot) += 1);
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

    /// A slot for a request of that connection, if one is free.
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
    /// Waits for a slot; one for health and metrics may be had if the request is `vital`. Whether there
    /// is one: there is none when others need the connection meanwhile.
    pub(super) async fn begin(&self, vital: bool) -> bool {
        self.enter(Phase::Waiting);
        loop {
            let freed = self.registry.freed.notified();
            if self.take_slot(vital) {
                return true;
            }
            tokio::select! {
                () = freed => {}
                // A word that came as the last request found its slot is no longer meant.
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

    fn is_going(&self) -> bool {
        let state = self.registry.lock();
        state.open.get(&self.id).is_none_or(|entry| entry.going)
    }

    /// What it does from now on. Its slot is free when it is idle again.
    pub(super) fn enter(&self, phase: Phase) {
        let mut state = self.registry.lock();
        let Some(entry) = state.open.get_mut(&self.id) else {
            return;
        };
        entry.phase = phase;
        entry.since = Instant::now();
        if phase == Phase::Idle && state.set_slot(self.id, None) {
            state.moved = Instant::now();
            drop(state);
            self.registry.freed.notify_waiters();
        }
    }

    /// Completes when the connection has to be closed.
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
