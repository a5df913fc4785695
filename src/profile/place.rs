//! Where the memory of a report lies: mappings and cached files.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Sample, Stack, Usage};
use crate::event::Pid;

/// Where the memory of a report lies.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The mappings of every followed process, by process, then by address.
    pub mappings: Vec<Mapping>,
    /// The files in the page cache, by device and inode.
    pub files: Vec<CachedFile>,
    /// Page cache of files for which there was no room in `files`, in bytes.
    pub other_files: u64,
}

impl Places {
    /// The mappings of one process, and what of the files its stacks (those of `samples` with page cache)
    /// brought in. Files whose stacks are not known are in nobody's.
    pub(super) fn of(&self, pid: Pid, samples: &[Sample]) -> Places {
        let mappings = self.mappings.iter().filter(|mapping| mapping.pid == pid);
        let cached = samples.iter().filter(|sample| sample.usage.cache > 0);
        let own: HashSet<*const Stack> = cached.map(|s| Arc::as_ptr(&s.stack)).collect();
        let files = self.files.iter().filter_map(|file| {
            let samples = file.samples.iter();
            let samples: Vec<Sample> = samples
                .filter(|sample| own.contains(&Arc::as_ptr(&sample.stack)))
                .cloned()
                .collect();
            (!samples.is_empty()).then(|| CachedFile {
                id: file.id,
                path: file.path.clone(),
                samples,
                lost: 0,
            })
        });
        Places {
            mappings: mappings.cloned().collect(),
            files: files.collect(),
            other_files: 0,
        }
    }
}

/// A mapping of a followed process.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The process.
    pub pid: Pid,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// `rw-p`, as `/proc/PID/maps` shows it.
    pub permissions: String,
    /// Path, `[heap]`, `[stack]`, `[anon:NAME]`, or `[anon]` where it has none.
    pub name: String,
    /// Its pages.
    pub bytes: MappedBytes,
}

/// The pages of a mapping, in bytes. None of it is page cache, which belongs to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedBytes {
    /// With the id of a stack (whose frames may have been lost since: see [`Losses`](super::Losses)).
    pub attributed: Usage,
    /// Without.
    pub not_observed: Usage,
    /// In huge pages, of either.
    pub huge: u64,
}

/// A file on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device, (major, minor).
    pub dev: (u32, u32),
    /// Inode number.
    pub ino: u64,
}

/// A file of which pages are cached that the target brought in.
#[derive(Clone, Debug)]
pub struct CachedFile {
    /// Which file.
    pub id: FileId,
    /// A path of it, where one is known.
    pub path: Option<KnownPath>,
    /// The stacks that brought in its pages; of [`Usage`] only `cache` is set.
    pub samples: Vec<Sample>,
    /// Pages whose stack was lost, in bytes.
    pub lost: u64,
}

/// A path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPath {
    /// The path, without a ` (deleted)` suffix.
    pub path: String,
    /// The path no longer named the file when it was seen.
    pub deleted: bool,
    /// Where it was seen.
    pub from: PathFrom,
    /// When it was seen there last.
    pub seen: SystemTime,
}

/// Where a path was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFrom {
    /// Among the target's open files, `/proc/PID/fd`.
    OpenFile,
    /// Among its mappings, `/proc/PID/maps`.
    Mapping,
}

impl CachedFile {
    /// Page cache of the file, in bytes.
    pub fn cached(&self) -> u64 {
        self.lost + self.samples.iter().map(|s| s.usage.cache).sum::<u64>()
    }
}
