//! Removes copies of the library that a killed memprof has left behind.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use super::file::{DIRECTORY, NAME};

/// Minimum age of a directory to remove. A memprof may not have locked a younger one yet.
const SURELY_LOCKED: Duration = Duration::from_secs(60);

/// Whether a process visible to memprof has mapped the file. Returns true if `/proc` cannot be read.
pub(super) fn is_mapped(path: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    let mut maps = processes
        .flatten()
        .filter_map(|process| fs::read(process.path().join("maps")).ok());
    // Another mount namespace may have the directory at another path, but its name is unique.
    let dir = path.parent().and_then(Path::file_name).unwrap_or_default();
    let within = Path::new(dir).join(NAME);
    maps.any(|maps| memchr::memmem::find(&maps, within.as_os_str().as_bytes()).is_some())
}

/// Removes copies that a killed memprof of this user has left behind, and that no process has mapped.
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

/// Whether a copy belongs to this user and no memprof has locked it.
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

/// Opens and locks the file; `None` if another process has locked it.
pub(super) fn locked(path: &Path) -> Option<Flock<File>> {
    let file = File::open(path).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}
