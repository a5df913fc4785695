//! `/v4/stream`: new records as events, in order, without a gap that is not said.

use std::sync::Arc;

use serde_json::json;
use tezos_recorder::api::Api;
use tezos_recorder::side::Side;
use tezos_recorder::store::{Entry, Level, LogEntry, Settings, Store};
use tezos_recorder::time::Timestamp;

use super::client::Server;
use super::fixture::{ACCEPTED, message, node, options, store, write};

/// A message of the peer: a bootstrap, or every third time a disconnect.
fn one(id: u64) -> [Entry; 2] {
    let tag = if id.is_multiple_of(3) { 1 } else { 2 };
    message(
        id,
        ACCEPTED,
        (Side::Remote, id),
        vec![0; 20],
        vec![0, 0, 0, 2, 0, tag],
    )
}

fn line(text: &str) -> Entry {
    Entry::Log(LogEntry {
        time: Timestamp(1),
        level: Level::Info,
        section: String::new(),
        message: text.into(),
    })
}

fn serve(store: &Arc<Store>) -> Server {
    Server::new(Api::new(vec![node("tezedge", 9732, store)], options()))
}

#[test]
fn new_records_come_in_order() {
    let (_dir, store) = store(Settings::default());
    write(&store, (0..5).flat_map(one));
    let server = serve(&store);
    let mut events = server.events("/v4/stream?logs=true", "");
    assert_eq!(events.next().unwrap().id, "5-0");
    write(&store, (5..8).flat_map(one));
    for id in 5..8 {
        let (data, last) = events.expect("message");
        assert_eq!((&data["id"], last), (&json!(id), format!("{}-0", id + 1)));
        let listed = server.json(&format!("/v4/messages?limit=1&cursor={id}"));
        assert_eq!(data, listed["items"][0]);
    }
    write(&store, [line("new")]);
    let (data, last) = events.expect("log");
    assert_eq!((&data["message"], last.as_str()), (&json!("new"), "8-1"));
    write(&store, (8..9).flat_map(one));
    assert_eq!(events.expect("message").1, "9-1");
}

#[test]
fn filters() {
    let (_dir, store) = store(Settings::default());
    let server = serve(&store);
    let mut disconnects = server.events("/v4/stream?kinds=disconnect", "");
    let mut lines = server.events("/v4/stream?messages=false&logs=true&query=good", "");
    let mut none = server.events("/v4/stream?peer=idnobody&logs=true&levels=error", "");
    for events in [&mut disconnects, &mut lines, &mut none] {
        assert_eq!(events.next().unwrap().id, "0-0");
    }
    write(
        &store,
        (0..1000).flat_map(one).chain([line("bad"), line("good")]),
    );
    for id in (0..1000).step_by(3) {
        assert_eq!(disconnects.expect("message").0["id"], id);
    }
    assert_eq!(lines.expect("log").0["message"], "good");
    drop(server);
    assert!(none.next().is_none() && lines.next().is_none());
    assert!(disconnects.next().is_none());
}

#[test]
fn it_goes_on_behind_the_last_event() {
    let (_dir, store) = store(Settings::default());
    write(
        &store,
        (0..600)
            .flat_map(one)
            .chain([line("first"), line("second")]),
    );
    let server = serve(&store);
    let mut events = server.events("/v4/stream?logs=true", "Last-Event-ID: 10-1\r\n");
    assert_eq!(events.next().unwrap().id, "10-1");
    for id in 10..600 {
        assert_eq!(events.expect("message").0["id"], id);
    }
    let (data, id) = events.expect("log");
    assert_eq!((&data["message"], id.as_str()), (&json!("second"), "600-2"));
    // Ids of another recording, or none at all, mean now.
    for last in ["999999-7", "x", "5", "-"] {
        let mut events = server.events("/v4/stream", &format!("Last-Event-ID: {last}\r\n"));
        assert_eq!(events.next().unwrap().id, "600-2", "{last}");
    }
}

#[test]
fn who_comes_back_too_late_is_told_what_is_missing() {
    let (_dir, store) = store(Settings::default());
    write(&store, (0..10_500).flat_map(one).chain([line("only")]));
    let server = serve(&store);
    let mut events = server.events("/v4/stream?logs=true", "Last-Event-ID: 100-0\r\n");
    assert_eq!(events.next().unwrap().id, "100-0");
    let (data, id) = events.expect("lost");
    assert_eq!(
        (data, id.as_str()),
        (json!({"messages": 400, "logs": 0}), "500-0")
    );
    for id in 500..10_500 {
        assert_eq!(events.expect("message").0["id"], id);
    }
    assert_eq!(events.expect("log").1, "10500-1");
    // Only messages of which a client wants to know can be missing.
    let mut lines = server.events(
        "/v4/stream?messages=false&logs=true",
        "Last-Event-ID: 0-0\r\n",
    );
    lines.next().unwrap();
    assert_eq!(lines.expect("log").1, "10500-1");
}

/// A client that does not read holds nothing up, and misses records.
#[test]
fn who_reads_too_slowly_misses_records() {
    let (_dir, store) = store(Settings::default());
    let server = serve(&store);
    let mut events = server.events("/v4/stream?logs=true", "");
    assert_eq!(events.next().unwrap().id, "0-0");
    // More than sockets and pieces hold.
    let text = "x".repeat(10_000);
    for _ in 0..4 {
        write(&store, (0..4000).map(|_| line(&text)));
    }
    let (mut seen, mut lost) = (0, 0);
    while seen + lost < 16_000 {
        let event = events.next().unwrap();
        match event.name.as_str() {
            "log" => {
                assert_eq!(event.data.unwrap()["id"], seen + lost);
                seen += 1;
            }
            "lost" => lost += event.data.unwrap()["logs"].as_u64().unwrap(),
            name => panic!("{name}"),
        }
    }
    assert!(lost > 0 && seen >= 10_000, "{seen} seen, {lost} lost");
}

#[test]
fn the_number_of_clients_is_limited() {
    let (_dir, store) = store(Settings::default());
    let server = serve(&store);
    let mut all: Vec<_> = (0..32).map(|_| server.events("/v4/stream", "")).collect();
    assert!(
        server
            .refused("/v4/stream", 503)
            .contains("too many clients")
    );
    assert!(
        server
            .get("/metrics")
            .text()
            .contains("\ntezos_recorder_stream_clients 32\n")
    );
    // One goes, which is noticed although there is nothing to send.
    drop(all.pop());
    let again = || {
        server
            .get("/metrics")
            .text()
            .contains("\ntezos_recorder_stream_clients 31\n")
    };
    for _ in 0..200 {
        if again() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the place of a client that has gone is not free");
}
