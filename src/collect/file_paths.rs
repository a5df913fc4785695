//! Paths of cached files, found through the target's mappings and open files, and in nearby directories.
//!
//! The page-cache ledger identifies a file by device and inode. Its path is looked up in the target's mappings, which every scan
//! reads. If a file has no path, it is searched among the target's open files, and then in directories (`directories.rs`). A path
//! is stored as long as pages of the file are cached: the kernel drops these pages before it reuses the inode number.

mod directories;

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use directories::Directories;
use memprof_profile::{KnownPath, PathFrom};
use memprof_sys::file_id::FileId;
use memprof_sys::ids::Pid;
use memprof_sys::proc_dir;
use memprof_sys::residency::{Vma, file_id};

/// Minimum time between searches of open files, and maximum number of files per search.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const MAX_OPEN: usize = 4096;

/// The suffix that the kernel appends to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// The known paths.
#[derive(Debug, Default)]
pub struct FilePaths {
    known: HashMap<FileId, KnownPath>,
    looked: Option<Instant>,
    directories: Directories,
}

impl FilePaths {
    /// Adds the files that a process has mapped.
    pub fn mapped(&mut self, vmas: &[Vma]) {
        let seen = SystemTime::now();
        for vma in vmas.iter().filter(|vma| vma.ino != 0) {
            let id = FileId {
                dev: vma.dev,
                ino: vma.ino,
            };
            // The mappings of a file are adjacent, so the file is usually known.
            let known = self.known.entry(id).or_insert_with(|| KnownPath {
                path: vma.name.clone(),
                deleted: vma.deleted,
                from: PathFrom::Mapping,
                seen,
            });
            if known.seen != seen {
                known.path.clone_from(&vma.name);
                (known.deleted, known.from, known.seen) = (vma.deleted, PathFrom::Mapping, seen);
            }
        }
    }

    /// Removes all files except `files`, and searches the processes' open files, and directories, for files without a path. `files`
    /// must be sorted.
    pub fn keep(&mut self, files: &[FileId], pids: &[Pid]) {
        let is_missing = files.iter().any(|id| !self.known.contains_key(id));
        let due = self.looked.is_none_or(|at| at.elapsed() >= LOOK_PAUSE);
        if !(is_missing && due) {
            self.known.retain(|id, _| files.binary_search(id).is_ok());
            return;
        }
        // Includes mapped files whose pages are not cached for the target.
        let near: Vec<PathBuf> = self
            .known
            .values()
            .map(|k| PathBuf::from(&k.path))
            .collect();
        self.known.retain(|id, _| files.binary_search(id).is_ok());
        self.looked = Some(Instant::now());
        let mut left = MAX_OPEN;
        pids.iter()
            .for_each(|pid| self.look(*pid, files, &mut left));
        let missing = files.iter().filter(|id| !self.known.contains_key(id));
        let missing: Vec<FileId> = missing.copied().collect();
        for (id, path) in self.directories.look(&missing, &near, pids) {
            self.known.insert(
                id,
                KnownPath {
                    path: path.to_string_lossy().into_owned(),
                    deleted: false,
                    from: PathFrom::Directory,
                    seen: SystemTime::now(),
                },
            );
        }
    }

    /// The file's path, if it is known.
    pub fn get(&self, id: FileId) -> Option<&KnownPath> {
        self.known.get(&id)
    }

    /// Searches the open files of a process; finds none if it has ended or may not be inspected.
    fn look(&mut self, pid: Pid, files: &[FileId], left: &mut usize) {
        let Ok(open) = proc_dir::with(pid, |dir| fs::read_dir(format!("{dir}/fd"))) else {
            return;
        };
        for entry in open.flatten() {
            if *left == 0 {
                return;
            }
            *left -= 1;
            let link = entry.path();
            let Ok(path) = CString::new(link.as_os_str().as_bytes()) else {
                continue;
            };
            let Some(id) = file_id(&path).filter(|id| files.binary_search(id).is_ok()) else {
                continue;
            };
            let Ok(target) = fs::read_link(&link) else {
                continue;
            };
            let text = target.to_string_lossy();
            let plain = text.strip_suffix(DELETED);
            self.known.insert(
                id,
                KnownPath {
                    path: plain.unwrap_or(&text).to_owned(),
                    deleted: plain.is_some(),
                    from: PathFrom::OpenFile,
                    seen: SystemTime::now(),
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn open_files_are_found_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read me");
        fs::write(&path, "x").unwrap();
        let file = fs::File::open(&path).unwrap();
        let dev = file.metadata().unwrap().dev();
        let id = FileId {
            dev: (libc::major(dev), libc::minor(dev)),
            ino: file.metadata().unwrap().ino(),
        };
        let other = FileId {
            dev: (0, 0),
            ino: 1,
        };
        let mut files = vec![id, other];
        files.sort_unstable();
        let own = [Pid(std::process::id())];
        let mut paths = FilePaths::default();
        paths.keep(&files, &own);
        let found = paths.get(id).unwrap();
        assert_eq!(found.path, path.to_string_lossy());
        assert_eq!((found.deleted, found.from), (false, PathFrom::OpenFile));
        assert_eq!(paths.get(other), None);
        paths.keep(&[], &own);
        assert_eq!(paths.get(id), None);
        fs::remove_file(&path).unwrap();
        let mut anew = FilePaths::default();
        anew.keep(&files, &own);
        let found = anew.get(id).unwrap();
        assert_eq!(
            (found.path.as_str(), found.deleted),
            (&*path.to_string_lossy(), true)
        );
    }
}
