//! `reconnect`: the node drops peers whose connections are older than the recorder, and their next connections are decrypted.

use serde_json::{Value, json};

use super::recorder::{Recorder, Scene};

#[test]
fn a_connection_from_before_is_dropped_and_the_next_one_is_decrypted() {
    let scene = Scene::new("reconnect");
    let mut listener = scene.start("listen", "--control --http 0");
    let address = listener.address();
    let rpc = listener.line("http");
    // It connects again when the node ends the connection.
    let mut connector = scene.start_outside("connect", &format!("{address} --control --rounds 2"));
    connector.line("sent 0");
    connector.command("send 5");
    connector.line("sent 5");
    // The port of this node is another one: only its RPC says whose connection it is.
    let nodes = scene.nodes(&["listen"]).replace(
        "[[nodes]]",
        &format!("[[nodes]]\nreconnect = \"http://{rpc}\""),
    );
    let recorder = Recorder::start(scene.dir.path(), &nodes);
    recorder.says("capturing in control group");
    let health = || recorder.server.json("/v4/health")["nodes"][0]["reconnect"].clone();
    let none = json!({"waiting": 0, "asked": 0, "skipped": 0, "failed": 0, "error": null});
    assert_eq!(health(), none);
    connector.command("send 5");
    recorder.says("listen: the node drops id");
    connector.line("closed");
    connector.line("opened");
    connector.line("sent 0");
    connector.command("send 7");
    connector.line("sent 7");
    recorder.messages("listen", 6 + 7);
    connector.command("close");
    connector.end();
    listener.command("quit");
    let log = listener.end();
    let connections = recorder.ended_connections("listen", 2);
    let [before, after] = &connections[..] else {
        panic!("{connections:#?}");
    };
    let ignored = before["ignored"].as_str().unwrap();
    assert!(
        ignored.starts_with("opened before the recorder"),
        "{ignored}"
    );
    let remark = "the node is asked to drop this peer, so that its next handshake is seen";
    assert_eq!(before["remarks"][0]["text"], remark, "{before:#}");
    assert_eq!(before["peer_id"], after["peer_id"], "{before:#}");
    assert_eq!(
        (&after["ignored"], &after["remarks"]),
        (&Value::Null, &json!([]))
    );
    let second = &log.connections[1];
    assert_eq!(second.sent.len() + second.received.len(), 6 + 7);
    let expected = json!({"waiting": 0, "asked": 1, "skipped": 0, "failed": 0, "error": null});
    assert_eq!(health(), expected);
    let metrics = recorder.server.get("/metrics");
    let line = "\ntezos_recorder_reconnect_asked_total{node=\"listen\"} 1\n";
    assert!(metrics.text().contains(line), "{}", metrics.text());
    recorder.end();
}
