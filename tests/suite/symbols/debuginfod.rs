//! Debug files from debuginfod servers: right, wrong, missing, slow, huge and broken ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::{TempDir, tempdir};

use crate::common::debuginfod_server::{Answer, Server};
use crate::symbols::fixture::{build, module, place, run, symbol};
use crate::symbols::sources::{FLAGS, PROGRAM, build_id};
use memprof_code::debuginfod::{self, FetchStatus, Limits, Servers};
use memprof_code::symbolize::debuginfod_cache::CacheDirs;
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_profile::symbol::Symbol;

/// A stripped program, its debug file, and a session that asks servers.
struct Program {
    dir: TempDir,
    stripped: PathBuf,
    debug: Vec<u8>,
    id: String,
    hidden: u64,
}

impl Program {
    fn new() -> Program {
        let dir = tempdir().unwrap();
        let path = build(dir.path(), "program", "cc", PROGRAM, FLAGS);
        let [stripped, debug] = ["stripped", "debug"].map(|name| dir.path().join(name));
        let [from, stripped_to, debug_to] = [&path, &stripped, &debug].map(|p| p.to_str().unwrap());
        run("strip", &["-o", stripped_to, from]);
        run("objcopy", &["--only-keep-debug", from, debug_to]);
        Program {
            stripped,
            debug: fs::read(&debug).unwrap(),
            id: build_id(&path),
            hidden: place(&path, "hidden").0,
            dir,
        }
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// Asks these servers; returns the name of the function without a symbol when everything is settled.
    fn asked_of(&self, servers: &[&Server], limits: Limits) -> (Option<String>, FetchStatus) {
        let servers = Servers {
            urls: servers.iter().map(|s| s.url.clone()).collect(),
            from: "this test".into(),
        };
        let (fetch, fetching) = debuginfod::start(servers, self.cache(), limits).unwrap();
        let cache = CacheDirs::only(&self.cache());
        let symbolizer = Symbolizer::start_with(cache, Some(fetch)).unwrap();
        let m = module(&self.stripped);
        let look_up = || symbol(&symbolizer, &m, self.hidden, Detail::Names);
        let began = Instant::now();
        let first = look_up();
        assert!(matches!(first, Symbol::Unnamed(_)), "{first:?}");
        // Nobody waits for a server: the slow ones here take seconds.
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        let settled = || {
            let s = fetching.status();
            s.pending == 0 && s.fetched + s.missing + s.failed > 0
        };
        while !settled() {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "{:?}",
                fetching.status()
            );
            thread::sleep(Duration::from_millis(10));
        }
        // (What has arrived is told right after it is counted.)
        let name = || look_up().function().map(|f| f.name.clone());
        while fetching.status().fetched > 0 && name().is_none() {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "it never appears"
            );
            thread::sleep(Duration::from_millis(10));
        }
        (name(), fetching)
    }
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let paths = entries.map(|e| e.unwrap().path());
    paths
        .flat_map(|p| if p.is_dir() { files(&p) } else { vec![p] })
        .collect()
}

fn quick() -> Limits {
    Limits {
        file: 1 << 20,
        idle: Duration::from_secs(2),
        whole: Duration::from_secs(6),
        ..Limits::default()
    }
}

#[test]
fn names_appear_when_their_file_has_arrived() {
    let program = Program::new();
    let (empty, server, elsewhere) = (Server::start(), Server::start(), Server::start());
    elsewhere.answers(&program.id, Answer::File(program.debug.clone()));
    let there = format!("{}/buildid/{}/debuginfo", elsewhere.url, program.id);
    server.answers(&program.id, Answer::Moved(there));
    let (name, fetching) = program.asked_of(&[&empty, &server], quick());
    assert_eq!(name.as_deref(), Some("hidden"));
    let status = fetching.status();
    assert_eq!((status.fetched, status.missing, status.failed), (1, 0, 0));
    assert_eq!(status.bytes, program.debug.len() as u64);
    let line = status.line().unwrap();
    assert!(line.starts_with("debuginfod: fetched 1 file ("), "{line}");
    // As every client of the cache expects it, and nothing else.
    let entry = program.cache().join(&program.id).join("debuginfo");
    assert_eq!(files(&program.cache()), std::slice::from_ref(&entry));
    assert_eq!(fs::read(entry).unwrap(), program.debug);
    assert_eq!(empty.asked.lock().unwrap().len(), 1);

    // Another session has it from the cache, without a server.
    let symbolizer = Symbolizer::start_with(CacheDirs::only(&program.cache()), None).unwrap();
    let found = symbol(
        &symbolizer,
        &module(&program.stripped),
        program.hidden,
        Detail::Names,
    );
    assert_eq!(found.name(), Some("hidden"));
}

