//! `/v2/source`: the lines of a function with their bytes, and the text that the program itself may read.
//!
//! Needs root, `cc`, `setpriv` and `/usr/bin/python3`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::common::Reply;
use crate::common::binary::MEMPROF;
use crate::common::memprof::Memprof;
use crate::common::process::eventually;
use crate::common::skip::skip;
use crate::common::workload::program;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// The reply about a function, once `/v2/functions` lists it with its file, which is read in the background.
fn source(m: &Memprof, function: &str) -> Reply {
    let mut path = Value::Null;
    eventually(LIMIT, &format!("{function} has no file"), || {
        let query = "/v2/functions?kind=anon&limit=10000&frames=all";
        let rows = m.get(query).json();
        let mut rows = rows["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["function"] == function);
        path = row.map_or(Value::Null, |row| row["path"].clone());
        path.is_string()
    });
    let path = path.as_str().unwrap();
    m.get(&format!(
        "/v2/source?kind=anon&frames=all&function={function}&path={path}"
    ))
}

fn total(reply: &Value, line: usize) -> Option<u64> {
    let mut rows = reply["lines"].as_array().unwrap().iter();
    rows.find(|row| row["line"] == line)?["total"].as_u64()
}

#[test]
fn lines_have_their_bytes_and_their_text() {
    let workload = program("inlined");
    let (m, mut lines) = Memprof::start_command(&[], &[workload.to_str().unwrap()]);
    for _ in 0..3 {
        lines.tell("more");
    }
    let source_file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/inlined.c");
    let text = fs::read_to_string(source_file).unwrap();
    let marked = |marker: &str| {
        let mut all = text.lines();
        1 + all.position(|line| line.ends_with(marker)).unwrap()
    };
    let [inner, middle, outer] = ["// INNER", "// MIDDLE", "// OUTER"].map(marked);
    for (function, own) in [("inner", inner), ("middle", middle), ("outer", outer)] {
        let reply = source(&m, function);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let reply = reply.json();
        for line in [inner, middle, outer] {
            let bytes = total(&reply, line).unwrap_or_else(|| panic!("no {line} in {reply}"));
            assert!(bytes >= 3 * MIB, "{function}, {line}: {reply}");
        }
        let [first, last] = [0, 1].map(|at| reply["function"][at].as_u64().unwrap() as usize);
        assert!(first <= own && own <= last, "{function}: {reply}");
        assert_eq!(reply["no_text"], Value::Null, "{reply}");
        let start = reply["text"]["first"].as_u64().unwrap() as usize;
        let shown = reply["text"]["lines"].as_array().unwrap();
        assert_eq!(shown[own - start], text.lines().nth(own - 1).unwrap());
    }
    refusals(&m);

    // A saved profile has the lines; the ids of its processes mean nothing here.
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("saved.memprof.json");
    fs::write(&saved, m.get("/v2/export/profile").text()).unwrap();
    let mut open = Command::new(MEMPROF);
    open.arg("open")
        .arg(&saved)
        .args(["--listen", "127.0.0.1:0"]);
    let opened = Memprof::spawn_as(&mut open);
    let reply = source(&opened, "inner").json();
    assert!(total(&reply, inner).unwrap() >= 3 * MIB, "{reply}");
    assert!(reply["text"].is_null(), "{reply}");
    let why = reply["no_text"].as_str().unwrap();
    assert!(why.contains("no process runs"), "{why}");
}

fn refusals(m: &Memprof) {
    let path = "/v2/source?path=/none&function=none";
    assert_eq!(m.get(path).status, 404);
    for query in [
        "",
        "?function=main",
        "?path=/none&sort=self",
        "?path=/none&kind=memory",
    ] {
        assert_eq!(m.get(&format!("/v2/source{query}")).status, 400, "{query}");
    }
}

/// A program whose functions claim to be in these files, each with 4 MiB.
const CLAIMS: &str = "
import sys
held = []
for number, path in enumerate(sys.argv[1:]):
    code = 'def claim_%d():\\n    held.append(b\"x\" * (4 << 20))\\nclaim_%d()' % (number, number)
    exec(compile(code, path, 'exec'))
print('ready', flush=True)
sys.stdin.read()
";

/// A program chooses the names of its source files, so they open nothing that it may not read itself.
#[test]
fn no_file_is_shown_that_the_program_may_not_read() {
    if !Path::new("/usr/bin/python3").exists() {
        return skip("/usr/bin/python3 is not installed");
    }
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let [private, hidden] = ["private.py", "hidden.py"].map(|name| dir.path().join(name));
    for (file, mode) in [(&private, 0o600), (&hidden, 0o644)] {
        fs::write(file, "secret\n".repeat(9)).unwrap();
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }
    // Only the directory hides this one.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
    let open = Path::new("/usr/lib/os-release");
    let files = [
        private.to_str().unwrap(),
        hidden.to_str().unwrap(),
        "/etc/shadow",
        "/proc/self/environ",
        "/proc/1/maps",
        "/none.py",
        open.to_str().unwrap(),
    ];
    let command = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"];
    let python = ["/usr/bin/python3", "-c", CLAIMS];
    let command = [&command[..], &python, &files].concat();
    let (m, mut lines) = Memprof::start_command(&[], &command);
    assert_eq!(lines.line(), "ready");
    for (number, file) in files.iter().enumerate() {
        let reply = source(&m, &format!("claim_{number}"));
        assert_eq!(reply.status, 200, "{file}: {}", reply.text());
        let reply = reply.json();
        assert_eq!(reply["file"], *file);
        assert!(total(&reply, 2).unwrap() >= 4 * MIB, "{file}: {reply}");
        let why = reply["no_text"].as_str().unwrap_or_default();
        match *file {
            "/none.py" => assert!(why.contains("no such file"), "{reply}"),
            shown if Path::new(shown) == open => {
                let lines = reply["text"]["lines"].as_array().unwrap();
                assert!(lines.len() > 1, "{reply}");
            }
            _ => assert!(why.contains("may not read"), "{file}: {reply}"),
        }
        assert_eq!(reply["text"].is_null(), !why.is_empty(), "{file}: {reply}");
    }
}
