//! Identity files that come late, change, or are wrong.

use std::fs;
use std::time::{Duration, SystemTime};

use tezos_recorder::identities::{IdentityFile, nodes};
use tezos_recorder::p2p::pow::Target;

use crate::common::vectors;

fn json(name: &str) -> String {
    vectors()["identities"][name].to_string()
}

#[test]
fn an_identity_is_found_when_its_file_comes_and_when_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("identity.json");
    let mut file = IdentityFile::new("node".into(), path.clone(), Target::MAINNET);
    let write = |text: &str, second: u64| {
        fs::write(&path, text).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + second);
        fs::File::open(&path).unwrap().set_modified(time).unwrap();
    };
    assert!(!file.look());
    let reason = file.known().unwrap_err();
    assert!(reason.contains("identity.json: No such file"), "{reason}");
    assert!(nodes(std::slice::from_ref(&file)).awaited);

    let whole = json("initiator");
    write(&whole[..whole.len() / 2], 0);
    assert!(!file.look());
    assert!(file.known().is_err());
    write(&" ".repeat(65 << 10), 1);
    assert!(!file.look());
    let reason = file.known().unwrap_err();
    assert!(reason.contains("larger than 64 KiB"), "{reason}");

    write(&whole, 2);
    assert!(file.look());
    assert!(!file.look());
    let found = nodes(std::slice::from_ref(&file));
    assert!(!found.awaited);
    assert_eq!(found.known[0].name, "node");
    let first = *found.known[0].identity.public_key();

    // What is half written is not used, and what was known remains.
    write("{", 3);
    assert!(!file.look());
    assert_eq!(file.known().unwrap().identity.public_key(), &first);
    write(&json("responder"), 4);
    assert!(file.look());
    assert_ne!(file.known().unwrap().identity.public_key(), &first);
    fs::remove_file(&path).unwrap();
    assert!(!file.look());
    assert!(file.known().is_ok());
}
