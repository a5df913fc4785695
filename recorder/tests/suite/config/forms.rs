//! Each form of the file means what it should.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tezos_recorder::capture;
use tezos_recorder::config::{Config, DEFAULT_KEEP, DEFAULT_RING, Log, Node, P2p};
use tezos_recorder::logs::Source;
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::store::Keep;

use super::{FIRST_FORM, LAST_FORM, OWN_FORM, parse};

fn udp(port: u16) -> Source {
    Source::Udp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

fn p2p(identity: &str, port: u16) -> P2p {
    P2p {
        identity: identity.into(),
        port: Some(port),
        place: capture::Target::Port(port),
        target: Target::MAINNET,
        raw: true,
        keep: keep(None, DEFAULT_KEEP.0),
        reconnect: None,
    }
}

fn keep(rows: Option<u64>, bytes: u64) -> Keep {
    Keep {
        rows,
        bytes: Some(bytes),
        age: None,
    }
}

fn of_nodes(nodes: Vec<Node>) -> Config {
    Config {
        file: Some("config.toml".into()),
        listen: vec![Ipv4Addr::LOCALHOST.into()],
        port: Some(17732),
        ring: DEFAULT_RING,
        source: capture::Source::Auto,
        token_file: None,
        cors_origins: Vec::new(),
        nodes,
    }
}

#[test]
fn the_first_form_of_the_original_is_read() {
    let node = |port: u16, http: Option<u16>, log: Option<Log>| Node {
        name: port.to_string(),
        port: http,
        db: format!("/tmp/node_{port}").into(),
        p2p: Some(p2p(&format!("/tmp/identity_{port}.json"), port)),
        log,
    };
    let log = Log {
        sources: vec![udp(10_000)],
        search: true,
        keep: keep(None, DEFAULT_KEEP.1),
    };
    let nodes = vec![node(9732, Some(17742), Some(log)), node(9733, None, None)];
    assert_eq!(parse(FIRST_FORM), of_nodes(nodes));
}

#[test]
fn the_last_form_of_the_original_is_read() {
    let log = |port, search, entries| Log {
        sources: vec![udp(port)],
        search,
        keep: keep(entries, DEFAULT_KEEP.1),
    };
    let initiator = Node {
        name: "initiator".into(),
        port: Some(17742),
        db: "/tmp/db_i".into(),
        p2p: Some(P2p {
            keep: keep(Some(10_000), DEFAULT_KEEP.0),
            ..p2p("/tmp/i.json", 29732)
        }),
        log: Some(log(10_000, false, Some(500))),
    };
    let logger = Node {
        name: "logger".into(),
        port: None,
        db: "/tmp/db_l".into(),
        p2p: None,
        log: Some(log(10_001, true, None)),
    };
    assert_eq!(parse(LAST_FORM), of_nodes(vec![initiator, logger]));
}

#[test]
fn our_own_keys_are_read() {
    let expected = Config {
        listen: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        port: None,
        ring: 64 << 20,
        source: capture::Source::Sockets,
        token_file: Some("/etc/tezos-recorder/token".into()),
        cors_origins: vec!["http://192.168.1.2:8080".into(), "*".into()],
        ..of_nodes(vec![Node {
            name: "octez".into(),
            port: None,
            db: "db".into(),
            p2p: Some(P2p {
                identity: "/var/lib/octez/identity.json".into(),
                port: None,
                place: capture::Target::Unit("octez-node.service".into()),
                target: Target::new(20.5).unwrap(),
                raw: false,
                keep: Keep {
                    rows: Some(1_000_000),
                    bytes: Some(2 << 30),
                    age: Some(Duration::from_secs(30 * 86_400)),
                },
                reconnect: Some(SocketAddr::from(([172, 17, 0, 2], 8732))),
            }),
            log: Some(Log {
                sources: vec![
                    Source::Udp(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 10_000)),
                    Source::Socket {
                        path: "/run/octez.log".into(),
                        mode: 0o622,
                    },
                    Source::File("/var/log/octez.log".into()),
                    Source::Daily("/var/lib/octez/daily-logs".into()),
                    Source::Journal {
                        unit: "octez-node.service".into(),
                    },
                ],
                search: true,
                keep: Keep {
                    rows: Some(7),
                    bytes: None,
                    age: Some(Duration::from_secs(12 * 3600)),
                },
            }),
        }])
    };
    assert_eq!(parse(OWN_FORM), expected);
}
