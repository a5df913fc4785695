//! Bytes that are not captured: counted exactly, and survived.

use super::recorder::{Recorder, Scene};

/// A ring buffer that is too small while the recorder is stopped: what is captured and what is lost add up to what the nodes sent, and
/// messages after the gap are decrypted again.
#[test]
fn a_full_ring_is_a_gap_of_exact_size_and_messages_go_on() {
    let scene = Scene::new("losses");
    let recorder = Recorder::with(
        scene.dir.path(),
        "ring = \"128KiB\"",
        &scene.nodes(&["listen"]),
    );
    recorder.says("capturing in control group");
    let mut listener = scene.start("listen", "--control");
    let address = listener.address();
    let mut connector = scene.start(
        "connect",
        &format!("{address} --control --kinds operation --size 2000"),
    );
    connector.line("sent 0");
    connector.command("send 20");
    connector.line("sent 20");
    recorder.messages("listen", 6 + 20);
    recorder.pause();
    connector.command("send 400");
    connector.line("sent 420");
    recorder.resume();
    std::thread::sleep(std::time::Duration::from_millis(300));
    connector.command("send 30");
    connector.line("sent 450");
    connector.command("close");
    connector.line("closed");
    listener.line("closed");
    listener.command("quit");
    let log = listener.end();
    let connections = recorder.ended_connections("listen", 1);
    let connection = &connections[0];
    let bytes = |what: &str| connection["bytes"][what].as_u64().unwrap();
    let closed = log.connections[0].closed.as_ref().unwrap();
    assert!(bytes("lost") > 100_000, "{connection:#}");
    assert_eq!(
        bytes("sent") + bytes("received"),
        closed.sent_bytes + closed.received_bytes,
        "{connection:#}"
    );
    let remarks = connection["remarks"].to_string();
    assert!(remarks.contains("message lack chunks, at: "), "{remarks}");
    assert!(remarks.contains("incoming chunks go on with "), "{remarks}");
    let messages = recorder.messages("listen", 1);
    let operations = messages.iter().filter(|m| m["kind"] == "operation");
    let whole = operations.clone().filter(|m| m["error"].is_null());
    // Those before and those after, and some of those between.
    assert!((50..450).contains(&whole.count()), "{}", operations.count());
    let last = &log.connections[0].received;
    let tail: Vec<u64> = messages
        .iter()
        .rev()
        .take(30)
        .map(|m| m["size"].as_u64().unwrap())
        .collect();
    let sent: Vec<u64> = last.iter().rev().take(30).map(|m| m.size).collect();
    assert_eq!(tail, sent);
    let health = recorder.server.json("/v4/health");
    assert_eq!(health["status"], "degraded");
    assert!(
        health["capture"]["lost_events"].as_u64().unwrap() > 0,
        "{health:#}"
    );
    recorder.end();
}
