//! The command line, by the library and by the program.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tezos_recorder::capture;
use tezos_recorder::cli::{self, CliError, ExportArgs, Run};
use tezos_recorder::config::Config;
use tezos_recorder::logs::Source;
use tezos_recorder::p2p::pow::Target;
use tezos_recorder::reconnect::DEFAULT_RPC;

fn parse(line: &str) -> Result<Run, CliError> {
    let words = format!("tezos-recorder {line}");
    cli::parse_from(words.split_whitespace().map(Into::into))
}

fn config(line: &str) -> Config {
    match parse(line) {
        Ok(Run::Record(config)) => *config,
        other => panic!("{line}: {other:?}"),
    }
}

/// Runs the program; returns its status, and both outputs.
pub fn program(words: &[&str], directory: &Path) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tezos-recorder"));
    let Output {
        status,
        stdout,
        stderr,
    } = command.args(words).current_dir(directory).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn a_node_is_named_by_options() {
    let all = "run --identity i.json --p2p-port 9733 --db d --name n --unit octez.service --pow 20.5 --log-port 10000 --log-socket s \
        --log-file f --log-unit u --keep 2GiB --keep-age 30d --listen 127.0.0.1 --listen ::1 --port 0 --token-file t --cors-origin http://a:1 --reconnect";
    let config = config(all);
    let node = &config.nodes[0];
    let p2p = node.p2p.as_ref().unwrap();
    let log = node.log.as_ref().unwrap();
    assert_eq!(
        (config.port, config.listen.len(), &config.cors_origins[..]),
        (None, 2, &["http://a:1".to_owned()][..])
    );
    assert_eq!(config.token_file, Some("t".into()));
    assert_eq!((&node.name[..], &node.db), ("n", &PathBuf::from("d")));
    assert_eq!(
        (&p2p.identity, p2p.port, p2p.target),
        (
            &PathBuf::from("i.json"),
            Some(9733),
            Target::new(20.5).unwrap()
        )
    );
    assert_eq!(p2p.place, capture::Target::Unit("octez.service".into()));
    assert_eq!(p2p.reconnect, Some(DEFAULT_RPC));
    assert_eq!(
        (p2p.keep.bytes, p2p.keep.age, log.keep.age),
        (
            Some(2 << 30),
            Some(std::time::Duration::from_secs(2_592_000)),
            p2p.keep.age
        )
    );
    assert_eq!(
        log.sources,
        [
            Source::Udp(SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000))),
            Source::Socket {
                path: "s".into(),
                mode: 0o660
            },
            Source::File("f".into()),
            Source::Journal { unit: "u".into() },
        ]
    );
}

#[test]
fn defaults_are_those_of_the_original() {
    let config = config("run --identity i.json");
    let node = &config.nodes[0];
    let p2p = node.p2p.as_ref().unwrap();
    assert_eq!(
        (config.port, &config.listen[..]),
        (Some(17_732), &[Ipv4Addr::LOCALHOST.into()][..])
    );
    assert_eq!(
        (&node.name[..], p2p.port, p2p.target),
        ("9732", Some(9732), Target::MAINNET)
    );
    assert_eq!(
        (&p2p.place, node.log.is_none()),
        (&capture::Target::Port(9732), true)
    );
    assert!(node.db.ends_with("9732"));
}

#[test]
fn a_data_directory_has_the_identity_and_the_daily_logs() {
    let directory = TempDir::new().unwrap();
    let line = format!("run --data-dir {}", directory.path().display());
    let node = &config(&line).nodes[0];
    assert_eq!(
        node.p2p.as_ref().unwrap().identity,
        directory.path().join("identity.json")
    );
    assert_eq!(node.log, None);
    let daily = directory.path().join("daily-logs");
    fs::create_dir(&daily).unwrap();
    let node = &config(&line).nodes[0];
    assert_eq!(node.log.as_ref().unwrap().sources, [Source::Daily(daily)]);
}

