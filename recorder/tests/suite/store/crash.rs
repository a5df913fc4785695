//! The process is killed, and the disk is full.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tezos_recorder::store::{
    ConnectionEntry, ConnectionQuery, Entry, Keep, MessageQuery, Position, Reader, Settings, Store,
};
use tezos_recorder::time::Timestamp;

use super::entries::{Random, connection, dir, message, operation, with_chunk};
use crate::effort;

/// Where the child process has its store; without it, there is no child.
const PLACE: &str = "TEZOS_RECORDER_TEST_STORE";

fn settings() -> Settings {
    // Small segments, so that the end often comes while one begins.
    let messages = Keep {
        rows: Some(4096),
        ..Keep::default()
    };
    Settings {
        messages,
        ..Settings::default()
    }
}

/// This program again, with one test.
fn child(test: &str, place: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--nocapture", &format!("store::crash::{test}")])
        .env(PLACE, place);
    command
}

/// The child's part: writes for ever, and prints the committed ids.
#[test]
fn child_that_is_killed() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let store = Store::open(Path::new(&place), settings()).unwrap();
    let first = store.subscribe().borrow().messages;
    for id in first.. {
        for entry in with_chunk(id, operation(id, 100), message(id)) {
            store.writer().put(entry);
        }
        if id % 50 == 0 {
            store.writer().flush();
            println!("committed {}", id + 1);
        }
    }
}

#[test]
fn nothing_that_was_committed_is_lost_when_the_process_is_killed() {
    let mut random = Random(effort::seed());
    let (_dir, path) = dir();
    for _ in 0..effort::rounds(5) {
        let mut child = child("child_that_is_killed", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut committed = 0;
        let commits = 1 + random.below(60);
        let read = |line: String| {
            line.split_once("committed ")
                .and_then(|(_, id)| id.parse().ok())
        };
        for id in lines
            .by_ref()
            .map_while(Result::ok)
            .filter_map(read)
            .take(commits as usize)
        {
            committed = id;
        }
        std::thread::sleep(Duration::from_millis(random.below(30)));
        child.kill().unwrap();
        child.wait().unwrap();
        committed = lines
            .map_while(Result::ok)
            .filter_map(read)
            .last()
            .unwrap_or(committed);

        let store = Store::open(&path, settings()).unwrap();
        assert_eq!(store.health().damaged, [] as [std::path::PathBuf; 0]);
        let reader = store.reader().unwrap();
        let (first, next) = reader.counts().unwrap().messages;
        assert!(committed > 0 && next >= committed, "{next} of {committed}");
        let query = MessageQuery {
            limit: 10_000,
            position: Position::Id(next - 1),
            ..MessageQuery::default()
        };
        let rows = reader.messages(&query).unwrap();
        assert!(rows.iter().map(|row| row.id).eq((first..next).rev()));
        for row in rows.iter().step_by(50) {
            let details = reader.message(row.id, 1000).unwrap().unwrap();
            assert!(details.message.is_some() && !details.cut);
        }
        assert_eq!(store.health().errors, 0);
    }
}

/// The child's part: has an open connection and one that has ended.
#[test]
fn child_with_connections() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let store = Store::open(Path::new(&place), Settings::default()).unwrap();
    let id = 10 * (1 + store.reader().unwrap().counts().unwrap().connections);
    for (id, ended) in [(id, None), (id + 1, Some(Timestamp(id + 5)))] {
        let entry = ConnectionEntry {
            ended,
            ..connection(id)
        };
        store.writer().put(Entry::Connection(Box::new(entry)));
    }
    store.writer().flush();
    println!("committed {id}");
    std::thread::sleep(Duration::from_secs(600));
}

/// Whatever happened, a connection that nobody follows any more is not open, and no time of its end is made up.
#[test]
fn open_connections_have_an_unseen_end_after_the_process_was_killed() {
    let (_dir, path) = dir();
    for round in 1..=2 {
        let mut child = child("child_with_connections", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let committed = lines.find(|line| line.as_ref().unwrap().contains("committed"));
        committed.unwrap().unwrap();
        let query = ConnectionQuery {
            limit: 100,
            ..ConnectionQuery::default()
        };
        let ends = |reader: &Reader| -> Vec<(bool, bool, usize)> {
            let connections = reader.connections(&query).unwrap().into_iter().rev();
            connections
                .map(|c| (c.ended.is_some(), c.status.end_unseen, c.remarks.len()))
                .collect()
        };
        // The one of this run is open.
        let last = ends(&Reader::open(&path).unwrap())[2 * round - 2..].to_vec();
        assert_eq!(last, [(false, false, 0), (true, false, 0)]);
        child.kill().unwrap();
        child.wait().unwrap();
        for _ in 0..2 {
            let store = Store::open(&path, Settings::default()).unwrap();
            let ends = ends(&store.reader().unwrap());
            assert_eq!(ends, [(false, true, 1), (true, false, 0)].repeat(round));
        }
    }
}

/// The child's part: has a small disk of its own, fills it, and makes room.
#[test]
fn child_with_a_full_disk() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let place = Path::new(&place);
    let filler = place.join("filler");
    std::fs::write(&filler, vec![1; 5 << 20]).unwrap();
    let store = Store::open(&place.join("store"), Settings::default()).unwrap();
    let put = |count: u64| {
        for n in 0..count {
            assert!(store.writer().put(Entry::Message(Box::new(message(n)))));
            let [chunk, _] = with_chunk(n, operation(n, 1000), message(n));
            assert!(store.writer().put(chunk));
            if n % 100 == 99 {
                store.writer().flush();
            }
        }
        store.writer().flush();
    };
    put(4000);
    let full = store.health();
    assert!(full.failed > 0 && full.errors > 0, "{full:?}");
    assert!(full.last_error.unwrap().contains("full"));
    assert_eq!(full.damaged, [] as [std::path::PathBuf; 0]);
    let stored = store.reader().unwrap().counts().unwrap().messages.1;
    assert!(stored > 0 && stored < 4000);
    std::fs::remove_file(filler).unwrap();
    put(100);
    let health = store.health();
    assert_eq!(health.failed, full.failed);
    let reader = store.reader().unwrap();
    let rows = reader
        .messages(&MessageQuery {
            limit: 10_000,
            ..MessageQuery::default()
        })
        .unwrap();
    assert!(rows.iter().map(|row| row.id).eq((0..stored + 100).rev()));
    let mut chunks = 0;
    reader
        .each_chunk(&Default::default(), &mut |_| {
            chunks += 1;
            true
        })
        .unwrap();
    assert_eq!(rows.len() as u64 + chunks + health.failed, 8200);
    println!("full disk: done");
}

#[test]
fn a_full_disk_is_counted_and_survived() {
    let dir = tempfile::tempdir().unwrap();
    let child = child("child_with_a_full_disk", dir.path());
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=8m tmpfs \"$0\" && exec \"$@\"";
    command
        .args(["--mount", "sh", "-c", script])
        .arg(dir.path());
    command
        .arg(child.get_program())
        .args(child.get_args())
        .env(PLACE, dir.path());
    let output = command.output();
    let Some(output) = output
        .ok()
        .filter(|output| !String::from_utf8_lossy(&output.stderr).contains("ermi"))
    else {
        println!("SKIPPED: no permission to mount a small disk");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("full disk: done"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
