//! The configuration: both forms of the original, our own keys, errors, and arbitrary texts.

mod arbitrary;
mod errors;
mod forms;
mod units;

use std::path::{Path, PathBuf};

use tezos_recorder::capture;
use tezos_recorder::config::Config;
use tezos_recorder::reconnect::DEFAULT_RPC;

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("config.toml")).unwrap_or_else(|e| panic!("{e}"))
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