#[test]
fn options_of_the_server_come_before_the_configuration() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("c.toml");
    fs::write(
        &path,
        "http_v2 = 1\ncors_origins = [\"http://a\"]\n[[nodes]]\nname = \"n\"\nlog = { port = 7 }\n",
    )
    .unwrap();
    let path = path.display();
    let plain = config(&format!("run --config {path}"));
    assert_eq!((plain.port, &plain.nodes[0].name[..]), (Some(1), "n"));
    let changed = config(&format!(
        "run --config {path} --port 2 --listen ::1 --cors-origin http://b"
    ));
    assert_eq!((changed.port, changed.listen[0].is_ipv6()), (Some(2), true));
    assert_eq!(changed.cors_origins, ["http://a", "http://b"]);
    assert!(matches!(
        parse(&format!("run --config {path} --identity i")),
        Err(CliError::Line(_))
    ));
}

#[test]
fn wrong_lines_say_what_is_wrong() {
    for (line, expected) in [
        ("", "Usage: tezos-recorder"),
        ("record", "unrecognized subcommand"),
        ("run --p2p-port 1", "these options need --identity"),
        (
            "run --identity i --p2p-port 0",
            "--p2p-port 0 needs --cgroup",
        ),
        ("run --identity i --pid 1 --unit u", "cannot be used with"),
        ("run --identity i --pow 300", "expected a number of bits"),
        ("run --identity i --pow x", "expected a number of bits"),
        (
            "run --identity i --reconnect=https://127.0.0.1:8732",
            "expected `http://`, an IP address and a port",
        ),
        (
            "run --identity i --reconnect http://127.0.0.1:8732",
            "unexpected argument",
        ),
        ("run --identity i --keep 1GB", "expected a number of bytes"),
        (
            "run --identity i --listen localhost",
            "expected an IP address",
        ),
        (
            "run --identity i --cors-origin x",
            "expected scheme, host and port",
        ),
        ("run --identity i --name ../x", "expected 1 to 100 letters"),
        (
            "run --config /does/not/exist",
            "/does/not/exist: cannot be read: No such file",
        ),
        ("export a.pcapng", "--db <DIR>"),
        (
            "export a --db d --from yesterday",
            "expected a time with a zone",
        ),
    ] {
        let error = parse(line).expect_err(line).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn the_program_has_the_exit_statuses_that_its_help_names() {
    let directory = TempDir::new().unwrap();
    let run = |words: &[&str]| program(words, directory.path());
    let (status, help, _) = run(&["--help"]);
    assert!(
        status == 0
            && help.contains("Examples:")
            && help.contains("Exit status: 0; 1 for an error")
    );
    assert!(help.lines().all(|line| line.chars().count() <= 100));
    let (status, version, _) = run(&["--version"]);
    assert_eq!(
        (status, version),
        (0, format!("tezos-recorder {}\n", env!("CARGO_PKG_VERSION")))
    );
    let (status, text, _) = run(&["completions", "bash"]);
    assert!(status == 0 && text.contains("--log-port"));
    assert_eq!(run(&["run", "--identiy", "i"]).0, 2);
    let (status, _, error) = run(&["run"]);
    assert!(
        status == 2 && error.contains("give --data-dir, --identity or --config"),
        "{error}"
    );
    fs::write(directory.path().join("config.toml"), "http_v2 = true").unwrap();
    let (status, _, error) = run(&["run"]);
    assert_eq!(
        (
            status,
            error.starts_with("tezos-recorder: error: config.toml:1: invalid type")
        ),
        (2, true),
        "{error}"
    );
}

#[test]
fn exports_are_chosen_by_time_and_peer() {
    let line = "export - --db d --from 2026-01-02T03:04:05Z --to 2026-01-02T05:04:05+01:00 --host ::1 --peer-id idX";
    let Ok(Run::Export(ExportArgs {
        output,
        db,
        from,
        to,
        host,
        peer_id,
    })) = parse(line)
    else {
        panic!("{line} exports");
    };
    assert_eq!((output, db), ("-".into(), "d".into()));
    assert_eq!(to.unwrap().0 - from.unwrap().0, 3_600_000_000_000);
    assert_eq!(
        (host.unwrap().is_ipv6(), &peer_id.unwrap()[..]),
        (true, "idX")
    );
}
