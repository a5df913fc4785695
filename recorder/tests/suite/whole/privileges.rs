//! What the recorder keeps to itself: privileges and keys.

use std::fs;

use serde_json::Value;

use super::recorder::Scene;
use crate::common::unhex;

const DAC_READ_SEARCH: u64 = 1 << 2;
const NET_ADMIN: u64 = 1 << 12;
const SYS_PTRACE: u64 = 1 << 19;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

#[test]
fn each_thread_keeps_only_the_privileges_that_it_needs() {
    let scene = Scene::new("privileges");
    let log = super::recorder::free_port();
    let nodes = scene.nodes(&["listen"]) + &format!("log = {{ port = {log} }}\n");
    let recorder = super::recorder::Recorder::start(scene.dir.path(), &nodes);
    recorder.says("capturing in control group");
    // The threads that read the stores run now, too.
    recorder.node("listen");
    let mut names = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", recorder.pid())).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        let name = of("Name:");
        let expected = match name.as_str() {
            "capture" => DAC_READ_SEARCH | NET_ADMIN | SYS_PTRACE | PERFMON | BPF,
            "identities" | "logs" => DAC_READ_SEARCH,
            _ => 0,
        };
        for set in ["CapEff:", "CapPrm:"] {
            let kept = u64::from_str_radix(&of(set), 16).unwrap();
            assert_eq!(kept, expected, "{name}: {set} {kept:#x}");
        }
        for set in ["CapBnd:", "CapInh:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&of(set), 16), Ok(0), "{name}: {set}");
        }
        assert_eq!(of("NoNewPrivs:"), "1", "{name}");
        names.push(name);
    }
    for name in [
        "capture",
        "identities",
        "logs",
        "decoder",
        "store",
        "tezos-recorder",
    ] {
        assert!(
            names.iter().any(|known| known == name),
            "no thread {name} in {names:?}"
        );
    }
    recorder.end();
}

#[test]
fn the_secret_key_is_in_no_file_and_no_reply() {
    let scene = Scene::new("secret");
    let recorder = scene.record(&["listen"]);
    let listener = scene.start("listen", "--messages 10");
    let connector = scene.start("connect", &format!("{} --messages 10", listener.address()));
    connector.end();
    recorder.must_have("listen", &listener.end());
    let identity: Value =
        serde_json::from_slice(&fs::read(scene.identity("listen")).unwrap()).unwrap();
    let hex = identity["secret_key"].as_str().unwrap();
    let secret = unhex(hex);
    let must_not_have = |place: &str, bytes: &[u8]| {
        for secret in [hex.as_bytes(), &secret] {
            let found = bytes.windows(secret.len()).any(|part| part == secret);
            assert!(!found, "the secret key is in {place}");
        }
    };
    for path in [
        "/v4/nodes",
        "/v4/health",
        "/v4/connections",
        "/metrics",
        "/v4/messages/0",
        "/v2/p2p",
    ] {
        let reply = recorder.server.get(path);
        assert_eq!(reply.status, 200, "{path}");
        must_not_have(path, &reply.body);
    }
    let said = recorder.end();
    must_not_have("its messages", said.join("\n").as_bytes());
    for file in fs::read_dir(scene.dir.path().join("listen")).unwrap() {
        let path = file.unwrap().path();
        must_not_have(&path.display().to_string(), &fs::read(&path).unwrap());
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
}
