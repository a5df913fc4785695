//! The library is loaded into servers that answer clients.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use ::memprof::event::Pid;

use crate::common::postgres::Postgres;
use crate::common::process::{LIMIT, eventually, state};
use crate::common::skip::skip;
use crate::common::workload::Running;
use crate::{attach, attached, rounds};

#[test]
fn redis_goes_on() {
    const REDIS: &str = "/usr/bin/redis-server";
    if !Path::new(REDIS).exists() {
        return skip("there is no redis-server");
    }
    for _ in 0..rounds() {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut server = Command::new(REDIS);
        server.current_dir(dir.path()).stdout(Stdio::null()).args([
            "--unixsocket",
            "redis.sock",
            "--port",
            "0",
            "--save",
            "",
        ]);
        let mut server = Running(server.spawn().unwrap());
        let command = |program: &str, args: &str| {
            let mut command = Command::new(program);
            command.current_dir(dir.path()).args(["-s", "redis.sock"]);
            command.args(args.split(' ')).stderr(Stdio::null());
            command
        };
        let run = |args: &str| {
            let output = command("redis-cli", args).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        eventually(LIMIT, "redis answers", || run("ping") == "PONG");
        assert_eq!(run("set memprof here"), "OK");
        let load = "-t set,get,lpush,lpop,sadd -n 30000 -r 10000 -d 200 -P 8 -q";
        let mut load = command("redis-benchmark", load);
        let load = load.stdout(Stdio::piped()).spawn().unwrap();
        sleep(Duration::from_millis(50));
        attached(server.pid(), &["--wait", "30"]);
        let done = load.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("SADD"), "{said}");
        assert_eq!(run("get memprof"), "here");
        assert!(server.0.try_wait().unwrap().is_none());
    }
}

#[test]
fn postgres_goes_on() {
    let Some(server) = Postgres::start() else {
        return skip("PostgreSQL is not installed");
    };
    server.run("pgbench", &["-i", "-q", "-s", "1"]);
    let mut done = 0;
    while done < rounds() {
        let mut load = server.command("pgbench", &["-c", "2", "-T", "3", "-n"]);
        let load = load.stdout(Stdio::piped()).spawn().unwrap();
        let mut backends = Vec::new();
        eventually(LIMIT, "its backends run", || {
            backends = backends_of(server.pid());
            backends.len() >= 2
        });
        for backend in backends {
            let ended = attach(backend, &["--wait", "30"]);
            // The load may have come to its end.
            if ended.status.success() {
                done += 1;
            } else {
                let gone = || matches!(state(backend), 'Z' | 'X');
                eventually(LIMIT, &format!("it has ended: {ended:?}"), gone);
            }
        }
        let ended = load.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{said}");
        assert!(said.contains("number of failed transactions: 0"), "{said}");
    }
}

/// The server's processes for clients.
fn backends_of(server: u32) -> Vec<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter(|pid| {
        let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        title.is_ok_and(|title| title.contains("postgres postgres [local]"))
    });
    children.map(|pid| Pid(pid.parse().unwrap())).collect()
}
