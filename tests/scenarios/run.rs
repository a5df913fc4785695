//! The workload under memprof, and the comparison with the kernel.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::common::process::{LIMIT, cont, signal, stop, wait_until};
use crate::common::{files, workload};
use crate::figures;
use crate::live::{Live, Report};
use ::memprof::app::session::command::Prepared;
use memprof_profile::Kind;
use memprof_sys::ids::Pid;
use memprof_sys::usage::Usage;

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;

/// Expected bytes of a kind under a function.
pub type Own<'a> = (&'a str, Kind, u64);

/// `moves` under memprof.
pub struct Run<'a> {
    live: &'a Live,
    prepared: Prepared,
    to: File,
    from: BufReader<File>,
    pub dir: tempfile::TempDir,
    /// The processes to compare with: the workload, and its children if they are followed.
    pub pids: Vec<Pid>,
    said: Vec<String>,
    /// Initial memory without a stack: pages that exec fills without a fault.
    without: u64,
    /// Initial page cache, which earlier runs may have left, without that of fsync.
    cache: u64,
}

/// The compiled workload.
fn moves() -> PathBuf {
    match std::env::var_os("MEMPROF_TEST_MOVES") {
        Some(path) => path.into(),
        None => workload::program("moves"),
    }
}

fn scratch() -> PathBuf {
    let given = std::env::var_os("MEMPROF_TEST_DIR");
    given.map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), Into::into)
}

fn fifo(path: &Path) -> File {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Opened for reading and writing, so that opening does not block.
    File::options().read(true).write(true).open(path).unwrap()
}

