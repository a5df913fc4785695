//! `doctor`: identities, ports, processes, databases, sources of logs, and this machine.

use std::fs::{self, Permissions};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tezos_recorder::config::Config;
use tezos_recorder::doctor::{self, Check, Status, machine};

use crate::cli::program;
use crate::common::vectors;

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
    assert_eq!(machine::pid_namespace(true).status, Status::Ok);
    assert_eq!(machine::pid_namespace(false).status, Status::Degraded);
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
            "pid namespace",
            "capabilities",
            "BPF programs"
        ]
    );
    let missing = checks.iter().any(|check| check["status"] == "missing");
    assert_eq!(status, i32::from(missing), "{text}");
    let (_, text, _) = program(&["doctor"], directory.path());
    assert!(text.contains("tezos-recorder works here") || text.contains("does not work here"));
}
