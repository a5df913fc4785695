//! Names of stripped programs from debuginfod servers, and what is said where names are missing.
//!
//! Needs root, `cc` and binutils.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::debuginfod_server::{Answer, Server};
use crate::common::listening::certificates;
use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{LIMIT, eventually};
use crate::common::skip::skip;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
__attribute__((noinline, noclone)) static void *hidden(size_t n) { return memset(malloc(n), 1, n); }
int main(void) {
  void *kept = hidden(16 << 20);
  puts("ready");
  fflush(stdout);
  getchar();
  return kept == 0;
}
"#;

fn run(tool: &str, args: &[&str]) -> String {
    let out = Command::new(tool).args(args).output();
    let out = out.unwrap_or_else(|e| panic!("{tool} is needed for this test: {e}"));
    assert!(
        out.status.success(),
        "{tool}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

/// A stripped program; its debug file and its build id.
fn program(dir: &Path) -> (PathBuf, Vec<u8>, String) {
    let path = |name: &str| dir.join(name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (source, whole, prog, debug) = (path("prog.c"), path("whole"), path("prog"), path("debug"));
    fs::write(&source, PROGRAM).unwrap();
    run(
        "cc",
        &[
            "-g",
            "-O1",
            "-Wl,--build-id",
            "-o",
            &text(&whole),
            &text(&source),
        ],
    );
    run("strip", &["-o", &text(&prog), &text(&whole)]);
    run(
        "objcopy",
        &["--only-keep-debug", &text(&whole), &text(&debug)],
    );
    let notes = run("readelf", &["-n", &text(&whole)]);
    let id = notes
        .lines()
        .find_map(|l| l.trim().strip_prefix("Build ID: "));
    (prog, fs::read(debug).unwrap(), id.unwrap().to_owned())
}

/// Starts it with the program, which waits, and this environment.
fn start(args: &[&str], prog: &Path, cache: &Path, servers: Option<&str>) -> Memprof {
    start_trusting(None, args, prog, cache, servers)
}

/// The same, with these certificates instead of the system's.
fn start_trusting(
    certificates: Option<&Path>,
    args: &[&str],
    prog: &Path,
    cache: &Path,
    servers: Option<&str>,
) -> Memprof {
    let mut command = Command::new(BINARY);
    command.args(["--listen", "127.0.0.1:0", "--stacks", "all"]);
    command.args(args).arg("--").arg(prog);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env("DEBUGINFOD_CACHE_PATH", cache);
    if let Some(servers) = servers {
        command.env("DEBUGINFOD_URLS", servers);
    }
    if let Some(certificates) = certificates {
        command.env("SSL_CERT_FILE", certificates);
    }
    let m = Memprof::spawn_as(&mut command);
    m.said("following ");
    // Until the program has its memory.
    eventually(LIMIT, "it has its memory", || {
        summary(&m)["total"]["anon"].as_u64() >= Some(16 << 20)
    });
    m
}

/// Ends it, and the program with it; returns what it printed to stderr.
fn end(mut m: Memprof) -> String {
    m.signal(libc::SIGINT);
    m.wait();
    m.all_said()
}

fn summary(m: &Memprof) -> Value {
    m.get("/v2/summary").json()
}

fn has_name(m: &Memprof) -> bool {
    let table = m.get("/v2/functions?kind=anon&limit=10000").json();
    let rows = table["rows"].as_array().unwrap();
    rows.iter()
        .any(|row| row["function"] == "hidden" && row["total"].as_u64() >= Some(16 << 20))
}

#[test]
fn missing_names_are_explained_asked_for_and_cached() {
    let dir = tempfile::tempdir().unwrap();
    let (prog, debug, id) = program(dir.path());
    let cache = dir.path().join("cache");

    // Without a wish nobody is asked, and one line says what would help.
    let m = start(&[], &prog, &cache, None);
    let advice = summary(&m)["names_advice"].as_str().unwrap().to_owned();
    assert!(advice.starts_with("No symbols in prog (9"), "{advice}");
    assert!(
        advice.ends_with(" % of bytes); --debuginfod may bring names"),
        "{advice}"
    );
    let text = m.get("/v2/export/text");
    assert!(
        text.text().lines().any(|line| line == advice),
        "{}",
        text.text()
    );
    assert_eq!(m.get("/v2/health").json()["debuginfod"], Value::Null);
    assert!(!has_name(&m));
    let said = end(m);
    assert!(!said.contains("debuginfod:"), "{said}");

    // With the usual variable: what is asked is said, and the names appear in a later report.
    let server = Server::start();
    server.answers(&id, Answer::File(debug.clone()));
    let m = start(&[], &prog, &cache, Some(&server.url));
    let start_line = m.said("debuginfod: ");
    assert!(
        start_line.contains(&format!("at {} (DEBUGINFOD_URLS)", server.url)),
        "{start_line}"
    );
    assert!(start_line.contains("--debuginfod=off"), "{start_line}");
    eventually(LIMIT, "the name appears", || has_name(&m));
    assert_eq!(summary(&m)["names_advice"], Value::Null);
    let status = &m.get("/v2/health").json()["debuginfod"];
    assert!(status["fetched"].as_u64() >= Some(1), "{status}");
    assert_eq!(
        status["servers"],
        serde_json::json!([server.url]),
        "{status}"
    );
    assert_eq!(status["directory"].as_str(), cache.to_str());
    let said = end(m);
    assert!(said.contains("debuginfod: fetched 1 file ("), "{said}");
    assert_eq!(fs::read(cache.join(&id).join("debuginfo")).unwrap(), debug);

    // Then the cache has it, and nobody is asked.
    let asked = server.asked.lock().unwrap().len();
    let m = start(&["--debuginfod=off"], &prog, &cache, Some(&server.url));
    assert!(has_name(&m));
    assert!(!end(m).contains("debuginfod:"));
    assert_eq!(server.asked.lock().unwrap().len(), asked);
}

#[test]
fn a_server_over_tls_needs_a_certificate_that_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let Some([authority, certificate, key]) = certificates(dir.path()) else {
        return skip("openssl is not installed");
    };
    let (prog, debug, id) = program(dir.path());
    let server = Server::start_tls(&certificate, &key);
    server.answers(&id, Answer::File(debug));

    let cache = dir.path().join("strangers");
    let m = start(&[], &prog, &cache, Some(&server.url));
    eventually(LIMIT, "the server is refused", || {
        let status = m.get("/v2/health").json()["debuginfod"].clone();
        let why = status["failures"][0]["why"].as_str().unwrap_or_default();
        why.contains(&server.url) && why.contains("certificate")
    });
    assert!(!has_name(&m));
    end(m);
    assert!(server.asked.lock().unwrap().is_empty());

    let cache = dir.path().join("cache");
    let m = start_trusting(Some(&authority), &[], &prog, &cache, Some(&server.url));
    eventually(LIMIT, "the name appears", || has_name(&m));
    end(m);
    assert!(cache.join(&id).join("debuginfo").exists());
}
