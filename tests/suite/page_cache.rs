//! memprof's page cache figures equal those of cachestat(2), for each file.
//!
//! Needs root, `cc`, Linux 6.5, and cargo's target directory on a file system with a page cache of its
//! own (not tmpfs, not an overlay).

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::common::files::{self, cached, evict};
use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::reclaim::undisturbed;
use crate::common::tree::Sum;
use crate::common::workload::{Lines, program};

const MIB: u64 = 1 << 20;

/// `scenarios` under memprof, and a directory for its files.
struct Run {
    m: Memprof,
    lines: Lines,
    dir: tempfile::TempDir,
    /// Page cache brought in by the program's start.
    base: u64,
}

impl Run {
    fn start() -> Run {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        files::require_page_cache(dir.path());
        let program = program("scenarios");
        let (m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
        lines.send("");
        assert!(lines.line().starts_with("error"));
        let base = m.tree().cache_value;
        println!("from the start: {base} KiB");
        Run {
            m,
            lines,
            dir,
            base,
        }
    }

    /// The path of a file's row, by its inode.
    fn known_path(&self, inode: u64) -> Option<String> {
        let files = self.m.get("/v2/files").json();
        let row = files["rows"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["inode"] == inode)
            .cloned();
        row.and_then(|row| row["path"].as_str().map(str::to_owned))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn cold_file(&self, name: &str, len: u64) -> File {
        files::cold(&self.path(name), len)
    }

    fn tell(&mut self, command: &str, file: &str) {
        let path = self.path(file);
        let mut words = command.split(' ');
        let (command, rest) = (words.next().unwrap(), words.next().unwrap_or_default());
        let line = format!("{command} {} {rest}", path.display());
        self.lines.tell(line.trim_end());
    }

    /// Checks that each function owns the cached pages of its files, and that nothing else has changed.
    #[track_caller]
    fn check(&self, what: &str, owned: &[(&str, &[&File])]) {
        let (direct, reversed) = (self.m.tree(), self.m.reversed());
        let mut all = 0;
        for (function, files) in owned {
            let kernel: u64 = files.iter().map(|f| cached(f)).sum();
            all += kernel;
            let Sum { value, cache } = reversed.through(function);
            println!("{what}: {function} {cache} KiB, cachestat {kernel} KiB");
            assert_eq!(cache, kernel, "{what}: {function}\n{}", reversed.text());
            assert!(
                value - cache <= 64,
                "{what}: {value} KiB, of these cache {cache}"
            );
            assert_eq!(direct.through(function), Sum { value, cache }, "{what}");
        }
        assert_eq!(
            direct.cache_value,
            self.base + all,
            "{what}\n{}",
            direct.text()
        );
        assert_eq!(reversed.cache_value, self.base + all, "{what}");
        let short = self.m.get("/v1/tree?short=true").json();
        assert_eq!(short["cache"].as_u64(), Some(self.base + all), "{what}");
    }
}

/// memprof sees it neither open nor mapped: its path is found by device and inode.
#[test]
fn a_file_that_is_closed_again_has_a_path() {
    let mut run = Run::start();
    let file = run.cold_file("closed", MIB);
    let inode = file.metadata().unwrap().ino();
    run.tell("read", "closed");
    let path = run.path("closed").to_str().unwrap().to_owned();
    wait_until(|| run.known_path(inode).is_some());
    assert_eq!(run.known_path(inode), Some(path));
    let reply = run.m.get("/v2/files");
    let files = reply.text();
    assert!(files.contains("\"path_from\":\"directory\""), "{files}");
}

#[test]
fn a_file_that_is_read() {
    undisturbed(read);
}

fn read() {
    let mut run = Run::start();
    let a = run.cold_file("a", 8 * MIB + 123);
    let b = run.cold_file("b", 3 * MIB);
    run.check("before", &[("cmd_read", &[])]);
    run.tell("read", "a");
    assert!(cached(&a) >= 8192);
    run.check("read a", &[("cmd_read", &[&a])]);
    run.tell("read", "b");
    run.check("read b", &[("cmd_read", &[&a, &b])]);
    // The pages are already cached, so they have no owner.
    run.tell("read", "a");
    run.check("read a again", &[("cmd_read", &[&a, &b])]);

    run.tell("fadvise_dontneed", "a");
    run.check("fadvise a", &[("cmd_read", &[&a, &b])]);
    evict(&a);
    run.check("a evicted", &[("cmd_read", &[&b])]);

    // Another process reads a part of it.
    b.set_len(MIB + 5000).unwrap();
    assert_eq!(cached(&b), 1024 + 8);
    run.check("b cut", &[("cmd_read", &[&b])]);
    run.tell("truncate", "b");
    assert_eq!(cached(&b), 0);
    run.check("b truncated", &[("cmd_read", &[])]);
    end(run);
}

#[test]
fn a_file_that_is_written() {
    undisturbed(written);
}

fn written() {
    let mut run = Run::start();
    run.tell("write 6291456", "a");
    let a = File::open(run.path("a")).unwrap();
    assert_eq!(cached(&a), 6144);
    run.check("write", &[("cmd_write", &[&a])]);
    run.tell("fsync", "a");
    run.check("fsync", &[("cmd_write", &[&a]), ("cmd_fsync", &[])]);
    run.tell("read", "a");
    run.check(
        "read what was written",
        &[("cmd_write", &[&a]), ("cmd_read", &[])],
    );
    run.tell("fadvise_dontneed", "a");
    evict(&a);
    run.check("fadvise", &[("cmd_write", &[])]);
    // Now the reader owns the pages.
    run.tell("read", "a");
    run.check("read anew", &[("cmd_write", &[]), ("cmd_read", &[&a])]);
    drop(a);
    run.tell("unlink", "a");
    run.check("unlink", &[("cmd_write", &[]), ("cmd_read", &[])]);
    // The new file may have the same inode number.
    run.tell("write 1048576", "a");
    let a = File::open(run.path("a")).unwrap();
    run.check("a new file", &[("cmd_write", &[&a]), ("cmd_read", &[])]);
    end(run);
}

#[test]
fn a_file_that_is_mapped() {
    undisturbed(mapped);
}

fn mapped() {
    let mut run = Run::start();
    let a = run.cold_file("a", 5 * MIB);
    run.tell("mapfile", "a");
    assert_eq!(cached(&a), 5 * 1024);
    run.check("mapfile", &[("cmd_mapfile", &[&a])]);
    run.lines.tell("unmapfile");
    run.check("unmapped", &[("cmd_mapfile", &[&a])]);
    evict(&a);
    run.check("evicted", &[("cmd_mapfile", &[])]);
    end(run);
}

#[test]
fn what_others_bring_in_is_not_counted() {
    undisturbed(brought_in_by_others);
}

fn brought_in_by_others() {
    let mut run = Run::start();
    let mut a = run.cold_file("a", 4 * MIB);
    let b = run.cold_file("b", 2 * MIB);
    let mut sink = Vec::new();
    std::io::Seek::rewind(&mut a).unwrap();
    a.read_to_end(&mut sink).unwrap();
    assert_eq!(cached(&a), 4096);
    run.check("read by the test", &[("cmd_read", &[])]);
    run.tell("read", "a");
    run.check("then by the program", &[("cmd_read", &[])]);
    run.tell("read", "b");
    run.check("read b", &[("cmd_read", &[&b])]);
    end(run);
}

#[test]
fn holes_are_no_pages() {
    undisturbed(punched);
}

fn punched() {
    let mut run = Run::start();
    let a = run.cold_file("a", 4 * MIB);
    run.tell("read", "a");
    // SAFETY: fallocate takes no pointers; the descriptor is open.
    let done = unsafe {
        libc::fallocate(
            a.as_raw_fd(),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            MIB as i64,
            MIB as i64,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    assert_eq!(cached(&a), 3 * 1024);
    run.check("punched", &[("cmd_read", &[&a])]);
    end(run);
}

fn end(mut run: Run) {
    run.lines.close();
    assert!(run.m.wait().success());
}
