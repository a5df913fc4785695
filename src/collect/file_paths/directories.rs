//! Searches directories for files that the target opened and closed between two searches of its open files.
//!
//! Programs read files near other files that they use. The search therefore begins in the directories of the files that the target
//! has mapped or open, in its working directory, and in directories named by its arguments, and descends [`DEPTH`] levels. If files
//! are missing then, the search continues where programs usually store data: mount points of the files' devices, and [`PLACES`] of
//! the root. Directory entries contain inode numbers; a file is found if its device and inode match. The search is bounded in time
//! and in entries. It skips file systems without a block device, because they may be remote.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::env;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memprof_sys::file_id::FileId;
use memprof_sys::ids::Pid;
use memprof_sys::process::command_line;
use memprof_sys::residency::{directory_id, file_id};
use memprof_sys::target_file::find_directory;
use memprof_sys::{mounts, proc_dir};

/// Number of levels that are searched below a directory.
const DEPTH: u32 = 3;
/// Time limit of one call; the next call continues.
const TURN: Duration = Duration::from_millis(20);
/// Maximum number of entries of a search near other files, and of a search in common places.
const MAX_ENTRIES: usize = 100_000;
/// Where programs keep data on the device of the root.
const PLACES: [&str; 10] = [
    "/etc",
    "/usr/share",
    "/usr/lib",
    "/usr/local",
    "/var",
    "/opt",
    "/srv",
    "/home",
    "/root",
    "/tmp",
];
/// Maximum size of a mount table that is read, in bytes.
const MAX_MOUNTS: u64 = 1 << 20;
/// Maximum number of processes whose directories are searched.
const MAX_PROCESSES: usize = 16;
/// Maximum number of directories where a search begins.
const MAX_START_DIRECTORIES: usize = 1_000;

/// A search that continues from call to call.
#[derive(Debug, Default)]
pub(super) struct Directories {
    sought: BTreeSet<FileId>,
    /// Files that a complete search did not find; they are not searched again.
    given_up: HashSet<FileId>,
    queue: VecDeque<Directory>,
    /// The directories that were searched.
    seen: HashSet<FileId>,
    entries: usize,
    /// Whether the search has reached the common places.
    common: bool,
}

/// A directory to search.
#[derive(Debug)]
struct Directory {
    /// The root of its file tree: `/proc/PID/root`, or memprof's own.
    root: Arc<Path>,
    path: PathBuf,
    depth: u32,
}

impl Directories {
    /// Searches for up to [`TURN`]. Returns the files that were found. `near` are files that the processes use.
    pub(super) fn look(
        &mut self,
        missing: &[FileId],
        near: &[PathBuf],
        pids: &[Pid],
    ) -> Vec<(FileId, PathBuf)> {
        self.given_up.retain(|id| missing.contains(id));
        self.sought.retain(|id| missing.contains(id));
        if self.queue.is_empty() {
            let on_disk = missing.iter().filter(|id| id.dev.0 != 0);
            let fresh = on_disk.filter(|id| !self.given_up.contains(id));
            self.sought = fresh.copied().collect();
            self.seen.clear();
            self.entries = 0;
            self.common = false;
            if !self.sought.is_empty() {
                self.queue = beginnings(near, pids);
            }
        }
        let end = Instant::now() + TURN;
        let mut found = Vec::new();
        while !self.sought.is_empty() {
            if Instant::now() >= end {
                return found;
            }
            let next = self.queue.pop_front();
            match next.filter(|_| self.entries < MAX_ENTRIES) {
                Some(directory) => self.search(&directory, &mut found),
                None if self.common => break,
                None => {
                    self.common = true;
                    self.entries = 0;
                    self.queue = common(&self.sought, pids);
                }
            }
        }
        self.queue.clear();
        self.given_up.extend(std::mem::take(&mut self.sought));
        found
    }

    fn search(&mut self, directory: &Directory, found: &mut Vec<(FileId, PathBuf)>) {
        let Ok(handle) = find_directory(&directory.root, &directory.path) else {
            return;
        };
        let reached = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        let id = c_path(&reached).and_then(|path| directory_id(&path));
        let Some(id) = id.filter(|id| self.sought.iter().any(|file| file.dev == id.dev)) else {
            return;
        };
        let Ok(entries) = fs::read_dir(&reached) else {
            return;
        };
        if !self.seen.insert(id) {
            return;
        }
        for entry in entries.flatten() {
            self.entries += 1;
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let (reached, path) = (entry.path(), directory.path.join(entry.file_name()));
            if kind.is_dir() && directory.depth < DEPTH {
                let depth = directory.depth + 1;
                let root = Arc::clone(&directory.root);
                self.queue.push_back(Directory { root, path, depth });
            } else if kind.is_file() && self.sought.iter().any(|file| file.ino == entry.ino()) {
                // The number alone may belong to another file, on another device or below a mount point.
                let file = c_path(&reached).and_then(|path| file_id(&path));
                if let Some(file) = file.filter(|file| self.sought.remove(file)) {
                    found.push((file, path));
                }
            }
        }
    }
}

