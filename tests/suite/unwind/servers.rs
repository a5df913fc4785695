//! Like `real`, for programs that wait for requests: databases, and a JavaScript engine.

use std::path::Path;
use std::process::Command;

use super::packaged_programs::{
    RUNNING, STARTED, attached_while_it_works, check, installed, start,
};
use super::results::{Found, attached, attached_with, first_second};
use crate::common::postgres::Postgres;
use crate::common::process::wait_until;
use crate::common::skip::skip;
use crate::common::workload::Running;
use memprof_sys::ids::Pid;

#[test]
fn redis() {
    if !installed("redis-server") || !installed("redis-benchmark") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let socket = socket.to_str().unwrap();
    let dir = dir.path().to_str().unwrap();
    let server = start(Command::new("redis-server").args([
        "--port",
        "0",
        "--unixsocket",
        socket,
        "--dir",
        dir,
        "--save",
        "",
        "--daemonize",
        "no",
    ]));
    wait_until(|| Path::new(socket).exists());
    let found = attached(server.pid(), || {
        let tests = "set,lpush,hset,sadd,zadd";
        let ended = Command::new("redis-benchmark")
            .args([
                "-s", socket, "-q", "-n", "30000", "-r", "30000", "-d", "200", "-t", tests,
            ])
            .output()
            .unwrap();
        assert!(ended.status.success());
    });
    check("redis-server, running", &found, RUNNING);
    // Some commands end in a tail call of a common function.
    for command in ["set", "push", "hset", "sadd", "zadd"] {
        let functions = [
            format!("{command}Command"),
            format!("{command}GenericCommand"),
        ];
        let named = functions.iter().any(|f| found.names(f));
        assert!(named, "{command}\n{}", found.text());
    }
}

#[test]
fn postgres() {
    let Some(database) = Postgres::start() else {
        skip("postgres is not installed");
        return;
    };
    let server = Pid(database.pid());
    let mut load = None;
    let found = attached_with(&["--follow-forks"], server, || {
        database.run("pgbench", &["-i", "-q", "-s", "3"]);
        // The clients' processes must exist when the profile is taken.
        let mut clients = database.command("pgbench", &["-c", "3", "-T", "600"]);
        load = Some(Running(clients.spawn().unwrap()));
        let before = database.transactions();
        wait_until(|| database.transactions() > before + 1500);
    });
    drop(load);
    check("postgres, under load", &found, RUNNING);
    let some = |names: &[&str]| names.iter().any(|n| found.names(n));
    assert!(some(&["heap_update", "heap_insert"]), "{}", found.text());
    assert!(found.names("PostgresMain"), "{}", found.text());
}

/// Its JIT code keeps frame pointers. So do its built-in functions, which have no unwind
/// information.
const SCRIPT: &str = "
function build(depth) {
  if (depth) return [build(depth - 1), build(depth - 1), build(depth - 1), build(depth - 1)];
  return { key: 'x' + Math.random(), value: [1, 2, 3] };
}
const held = [];
function run() {
  for (let i = 0; i < 8; i++) held.push(build(6));
  held.push(JSON.parse(JSON.stringify(held)));
  for (let i = 0; i < 50; i++) held.push(Buffer.alloc(100000, i));
}
if (process.argv[1] === 'now') {
  run();
  // Waits, because its memory is freed at its end; the test ends it before.
  while (process.uptime() < 60);
} else {
  console.log('ready');
  process.stdin.on('data', () => { run(); console.log('done'); });
}
";

#[test]
fn node() {
    if !installed("node") {
        return;
    }
    let found = attached_while_it_works(&["node", "-e", SCRIPT]);
    check("node, running", &found, RUNNING);
    names_jit(&found);

    let found = first_second(&["node", "-e", SCRIPT, "now"]);
    check("node, its first second", &found, STARTED);
    names_jit(&found);
}

/// JIT code is named `[JIT]`, and its callers are built-in functions of the engine.
#[track_caller]
fn names_jit(found: &Found) {
    let leads = |frames: &[String]| {
        let jit = frames.iter().position(|f| f == "[JIT]");
        jit.is_some_and(|at| frames[..at].iter().any(|f| f == "Builtins_JSEntry"))
    };
    assert!(
        found.stacks.iter().any(|(f, _)| leads(f)),
        "{}",
        found.text()
    );
    assert_eq!(
        found.ended("partial: code in no known file"),
        0,
        "{}",
        found.text()
    );
}
