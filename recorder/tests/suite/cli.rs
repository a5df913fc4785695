//! The command line, by the library and by the program, and `doctor`.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;
use tezos_recorder::capture;
use tezos_recorder::cli::{self, CliError, ExportArgs, Run};
use tezos_recorder::config::Config;
use tezos_recorder::doctor::{self, Check, Status, machine};
use tezos_recorder::logs::Source;
use tezos_recorder::p2p::pow::Target;

use crate::common::vectors;

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
fn program(words: &[&str], directory: &Path) -> (i32, String, String) {
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
        --log-file f --log-unit u --keep 2GiB --keep-age 30d --listen 127.0.0.1 --listen ::1 --port 0 --token-file t --cors-origin http://a:1";
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

/// The checks of a configuration by name, without those of the machine.
fn checks(text: &str) -> Vec<Check> {
    let config = Config::parse(text, Path::new("config.toml")).unwrap();
    let report = doctor::examine(Some(&config));
    let json: Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(
        json["checks"].as_array().unwrap().len(),
        report.checks.len()
    );
    let missing = report
        .checks
        .iter()
        .any(|check| check.status == Status::Missing);
    assert_eq!(report.status(), u8::from(missing));
    for check in &report.checks {
        assert_eq!(check.status == Status::Ok, check.remedy.is_empty());
        assert_eq!(check.remedy.is_empty(), check.consequence.is_empty());
        assert!(report.to_string().contains(&check.found) && !check.found.is_empty());
    }
    report.checks
}

/// The status of the first check with that name, and what was found.
fn one(checks: &[Check], name: &str) -> (Status, String) {
    let check = checks.iter().find(|check| check.name == name);
    let check = check.unwrap_or_else(|| panic!("no {name} in {checks:?}"));
    (check.status, check.found.clone())
}

#[test]
fn doctor_judges_identities() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("identity.json");
    let text = format!(
        "http_v2 = 0\n[[nodes]]\ndb = \"{0}\"\np2p = {{ identity = \"{0}/identity.json\", port = 9 }}",
        directory.path().display()
    );
    let good = vectors()["identities"]["initiator"].clone();
    let judged = || one(&checks(&text), "identity");
    assert!(matches!(judged(), (Status::Degraded, found) if found.contains("is not there")));
    fs::write(&path, good.to_string()).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    assert!(
        matches!(judged(), (Status::Degraded, found) if found.contains("every user may read it"))
    );
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let peer = good["peer_id"].as_str().unwrap();
    assert!(matches!(judged(), (Status::Ok, found) if found.contains(peer)));
    let mut other = good.clone();
    other["proof_of_work_stamp"] = Value::from("00".repeat(24));
    fs::write(&path, other.to_string()).unwrap();
    assert!(matches!(judged(), (Status::Degraded, found) if found.contains("below 26 bits")));
    other["public_key"] = vectors()["identities"]["responder"]["public_key"].clone();
    fs::write(&path, other.to_string()).unwrap();
    let (status, found) = judged();
    assert!(status == Status::Missing && found.contains("does not belong to the secret key"));
    let secret = good["secret_key"].as_str().unwrap();
    assert!(!found.contains(secret));
    fs::write(&path, " ".repeat(1 << 17)).unwrap();
    assert!(matches!(judged(), (Status::Missing, found) if found.contains("at most 64 KiB")));
}

#[test]
fn doctor_finds_ports_in_use_and_processes_that_listen() {
    let directory = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = format!(
        "http_v2 = {port}\n[[nodes]]\ndb = \"{}\"\np2p = {{ identity = \"i\", port = {port} }}\nlog = {{ port = {} }}",
        directory.path().display(),
        taken_udp.local_addr().unwrap().port()
    );
    let checks_now = checks(&text);
    let own = format!("process {} (", std::process::id());
    let (status, found) = one(&checks_now, "HTTP port");
    assert!(
        status == Status::Missing && found.contains("in use") && found.contains(&own),
        "{found}"
    );
    assert!(matches!(one(&checks_now, "process"), (_, found) if found.starts_with(&own)));
    assert!(
        matches!(one(&checks_now, "logs"), (Status::Missing, found) if found.contains("in use"))
    );
    drop((taken, taken_udp));
    let checks_now = checks(&text);
    assert_eq!(
        one(&checks_now, "HTTP port"),
        (Status::Ok, format!("{port} is free"))
    );
    assert!(
        matches!(one(&checks_now, "process"), (Status::Degraded, found) if found.contains("no process listens"))
    );
    assert_eq!(one(&checks_now, "logs").0, Status::Ok);
}

