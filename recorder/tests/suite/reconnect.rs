//! Nodes that are asked to drop peers whose connections are older than the recorder; their RPC is played here.

mod node;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tezos_recorder::captured::Socket;
use tezos_recorder::reconnect::{Node, Note, Reconnect, ReconnectHealth, Report, Reports};

use self::node::{FakeNode, OWN, id, peer};

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// The thread of a node, and what it says.
struct Asked {
    reports: Reports,
    thread: Reconnect,
    notes: Receiver<Note>,
}

impl Asked {
    fn new(rpc: SocketAddr) -> Self {
        Self::with_identity(rpc, Some(OWN))
    }

    fn with_identity(rpc: SocketAddr, own: Option<&'static str>) -> Self {
        let mut reports = Reports::default();
        let receiver = reports.add("tezos");
        let (sender, notes) = channel();
        let node = Node {
            name: "tezos".into(),
            rpc,
            pause: PAUSE,
            peer_id: Box::new(move || own.map(Into::into)),
            note: Box::new(move |note| sender.send(note).unwrap()),
            say: |text| eprintln!("{text}"),
        };
        let thread = Reconnect::start(node, receiver).unwrap();
        Self {
            reports,
            thread,
            notes,
        }
    }

    fn found(&self, socket: u64, remote: &str) {
        let remote = remote.parse().unwrap();
        let socket = Socket(socket);
        self.reports.send(None, Report::Found { socket, remote });
    }

