//! Copies of the library that a killed memprof has left behind.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::file::{DIRECTORY, NAME};

/// A directory that is younger may be one that a memprof has not locked yet.
const SURELY_LOCKED: Duration = Duration::from_secs(60);

/// Whether a process that memprof can see has the file mapped; also if that cannot be known.
pub(super) fn is_mapped(path: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    let mut maps = processes
        .flatten()
        .filter_map(|process| fs::read(process.path().join("maps")).ok());
    // Another mount namespace may have the directory elsewhere; its name is unique.
    let dir = path.parent().and_then(Path::file_name).unwrap_or_default();
    let within = Path::new(dir).join(NAME);
    maps.any(|maps| memchr::memmem::find(&maps, within.as_os_str().as_bytes()).is_some())
}

/// Removes copies that a killed memprof of this user has left behind, and that no process uses.
pub(super) fn remove(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    let ours = |entry: &fs::DirEntry| {
        entry
            .file_name()
            .as_bytes()
            .starts_with(DIRECTORY.as_bytes())
    };
    for dir in entries.flatten().filter(ours).map(|entry| entry.path()) {
        let path = dir.join(NAME);
        if is_left_behind(&dir, &path) && !is_mapped(&path) {
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir(&dir);
        }
    }
}

/// Whether no memprof holds this copy: others of this user can only be left behind.
fn is_left_behind(dir: &Path, path: &Path) -> bool {
    let Ok(about) = fs::symlink_metadata(dir) else {
        return false;
    };
    let age = about.modified().ok().and_then(|at| at.elapsed().ok());
    about.is_dir()
        && about.uid() == geteuid().as_raw()
        && age.is_some_and(|age| age >= SURELY_LOCKED)
        && locked(path).is_some()
}

/// The file, locked; `None` if somebody else has locked it.
pub(super) fn locked(path: &Path) -> Option<Flock<File>> {
    let file = File::open(path).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}
