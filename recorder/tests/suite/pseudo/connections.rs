//! Descriptors, processes, threads, ports, commands.

use super::log::NodeLog;
use super::process::Stage;
use super::{HANDSHAKE, checked, converse, words};

#[test]
fn descriptors_processes_and_threads() {
    checked("--dup --messages 100 --writes pieces --read-size 200", 100);
    let run = checked("--fork --messages 20", 20);
    // The process that ended the connection is the child.
    let pid = |log: &NodeLog| log.connections[0].closed.as_ref().unwrap().pid;
    let other = checked("--messages 20", 20);
    assert_eq!((pid(&other.connect), pid(&other.listen)), other.pids);
    assert!(pid(&run.connect) != run.pids.0 && pid(&run.listen) != run.pids.1);
    checked("--threads 4 --messages 200 --chunks any", 200);
    checked("--nonblocking --size 100000..2000000 --messages 5", 5);
}

#[test]
fn connecting() {
    let run = converse("", "--nonblocking-connect --refused-first");
    assert_eq!(run.check(), HANDSHAKE + 20);
    let run = converse("--connections 12", "--connections 4 --rounds 3");
    assert_eq!(run.taps.len(), 12);
    assert_eq!(run.check(), 12 * (HANDSHAKE + 20));
    let run = converse(
        "--connections 6 --fork",
        "--connections 3 --rounds 2 --fork",
    );
    assert_eq!(run.check(), 6 * (HANDSHAKE + 20));
}

#[test]
fn a_port_is_used_again() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    for close in ["last", "reset"] {
        let options = format!("--local-port {port} --rounds 3 --close {close}");
        let run = converse("--connections 3", &options);
        assert_eq!(run.check(), 3 * (HANDSHAKE + 20));
        for tapped in &run.taps {
            assert_eq!(tapped.reset, close == "reset");
        }
        for connection in &run.connect.connections {
            assert_eq!(connection.local.port(), port);
        }
    }
}

#[test]
fn ipv6() {
    let run = converse("--address ::1", "");
    assert!(run.taps[0].connector.unwrap().is_ipv6());
    assert_eq!(run.check(), HANDSHAKE + 20);
}

#[test]
fn rates_and_durations() {
    let run = converse("--messages 0", "--rate 200 --duration 0.5 --size 100");
    run.check();
    let sent = run.connect.connections[0].sent.len();
    // A busy machine sends less, but never more.
    assert!((4..=104).contains(&sent), "{sent}");
}

#[test]
fn commands_and_http() {
    let stage = Stage::new();
    let mut listener = stage.start("listen", &words("--control --http 0"));
    let (address, http) = (listener.address(), listener.line("http"));
    let arguments = format!("{address} --control --pause");
    let mut connector = stage.start("connect", &words(&arguments));
    connector.line("paused");
    assert!(listener.log().connections.is_empty());
    connector.command("go");
    assert!(connector.line("sent").starts_with("0 "));
    connector.command("send 10");
    assert!(connector.line("sent").starts_with("10 "));
    connector.command("send 3");
    assert!(connector.line("sent").starts_with("13 "));
    connector.command("connect");
    assert!(connector.line("sent").starts_with("0 "));
    connector.command(&format!("http {http}"));
    assert!(connector.line("http").parse::<usize>().unwrap() > 100);
    assert_eq!(connector.log().connections[0].sent.len(), 16);
    listener.command("send 2");
    let first = listener.line("sent 2");
    assert_ne!(first, listener.line("sent 2"));
    connector.command("close");
    let connect = connector.end();
    listener.command("close");
    let listen = listener.end();
    assert_eq!(
        (connect.connections.len(), listen.connections.len()),
        (2, 2)
    );
    let received = |log: &NodeLog| {
        log.connections
            .iter()
            .map(|c| c.received.len())
            .sum::<usize>()
    };
    assert_eq!((received(&connect), received(&listen)), (6 + 4, 6 + 13));
}
