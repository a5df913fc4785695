//! A Redis server of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use super::process::{LIMIT, eventually};
use super::workload::Running;
use memprof_sys::ids::Pid;

const SERVER: &str = "/usr/bin/redis-server";

/// A server that listens on a socket in a directory of its own. It is killed when dropped.
pub struct Redis {
    server: Running,
    dir: tempfile::TempDir,
}

impl Redis {
    /// Starts it; `None` if Redis is not installed.
    pub fn start() -> Option<Redis> {
        if !Path::new(SERVER).exists() {
            return None;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut server = Command::new(SERVER);
        server.current_dir(dir.path()).stdout(Stdio::null());
        server.args(["--unixsocket", "redis.sock", "--port", "0", "--save", ""]);
        let server = Running(server.spawn().unwrap());
        let own = Redis { server, dir };
        eventually(LIMIT, "redis answers", || {
            own.run("redis-cli", "ping") == "PONG"
        });
        Some(own)
    }

    pub fn pid(&self) -> Pid {
        self.server.pid()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.server.0.try_wait().unwrap().is_none()
    }

    /// A client with these arguments, which are separated by spaces.
    pub fn command(&self, program: &str, args: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.dir.path())
            .args(["-s", "redis.sock"]);
        command.args(args.split(' ')).stderr(Stdio::null());
        command
    }

    /// Runs a client. Returns its output.
    pub fn run(&self, program: &str, args: &str) -> String {
        let output = self.command(program, args).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}
