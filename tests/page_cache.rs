//! What memprof counts as page cache against cachestat(2), file by file.
//!
//! Needs root, `cc`, Linux 6.5, and cargo's target directory on a file system with a page cache of its
//! own (not tmpfs, not an overlay).

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use ::memprof::residency::cachestat::cachestat;
use common::memprof::Memprof;
use common::process::wait_until;
use common::tree::Sum;
use common::workload::{Lines, program};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
const OVERLAY: i64 = 0x794c_7630;

const MIB: u64 = 1 << 20;

/// `scenarios` under memprof, and a directory for its files.
struct Run {
    m: Memprof,
    lines: Lines,
    dir: tempfile::TempDir,
    /// Page cache that the program's start brought in.
    base: u64,
}

impl Run {
    fn start() -> Run {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        require_page_cache(&dir);
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

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file of so many bytes, none of them cached.
    fn cold_file(&self, name: &str, len: u64) -> File {
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.path(name))
            .unwrap();
        let mut left = len;
        while left > 0 {
            let part = vec![b'x'; left.min(MIB) as usize];
            (&file).write_all(&part).unwrap();
            left -= part.len() as u64;
        }
        file.sync_all().unwrap();
        evict(&file);
        file
    }

    fn tell(&mut self, command: &str, file: &str) {
        let path = self.path(file);
        let mut words = command.split(' ');
        let (command, rest) = (words.next().unwrap(), words.next().unwrap_or_default());
        let line = format!("{command} {} {rest}", path.display());
        self.lines.tell(line.trim_end());
    }

    /// What the function owns is what these files have in the cache, and nothing else came or went.
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

fn require_page_cache(dir: &tempfile::TempDir) {
    let kind = nix::sys::statfs::statfs(dir.path())
        .unwrap()
        .filesystem_type()
        .0;
    assert!(
        ![TMPFS, RAMFS, OVERLAY].contains(&(kind as i64)),
        "{} is on a tmpfs or an overlay, whose files have no page cache of their own: set \
         CARGO_TARGET_DIR to a directory on a disk",
        dir.path().display()
    );
}

/// KiB of a file in the page cache, by the kernel's count.
#[track_caller]
fn cached(file: &File) -> u64 {
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    cachestat(file.as_fd(), 0, 0).unwrap().nr_cache * page / 1024
}

fn evict(file: &File) {
    // Pages that a processor still has in hand are left alone at first.
    wait_until(|| {
        posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        cached(file) == 0
    });
}

#[test]
fn a_file_that_is_read() {
    let mut run = Run::start();
    let a = run.cold_file("a", 8 * MIB + 123);
    let b = run.cold_file("b", 3 * MIB);
    run.check("before", &[("cmd_read", &[])]);
    run.tell("read", "a");
    assert!(cached(&a) >= 8192);
    run.check("read a", &[("cmd_read", &[&a])]);
    run.tell("read", "b");
    run.check("read b", &[("cmd_read", &[&a, &b])]);
    // It is there already: nobody's again.
    run.tell("read", "a");
    run.check("read a again", &[("cmd_read", &[&a, &b])]);

    run.tell("fadvise_dontneed", "a");
    run.check("fadvise a", &[("cmd_read", &[&a, &b])]);
    evict(&a);
    run.check("a evicted", &[("cmd_read", &[&b])]);

    // By somebody else, in part.
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
    // Now it is the reader's.
    run.tell("read", "a");
    run.check("read anew", &[("cmd_write", &[]), ("cmd_read", &[&a])]);
    drop(a);
    run.tell("unlink", "a");
    run.check("unlink", &[("cmd_write", &[]), ("cmd_read", &[])]);
    // Perhaps the same inode number again.
    run.tell("write 1048576", "a");
    let a = File::open(run.path("a")).unwrap();
    run.check("a new file", &[("cmd_write", &[&a]), ("cmd_read", &[])]);
    end(run);
}

#[test]
fn a_file_that_is_mapped() {
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
    let mut run = Run::start();
    let a = run.cold_file("a", 4 * MIB);
    run.tell("read", "a");
    // SAFETY: a plain system call on a descriptor of ours.
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
