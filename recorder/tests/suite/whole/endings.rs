//! Any order of starts and ends: the node notices nothing, and recording goes on with the next connection.

use std::fs;

use super::recorder::{Recorder, Scene};

#[test]
fn a_connection_from_before_is_listed_and_the_next_one_is_recorded() {
    let scene = Scene::new("before");
    let mut listener = scene.start("listen", "--control");
    let address = listener.address();
    let mut connector = scene.start_outside("connect", &format!("{address} --control"));
    connector.line("sent 0");
    connector.command("send 5");
    connector.line("sent 5");
    // The port says whose connection it is.
    let nodes = scene
        .nodes(&["listen"])
        .replace("port = 1 ", &format!("port = {} ", address.port()));
    let recorder = Recorder::start(scene.dir.path(), &nodes);
    recorder.says("capturing in control group");
    connector.command("send 5");
    connector.line("sent 10");
    recorder.wait("a listed connection", || {
        recorder.server.json("/v4/connections")["items"]
            .as_array()
            .unwrap()
            .len()
            == 1
    });
    let list = recorder.server.json("/v4/connections");
    let ignored = list["items"][0]["ignored"].as_str().unwrap();
    assert!(
        ignored.starts_with("opened before the recorder"),
        "{ignored}"
    );
    connector.command("close");
    connector.line("closed");
    let second = scene.start_outside("connect", &format!("{address} --messages 10"));
    let log = second.end();
    listener.command("quit");
    let listened = listener.end();
    let messages = recorder.messages("listen", log.messages());
    assert_eq!(
        messages.len(),
        listened.connections[1].sent.len() + listened.connections[1].received.len()
    );
    assert_eq!(recorder.ended_connections("listen", 2).len(), 2);
    recorder.end();
}

#[test]
fn an_identity_that_comes_late_decrypts_what_was_held() {
    let scene = Scene::new("late");
    let identity = scene.identity("listen");
    let hidden = identity.with_extension("hidden");
    // The node reads it before it disappears.
    let mut listener = scene.start("listen", "--messages 10 --control");
    let address = listener.address();
    fs::rename(&identity, &hidden).unwrap();
    let recorder = scene.record(&["listen"]);
    let mut connector = scene.start("connect", &format!("{address} --control"));
    connector.line("sent 0");
    connector.command("send 10");
    connector.line("sent 10");
    assert!(
        recorder.node("listen")["identity"]
            .as_str()
            .unwrap()
            .starts_with("awaited")
    );
    assert_eq!(recorder.node("listen")["messages"], 0);
    fs::rename(&hidden, &identity).unwrap();
    recorder.messages("listen", 6 + 10);
    assert_eq!(recorder.node("listen")["identity"], "known");
    connector.command("close");
    connector.end();
    listener.command("quit");
    recorder.must_have("listen", &listener.end());
    recorder.end();
}

/// Killed at any time, and started again: what was stored remains, ids go on, the nodes lose nothing.
#[test]
fn a_killed_recorder_leaves_the_nodes_alone_and_goes_on() {
    let scene = Scene::new("killed");
    let listener = scene.start("listen", "--connections 9 --messages 200 --rate 400");
    let address = listener.address();
    let connector = scene.start(
        "connect",
        &format!("{address} --rounds 9 --messages 200 --rate 400"),
    );
    let mut last = 0;
    for round in 0..4 {
        let mut recorder = scene.record(&["listen"]);
        recorder.wait("messages", || {
            recorder.node("listen")["messages"].as_u64().unwrap() > last + 50 + 20 * round
        });
        last = recorder.node("listen")["messages"].as_u64().unwrap();
        recorder.kill();
    }
    let recorder = scene.record(&["listen"]);
    let (listened, connected) = (listener.end(), connector.end());
    let closed = |log: &crate::pseudo::log::NodeLog| -> (u64, u64) {
        let closed = log.connections.iter().map(|c| c.closed.as_ref().unwrap());
        closed.fold((0, 0), |(sent, received), c| {
            (sent + c.sent_bytes, received + c.received_bytes)
        })
    };
    let (sent, received) = closed(&listened);
    assert_eq!(closed(&connected), (received, sent), "the nodes lost bytes");
    let list = recorder
        .server
        .json("/v4/messages?direction=forward&limit=10000");
    let ids = crate::api::client::ids(&list);
    assert!(ids.len() as u64 > last);
    assert_eq!(ids, (0..ids.len() as u64).collect::<Vec<_>>());
    // Those that were open at a kill have ended, nobody knows when.
    let connections = recorder.ended_connections("listen", 1);
    let unseen = connections.iter().filter(|c| c["end"] == "unseen");
    let unseen: Vec<_> = unseen.collect();
    assert!(!unseen.is_empty(), "{connections:#?}");
    for connection in unseen {
        assert!(connection["ended"].is_null(), "{connection:#}");
        let remarks = connection["remarks"].to_string();
        assert!(remarks.contains("whose end was not seen"), "{connection:#}");
    }
    recorder.end();
}