    #[track_caller]
    fn wait(&self, is_reached: impl Fn(&ReconnectHealth) -> bool) -> ReconnectHealth {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let health = self.thread.health();
            if is_reached(&health) {
                return health;
            }
            assert!(Instant::now() < deadline, "{health:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The error that it has, while nothing was dropped.
    #[track_caller]
    fn error(&self) -> String {
        let health = self.wait(|health| health.error.is_some());
        assert_eq!((health.waiting, health.asked), (1, 0), "{health:?}");
        health.error.unwrap()
    }
}

#[test]
fn only_peers_of_older_connections_are_dropped_each_once() {
    let node = FakeNode::start();
    // The port of the connection counts, not the one on which the peer listens.
    for (number, address) in [
        (1, "1.2.3.4:9732"),
        (2, "[2001:db8::7]:40000"),
        (3, "5.6.7.8:9732"),
    ] {
        node.add(number, address);
    }
    let asked = Asked::new(node.address);
    asked.found(11, "1.2.3.4:9732");
    asked.found(12, "[2001:db8::7]:40000");
    // A client of its RPC.
    asked.found(13, "127.0.0.1:50000");
    let health = asked.wait(|health| health.waiting == 0 && health.asked == 2);
    let expected = ReconnectHealth {
        asked: 2,
        skipped: 1,
        ..ReconnectHealth::default()
    };
    assert_eq!(health, expected);
    let dropped: Vec<String> = node.dropped().into_iter().map(|(id, _)| id).collect();
    assert_eq!(dropped, [id(1), id(2)]);
    let notes: Vec<_> = asked
        .notes
        .try_iter()
        .map(|n| (n.socket.0, n.peer_id, n.text))
        .collect();
    let text = "the node is asked to drop this peer, so that its next handshake is seen";
    assert_eq!(notes, [(11, id(1), text.into()), (12, id(2), text.into())]);
    // It has connected again, and its handshake was lost.
    node.add(1, "1.2.3.4:9732");
    asked.found(14, "1.2.3.4:9732");
    asked.wait(|health| health.skipped == 2);
    assert_eq!(node.dropped().len(), 2);
}

#[test]
fn there_is_a_pause_between_two_peers() {
    let node = FakeNode::start();
    for number in 1..=9 {
        node.add(number, &format!("10.0.0.{number}:9732"));
    }
    let asked = Asked::new(node.address);
    for number in 1..=4 {
        asked.found(number, &format!("10.0.0.{number}:9732"));
    }
    asked.wait(|health| health.asked == 4);
    let times: Vec<Instant> = node.dropped().into_iter().map(|(_, time)| time).collect();
    for pair in times.windows(2) {
        assert!(pair[1] - pair[0] >= PAUSE, "{times:?}");
    }
}

#[test]
fn the_node_keeps_half_of_its_peers() {
    let node = FakeNode::start();
    let address = |number: u64| format!("10.0.0.{number}:9732");
    for number in 1..=4 {
        node.add(number, &address(number));
    }
    let asked = Asked::new(node.address);
    for number in 1..=4 {
        asked.found(number, &address(number));
    }
    asked.wait(|health| health.asked == 2);
    std::thread::sleep(5 * PAUSE);
    let health = asked.thread.health();
    assert_eq!((health.asked, health.waiting), (2, 2), "{health:?}");
    // One is back.
    node.add(1, &address(1));
    asked.wait(|health| health.asked == 3);
    std::thread::sleep(5 * PAUSE);
    assert_eq!(asked.thread.health().waiting, 1);
}

#[test]
fn a_connection_that_has_ended_is_not_asked_about() {
    let node = FakeNode::start();
    // Nothing is asked yet.
    let asked = Asked::with_identity(node.address, None);
    node.add(1, "1.2.3.4:9732");
    asked.found(1, "1.2.3.4:9732");
    assert_eq!(asked.error(), "the node's identity is not known yet");
    asked.reports.send(None, Report::Ended(Socket(1)));
    asked.wait(|health| (health.waiting, health.skipped) == (0, 1));
    assert!(node.requests().is_empty());
}

#[test]
fn reports_go_to_the_node_of_the_ports() {
    let mut reports = Reports::default();
    let (a, b) = (reports.add("a"), reports.add("b"));
    let report = |n| Report::Ended(Socket(n));
    reports.send(Some("a"), report(1));
    reports.send(Some("c"), report(2));
    reports.send(None, report(3));
    assert_eq!(a.try_iter().collect::<Vec<_>>(), [report(1), report(3)]);
    assert_eq!(b.try_iter().collect::<Vec<_>>(), [report(3)]);
}

/// What a node answers to the list of its connections makes this error, and nothing is dropped.
#[track_caller]
fn fails(reply: impl Fn() -> Vec<u8> + Send + Sync + 'static, expected: &str) {
    let node = FakeNode::with(Arc::new(move |request| {
        (request == "GET /network/connections").then(&reply)
    }));
    let asked = Asked::new(node.address);
    asked.found(1, "1.2.3.4:9732");
    let error = asked.error();
    let url = format!("GET http://{}/network/connections: ", node.address);
    assert!(
        error.starts_with(&url) && error.contains(expected),
        "{error}"
    );
    assert!(node.dropped().is_empty());
}

#[test]
fn replies_that_are_none_are_errors() {
    fails(
        || node::reply("200 OK", "[]]"),
        "not the reply of an Octez node",
    );
    fails(
        || node::reply("200 OK", r#"[{"peer_id": 1}]"#),
        "not the reply of an Octez node",
    );
    fails(
        || node::reply("403 Forbidden", ""),
        "status 403; the node's RPC must allow this path",
    );
    fails(
        || b"HTTP/1.1 302 Found\r\nLocation: /network/self\r\nContent-Length: 0\r\n\r\n".to_vec(),
        "status 302",
    );
    fails(
        || node::reply("200 OK", &format!("[{}]", " ".repeat(5 << 20))),
        "limit",
    );
    fails(
        || b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n[".to_vec(),
        "set `reconnect`",
    );
    fails(Vec::new, "set `reconnect`");
}

#[test]
fn a_node_that_does_not_answer_is_given_up_for_the_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let asked = Asked::new(silent.local_addr().unwrap());
    let began = Instant::now();
    asked.found(1, "1.2.3.4:9732");
    let error = asked.error();
    assert!(error.contains("timeout"), "{error}");
    assert!(began.elapsed() >= Duration::from_secs(5));
}

#[test]
fn a_node_that_comes_later_is_asked_then() {
    let address = FakeNode::start().address;
    let asked = Asked::new(address);
    asked.found(1, "1.2.3.4:9732");
    assert!(asked.error().contains("refused"));
    let node = FakeNode::at(address, Arc::new(|_| None));
    node.add(1, "1.2.3.4:9732");
    let health = asked.wait(|health| health.asked == 1);
    assert_eq!((health.failed, health.error), (0, None));
}

#[test]
fn the_rpc_of_another_node_is_left_alone() {
    let node = FakeNode::start();
    node.add(1, "1.2.3.4:9732");
    let other: &'static str = Box::leak(id(999).into_boxed_str());
    let asked = Asked::with_identity(node.address, Some(other));
    asked.found(1, "1.2.3.4:9732");
    let error = asked.error();
    assert!(
        error.contains(&format!("is the RPC of node {OWN}, not of {other}")),
        "{error}"
    );
    assert!(node.dropped().is_empty());
}

#[test]
fn a_refusal_is_counted_and_noted_and_not_asked_again() {
    let node = FakeNode::with(Arc::new(|request: &str| {
        request
            .starts_with("DELETE")
            .then(|| node::reply("401 Unauthorized", ""))
    }));
    node.add(1, "1.2.3.4:9732");
    let asked = Asked::new(node.address);
    asked.found(1, "1.2.3.4:9732");
    let health = asked.wait(|health| health.failed == 1 && health.waiting == 0);
    assert_eq!(health.asked, 0);
    let texts: Vec<String> = asked.notes.try_iter().map(|note| note.text).collect();
    assert_eq!(texts.len(), 2);
    assert!(
        texts[1].contains("does not drop this peer: DELETE") && texts[1].contains("status 401"),
        "{texts:?}"
    );
    asked.found(2, "1.2.3.4:9732");
    asked.wait(|health| health.skipped == 1);
    assert_eq!(
        node.requests()
            .iter()
            .filter(|r| r.starts_with("DELETE"))
            .count(),
        1
    );
}

#[test]
fn an_id_that_is_none_becomes_no_path() {
    let connections = serde_json::json!([peer(
        "../../injection/block?x=1234567",
        "1.2.3.4:9732".parse().unwrap()
    )]);
    let node = FakeNode::with(Arc::new(move |request: &str| {
        (request == "GET /network/connections")
            .then(|| node::reply("200 OK", &connections.to_string()))
    }));
    let asked = Asked::new(node.address);
    asked.found(1, "1.2.3.4:9732");
    asked.wait(|health| health.skipped == 1);
    assert!(
        node.requests()
            .iter()
            .all(|request| request.starts_with("GET "))
    );
}