#[test]
fn what_no_server_has_is_asked_once() {
    let program = Program::new();
    let server = Server::start();
    let (name, fetching) = program.asked_of(&[&server], quick());
    assert_eq!(name, None);
    let status = fetching.status();
    assert_eq!((status.fetched, status.missing, status.failed), (0, 1, 0));
    assert_eq!(
        status.line().as_deref(),
        Some("debuginfod: no server has 1 file")
    );
    // It was looked up several times.
    assert_eq!(server.asked.lock().unwrap().len(), 1);
}

#[test]
fn bad_answers_bring_nothing_and_leave_nothing() {
    let program = Program::new();
    let mut other = program.debug.clone();
    let id: Vec<u8> = (0..program.id.len() / 2)
        .map(|i| u8::from_str_radix(&program.id[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    let at = other.windows(id.len()).position(|w| w == id).unwrap();
    other[at] ^= 1;
    let half = program.debug[..program.debug.len() / 2].to_vec();
    for (answer, why) in [
        (Answer::File(other), "another build id"),
        (
            Answer::File(b"<html>not found</html>".to_vec()),
            "not an ELF file",
        ),
        (Answer::File(half), "outside the file"),
        (Answer::File(Vec::new()), "not an ELF file"),
        (Answer::Status(500), "status 500"),
        (
            Answer::Zeros {
                claim: Some(1 << 40),
                sent: 0,
            },
            "larger than 1048576 bytes",
        ),
        (
            Answer::Zeros {
                claim: None,
                sent: 64 << 20,
            },
            "larger than 1048576 bytes",
        ),
        (
            Answer::Zeros {
                claim: Some(1 << 19),
                sent: 1 << 17,
            },
            "broke off",
        ),
        (Answer::Silent(""), "timeout"),
        (
            Answer::Silent("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc"),
            "timeout",
        ),
        (Answer::Silent("garbage\r\n\r\n"), "127.0.0.1"),
        (Answer::Dripping, "timeout"),
        (
            Answer::Moved(format!("/buildid/{}/debuginfo", program.id)),
            "redirect",
        ),
    ] {
        let server = Server::start();
        server.answers(&program.id, answer);
        let (name, fetching) = program.asked_of(&[&server], quick());
        let status = fetching.status();
        assert_eq!((name, status.fetched, status.failed), (None, 0, 1), "{why}");
        let failure = &status.failures[0];
        assert_eq!(
            (&failure.file[..], &failure.build_id),
            ("stripped", &program.id)
        );
        assert!(failure.why.contains(why), "{why}: {}", failure.why);
        assert!(failure.why.contains(&server.url), "{}", failure.why);
        assert!(status.line().unwrap().contains(&failure.why));
        assert!(files(&program.cache()).is_empty(), "{why}");
    }
}

#[test]
fn servers_that_cannot_be_reached_and_directories_that_cannot_be_written_are_named() {
    let program = Program::new();
    let mut gone = Server::start();
    // Nobody listens on port 1, and nobody speaks TLS on the other.
    let good = Server::start();
    good.answers(&program.id, Answer::File(program.debug.clone()));
    for url in [
        "http://127.0.0.1:1".to_owned(),
        gone.url.replace("http:", "https:"),
    ] {
        gone.url = url.clone();
        let (name, fetching) = program.asked_of(&[&gone], quick());
        assert_eq!(name, None);
        let why = &fetching.status().failures[0].why;
        assert!(why.starts_with(&url), "{why}");
        // The other server is asked all the same.
        let (name, _) = program.asked_of(&[&gone, &good], quick());
        assert_eq!(name.as_deref(), Some("hidden"));
        fs::remove_dir_all(program.cache()).unwrap();
    }
    fs::write(program.cache(), "a file where the directory should be").unwrap();
    let (name, fetching) = program.asked_of(&[&good], quick());
    assert_eq!(name, None);
    let why = &fetching.status().failures[0].why;
    assert!(
        why.contains("cannot write") && why.contains("DEBUGINFOD_CACHE_PATH"),
        "{why}"
    );
}
