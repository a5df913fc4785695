//! Files that were cut off, damaged, or made by somebody else.

use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::made::World;
use super::{assert_same, recorder, saved_text, state_text};
use crate::random::Random;
use crate::{Options, Recorder, Recording, RecordingError};

fn recorded(path: &Path, number: usize) -> Vec<String> {
    let mut world = World::new(11);
    let mut recorder = recorder(path);
    let texts = (0..number).map(|_| {
        let mut report = world.report(1000);
        report.symbols = std::sync::Arc::default();
        recorder.record(&report).unwrap();
        saved_text(&report)
    });
    let texts = texts.collect();
    recorder.finish().unwrap();
    texts
}

/// What a kill leaves behind at any moment: the file and its log, of which any part may be written.
#[test]
fn a_recording_opens_after_a_kill_at_any_byte_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("r.db"), dir.path().join("r.db-wal"));
    let mut world = World::new(5);
    let mut recorder = recorder(&path);
    let mut texts = Vec::new();
    for _ in 0..8 {
        let mut report = world.report(1000);
        report.symbols = std::sync::Arc::default();
        recorder.record(&report).unwrap();
        texts.push(saved_text(&report));
    }
    let (file, written) = (fs::read(&path).unwrap(), fs::read(&log).unwrap());
    std::mem::forget(recorder);
    let place = tempfile::tempdir().unwrap();
    let (path, log) = (place.path().join("k.db"), place.path().join("k.db-wal"));
    let mut found = std::collections::BTreeSet::new();
    for part in 0..60 {
        let _ = fs::remove_file(place.path().join("k.db-shm"));
        fs::write(&path, &file).unwrap();
        let length = written.len() * part / 59;
        fs::write(&log, &written[..length]).unwrap();
        let recording = match Recording::open(&path) {
            Ok(recording) => recording,
            // Not even the tables were written.
            Err(RecordingError::Foreign) if part < 30 => continue,
            Err(e) => panic!("{length} of {} bytes: {e}", written.len()),
        };
        let moments = recording.moments().unwrap();
        for (moment, wanted) in moments.iter().zip(&texts) {
            assert_same(moment.id, &state_text(&recording, moment.id), wanted);
        }
        found.insert(moments.len());
        drop(recording);
        // A new run appends to it.
        if part % 10 == 9 {
            let mut again =
                Recorder::open(&path, Options::default(), &super::run(), super::layout).unwrap();
            let report = World::new(6).report(5);
            again.record(&report).unwrap();
            again.finish().unwrap();
            assert_eq!(
                Recording::open(&path).unwrap().moments().unwrap().len(),
                moments.len() + 1
            );
        }
    }
    assert!(found.contains(&8) && found.len() > 3, "{found:?}");
}

/// Damage is an error or goes unnoticed; it is never a panic or endless work.
#[test]
fn damaged_bytes_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    recorded(&path, 30);
    let whole = fs::read(&path).unwrap();
    let mut random = Random(9);
    let mut errors = 0;
    for round in 0..300 {
        let mut bytes = whole.clone();
        match round % 3 {
            0 => bytes.truncate(random.below(whole.len() as u64) as usize),
            1 => {
                let at = random.below(whole.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            _ => {
                for _ in 0..200 {
                    let at = 100 + random.below(whole.len() as u64 - 100) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
            }
        }
        fs::write(&path, &bytes).unwrap();
        errors += usize::from(read_all(&path).is_err());
    }
    assert!(errors > 100, "{errors} errors");
}

fn read_all(path: &Path) -> Result<(), RecordingError> {
    let recording = Recording::open(path)?;
    for moment in recording.moments()? {
        recording.state(moment.id)?;
    }
    Ok(())
}

#[test]
fn what_memprof_never_writes_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    recorded(&path, 5);
    let whole = fs::read(&path).unwrap();
    for (change, wanted) in [
        (
            "CREATE TRIGGER t AFTER INSERT ON moment BEGIN DELETE FROM moment; END",
            "tables",
        ),
        (
            "DROP TABLE value; CREATE VIEW value AS SELECT 1 AS series, 1 AS moment, 1 AS bytes, 1 AS error",
            "tables",
        ),
        ("PRAGMA user_version = 99", "version 99"),
        ("PRAGMA application_id = 1", "not a recording"),
        (
            "UPDATE value SET bytes = 9223372036854775807",
            "larger than any memory",
        ),
        ("UPDATE value SET bytes = -1", "larger than any memory"),
        ("UPDATE list SET edits = '[[9999, 5, [1]]]'", "does not fit"),
        ("UPDATE list SET edits = 'x'", "does not fit"),
        ("UPDATE list SET edits = '[[0,-1,[1,1]]]'", "twice"),
        ("DELETE FROM stack", "nothing has the id"),
        ("DELETE FROM series", "no series"),
        ("UPDATE moment SET \"full\" = 0", "no full moment"),
        ("UPDATE kind SET name = name || 'x'", "unknown kind"),
        ("UPDATE frame SET module = 9999 WHERE module > 0", "module"),
        ("UPDATE fact SET value = 'x'", "damaged"),
        ("UPDATE mapping SET category = 'x'", "category"),
        ("DELETE FROM moment", "no moment"),
    ] {
        fs::write(&path, &whole).unwrap();
        let db = Connection::open(&path).unwrap();
        db.execute_batch(change).unwrap();
        drop(db);
        let error = match read_all(&path) {
            Ok(()) => Recording::open(&path)
                .and_then(|r| r.find(&crate::At::End))
                .err(),
            Err(e) => Some(e),
        };
        let error = error
            .unwrap_or_else(|| panic!("{change} is not noticed"))
            .to_string();
        assert!(error.contains(wanted), "{change}: {error}");
    }
    // Somebody's own view is nobody's harm.
    fs::write(&path, &whole).unwrap();
    let db = Connection::open(&path).unwrap();
    db.execute_batch("CREATE VIEW mine AS SELECT * FROM value")
        .unwrap();
    read_all(&path).unwrap();
}

#[test]
fn other_files_are_refused_and_stay_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other");
    let open = || Recorder::open(&path, Options::default(), &super::run(), super::layout).err();
    for text in ["a letter", "{\"format\":\"memprof profile\"}"] {
        fs::write(&path, text).unwrap();
        assert!(matches!(open(), Some(RecordingError::Foreign)));
        assert!(matches!(
            Recording::open(&path).err(),
            Some(RecordingError::Foreign)
        ));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::remove_file(&path).unwrap();
    let db = Connection::open(&path).unwrap();
    db.execute_batch("CREATE TABLE mine (x)").unwrap();
    drop(db);
    let before = fs::read(&path).unwrap();
    assert!(matches!(open(), Some(RecordingError::Foreign)));
    assert_eq!(fs::read(&path).unwrap(), before);
}
