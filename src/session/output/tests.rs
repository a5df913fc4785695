use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_check_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.json");
    check(&path, OUTPUT).unwrap();
    assert!(names(dir.path()).is_empty());
    fs::write(&path, "before").unwrap();
    check(&path, OUTPUT).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    assert_eq!(names(dir.path()), ["p.json"]);
    check(Path::new("/dev/null"), OUTPUT).unwrap();
}

#[test]
fn what_cannot_be_written_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none/p.json");
    for path in [dir.path(), &missing] {
        let e = format!("{:#}", check(path, OUTPUT).unwrap_err());
        assert!(e.contains(path.to_str().unwrap()), "{e}");
        assert!(e.contains("--output"), "{e}");
        write(path, OUTPUT, |out| out.write_all(b"x")).unwrap_err();
    }
}

#[test]
fn a_name_that_is_too_long_is_found_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let e = check(&dir.path().join("x".repeat(250)), OUTPUT).unwrap_err();
    assert!(format!("{e:#}").contains("too long"), "{e:#}");
}

/// Where a file system has no files without a name, as NFS.
#[test]
fn a_file_with_a_name_does_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("p.json");
    let part = part_of(&place).unwrap();
    write_by(&place, &part, None, |out| out.write_all(b"whole")).unwrap();
    write_by(&place, &part, None, |_| {
        Err(io::ErrorKind::StorageFull.into())
    })
    .unwrap_err();
    assert_eq!(names(dir.path()), ["p.json"]);
    assert_eq!(fs::read_to_string(&place).unwrap(), "whole");
}

#[test]
fn nothing_is_seen_of_a_file_before_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.json");
    write(&path, OUTPUT, |out| {
        out.write_all(&[b'x'; 100_000])?;
        assert!(names(dir.path()).is_empty());
        Ok(())
    })
    .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
    write(&path, OUTPUT, |_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
    assert_eq!(names(dir.path()), ["p.json"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
}

#[test]
fn a_file_is_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link) = (dir.path().join("p.json"), dir.path().join("link"));
    fs::write(&path, "a long text that stood there before").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&path, &link).unwrap();
    write(&link, OUTPUT, |out| out.write_all(b"new")).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(names(dir.path()), ["link", "p.json"]);
    write(Path::new("/dev/null"), OUTPUT, |out| out.write_all(b"x")).unwrap();
}
