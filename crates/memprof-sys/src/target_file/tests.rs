use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

#[test]
fn a_file_is_read_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let handle = find(&path).unwrap();
    let file = TargetFile::of_handle(handle.try_clone().unwrap()).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(file.identity(), (meta.dev(), meta.ino()));
    assert_eq!(file.size().unwrap(), bytes.len() as u64);
    let mut read = Vec::new();
    file.contents().read_to_end(&mut read).unwrap();
    assert!(read == bytes);
    // The same through a handle that is not open.
    let remote = TargetFile {
        file: Arc::new(handle),
        access: Access::Remote(u64::MAX - 1),
        about: *file.about(),
    };
    assert!(remote.opened().is_none());
    let mut read = Vec::new();
    remote.contents().read_to_end(&mut read).unwrap();
    assert!(read == bytes);
    let mut part = [0; 10];
    assert_eq!(remote.read_some(&mut part, 299_995).unwrap(), 5);
    assert!(remote.fill(&mut part, 299_995).is_err());
}

#[test]
fn what_is_not_regular_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&fifo, directory.path(), Path::new("/dev/null")] {
        let refused = TargetFile::of_handle(find(path).unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{path:?}");
    }
    assert!(find(&directory.path().join("none")).is_err());
}

#[test]
fn a_path_in_a_tree_leads_to_nothing_outside() {
    let directory = tempfile::tempdir().unwrap();
    let root = handle_of(directory.path()).unwrap();
    File::create(directory.path().join("inside"))
        .unwrap()
        .write_all(b"x")
        .unwrap();
    symlink("/etc/passwd", directory.path().join("out")).unwrap();
    symlink("/inside", directory.path().join("in")).unwrap();
    let find = |path: &str| find_in(&root, Path::new(path), 0);
    assert_eq!(about(&find("/in").unwrap()).unwrap().size(), 1);
    assert!(find("/out").is_err() && find("../../../etc/passwd").is_err());
}
