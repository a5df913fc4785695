//! A private PostgreSQL server. Benchmarks also use this file, so it does not depend on its sibling modules.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::User;

/// Timeout for the server to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database cluster, run by the user that the PostgreSQL package created.
pub struct Postgres {
    programs: PathBuf,
    user: User,
    dir: tempfile::TempDir,
    server: Option<Child>,
}

impl Postgres {
    /// Starts a server; `None` if PostgreSQL is not installed.
    pub fn start() -> Option<Postgres> {
        let versions = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten();
        let programs = versions
            .filter_map(|v| Some(v.ok()?.path().join("bin")))
            .find(|p| p.join("initdb").exists() && p.join("pgbench").exists());
        let (Some(programs), Ok(Some(user))) = (programs, User::from_name("postgres")) else {
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
        let mut own = Postgres {
            programs,
            user,
            dir,
            server: None,
        };
        own.run("initdb", &["-D", "data", "-A", "trust", "-N"]);
        // Autovacuum is off: its short-lived processes would disturb measurements.
        let quiet = ["listen_addresses=", "fsync=off", "autovacuum=off"];
        let quiet: Vec<&str> = quiet.iter().flat_map(|s| ["-c", s]).collect();
        let mut server = own.command("postgres", &["-D", "data", "-k", own.place()]);
        own.server = Some(server.args(quiet).spawn().unwrap());
        let began = Instant::now();
        while !own.output("pg_isready", &["-q"]).status.success() {
            assert!(began.elapsed() < PATIENCE, "postgres does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(own)
    }

    /// The main server process, which starts all others.
    pub fn pid(&self) -> u32 {
        self.server.as_ref().unwrap().id()
    }

    fn place(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    /// A command for one of its programs, run as its user on its database.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(args).current_dir(self.dir.path());
        command.uid(self.user.uid.as_raw());
        command.gid(self.user.gid.as_raw());
        command
            .env("PGHOST", self.place())
            .env("PGDATABASE", "postgres");
        command.stdout(Stdio::null());
        command
    }

    fn output(&self, program: &str, args: &[&str]) -> Output {
        let mut command = self.command(program, args);
        command.stdout(Stdio::piped()).output().unwrap()
    }

    /// Runs one of its programs to its end; returns the output.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let out = self.output(program, args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{program}: {said}");
        String::from_utf8(out.stdout).unwrap()
    }

    /// Number of committed transactions so far.
    pub fn transactions(&self) -> u64 {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
        self.run("psql", &["-Atc", sql]).trim().parse().unwrap()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // Fast shutdown: the server removes its shared memory.
            let pid = nix::unistd::Pid::from_raw(server.id().cast_signed());
            let _ = kill(pid, Signal::SIGINT);
            let _ = server.wait();
        }
    }
}