#[test]
fn doctor_looks_at_databases_tokens_and_sources() {
    let directory = TempDir::new().unwrap();
    let dir = directory.path().display();
    let text = format!(
        "listen = \"0.0.0.0\"\nhttp_v2 = 0\n[[nodes]]\nname = \"n\"\ndb = \"{dir}/new/db\"\n[nodes.log]\nsocket = \"{dir}/s\"\n\
         file = \"{dir}/f\"\ndata_dir = \"{dir}\"\nport = 0\nkeep = {{ bytes = \"100000TiB\" }}"
    );
    let of_logs = |checks: &[Check]| -> Vec<(Status, String)> {
        let logs = checks.iter().filter(|check| check.name == "logs");
        logs.map(|check| (check.status, check.found.clone()))
            .collect()
    };
    let before = checks(&text);
    // Logs alone need no BPF.
    assert!(before.iter().all(|check| check.name != "BPF programs"));
    assert!(
        matches!(one(&before, "token"), (Status::Degraded, found) if found.contains("beyond this machine"))
    );
    assert!(
        matches!(one(&before, "database"), (Status::Degraded, found) if found.contains("may be kept"))
    );
    let statuses: Vec<_> = of_logs(&before)
        .into_iter()
        .map(|(status, _)| status)
        .collect();
    assert_eq!(statuses, [Status::Ok, Status::Degraded, Status::Degraded]);
    assert!(!directory.path().join("new").exists() && !directory.path().join("s").exists());

    let _used = std::os::unix::net::UnixDatagram::bind(directory.path().join("s")).unwrap();
    fs::write(directory.path().join("f"), "").unwrap();
    fs::create_dir(directory.path().join("daily-logs")).unwrap();
    fs::write(directory.path().join("daily-logs/daily-20260102.log"), "").unwrap();
    fs::write(directory.path().join("token"), " \n").unwrap();
    let token = format!("token_file = \"{dir}/token\"\n{text}");
    let after = checks(&token.replace("100000TiB", "1MiB"));
    assert!(matches!(one(&after, "token"), (Status::Missing, found) if found.contains("is empty")));
    assert_eq!(one(&after, "database").0, Status::Ok);
    let statuses: Vec<_> = of_logs(&after)
        .into_iter()
        .map(|(status, _)| status)
        .collect();
    assert_eq!(statuses, [Status::Missing, Status::Ok, Status::Ok]);
}

#[test]
fn doctor_judges_kernels_control_groups_and_capabilities() {
    for (release, status) in [
        ("6.18.44", Status::Ok),
        ("6.1.0-18-amd64\n", Status::Ok),
        ("5.17.1", Status::Degraded),
        ("5.10.0", Status::Missing),
        ("", Status::Degraded),
    ] {
        assert_eq!(machine::kernel(release).status, status, "{release}");
    }
    let all = 1 << 2 | 1 << 12 | 1 << 19 | 1 << 38 | 1 << 39;
    for (mask, status, found) in [
        (all, Status::Ok, "CAP_NET_ADMIN CAP_PERFMON CAP_BPF"),
        (
            all & 0xff_ffff | 1 << 21,
            Status::Ok,
            "CAP_NET_ADMIN CAP_PERFMON CAP_BPF",
        ),
        (all & !(1 << 19), Status::Degraded, "without CAP_SYS_PTRACE"),
        (1 << 21, Status::Missing, "without CAP_NET_ADMIN"),
        (
            0,
            Status::Missing,
            "without CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF",
        ),
    ] {
        let check = machine::capabilities(mask);
        assert_eq!((check.status, &check.found[..]), (status, found));
    }
    let none = machine::control_groups(Err(std::io::ErrorKind::NotFound.into()));
    assert!(none.status == Status::Missing && none.remedy.contains("cgroup2"));
}

#[test]
fn doctor_checks_this_machine_as_json() {
    let directory = TempDir::new().unwrap();
    let (status, text, _) = program(&["doctor", "--json"], directory.path());
    let report: Value = serde_json::from_str(&text).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "kernel",
            "BTF",
            "control groups",
            "capabilities",
            "BPF programs"
        ]
    );
    let missing = checks.iter().any(|check| check["status"] == "missing");
    assert_eq!(status, i32::from(missing), "{text}");
    let (_, text, _) = program(&["doctor"], directory.path());
    assert!(text.contains("tezos-recorder works here") || text.contains("does not work here"));
}
