//! `--listen unix:PATH`: the real memprof and `curl --unix-socket`.
//!
//! Needs root, `cc`, `curl` and `setpriv`.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::memprof::{BINARY, Memprof, run_to_error};
use crate::common::process::LIMIT;
use crate::common::workload::{Workload, program};
use ::memprof::http::api::{Method, ROUTES};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A saved profile, which is served without a probe.
fn saved() -> String {
    let file = "tests/corpus-saved/small.memprof.json";
    format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))
}

/// A directory for a socket that everybody may enter.
struct SocketDirectory(tempfile::TempDir);

impl SocketDirectory {
    fn new() -> SocketDirectory {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        SocketDirectory(dir)
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("memprof.sock")
    }

    fn listen(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// `memprof open` at the socket.
    fn open(&self, more: &[&str]) -> Memprof {
        let (saved, listen) = (saved(), self.listen());
        let args = [&["open", &saved, "--listen", &listen], more].concat();
        let m = Memprof::spawn(&args, Stdio::null(), Stdio::piped());
        m.said("serving unix:");
        m
    }

    /// Asks with curl; returns the status and the body.
    fn curl(&self, path: &str, more: &[&str]) -> (u16, String) {
        let out = Command::new("curl")
            .args(["-sS", "-w", "\n%{http_code}", "--unix-socket"])
            .arg(self.socket())
            .args(["--max-time", &LIMIT.as_secs().to_string()])
            .args(more)
            .arg(format!("http://localhost{path}"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{path}: {said}");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }

    /// Sends the header of a request for events, and waits for the reply's first bytes.
    fn events(&self, more: &str) -> (UnixStream, String) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        write!(
            stream,
            "GET /v2/events HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"
        )
        .unwrap();
        let mut first = vec![0; 4096];
        let length = stream.read(&mut first).unwrap();
        let first = String::from_utf8_lossy(&first[..length]).into_owned();
        (stream, first)
    }
}

#[test]
fn every_route_answers_curl() {
    let place = SocketDirectory::new();
    let mut workload = Workload::start(&program("scenarios"));
    let (pid, listen) = (workload.pid().to_string(), place.listen());
    let args = ["--pid", &pid, "--listen", &listen, "--stacks", "all"];
    let mut m = Memprof::spawn(&args, Stdio::null(), Stdio::piped());
    let said = m.said("serving unix:");
    assert!(said.contains("curl --unix-socket"), "{said}");
    workload.lines.tell("mmap 8388608");
    let about = fs::symlink_metadata(place.socket()).unwrap();
    assert!(about.file_type().is_socket());
    assert_eq!((about.mode() & 0o7777, about.uid()), (0o600, 0));
    for path in ["/v2/marks", "/v2/heap"] {
        let (status, body) = place.curl(path, &["-X", "POST"]);
        assert_eq!(status, 201, "{path}: {body}");
    }
    for route in ROUTES.iter().filter(|route| route.method == Method::Get) {
        let path = match route.path {
            "/v2/export/{}" => "/v2/export/svg",
            "/v2/diff" => "/v2/diff?from=1",
            "/v2/heap/{}" => "/v2/heap/1",
            "/v2/heap/diff" => "/v2/heap/diff?from=1&to=1",
            "/v2/source" => "/v2/source?function=main&path=/none",
            "/v2/files/stacks" => "/v2/files/stacks?file=0:0:0",
            "/v2/events" => continue,
            path => path,
        };
        let wanted = match path {
            // There is no such file and no such function, and allocations are not sampled.
            "/v2/files/stacks?file=0:0:0" | "/v2/source?function=main&path=/none" => 404,
            "/v2/allocations" => 400,
            _ => 200,
        };
        let (status, body) = place.curl(path, &[]);
        assert_eq!(status, wanted, "{path}: {body}");
    }
    assert_eq!(place.curl("/", &[]).0, 200);
    assert!(place.curl("/v2/tree", &[]).1.contains("cmd_mmap"));
    for path in ["/v2/marks/1", "/v2/heap/1"] {
        assert_eq!(place.curl(path, &["-X", "DELETE"]).0, 204, "{path}");
    }
    // As over TCP: a proxy may lead pages of other sites here.
    assert_eq!(
        place.curl("/v2/summary", &["-H", "Host: evil.example"]).0,
        403
    );
    let forwarded = ["-H", "X-Forwarded-For: 192.0.2.1"];
    assert_eq!(place.curl("/debug/memory", &forwarded).0, 403);
    let (mut events, first) = place.events("");
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    m.signal(libc::SIGINT);
    // The stream ends with the server.
    events.read_to_end(&mut Vec::new()).unwrap();
    assert!(m.wait().success());
    assert!(!place.socket().exists(), "{}", m.all_said());
}

#[test]
fn others_cannot_connect() {
    let place = SocketDirectory::new();
    let mut m = place.open(&[]);
    let curl = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            user,
            "--regid",
            user,
            "--clear-groups",
            "curl",
            "-sS",
        ]);
        command.arg("--unix-socket").arg(place.socket());
        command.arg("http://localhost/v2/summary").output().unwrap()
    };
    let refused = curl("65534");
    // curl's status for a connection that failed.
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    assert!(curl("0").status.success());
    m.signal(libc::SIGTERM);
    assert!(m.wait().success());
    assert!(!place.socket().exists());
}

