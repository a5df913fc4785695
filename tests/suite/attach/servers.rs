//! The library is loaded into servers that answer clients.

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use crate::attach::{attach, attached, rounds};
use crate::common::postgres::Postgres;
use crate::common::process::{LIMIT, eventually, state};
use crate::common::redis::Redis;
use crate::common::skip::skip;
use memprof_sys::ids::Pid;

#[test]
fn redis_goes_on() {
    for _ in 0..rounds() {
        let Some(mut redis) = Redis::start() else {
            return skip("there is no redis-server");
        };
        assert_eq!(redis.run("redis-cli", "set memprof here"), "OK");
        let load = "-t set,get,lpush,lpop,sadd -n 30000 -r 10000 -d 200 -P 8 -q";
        let mut load = redis.command("redis-benchmark", load);
        let load = load.stdout(Stdio::piped()).spawn().unwrap();
        sleep(Duration::from_millis(50));
        attached(redis.pid(), &["--wait", "30"]);
        let done = load.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("SADD"), "{said}");
        assert_eq!(redis.run("redis-cli", "get memprof"), "here");
        assert!(redis.runs());
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
