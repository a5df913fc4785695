//! What memprof tells a service manager that waits for it: systemd's protocol, spoken by a socket of the test.
//! `tests/systemd.sh` has the real one.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{LIMIT, cont, stop};
use crate::common::workload::{Workload, program, unique_name};

/// The interval of the watchdog. memprof is to be heard twice in it.
const WATCHDOG: Duration = Duration::from_millis(400);

/// Where memprof's messages arrive.
struct Inbox(UnixDatagram);

impl Inbox {
    fn at(address: &SocketAddr) -> Inbox {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Inbox(socket)
    }

    /// The next message, within the time limit of the socket.
    fn next(&self) -> Option<String> {
        let mut text = [0; 4096];
        match self.0.recv(&mut text) {
            Ok(n) => Some(String::from_utf8(text[..n].to_vec()).unwrap()),
            Err(e) if e.kind() == ErrorKind::WouldBlock => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// Reads until a message begins like this; returns it.
    fn until(&self, wanted: &str) -> String {
        let messages = std::iter::from_fn(|| self.next());
        let found = messages.into_iter().find(|m| m.starts_with(wanted));
        found.unwrap_or_else(|| panic!("no {wanted}"))
    }
}

fn memprof(socket: &str, args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args).env("NOTIFY_SOCKET", socket);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn follows(pid: &str) -> [&str; 4] {
    ["--listen", "127.0.0.1:0", "--pid", pid]
}

#[test]
fn the_manager_hears_that_memprof_is_ready_works_and_ends() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let name = unique_name("memprof-notify");
    let inbox = Inbox::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let mut start = memprof(&format!("@{name}"), &follows(&pid));
    start.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
    let m = Memprof::spawn_as(&mut start);
    assert_eq!(inbox.next().as_deref(), Some("READY=1"));
    assert_eq!(m.get("/v2/summary").status, 200);
    let status = inbox.until("STATUS=");
    assert!(status.starts_with("STATUS=following "), "{status}");
    assert!(status.contains(&format!("(pid {pid})")), "{status}");
    inbox.until("WATCHDOG=1");
    // One that stands still is not heard.
    stop(m.pid());
    inbox.0.set_read_timeout(Some(WATCHDOG * 4)).unwrap();
    while inbox.next().is_some() {}
    cont(m.pid());
    inbox.0.set_read_timeout(Some(LIMIT)).unwrap();
    inbox.until("WATCHDOG=1");
    workload.end();
    inbox.until(&format!("STATUS=pid {pid} ended"));
    m.interrupt();
    inbox.until("STOPPING=1");
}

#[test]
fn a_socket_may_have_a_path_and_no_watchdog() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let inbox = Inbox::at(&SocketAddr::from_pathname(&path).unwrap());
    let mut start = memprof(path.to_str().unwrap(), &follows(&pid));
    // That of another process.
    start.env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1");
    let m = Memprof::spawn_as(&mut start);
    assert_eq!(inbox.next().as_deref(), Some("READY=1"));
    inbox.until("STATUS=following ");
    inbox.0.set_read_timeout(Some(WATCHDOG)).unwrap();
    assert_eq!(inbox.next(), None);
    m.interrupt();
}

#[test]
fn a_manager_that_is_not_there_is_named_and_nothing_else_suffers() {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    for (socket, why) in [
        ("/nowhere/notify", "No such file"),
        ("vsock:2:3", "neither a path nor @"),
    ] {
        let m = Memprof::spawn_as(&mut memprof(socket, &follows(&pid)));
        let said = m.said(&format!("at NOTIFY_SOCKET={socket}: "));
        assert!(said.contains(why), "{said}");
        assert_eq!(m.get("/v2/summary").status, 200);
        m.interrupt();
    }
}

/// The command may be the service.
#[test]
fn the_socket_is_left_to_a_command() {
    let name = unique_name("memprof-notify");
    let inbox = Inbox::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let address = format!("@{name}");
    let script = "printf %s \"$NOTIFY_SOCKET\"";
    let out = memprof(&address, &["--no-server", "--", "sh", "-c", script])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert!(
        String::from_utf8_lossy(&out.stdout).starts_with(&address),
        "{out:?}"
    );
    inbox.0.set_nonblocking(true).unwrap();
    assert_eq!(inbox.next(), None);
}
