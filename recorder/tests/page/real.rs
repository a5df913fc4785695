//! The page with the recorder's own API and store.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use memprof_server::{Listen, ServerOptions, bind, serve};
use serde_json::Value;
use tezos_recorder::api::{Api, ApiNode, ApiOptions, NodeState};
use tezos_recorder::side::Side;
use tezos_recorder::store::{Entry, Level, MessageEntry, Settings, Store};
use tezos_recorder::time::Timestamp;

use crate::entries::{connection, dir, log, message, open, operation, put_all, with_chunk};
use crate::run::{ENTER, KEYS, Run};

const PEER: &str = "idso4JJr6ir2XYgwoF9aJNWi2pr5WW";

/// Serves a node until the test program ends.
fn serve_node(store: &Arc<Store>) -> SocketAddr {
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = bind(&local.into(), "recorder").unwrap();
    let Some(Listen::Tcp(address)) = listener.address() else {
        panic!("not TCP");
    };
    let state = || NodeState {
        peer_id: Some(PEER.to_owned()),
        identity: "known".to_owned(),
        ..NodeState::default()
    };
    let node = ApiNode {
        name: "real".to_owned(),
        p2p_port: 19_732,
        store: Arc::clone(store),
        state: Some(Arc::new(state)),
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let api = Api::new(vec![node], ApiOptions::default());
        runtime.block_on(serve(
            vec![listener],
            api,
            ServerOptions::default(),
            pending(),
        ))
    });
    address
}

/// An operation with its chunk.
fn operations(number: u64) -> [Entry; 2] {
    let template = MessageEntry {
        sender: if number.is_multiple_of(2) {
            Side::Local
        } else {
            Side::Remote
        },
        ..message(number)
    };
    with_chunk(number, operation(number, 100), template)
}

fn fill(store: &Store) {
    let mut peer = connection(1);
    peer.peer_id = Some(PEER.to_owned());
    peer.initiator = Some(Side::Local);
    peer.remarks = vec![(
        Timestamp(2),
        "incoming chunks go on with 5, 1 were lost".to_owned(),
    )];
    peer.traffic.remote.lost = 354;
    let lines = (0..100).map(|n| log(message(3 * n).time, Level::Notice, &format!("line {n}")));
    let first = [Entry::Connection(Box::new(peer))];
    put_all(
        store,
        first
            .into_iter()
            .chain((0..300).flat_map(operations))
            .chain(lines),
    );
}

#[test]
fn the_page_works_with_the_recorder_itself() {
    let (_dir, path) = dir();
    let store = Arc::new(open(&path, Settings::default()));
    fill(&store);
    let Some(run) = Run::with(serve_node(&store)) else {
        return;
    };
    run.open("");
    let answer = run.text("#answer");
    assert!(
        answer.starts_with("Node real: 300 messages from 1 peer since "),
        "{answer}"
    );
    assert!(answer.ends_with("354 B lost in 1 connection."), "{answer}");
    assert_eq!(
        run.keys()[..5],
        [
            "message-299",
            "message-298",
            "message-297",
            "log-99",
            "message-296"
        ]
    );
    // New rows.
    put_all(&store, (300..310).flat_map(operations));
    run.browser.wait(&format!("{KEYS}[0] === 'message-309'"));
    // Details.
    run.browser.press("j");
    run.browser.press(ENTER);
    run.wait_for_details();
    let details = run.api("/v4/messages/309");
    let hex = details["plain"].as_str().unwrap();
    assert_eq!(hex.len(), 2 * 138);
    let view = run.texts("#details .hex").remove(0);
    let shown: String = view
        .lines()
        .map(|line| line[8..56].replace(' ', ""))
        .collect();
    assert_eq!(shown, hex);
    // A filter by what was clicked, in the list and in the export.
    run.click("#details [data-filter=hash]");
    run.browser.wait(&format!("{KEYS}.length === 1"));
    let hash = details["hash"].as_str().unwrap();
    assert_eq!(run.texts("#chips button"), [format!("hash {hash} ×")]);
    let export =
        "return fetch(document.querySelector('#export').href).then((reply) => reply.arrayBuffer())
        .then((bytes) => [...new Uint8Array(bytes)])";
    let export = run.browser.run(export, Value::Array(vec![]));
    let export: Vec<u8> = serde_json::from_value(export).unwrap();
    let has = |hex: &str| {
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        export
            .windows(bytes.len())
            .filter(|window| *window == bytes)
            .count()
    };
    assert_eq!(export[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    // The chunk, which is not encrypted here, and the message beside it.
    assert_eq!((has(details["raw"].as_str().unwrap()), has(hex)), (1, 2));
    // Every parameter of the page is one of the API.
    run.open(&format!("#kinds=operation,unknown&category=p2p&incoming=true&initiator=local&address=1.2.3.4:9732&host=1.2.3.4&peer={PEER}&connection=1&hash=o&error=false&levels=Notice,Error&query=line&from=1500000000000&to=1700000000000"));
    run.browser.wait(&format!(
        "{KEYS}.includes('message-309') && {KEYS}.includes('log-99')"
    ));
    assert!(run.message_ids().iter().all(|id| id % 2 == 1));
    // The connection.
    run.open("#view=connections");
    run.browser.wait("document.querySelector('tbody .badge')");
    assert_eq!(run.texts("tbody .badge"), ["open, gaps"]);
    run.open("#row=message-4711");
    run.wait_for_details();
    assert!(run.text("#details .notice").contains("4711"));
    let errors = run.browser.errors();
    assert!(
        errors.iter().all(|error| error.contains("404")),
        "{errors:?}"
    );
    run.end();
}
