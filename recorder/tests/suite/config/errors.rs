//! Errors of the configuration.

use std::path::Path;

use tezos_recorder::config::Config;

/// A node, to which a case adds a line.
const NODE: &str = "[[nodes]]\nname = \"a\"\np2p = { identity = \"i\", port = 1 }\n";

#[test]
fn errors_name_the_line_what_is_wrong_and_what_to_do() {
    let more = |line: &str| format!("{NODE}{line}\n");
    let top = |line: &str| format!("# first line\n{line}\n{NODE}");
    for (text, expected) in [
        (
            top("http_v4 = 1"),
            "config.toml:2: unknown field `http_v4`, expected one of",
        ),
        (
            more("keeep = 1"),
            "config.toml:4: unknown field `keeep`, expected one of",
        ),
        (
            more("log = { prt = 1 }"),
            "config.toml:4: unknown field `prt`, expected one of",
        ),
        (
            more("log = { port = 70000 }"),
            "config.toml:4: invalid value: integer `70000`, expected u16",
        ),
        (
            more("raw = 1"),
            "config.toml:4: invalid type: integer `1`, expected a boolean",
        ),
        (more("raw = "), "config.toml:4: "),
        (more("name = \"b\""), "config.toml:4: duplicate key"),
        (
            String::new(),
            "config.toml: no node is configured; add a section [[nodes]]",
        ),
        (
            "[[nodes]]\nname = \"a\"".into(),
            "config.toml:1: nothing of this node is recorded; add `p2p",
        ),
        (
            "[[nodes]]\nlog = { port = 1 }".into(),
            "config.toml:1: this node has no name; add `name",
        ),
        (
            "[[nodes]]\nname = \"\"\nlog = { port = 1 }".into(),
            "config.toml:2: wrong value of `name`; expected 1 to",
        ),
        (
            "[[nodes]]\nname = \"../a\"\nlog = { port = 1 }".into(),
            "config.toml:2: wrong value of `name`; expected 1 to",
        ),
        (
            "[[nodes]]\nname = \"a\"\np2p_port = 5".into(),
            "config.toml:3: the node's identity is missing; add",
        ),
        (
            "[[nodes]]\nname = \"a\"\np2p = { port = 5 }".into(),
            "config.toml:3: the node's identity is missing; add",
        ),
        (
            "[[nodes]]\nname = \"a\"\np2p = { identity = \"i\" }".into(),
            "config.toml:3: nothing says where the node's sockets are; add",
        ),
        (
            top("ring = \"33MiB\""),
            "config.toml:2: wrong value of `ring`; expected a power of two",
        ),
        (
            top("ring = true"),
            "config.toml:2: wrong value of `ring`; expected a number of bytes",
        ),
        (
            top("source = \"x\""),
            "config.toml:2: wrong value of `source`; expected \"auto\"",
        ),
        (
            top("listen = \"localhost\""),
            "config.toml:2: wrong value of `listen`; expected an IP address",
        ),
        (
            top("listen = []"),
            "config.toml:2: wrong value of `listen`; expected an IP address",
        ),
        (
            top("listen = \"127.0.0.1:80\""),
            "config.toml:2: wrong value of `listen`; expected an IP address",
        ),
        (
            top("cors_origins = [\"example.org\"]"),
            "config.toml:2: wrong value of `cors_origins`; expected scheme",
        ),
        (
            top("rpc_port = 1\nhttp_v2 = 2"),
            "config.toml:2: `rpc_port` is another name of `http_v2`, and both are there; remove",
        ),
        (
            more("identity_path = \"j\""),
            "config.toml:4: `identity_path` is another name of `p2p.identity`",
        ),
        (
            more("pow = 257"),
            "config.toml:4: wrong value of `pow`; expected a number of bits",
        ),
        (
            more("reconnect = \"http://localhost:8732\""),
            "config.toml:4: wrong value of `reconnect`; expected `http://`, an IP address and a port",
        ),
        (
            more("reconnect = 8732"),
            "config.toml:4: wrong value of `reconnect`; expected `http://`",
        ),
        (
            more("keep = { bytes = \"1GB\" }"),
            "config.toml:4: wrong value of `keep.bytes`; expected a number of bytes",
        ),
        (
            more("keep = { bytes = -1 }"),
            "config.toml:4: wrong value of `keep.bytes`; expected a number of bytes",
        ),
        (
            more("keep = { age = \"1w\" }"),
            "config.toml:4: wrong value of `keep.age`; expected a whole number",
        ),
        (
            more("unit = \"u\"\npid = 1"),
            "config.toml:5: more than one of `cgroup`, `unit` and `pid`; leave",
        ),
        (
            more("log = { disable_search = true }"),
            "config.toml:4: no source of logs; add one of",
        ),
        (
            more("log = { socket = \"s\", mode = \"999\" }"),
            "config.toml:4: wrong value of `log.mode`; expected permissions",
        ),
        (more(NODE), "config.toml:4: two nodes have the name a; give"),
        (
            more("db = \"x\"\n[[nodes]]\nname = \"b\"\ndb = \"x\"\nlog = { port = 1 }"),
            "config.toml:5: two nodes have the database x; give",
        ),
        (
            more("log = { port = 7 }\n[[nodes]]\nname = \"b\"\nlog = { port = 7 }"),
            "config.toml:5: two nodes have the same logs (UDP 127.0.0.1:7); give",
        ),
        (
            more("http_v3 = 17732"),
            "config.toml:1: port 17732 is used twice; give",
        ),
    ] {
        let error = Config::parse(&text, Path::new("config.toml")).expect_err(&text);
        assert!(error.to_string().starts_with(expected), "{text}\n{error}");
    }
}
