//! Messages of every form, of both nodes.

use super::recorder::Scene;

/// Two pseudo nodes talk with these options; the recorder must have every message of both.
#[track_caller]
fn is_recorded(listens: &str, connects: &str) {
    let scene = Scene::new("traffic");
    let recorder = scene.record(&["listen", "connect"]);
    let listener = scene.start("listen", listens);
    let address = listener.address();
    let connector = scene.start("connect", &format!("{address} {connects}"));
    let (listened, connected) = (listener.end(), connector.end());
    recorder.must_have("listen", &listened);
    recorder.must_have("connect", &connected);
    let number = listened.connections.len();
    for (role, log) in [("listen", &listened), ("connect", &connected)] {
        for connection in recorder.ended_connections(role, number) {
            assert_eq!(
                connection["ignored"],
                serde_json::Value::Null,
                "{connection:#}"
            );
            assert_eq!(connection["bytes"]["lost"], 0, "{connection:#}");
            let sum = |what: &str| connection["bytes"][what].as_u64().unwrap();
            let own = log.connections.iter().any(|own| {
                let closed = own.closed.as_ref().unwrap();
                (closed.sent_bytes, closed.received_bytes) == (sum("sent"), sum("received"))
            });
            assert!(own, "{role}: no connection has these bytes: {connection:#}");
        }
    }
    assert_eq!(recorder.server.json("/v4/health")["status"], "ok");
    recorder.end();
}

#[test]
fn every_way_to_send_and_receive() {
    let forms = "--send any --receive any --chunks any --size 0..20000";
    let messages = "--messages 150";
    is_recorded(
        &format!("{forms} {messages}"),
        &format!("{forms} {messages} --seed 7"),
    );
}

#[test]
fn io_uring_both_ways() {
    let forms = "--send uring --receive uring --size 0..100000 --messages 40";
    is_recorded(forms, forms);
}

#[test]
fn duplicated_descriptors_threads_and_large_messages() {
    is_recorded(
        "--dup --threads 3 --messages 60",
        "--nonblocking --nonblocking-connect --threads 2 --messages 20 --size 100000..3000000",
    );
}

#[test]
fn a_forked_child_and_a_refused_connect() {
    is_recorded(
        "--fork --messages 40",
        "--refused-first --messages 40 --chunks straddle",
    );
}

#[test]
fn several_connections_and_reused_ports() {
    is_recorded("--connections 6 --messages 20", "--rounds 6 --messages 20");
}

#[test]
fn over_ipv6() {
    is_recorded("--address ::1 --messages 30", "--messages 30");
}

#[test]
fn a_node_of_the_data_availability_layer() {
    let dal = "--chain DAL_TEZOS_MAINNET --messages 60";
    is_recorded(dal, dal);
}

/// A node's other traffic: nothing of it is stored.
#[test]
fn http_of_the_same_process_is_not_stored() {
    let scene = Scene::new("http");
    let recorder = scene.record(&["listen"]);
    let port = super::recorder::free_port();
    let mut listener = scene.start("listen", &format!("--http {port} --control"));
    let address = listener.address();
    listener.line("http");
    let http = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let secret = "a-request-that-nobody-may-store";
    for _ in 0..3 {
        let reply = crate::api::client::Server::at(http).get(&format!("/{secret}"));
        assert_eq!(reply.status, 200);
    }
    let connector = scene.start("connect", &format!("{address} --messages 5"));
    connector.end();
    listener.command("quit");
    let log = listener.end();
    recorder.must_have("listen", &log);
    recorder.end();
    let db = scene.dir.path().join("listen");
    let mut files = 0;
    for file in std::fs::read_dir(db).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let found = bytes
            .windows(secret.len())
            .any(|part| part == secret.as_bytes());
        assert!(!found, "a request is stored");
        files += 1;
    }
    assert!(files > 2);
}

/// `export` has every chunk and every message, while the recorder runs and afterwards.
#[test]
fn an_export_has_every_message() {
    let scene = Scene::new("export");
    let recorder = scene.record(&["listen"]);
    let listener = scene.start("listen", "--messages 300");
    let connector = scene.start("connect", &format!("{} --messages 300", listener.address()));
    connector.end();
    let log = listener.end();
    recorder.must_have("listen", &log);
    let export = || {
        let file = scene.dir.path().join("messages.pcapng");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tezos-recorder"));
        command
            .arg("export")
            .arg(&file)
            .arg("--db")
            .arg(scene.dir.path().join("listen"));
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains(&format!("{} messages exported", log.messages())),
            "{said}"
        );
        std::fs::read(file).unwrap()
    };
    let running = export();
    recorder.end();
    assert_eq!(export(), running);
    let plain: u64 = log
        .connections
        .iter()
        .flat_map(|c| c.sent.iter().chain(&c.received))
        .map(|m| m.size)
        .sum();
    assert!(
        running.len() as u64 > 2 * plain,
        "{} bytes for {plain}",
        running.len()
    );
}
