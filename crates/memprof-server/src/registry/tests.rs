use std::net::Ipv4Addr;

use super::*;

fn client(number: u8) -> Client {
    Client::Address(Ipv4Addr::new(127, 0, 0, number).into())
}

fn open(registry: &Arc<Registry>, client_number: u8) -> Connection {
    registry.try_admit(client(client_number)).unwrap()
}

/// Ids of the connections that have been told to close.
fn going(registry: &Registry) -> Vec<u64> {
    let state = registry.lock();
    let going = state.open.iter().filter(|(_, entry)| entry.going);
    going.map(|(id, _)| *id).collect()
}

fn later(by: Duration) -> Instant {
    Instant::now() + by
}

#[test]
fn limits_add_up() {
    for open in 0..2000 {
        let limits = Limits::new(open);
        assert_eq!(limits.slots + limits.reserved, limits.open, "{open}");
        assert!(limits.of_client > 0 && limits.reserved > 0, "{open}");
        assert!(limits.of_client <= limits.slots, "{open}");
    }
    let limits = Limits::new(512);
    assert_eq!(
        (limits.slots, limits.of_client, limits.reserved),
        (448, 392, 64)
    );
}

#[test]
fn the_oldest_idle_one_of_the_client_with_most_goes() {
    let registry = Registry::new(4);
    let lone = open(&registry, 2);
    let many: Vec<_> = (0..3).map(|_| open(&registry, 1)).collect();
    assert!(registry.try_admit(client(3)).is_none());
    registry.let_one_go(Instant::now());
    assert!(going(&registry).is_empty(), "everybody has a moment");
    registry.let_one_go(later(PATIENCE));
    assert_eq!(going(&registry), [many[0].id]);
    many[1].enter(Phase::Answering);
    many[2].enter(Phase::Answering);
    registry.let_one_go(later(PATIENCE));
    assert_eq!(going(&registry), [lone.id, many[0].id]);
    registry.let_one_go(later(READING));
    assert_eq!(going(&registry).len(), 2, "who is answered stays");
}

/// A connection that has been told to close stays open if its request is read before it closes.
#[test]
fn a_request_keeps_a_connection_open() {
    let registry = Registry::new(1);
    let only = open(&registry, 1);
    registry.let_one_go(later(PATIENCE));
    assert!(only.is_going());
    only.enter(Phase::Waiting);
    assert!(!only.is_going());
    registry.let_one_go(later(PATIENCE));
    assert!(only.is_going(), "its turn does not come");
}

#[test]
fn slow_readers_go_last() {
    let registry = Registry::new(2);
    let (reading, live) = (open(&registry, 1), open(&registry, 1));
    reading.enter(Phase::Sending);
    live.enter(Phase::Live);
    registry.let_one_go(later(PATIENCE));
    assert!(going(&registry).is_empty());
    registry.let_one_go(later(READING));
    assert_eq!(going(&registry), [reading.id]);
}

#[tokio::test]
async fn some_slots_are_for_others_and_some_for_health() {
    let registry = Registry::new(16);
    let limits = registry.limits;
    assert_eq!(
        (limits.slots, limits.of_client, limits.reserved),
        (14, 13, 2)
    );
    let mine: Vec<_> = (0..13).map(|_| open(&registry, 1)).collect();
    for connection in &mine {
        assert!(connection.begin(false).await);
    }
    let one_more = open(&registry, 1);
    assert!(!one_more.take_slot(false), "a client has not all");
    assert!(one_more.take_slot(true), "but it may ask for health");
    let other = open(&registry, 2);
    assert!(other.begin(false).await);
    let last = open(&registry, 2);
    assert!(!last.take_slot(false));
    // A waiting request gets the freed slot.
    let wait = last.begin(false);
    let free = async { mine[0].enter(Phase::Idle) };
    assert!(tokio::join!(wait, free).0);
}

#[tokio::test]
async fn who_waits_is_told_when_others_cannot_connect() {
    let registry = Registry::new(2);
    let (busy, waiting) = (open(&registry, 1), open(&registry, 1));
    assert!(busy.begin(false).await);
    let told = async { registry.let_one_go(later(PATIENCE)) };
    assert!(!tokio::join!(waiting.begin(false), told).0);
    drop(waiting);
    registry.try_admit(client(1)).unwrap();
}
