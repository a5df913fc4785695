//! Clients of the original memory profiler, as its own tests were: plain HTTP, a JSON parser with its default limit of
//! depth, `value >= cacheValue` in every node, and the root beside the kernel's figure.
//!
//! Needs root, `cc`, /usr/bin/python3 and `redis-server`.

use std::path::Path;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, signal, stop, wait_until};
use crate::common::skip::skip;
use crate::common::tree::{Name, Node};
use crate::common::workload::program;
use memprof_sys::residency::figures;

const DIRECTIONS: [&str; 2] = ["", "&reverse=true"];

/// What such a client asks and checks of a running program, whose memory must not change on its own.
fn check(m: &Memprof) {
    let pid = m.followed();
    stop(pid);
    let status = figures::status(pid).unwrap();
    for direction in DIRECTIONS {
        let reply = m.get(&format!("/v1/tree?threshold=0{direction}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let tree = Node::parse(&reply.body);
        assert!(tree.value > 1024, "{}", tree.value);
        assert_eq!(tree.resident() << 10, status.rss_anon + status.rss_shmem);
        must_end_in_leaves(&tree, 0);
    }
    cont(pid);
}

/// No frame shows its whole value again in a child `unknown`, and none is deeper than the default.
fn must_end_in_leaves(node: &Node, depth: usize) {
    assert!(depth <= 59);
    for child in &node.frames {
        match child.name {
            Some(Name::Pseudo(_)) => {
                let repeats = child.value == node.value && node.frames.len() == 1;
                assert!(node.name.is_none() || !repeats, "{}", node.text());
            }
            _ => must_end_in_leaves(child, depth + 1),
        }
    }
}

/// Recurses through functions written in C, so that each level has several frames.
const PYTHON: &str = "
import sys
def build(depth):
    return [bytearray(60000)] + (list(map(build, [depth - 1])) if depth else [])
kept = build(100)
print('ready', flush=True)
sys.stdin.read()
";

#[test]
fn cpython_with_deep_stacks() {
    if !Path::new("/usr/bin/python3").exists() {
        return skip("/usr/bin/python3 is not installed");
    }
    let (m, mut lines) = Memprof::start_command(&[], &["/usr/bin/python3", "-c", PYTHON]);
    assert_eq!(lines.line(), "ready");
    check(&m);
    // The stacks are deeper than the parser's limit.
    let whole = m.get("/v1/tree?threshold=0&depth=1000");
    assert_eq!(whole.status, 200);
    let error = serde_json::from_slice::<Node>(&whole.body).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
}

#[test]
fn redis() {
    const REDIS: &str = "/usr/bin/redis-server";
    if !Path::new(REDIS).exists() {
        return skip("redis-server is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let (socket, dir) = (socket.to_str().unwrap(), dir.path().to_str().unwrap());
    // Otherwise it saves at its end, and does not end where it cannot.
    let never = ["--save", ""];
    let command = [REDIS, "--port", "0", "--unixsocket", socket, "--dir", dir];
    let (mut m, _lines) = Memprof::start_command(&[], &[&command[..], &never].concat());
    wait_until(|| Path::new(socket).exists());
    check(&m);
    signal(m.followed(), libc::SIGTERM);
    m.wait();
}

#[test]
fn a_c_program() {
    let program = program("forked_allocator");
    let (m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
    lines.line();
    check(&m);
}
