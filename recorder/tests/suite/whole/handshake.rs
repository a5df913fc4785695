//! The handshake as the original's tests have it, and the forms that do not succeed.

use serde_json::Value;

use super::recorder::Scene;

/// The messages of the original's test: connection, metadata and ack both ways, then an operation.
#[test]
fn the_first_seven_messages_of_the_initiator() {
    let scene = Scene::new("handshake");
    let recorder = scene.record(&["connect"]);
    let listener = scene.start("listen", "--preset handshake --port 0");
    let address = listener.address();
    let connector = scene.start("connect", &format!("{address} --preset handshake --port 0"));
    let log = connector.end();
    listener.end();
    recorder.must_have("connect", &log);
    let list = recorder
        .server
        .json("/v2/p2p?node_name=connect&cursor=0&direction=forward");
    let rows = list.as_array().unwrap();
    let expected = [
        (false, "connection", "connection_message"),
        (true, "connection", "connection_message"),
        (false, "meta", "metadata"),
        (true, "meta", "metadata"),
        (false, "ack", "ack_message"),
        (true, "ack", "ack_message"),
        (false, "p2p", "operation"),
    ];
    assert_eq!(rows.len(), expected.len(), "{rows:#?}");
    for (id, (row, (incoming, category, kind))) in rows.iter().zip(expected).enumerate() {
        assert_eq!(row["id"], id, "{row:#}");
        assert_eq!(row["incoming"], incoming, "{row:#}");
        assert_eq!(row["category"], category, "{row:#}");
        assert_eq!(row["source_type"], "local", "{row:#}");
        if category == "p2p" {
            assert_eq!(row["kind"], kind, "{row:#}");
        }
        let details = recorder
            .server
            .json(&format!("/v2/p2p/{id}?node_name=connect"));
        assert_eq!(details["error"], Value::Null, "{details:#}");
        assert!(!details["original_bytes"].as_array().unwrap().is_empty());
    }
    let message = &recorder.server.json("/v2/p2p/0?node_name=connect")["message"];
    assert_eq!(message["version"]["chain_name"], "TEZOS_MAINNET");
    recorder.end();
}

/// The remarks on the connection that these options make.
#[track_caller]
fn remarks(listens: &str, connects: &str) -> (Value, String) {
    let scene = Scene::new("refused");
    let recorder = scene.record(&["listen"]);
    let mut listener = scene.start("listen", &format!("--control {listens}"));
    let address = listener.address();
    let mut connector = scene.start("connect", &format!("{address} --control {connects}"));
    connector.line("opened");
    connector.command("close");
    connector.line("closed");
    listener.command("quit");
    let connections = recorder.ended_connections("listen", 1);
    recorder.end();
    let [connection] = &connections[..] else {
        panic!("{connections:#?}");
    };
    let remarks = connection["remarks"].as_array().unwrap().iter();
    let text: Vec<&str> = remarks
        .map(|remark| remark["text"].as_str().unwrap())
        .collect();
    (connection.clone(), text.join("\n"))
}

#[test]
fn a_refusal_is_in_the_list_of_connections() {
    let (connection, _) = remarks("--handshake nack --motive 1", "");
    let acks = connection["acks"].to_string();
    assert!(acks.contains("TooManyConnections"), "{connection:#}");
    let state = [&connection["state"], &connection["reason"]];
    assert_eq!(state, ["refused", "too_many_connections"]);
}

#[test]
fn a_stamp_without_work_is_remarked() {
    let (_, remarks) = remarks("", "--handshake wrong-stamp");
    let expected = "incoming connection message bad proof-of-work, target: 8";
    assert!(remarks.contains(expected), "{remarks}");
}