/// The directories of files that the processes use, without duplicates.
fn beginnings(near: &[PathBuf], pids: &[Pid]) -> VecDeque<Directory> {
    let mut known = HashSet::new();
    let mut queue = VecDeque::new();
    let mut add = |root: &Arc<Path>, path: &Path| {
        let is_new = path.is_absolute() && known.insert((Arc::clone(root), path.to_owned()));
        if is_new && queue.len() < MAX_START_DIRECTORIES {
            queue.push_back(Directory {
                root: Arc::clone(root),
                path: path.to_owned(),
                depth: 0,
            });
        }
    };
    for pid in pids.iter().take(MAX_PROCESSES) {
        let root = PathBuf::from(proc_dir::path(*pid, "root"));
        // The root of an ended command cannot be read; it was memprof's.
        let ended = fs::read_link(&root).is_err();
        let root: Arc<Path> = if ended { Path::new("/") } else { &root }.into();
        let cwd = match proc_dir::link(*pid, "cwd") {
            Ok(cwd) => Some(cwd),
            Err(_) => env::current_dir().ok(),
        };
        let words = command_line(*pid).unwrap_or_default();
        let words = words.split(|b| *b == 0);
        let named = words.map(|word| Path::new(OsStr::from_bytes(word)));
        if let Some(cwd) = &cwd {
            add(&root, cwd);
            for parent in named.filter_map(Path::parent) {
                add(&root, &cwd.join(parent));
            }
        }
        for path in near {
            if let Some(parent) = path.parent() {
                add(&root, parent);
            }
        }
    }
    queue
}

/// The directories of [`PLACES`] and the mount points of these files' devices, as the first process sees them.
fn common(files: &BTreeSet<FileId>, pids: &[Pid]) -> VecDeque<Directory> {
    let mounts = pids.iter().find_map(|pid| {
        let file = proc_dir::open(*pid, "mountinfo").ok()?;
        Some((proc_dir::path(*pid, "root"), file))
    });
    // The root of an ended command cannot be read; it was memprof's.
    let own = || Some((String::from("/"), File::open("/proc/self/mountinfo").ok()?));
    let Some((root, file)) = mounts.or_else(own) else {
        return VecDeque::new();
    };
    let mut text = Vec::new();
    // A part of the table is used even if the rest could not be read.
    let _ = file.take(MAX_MOUNTS).read_to_end(&mut text);
    let points = mounts::parse(&text).filter(|mount| mount.point.is_absolute());
    let sought = points.filter(|mount| files.iter().any(|file| file.dev == mount.device));
    let places = sought.flat_map(|mount| match mount.point.parent() {
        Some(_) => vec![mount.point],
        None => PLACES.map(PathBuf::from).to_vec(),
    });
    let mut known = HashSet::new();
    let places = places.filter(|path| known.insert(path.clone()));
    let root: Arc<Path> = Path::new(&root).into();
    let directory = |path: PathBuf| Directory {
        root: Arc::clone(&root),
        path,
        depth: 0,
    };
    places.take(MAX_START_DIRECTORIES).map(directory).collect()
}

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn id(path: &Path) -> FileId {
        let meta = fs::metadata(path).unwrap();
        FileId {
            dev: (libc::major(meta.dev()), libc::minor(meta.dev())),
            ino: meta.ino(),
        }
    }

    #[test]
    fn a_file_far_from_others_is_found_in_common_places() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let far = dir.path().join("far");
        fs::write(&far, "x").unwrap();
        let sought = id(&far);
        if sought.dev.0 == 0 {
            return crate::skip::skip(format!("{} is on no block device", far.display()));
        }
        let mut directories = Directories::default();
        let mut found = Vec::new();
        for _ in 0..1000 {
            found.extend(directories.look(&[sought], &[], &[Pid(std::process::id())]));
            if !found.is_empty() || directories.given_up.contains(&sought) {
                break;
            }
        }
        assert_eq!(found, [(sought, far)]);
        assert!(directories.common);
    }

    #[test]
    fn a_closed_file_is_found_near_others() {
        // Not in /tmp, which may not be on a disk.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let (near, closed) = (dir.path().join("near"), below.join("closed"));
        fs::write(&near, "x").unwrap();
        fs::write(&closed, "x").unwrap();
        let sought = id(&closed);
        if sought.dev.0 == 0 {
            return crate::skip::skip(format!("{} is on no block device", below.display()));
        }
        let pids = [Pid(std::process::id())];
        // An equal inode number on another device denotes another file, which is given up.
        let other = FileId {
            dev: (sought.dev.0, sought.dev.1 + 1),
            ..sought
        };
        let mut directories = Directories::default();
        let mut missing = vec![sought, other];
        let mut found = Vec::new();
        for _ in 0..1000 {
            found.extend(directories.look(&missing, std::slice::from_ref(&near), &pids));
            missing.retain(|id| !found.iter().any(|(file, _)| file == id));
            if directories.given_up.contains(&other) {
                break;
            }
        }
        assert_eq!(found, [(sought, closed)]);
        assert!(directories.given_up.contains(&other) && directories.queue.is_empty());
        assert!(directories.look(&missing, &[near], &pids).is_empty());
        assert!(directories.seen.is_empty(), "it was searched again");
    }
}