#[test]
fn lines_of_logs_come_by_udp() {
    let scene = Scene::new("logs");
    let port = super::recorder::free_port();
    let nodes = format!(
        "[[nodes]]\nname = \"node\"\nhttp_v3 = 0\ndb = {:?}\nlog = {{ port = {port} }}\n",
        scene.dir.path().join("node")
    );
    for half in 0..2 {
        let recorder = Recorder::start(scene.dir.path(), &nodes);
        recorder.says("following logs");
        assert_eq!(recorder.server.json("/v2/version"), commit());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for id in half * 300..(half + 1) * 300 {
            let level = match id % 19 {
                1 | 4 | 5 | 8 => "WARN",
                7 | 10 => "ERROR",
                _ => "INFO",
            };
            let time = 1_626_264_000 + id;
            let header = format!(
                "<27>1 2021-07-14T{:02}:{:02}:{:02}.000000+00:00 host node - - -",
                time / 3600 % 24,
                time / 60 % 60,
                time % 60
            );
            let line = format!("{header} Jul 14 12:00:00.000 {level} some line {id}");
            socket
                .send_to(line.as_bytes(), ("127.0.0.1", port))
                .unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let stored = (half + 1) * 300;
        recorder.wait("all lines", || recorder.node("node")["logs"] == stored);
        let health = recorder.server.json("/v4/health");
        let logs = &health["nodes"][0]["logs"][0];
        let source = format!("UDP 127.0.0.1:{port}");
        assert_eq!(logs["source"], source, "{health:#}");
        let counts = ["received", "malformed", "dropped", "overruns"];
        let counts = counts.map(|what| logs[what].as_u64().unwrap());
        assert_eq!(counts, [300, 0, 0, 0], "{health:#}");
        assert_eq!(health["status"], "ok");
        let list = recorder.server.json("/v2/log?node_name=node&limit=1000");
        let rows = list.as_array().unwrap();
        assert_eq!(rows.len(), stored as usize);
        for row in rows {
            let id = row["id"].as_u64().unwrap();
            assert_eq!(row["timestamp"], (1_626_264_000 + id) * 1_000_000_000);
            assert_eq!(row["message"], format!("some line {id}"), "{row:#}");
        }
        let warnings = recorder.server.json("/v2/log?log_level=warn&limit=1000");
        let warnings = warnings.as_array().unwrap();
        let expected = (0..stored).filter(|id| [1, 4, 5, 8].contains(&(id % 19)));
        assert_eq!(warnings.len(), expected.count());
        let said = recorder.end().join("\n");
        let summary = format!("node: 0 messages and {stored} lines of logs recorded");
        assert!(said.contains(&summary), "{said}");
    }
}

/// The commit that was built in, which the checkout has, by now perhaps with others after it; the version if this is no checkout.
fn commit() -> &'static str {
    let commit = env!("TEZOS_RECORDER_COMMIT");
    let git = |args: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = git.output().ok().filter(|output| output.status.success());
        output.map(|output| String::from_utf8(output.stdout).unwrap())
    };
    match git(&["rev-parse", "HEAD"]) {
        Some(_) => assert_eq!(git(&["cat-file", "-t", commit]).unwrap(), "commit\n"),
        None => assert_eq!(commit, env!("CARGO_PKG_VERSION")),
    }
    commit
}
