//! The configuration: both forms of the original, our own keys, errors, and arbitrary texts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use tezos_recorder::capture;
use tezos_recorder::config::{Config, DEFAULT_KEEP, DEFAULT_RING, Log, Node, P2p, values};
use tezos_recorder::logs::Source;
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::reconnect::DEFAULT_RPC;
use tezos_recorder::store::Keep;

use crate::check_text::configuration;
use crate::effort;

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("config.toml")).unwrap_or_else(|e| panic!("{e}"))
}

fn udp(port: u16) -> Source {
    Source::Udp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// The form of July 2021.
const FIRST_FORM: &str = r#"
bpf_sniffer_path = "./target/none/release/bpf-sniffer"
rpc_port = 17732

[[nodes]]
db_path = "/tmp/node_9732"
identity_path = "/tmp/identity_9732.json"
p2p_port = 9732
rpc_port = 17742
syslog_port = 10000

[[nodes]]
db_path = "/tmp/node_9733"
identity_path = "/tmp/identity_9733.json"
p2p_port = 9733
rpc_port = 0
syslog_port = 0
"#;

/// The last form.
const LAST_FORM: &str = r#"
http_v2 = 17732

[[nodes]]
name = "initiator"
http_v3 = 17742
db = "/tmp/db_i"
p2p = { identity = "/tmp/i.json", port = 29732, store_limit = 10000 }
log = { port = 10000, disable_search = true, store_limit = 500 }

[[nodes]]
name = "logger"
db = "/tmp/db_l"
log = { port = 10001 }
"#;

/// With keys that the original has not.
const OWN_FORM: &str = r#"
http_v2 = 0
listen = ["127.0.0.1", "::1"]
ring = "64MiB"
source = "sockets"
token_file = "/etc/tezos-recorder/token"
cors_origins = ["http://192.168.1.2:8080", "*"]

[[nodes]]
name = "octez"
db = "db"
unit = "octez-node.service"
pow = 20.5
raw = false
reconnect = "http://172.17.0.2:8732"
keep = { messages = 1000000, bytes = "2GiB", age = "30d" }

[nodes.p2p]
identity = "/var/lib/octez/identity.json"

[nodes.log]
port = 10000
listen = "::"
socket = "/run/octez.log"
mode = "0622"
file = "/var/log/octez.log"
data_dir = "/var/lib/octez"
unit = "octez-node.service"
keep = { lines = 7, bytes = 0, age = "12h" }
"#;

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

#[test]
fn reconnect_is_off_unless_it_is_set() {
    let reconnect = |line: &str| {
        let text =
            format!("[[nodes]]\nname = \"n\"\np2p = {{ identity = \"i\", port = 1 }}\n{line}");
        parse(&text).nodes.remove(0).p2p.unwrap().reconnect
    };
    assert_eq!(reconnect(""), None);
    assert_eq!(reconnect("reconnect = false"), None);
    assert_eq!(reconnect("reconnect = true"), Some(DEFAULT_RPC));
    let address = "[::1]:8733".parse().ok();
    assert_eq!(reconnect("reconnect = \"http://[::1]:8733/\""), address);
}

#[test]
fn capture_and_stores_get_what_the_file_says() {
    let config = parse(OWN_FORM);
    let options = config.capture_options().unwrap();
    assert_eq!(
        options.targets,
        [capture::Target::Unit("octez-node.service".into())]
    );
    assert_eq!(
        (options.source, options.ring),
        (capture::Source::Sockets, 64 << 20)
    );
    let settings = config.nodes[0].store_settings();
    assert_eq!(
        (settings.messages.rows, settings.logs.rows),
        (Some(1_000_000), Some(7))
    );
    assert!(!settings.raw && settings.search);
    let last = parse(LAST_FORM);
    assert_eq!(
        last.capture_options().unwrap().targets,
        [capture::Target::Port(29732)]
    );
    let settings = last.nodes[0].store_settings();
    assert!(settings.raw && !settings.search);
    assert!(
        parse("[[nodes]]\nname = \"n\"\nlog = { port = 1 }")
            .capture_options()
            .is_none()
    );
}

#[test]
fn the_documented_example_is_valid_with_and_without_its_comments() {
    let example = include_str!("../../recorder.toml.example");
    let config = parse(example);
    assert_eq!(config.nodes.len(), 1);
    // Lines such as `# key = value` are settings, others are explanations.
    let setting = |line: &str| {
        line.strip_prefix("#")
            .is_some_and(|rest| !rest.starts_with(' '))
    };
    let lines = example
        .lines()
        .map(|line| if setting(line) { &line[1..] } else { line });
    let whole: String = lines.map(|line| format!("{line}\n")).collect();
    let all = parse(&whole);
    assert_eq!(all.nodes[0].log.as_ref().unwrap().sources.len(), 5);
    for key in [
        "http_v2",
        "listen",
        "ring",
        "source",
        "token_file",
        "cors_origins",
        "name",
        "http_v3",
        "db",
        "p2p",
        "identity",
        "port",
        "cgroup",
        "unit",
        "pid",
        "pow",
        "raw",
        "reconnect",
        "keep",
        "messages",
        "bytes",
        "age",
        "log",
        "socket",
        "mode",
        "file",
        "data_dir",
        "disable_search",
        "lines",
    ] {
        assert!(
            example.contains(&format!("{key} =")) || example.contains(&format!("{key}]")),
            "{key}"
        );
    }
}

#[test]
fn files_that_cannot_be_read_are_errors_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.toml");
    let error = Config::read(&path).unwrap_err().to_string();
    assert!(
        error.contains("No such file") && error.contains("--config"),
        "{error}"
    );
    std::fs::write(&path, b"\xff").unwrap();
    let error = Config::read(&path).unwrap_err().to_string();
    assert!(error.contains("UTF-8"), "{error}");
    std::fs::write(&path, " ".repeat(2 << 20)).unwrap();
    let error = Config::read(&path).unwrap_err().to_string();
    assert!(error.contains("too large"), "{error}");
    std::fs::write(&path, LAST_FORM).unwrap();
    assert_eq!(
        Config::read(&path).unwrap().file,
        Some(PathBuf::from(&path))
    );
}

