//! Logs in files that are rotated, truncated, or new every day.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tezos_recorder::logs::{self, Counts, MAX_LINE, Source};

use super::followed::{Followed, append, pause, until};

#[test]
fn a_file_is_followed_over_rotation_truncation_and_restarts() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("node.log");
    let source = Source::File(path.clone());
    let followed = Followed::start(source.clone(), directory.path());
    until(|| followed.running.error().is_some());
    assert!(followed.running.error().unwrap().contains("cannot open"));
    append(&path, "one\ntw");
    followed.messages(1);
    append(&path, "o\n\n");
    assert_eq!(followed.messages(2), ["one", "two"]);
    // Its writer has the old file open for another moment.
    let rotated = directory.path().join("node.log.1");
    fs::rename(&path, &rotated).unwrap();
    append(&rotated, "three\n");
    append(&path, "four\n");
    assert_eq!(followed.messages(4)[2..], ["three", "four"]);
    pause();
    fs::write(&path, "5\n").unwrap();
    assert_eq!(followed.messages(5)[4..], ["5"]);
    append(&path, "half of ");
    pause();
    assert_eq!(followed.running.error(), None);
    let (messages, counts) = followed.stop();
    assert_eq!(
        (messages.len(), counts.received, counts.interruptions),
        (5, 5, 1)
    );

    // Rotated between two runs.
    append(&path, "six\n");
    fs::rename(&path, &rotated).unwrap();
    append(&path, "seven\n");
    let followed = Followed::start(source.clone(), directory.path());
    assert_eq!(followed.messages(2), ["half of six", "seven"]);
    assert_eq!(followed.stop().1.interruptions, 0);

    // Removed between two runs, and what was in it.
    fs::remove_file(&path).unwrap();
    append(&path, "eight\n");
    let followed = Followed::start(source, directory.path());
    assert_eq!(followed.messages(1), ["eight"]);
    assert_eq!(followed.stop().1.interruptions, 1);
}

#[test]
fn lines_that_a_writer_adds_to_a_rotated_file_are_not_missed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("node.log");
    let rotated = directory.path().join("node.log.1");
    let followed = Followed::start(Source::File(path.clone()), directory.path());
    append(&path, "begin\n");
    let mut expected = vec!["begin".to_owned()];
    for round in 0..3 {
        assert_eq!(followed.messages(expected.len()), expected);
        // The recorder has just looked at the file. It does so again in 250 ms, while the writer goes on.
        sleep(Duration::from_millis(200));
        fs::rename(&path, &rotated).unwrap();
        append(&path, &format!("new {round}\n"));
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            let line = format!("old {round}, {}", expected.len());
            append(&rotated, &format!("{line}\n"));
            expected.push(line);
            sleep(Duration::from_millis(5));
        }
        expected.push(format!("new {round}"));
    }
    followed.messages(expected.len());
    let (messages, counts) = followed.stop();
    assert_eq!((messages, counts.interruptions), (expected, 0));
}

#[test]
fn a_file_that_is_there_at_the_first_start_is_followed_from_its_end() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("node.log");
    append(&path, "before\n");
    let followed = Followed::start(Source::File(path.clone()), directory.path());
    pause();
    let long = format!("{}\nlast\n", "é".repeat(MAX_LINE));
    append(&path, &long);
    let messages = followed.messages(2);
    assert_eq!((messages[0].len(), &messages[1][..]), (MAX_LINE, "last"));
    let (_, counts) = followed.stop();
    assert_eq!((counts.received, counts.cut, counts.malformed), (2, 1, 0));
}

#[test]
fn links_and_pipes_are_not_followed() {
    let directory = TempDir::new().unwrap();
    let secret = directory.path().join("secret");
    append(&secret, "line\n");
    let link = directory.path().join("node.log");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    let pipe = directory.path().join("pipe.log");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, expected) in [(link, "symbolic link"), (pipe, "no regular file")] {
        let followed = Followed::start(Source::File(path.clone()), directory.path());
        pause();
        append(&secret, "line\n");
        pause();
        let error = followed.running.error().unwrap_or_default();
        assert!(error.contains(expected), "{error}");
        assert_eq!(followed.warned.lock().unwrap()[..], [error]);
        assert_eq!(followed.stop().1, Counts::default());
        assert!(logs::probe_file(&path).is_err());
    }
}

#[test]
fn positions_survive_a_crash() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("node.log");
    let followed = Followed::start(Source::File(path.clone()), directory.path());
    let mut sent = 0;
    let saved = || {
        let files = directory.path().read_dir().unwrap().flatten();
        let mut names = files.map(|file| file.file_name().into_string().unwrap());
        names.any(|name| name.ends_with(".position"))
    };
    until(|| {
        append(&path, &format!("{sent}\n"));
        sent += 1;
        saved()
    });
    // A copy of the position, as a crash leaves it behind.
    let crashed = TempDir::new().unwrap();
    for file in directory.path().read_dir().unwrap().flatten() {
        if file.file_name().to_str().unwrap().ends_with(".position") {
            fs::copy(file.path(), crashed.path().join(file.file_name())).unwrap();
        }
    }
    let stored: usize = followed.messages(1).len();
    drop(followed);
    append(&path, "end\n");
    let followed = Followed::start(Source::File(path), crashed.path());
    until(|| {
        followed
            .kept
            .lock()
            .unwrap()
            .iter()
            .any(|e| e.message == "end")
    });
    let (messages, counts) = followed.stop();
    let first: usize = messages[0].parse().unwrap();
    assert!(0 < first && first <= stored, "{first} after {stored}");
    assert_eq!(counts.interruptions, 0);
    let expected: Vec<_> = (first..sent).map(|n| n.to_string()).collect();
    assert_eq!(messages[..messages.len() - 1], expected);
}

#[test]
fn daily_files_are_followed_one_after_the_other() {
    let directory = TempDir::new().unwrap();
    let day = |date: u32| -> PathBuf { directory.path().join(format!("daily-{date}.log")) };
    append(&day(20_260_101), "old\n");
    append(&directory.path().join("daily-99999999.txt"), "other\n");
    append(&day(20_260_102), "before\n");
    let source = Source::Daily(directory.path().to_owned());
    let state = TempDir::new().unwrap();
    let followed = Followed::start(source.clone(), state.path());
    pause();
    append(
        &day(20_260_102),
        "2026-01-02T23:59:59.999-00:00 [a.b] last\n",
    );
    append(&day(20_260_103), "first\n");
    assert_eq!(followed.messages(2), ["last", "first"]);
    assert_eq!(followed.kept.lock().unwrap()[0].section, "a.b");
    followed.stop();
    append(&day(20_260_103), "second\n");
    append(&day(20_260_104), "third\n");
    append(&day(20_260_105), "fourth\n");
    let followed = Followed::start(source, state.path());
    assert_eq!(followed.messages(3), ["second", "third", "fourth"]);
    assert_eq!(followed.stop().1.interruptions, 0);
}
