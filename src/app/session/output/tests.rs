use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

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
        write(path, OUTPUT, SHARED, |out| out.write_all(b"x")).unwrap_err();
    }
}

#[test]
fn a_name_that_is_too_long_is_found_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let e = check(&dir.path().join("x".repeat(250)), OUTPUT).unwrap_err();
    assert!(format!("{e:#}").contains("too long"), "{e:#}");
}

/// For file systems without unnamed files, such as NFS.
#[test]
fn a_file_with_a_name_does_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("p.json");
    write_beside(&place, None, SHARED, |out| out.write_all(b"whole")).unwrap();
    write_beside(&place, None, SHARED, |_| {
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
    write(&path, OUTPUT, SHARED, |out| {
        out.write_all(&[b'x'; 100_000])?;
        assert!(names(dir.path()).is_empty());
        Ok(())
    })
    .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
    write(&path, OUTPUT, SHARED, |_| {
        Err(io::ErrorKind::StorageFull.into())
    })
    .unwrap_err();
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
    write(&link, OUTPUT, SHARED, |out| out.write_all(b"new")).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(names(dir.path()), ["link", "p.json"]);
    write(Path::new("/dev/null"), OUTPUT, SHARED, |out| {
        out.write_all(b"x")
    })
    .unwrap();
}

/// A world-writable directory like `/tmp`, with a link from another user to a file of root.
#[test]
fn what_another_user_has_put_there_is_not_followed() {
    if !nix::unistd::geteuid().is_root() {
        return crate::skip::skip("only root can be another user");
    }
    let dir = tempfile::tempdir().unwrap();
    let (own, shared) = (dir.path().join("own"), dir.path().join("shared"));
    fs::write(&own, "root's").unwrap();
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let at = |name: &str| shared.join(name);
    symlink(&own, at("link")).unwrap();
    lchown(at("link"), Some(65_534), None).unwrap();
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    lchown(at("pipe"), Some(65_534), None).unwrap();
    for name in ["link", "pipe"] {
        let e = format!("{:#}", check(&at(name), OUTPUT).unwrap_err());
        assert!(e.contains("of user id 65534"), "{e}");
        write(&at(name), OUTPUT, SHARED, |out| out.write_all(b"new")).unwrap_err();
    }
    assert_eq!(fs::read_to_string(&own).unwrap(), "root's");
    // An existing file does not decide who may read the new one.
    fs::write(at("file"), "planted").unwrap();
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o666)).unwrap();
    lchown(at("file"), Some(65_534), None).unwrap();
    write(&at("file"), OUTPUT, PRIVATE, |out| out.write_all(b"new")).unwrap();
    let about = fs::metadata(at("file")).unwrap();
    assert_eq!((about.mode() & 0o777, about.uid()), (0o600, 0));
    // A link of the same user is followed.
    symlink(&own, at("mine")).unwrap();
    write(&at("mine"), OUTPUT, SHARED, |out| out.write_all(b"new")).unwrap();
    assert_eq!(fs::read_to_string(&own).unwrap(), "new");
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_and_one_with_a_reader_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let e = format!("{:#}", check(&path, OUTPUT).unwrap_err());
    assert!(e.contains("ENXIO"), "{e}");
    let from = path.clone();
    let reader = std::thread::spawn(move || fs::read_to_string(from).unwrap());
    while check(&path, OUTPUT).is_err() {
        std::thread::yield_now();
    }
    write(&path, OUTPUT, SHARED, |out| out.write_all(b"all")).unwrap();
    assert_eq!(reader.join().unwrap(), "all");
}