impl<'a> Run<'a> {
    pub fn start(live: &'a Live) -> Run<'a> {
        let dir = tempfile::tempdir_in(scratch()).unwrap();
        let (input, output) = (dir.path().join("in"), dir.path().join("out"));
        let (to, from) = (fifo(&input), BufReader::new(fifo(&output)));
        let argv = [&moves(), &input, &output].map(|p| p.clone().into_os_string());
        let prepared = live.command(&argv);
        let pids = vec![prepared.pid];
        let mut run = Run {
            live,
            prepared,
            to,
            from,
            dir,
            pids,
            said: Vec::new(),
            without: 0,
            cache: 0,
        };
        run.answered();
        run.begin_anew();
        run
    }

    pub fn pid(&self) -> Pid {
        self.prepared.pid
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Takes the current memory without a stack as that of a fresh program.
    pub fn begin_anew(&mut self) {
        let report = self.report();
        self.without = report.unobserved(Kind::Resident);
        // What fsync has read in an earlier run is still under its function.
        self.cache = report.profile.total.usage.cache - report.under("cmd_sync", Kind::Cache);
        assert!(self.without <= 64 * KIB, "{}", report.text());
    }

    /// The workload and its children, in the order of their creation.
    pub fn family(&self) -> Vec<Pid> {
        let pid = self.pid();
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let children = text.split_whitespace().map(|p| Pid(p.parse().unwrap()));
        [pid].into_iter().chain(children).collect()
    }

    /// Clears the log of commands and answers, which failure messages contain.
    pub fn forget_said(&mut self) {
        self.said.clear();
    }

    /// Children also have the pages that exec filled, shared with their parents.
    pub fn begin_anew_for_children(&mut self) {
        self.without *= self.pids.len() as u64;
    }

    /// Waits until memprof follows exactly these processes.
    pub fn wait_for_processes(&self) {
        wait_until(|| self.report().profile.target.pids == self.pids);
    }

    fn answered(&mut self) -> String {
        if self.from.buffer().is_empty() {
            let mut fds = [PollFd::new(self.from.get_ref().as_fd(), PollFlags::POLLIN)];
            let limit = PollTimeout::try_from(LIMIT).unwrap();
            assert_ne!(
                poll(&mut fds, limit),
                Ok(0),
                "no answer to {:?}",
                self.said.last()
            );
        }
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command to the workload; returns the answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.said.push(command.to_owned());
        writeln!(self.to, "{command}").unwrap();
        self.answered()
    }

    /// Sends commands to the workload, which must succeed.
    #[track_caller]
    pub fn tell(&mut self, commands: &[&str]) {
        for command in commands {
            let answer = self.ask(command);
            assert_eq!(answer, "ok", "{:#?}", self.said);
        }
    }

    /// Sends a command that this kernel may not support.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn can(&mut self, command: &str) -> Result<(), String> {
        match self.ask(command).as_str() {
            "ok" => Ok(()),
            answer => Err(format!("{command}: {answer}")),
        }
    }

    fn report(&self) -> Report {
        self.live.report()
    }

    /// A report of the stopped processes, whose sums must equal the kernel's.
    #[track_caller]
    pub fn sums(&self) -> Report {
        self.sums_at("")
    }

    /// Like [`Run::sums`]; `at` is for failure messages.
    #[track_caller]
    pub fn sums_at(&self, at: &str) -> Report {
        self.pids.iter().for_each(|pid| stop(*pid));
        let (report, kernel) = self.at_rest();
        self.pids.iter().for_each(|pid| cont(*pid));
        let mut sum = Usage::default();
        for (pid, kernel) in self.pids.iter().zip(kernel) {
            sum += kernel;
            let share = report
                .profile
                .for_process(*pid)
                .expect("a followed process");
            self.assert_equal(
                &share.total.usage,
                &kernel,
                &format!("{at} of {pid}"),
                &report,
            );
        }
        self.assert_equal(&report.profile.total.usage, &sum, at, &report);
        report
    }

    /// A report and the kernel's figures, which were the same before and after it: khugepaged, KSM and reclaim
    /// also change stopped processes.
    fn at_rest(&self) -> (Report, Vec<Usage>) {
        let kernel = || -> Vec<Usage> { self.pids.iter().map(|p| figures::read(*p)).collect() };
        let begun = Instant::now();
        loop {
            let before = kernel();
            let report = self.report();
            if kernel() == before {
                return (report, before);
            }
            assert!(
                begun.elapsed() < LIMIT,
                "the kernel's figures keep changing"
            );
        }
    }

    #[track_caller]
    fn assert_equal(&self, ours: &Usage, kernel: &Usage, at: &str, report: &Report) {
        let ours = Usage { cache: 0, ..*ours };
        assert_eq!(
            ours,
            *kernel,
            "(left memprof, right the kernel) {at} after {:#?}\n{}",
            self.said,
            report.text()
        );
    }

    /// Compares the sums and the owners; every page must have a stack.
    #[track_caller]
    pub fn check(&self, owners: &[Own]) -> Report {
        let report = self.sums();
        for &(function, kind, bytes) in owners {
            assert_eq!(
                report.under(function, kind),
                bytes,
                "bytes of {} under {function} after {:#?}\n{}",
                kind.name(),
                self.said,
                report.text()
            );
        }
        let without = report.unobserved(Kind::Resident);
        assert!(
            without <= self.without,
            "{without} bytes without a stack, {} at first, after {:#?}\n{}",
            self.without,
            self.said,
            report.text()
        );
        report
    }

    /// Like [`Run::check`], after these commands.
    #[track_caller]
    pub fn after(&mut self, commands: &[&str], owners: &[Own]) -> Report {
        self.tell(commands);
        self.check(owners)
    }

    /// Sends a command for a file of this run.
    #[track_caller]
    pub fn with(&mut self, command: &str, file: &str, rest: &str) {
        let line = self.with_file(command, file, rest);
        self.tell(&[&line]);
    }

    pub fn with_file(&self, command: &str, file: &str, rest: &str) -> String {
        let path = self.path(file);
        let line = format!("{command} {} {rest}", path.display());
        line.trim_end().to_owned()
    }

    /// Compares the sums, and each function's page cache with the cached pages of its files.
    #[track_caller]
    pub fn cached(&self, owners: &[(&str, &[&File])]) {
        let kernel = || -> Vec<u64> {
            let of = |held: &[&File]| held.iter().map(|f| files::cached(f) * KIB).sum();
            owners.iter().map(|(_, held)| of(held)).collect()
        };
        // The kernel reclaims pages on its own: compared are figures that are the same before and after.
        let begun = Instant::now();
        let (report, held) = loop {
            let before = kernel();
            let report = self.sums();
            if kernel() == before {
                break (report, before);
            }
            assert!(begun.elapsed() < LIMIT, "the page cache never rests");
        };
        // fsync may read metadata of the file system.
        let mut all = report.under("cmd_sync", Kind::Cache);
        for ((function, _), kernel) in owners.iter().zip(held) {
            all += kernel;
            assert_eq!(
                report.under(function, Kind::Cache),
                kernel,
                "cache under {function} after {:#?}\n{}",
                self.said,
                report.text()
            );
        }
        assert_eq!(
            report.profile.total.usage.cache,
            self.cache + all,
            "all cache after {:#?}\n{}",
            self.said,
            report.text()
        );
    }

    /// Ends the workload, and waits until memprof notices.
    pub fn end(mut self) {
        writeln!(self.to, "exit 0").unwrap();
        let prepared =
            std::mem::replace(&mut self.prepared.ended, tokio::sync::oneshot::channel().1);
        let status = prepared.blocking_recv().unwrap().unwrap();
        assert_eq!(status, 0);
        wait_until(|| !self.report().profile.target.alive);
    }
}

impl Drop for Run<'_> {
    /// A failed scenario must leave no process behind.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.pids.iter().for_each(|pid| {
                cont(*pid);
                signal(*pid, libc::SIGKILL);
            });
            let ended =
                std::mem::replace(&mut self.prepared.ended, tokio::sync::oneshot::channel().1);
            let _ = ended.blocking_recv();
        }
    }
}