#[test]
fn sizes_ages_and_modes_have_units() {
    for (text, size) in [
        ("0", Some(0)),
        ("7B", Some(7)),
        ("3KiB", Some(3072)),
        ("1TiB", Some(1 << 40)),
        ("16777216TiB", None),
        ("-1", None),
        ("+1", None),
        ("", None),
        ("KiB", None),
        ("1 KiB", None),
        ("1kb", None),
    ] {
        assert_eq!(values::size(text).ok(), size, "{text}");
    }
    for (text, seconds) in [
        ("5s", Some(5)),
        ("2m", Some(120)),
        ("1d", Some(86_400)),
        ("0s", None),
        ("5", None),
        ("999999999999999999d", None),
    ] {
        assert_eq!(
            values::age(text).ok(),
            seconds.map(Duration::from_secs),
            "{text}"
        );
    }
    for (text, mode) in [
        ("0660", Some(0o660)),
        ("7", Some(7)),
        ("1000", None),
        ("8", None),
        ("+7", None),
        ("", None),
    ] {
        assert_eq!(values::mode(text).ok(), mode, "{text}");
    }
}

#[test]
fn every_prefix_and_every_changed_character_is_survived() {
    for form in [FIRST_FORM, LAST_FORM, OWN_FORM] {
        for at in 0..form.len() {
            configuration(&form.as_bytes()[..at]);
            configuration(&form.as_bytes()[at..]);
            for with in ["\"", "é", "=", "[", "9", "\n"] {
                let changed = [
                    &form.as_bytes()[..at],
                    with.as_bytes(),
                    &form.as_bytes()[at + 1..],
                ];
                configuration(&changed.concat());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(effort::rounds(500)))]

    #[test]
    fn arbitrary_values_are_survived(
        lines in proptest::collection::vec(
            (
                "(http_v2|rpc_port|listen|ring|source|cors_origins|name|db|p2p|log|unit|pid|pow|keep|raw|reconnect|\\[nodes\\]|\\[\\[nodes\\]\\])",
                "(-?[0-9.e]{0,20}|\"\\PC{0,9}\"|\\{ (port|identity|bytes|age|mode|socket) = \"?[0-9a-z]{0,4}\"? \\}|\\[\\])",
            ),
            0..8,
        ),
    ) {
        let line = |(key, value): &(String, String)| match key.starts_with('[') {
            true => format!("{key}\n"),
            false => format!("{key} = {value}\n"),
        };
        let text: String = lines.iter().map(line).collect();
        configuration(text.as_bytes());
    }
}
