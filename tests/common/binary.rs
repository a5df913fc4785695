//! The memprof binary: started in various environments, queried over HTTP, ended.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Timeout of every operation; long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const MEMPROF: &str = env!("CARGO_BIN_EXE_memprof");

/// The result of a run that ended by itself.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Fails the test unless the exit status is `code` and stderr contains every part and no panic.
    pub fn must(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:?}");
        }
        no_panic(&self.stderr);
    }
}

pub fn no_panic(stderr: &str) {
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// Runs a command to its end; if that takes too long, kills it and fails the test.
pub fn run(command: &mut Command) -> Ended {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let status = wait(&mut child);
    let text = |t: std::thread::JoinHandle<String>| t.join().unwrap();
    Ended {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Runs memprof to its end.
pub fn memprof(args: &[&str]) -> Ended {
    run(Command::new(MEMPROF).args(args))
}

/// Runs a shell script in a new mount namespace; in it, `$MEMPROF` is the binary.
pub fn in_own_mounts(script: &str) -> Ended {
    run(Command::new("unshare")
        .args(["--mount", "sh", "-ec", script])
        .env("MEMPROF", MEMPROF))
}

fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

pub fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            panic!("it did not end within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that is killed at the end of the test.
pub struct Kept(pub Child);

impl Kept {
    pub fn start(command: &mut Command) -> Kept {
        Kept(command.spawn().unwrap())
    }

    /// A process that sleeps for 10 minutes.
    pub fn idle() -> Kept {
        Kept::start(Command::new("sleep").arg("600"))
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memprof with a server.
pub struct Memprof {
    child: Kept,
    said: Arc<Mutex<String>>,
    pub address: SocketAddr,
}

impl Memprof {
    /// Starts it with these arguments on a free port; returns once it serves and has printed
    /// `until`.
    pub fn start(args: &[&str], until: &str) -> Memprof {
        Memprof::start_as(Command::new(MEMPROF).args(args), until)
    }

    pub fn start_as(command: &mut Command, until: &str) -> Memprof {
        command.args(["--listen", "127.0.0.1:0"]);
        let mut child = Kept::start(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped()),
        );
        let said = Arc::new(Mutex::new(String::new()));
        let mut stderr = BufReader::new(child.0.stderr.take().unwrap());
        let to = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).is_ok_and(|n| n > 0) {
                to.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        let start = Instant::now();
        loop {
            let text = said.lock().unwrap().clone();
            let url = text.split_once("serving http://").map(|(_, url)| url);
            if let Some((address, _)) = url.and_then(|url| url.split_once('/'))
                && text.contains(until)
            {
                let address = address.parse().unwrap();
                return Memprof {
                    child,
                    said,
                    address,
                };
            }
            let ended = child.0.try_wait().unwrap();
            assert!(ended.is_none(), "memprof ended with {ended:?}: {text}");
            assert!(start.elapsed() < PATIENCE, "memprof only said: {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn follow(pid: &str) -> Memprof {
        Memprof::start(&["--pid", pid], &format!("(pid {pid})"))
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Open descriptors of the process.
    pub fn descriptors(&self) -> usize {
        let dir = format!("/proc/{}/fd", self.child.0.id());
        std::fs::read_dir(Path::new(&dir)).unwrap().count()
    }

    /// Sends bytes on a new connection and reads until the server closes it.
    pub fn raw(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may close the connection before everything is sent.
        let _ = stream.write_all(request);
        let mut out = Vec::new();
        let _ = stream.read_to_end(&mut out);
        out
    }

    pub fn request(&self, path: &str) -> String {
        format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        )
    }

    /// Status and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        let reply = self.raw(self.request(path).as_bytes());
        let text = String::from_utf8_lossy(&reply).into_owned();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no header in {text:?}"));
        (status(head.as_bytes()), body.to_owned())
    }

    /// Ends it with SIGINT; fails the test unless it ends successfully.
    pub fn end(mut self) -> String {
        let pid = Pid::from_raw(self.child.0.id().cast_signed());
        kill(pid, Signal::SIGINT).unwrap();
        let status = wait(&mut self.child.0);
        let said = self.said();
        assert!(status.success(), "{status}: {said}");
        no_panic(&said);
        said
    }
}

/// The status code of a reply.
pub fn status(reply: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(reply);
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("no status in {text:?}"))
}
