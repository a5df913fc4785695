//! Directories of others, and files of newer versions.

use std::fs;

use tezos_recorder::store::{Store, StoreError};

use super::damage::{filled, settings};
use super::entries::{dir, open, settle};

#[test]
fn one_recorder_at_a_time() {
    let (_dir, path) = dir();
    let store = open(&path, settings());
    let second = Store::open(&path, settings()).unwrap_err();
    assert!(matches!(second, StoreError::InUse { .. }));
    let process = std::process::id();
    assert!(
        second
            .to_string()
            .contains(&format!("used by another recorder (process {process})"))
    );
    store.close();
    settle(&open(&path, settings()));
}

#[test]
fn newer_files_are_refused_and_left_alone() {
    for name in ["main.db", "messages-00000003-192.db"] {
        let (_dir, path) = dir();
        filled(&path);
        let file = path.join(name);
        let db = rusqlite::Connection::open(&file).unwrap();
        db.pragma_update(None, "user_version", 7).unwrap();
        db.pragma_update(None, "application_id", 0x545a_0007)
            .unwrap();
        drop(db);
        let bytes = fs::read(&file).unwrap();
        let error = Store::open(&path, settings()).unwrap_err();
        assert!(
            matches!(error, StoreError::Newer { found: 7, .. }),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains("written by a newer tezos-recorder (format 7, this one reads 1)")
        );
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

#[test]
fn directories_of_others_are_refused() {
    let (_dir, path) = dir();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("letter.txt"), "x").unwrap();
    let error = Store::open(&path, settings()).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }));
    let names: Vec<_> = fs::read_dir(&path).unwrap().collect();
    assert_eq!(names.len(), 1);
    let file = path.join("letter.txt");
    assert!(matches!(
        Store::open(&file, settings()).unwrap_err(),
        StoreError::Io { .. }
    ));
}