#[test]
fn the_token_is_needed_here_too() {
    let place = SocketDirectory::new();
    let token = place.0.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let m = place.open(&["--token-file", token.to_str().unwrap()]);
    m.said("it answers those who have the token");
    let shown = format!("Authorization: Bearer {TOKEN}");
    for path in ["/v2/summary", "/metrics", "/v2/health"] {
        assert_eq!(place.curl(path, &[]).0, 401, "{path}");
        assert_eq!(place.curl(path, &["-H", &shown]).0, 200, "{path}");
    }
    assert_eq!(place.curl("/", &[]).0, 200);
    assert!(place.events("").1.starts_with("HTTP/1.1 401"));
    let (_stream, first) = place.events(&format!("{shown}\r\n"));
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    m.interrupt();
}

#[test]
fn an_abandoned_socket_is_replaced_and_nothing_else() {
    let place = SocketDirectory::new();
    let mut killed = place.open(&[]);
    killed.child.kill().unwrap();
    killed.wait();
    assert!(place.socket().exists());
    let m = place.open(&[]);
    assert_eq!(place.curl("/v2/summary", &[]).0, 200);
    // It is served now.
    let (saved, listen) = (saved(), place.listen());
    let second = ["open", &saved, "--listen", &listen];
    let said = run_to_error(&second);
    for part in ["cannot listen on unix:", "another memprof", "--listen"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(place.curl("/v2/summary", &[]).0, 200);
    m.interrupt();
    assert!(!place.socket().exists());
    fs::write(place.socket(), "mine").unwrap();
    let said = run_to_error(&second);
    assert!(said.contains("not a socket"), "{said}");
    assert_eq!(fs::read_to_string(place.socket()).unwrap(), "mine");
}

#[test]
fn a_socket_that_took_its_place_stays() {
    let place = SocketDirectory::new();
    let m = place.open(&[]);
    fs::remove_file(place.socket()).unwrap();
    let _other = UnixListener::bind(place.socket()).unwrap();
    m.interrupt();
    assert!(place.socket().exists());
}

/// memprof's directory belongs to another user: it may remove the file only with the capability that it keeps for that.
#[test]
fn it_is_removed_from_a_directory_of_another_user() {
    let place = SocketDirectory::new();
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(place.0.path(), Some(65534), Some(65534)).unwrap();
    place.open(&[]).interrupt();
    assert!(!place.socket().exists());
    let workload = Workload::start(&program("scenarios"));
    let (pid, listen) = (workload.pid().to_string(), place.listen());
    let args = ["--pid", &pid, "--listen", &listen];
    let m = Memprof::spawn(&args, Stdio::null(), Stdio::piped());
    m.said("serving unix:");
    m.interrupt();
    assert!(!place.socket().exists());
}

/// A process that holds as many connections as memprof lets it have, and another process of the same user.
#[test]
fn no_process_takes_all_connections() {
    let place = SocketDirectory::new();
    let (saved, listen) = (saved(), place.listen());
    // Half as many connections as files: 16, of which two are for health and metrics, and one for other clients.
    let args = [
        "--nofile=32:32",
        BINARY,
        "open",
        &saved,
        "--listen",
        &listen,
    ];
    let mut command = Command::new("prlimit");
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let m = Memprof::spawn_unserved(&mut command);
    m.said("serving unix:");
    let held: Vec<_> = (0..13).map(|_| place.events("")).collect();
    assert!(
        held.iter().all(|(_, first)| first.contains(" 200 ")),
        "{held:?}"
    );
    let mut one_more = UnixStream::connect(place.socket()).unwrap();
    let request = "GET /v2/summary HTTP/1.1\r\nHost: localhost\r\n\r\n";
    one_more.write_all(request.as_bytes()).unwrap();
    assert_eq!(place.curl("/v2/summary", &[]).0, 200);
    one_more.set_nonblocking(true).unwrap();
    let early = one_more.read(&mut [0; 16]).unwrap_err();
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
    drop(held);
    one_more.set_nonblocking(false).unwrap();
    one_more.set_read_timeout(Some(LIMIT)).unwrap();
    let mut reply = [0; 12];
    one_more.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200");
    m.interrupt();
}

#[test]
fn paths_that_cannot_be_are_explained() {
    let saved = saved();
    let refused = |path: &Path| {
        let listen = format!("unix:{}", path.display());
        run_to_error(&["open", &saved, "--listen", &listen])
    };
    let place = SocketDirectory::new();
    let said = refused(&place.0.path().join("none/s"));
    assert!(said.contains("make its directory first"), "{said}");
    let said = refused(&place.0.path().join("s".repeat(120)));
    assert!(said.contains("choose another path"), "{said}");
}
