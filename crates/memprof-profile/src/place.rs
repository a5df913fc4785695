//! Where the memory of a report is: mappings and cached files.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::{Sample, Stack};
use memprof_sys::file_id::FileId;
use memprof_sys::ids::Pid;
use memprof_sys::residency::Category;
use memprof_sys::usage::Usage;

/// Where the memory of a report is.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The mappings of every followed process, by process, then by address.
    pub mappings: Vec<Mapping>,
    /// The files in the page cache, by device and inode.
    pub files: Vec<CachedFile>,
    /// Page cache of files that did not fit into `files`, in bytes.
    pub other_files: u64,
}

impl Places {
    /// The mappings of these processes, and the cached pages that their stacks (those of `samples` with page cache)
    /// brought in. Cached pages without a stack belong to no process.
    pub(super) fn of(&self, pids: &BTreeSet<Pid>, samples: &[Sample]) -> Places {
        let mappings = self
            .mappings
            .iter()
            .filter(|mapping| pids.contains(&mapping.pid));
        let cached = samples
            .iter()
            .filter(|sample| sample.amounts.usage.cache > 0);
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
    /// End address, exclusive.
    pub end: u64,
    /// `rw-p`, as `/proc/PID/maps` shows it.
    pub permissions: String,
    /// Path, `[heap]`, `[stack]`, `[anon:NAME]`, or `[anon]` if it has no name.
    pub name: String,
    /// What kind of memory it is.
    pub category: Category,
    /// Its pages.
    pub bytes: MappedBytes,
}

/// The pages of a mapping, in bytes. None of it is page cache, which belongs to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedBytes {
    /// Pages with a stack.
    pub attributed: Usage,
    /// Pages without a stack, or whose stack's frames were lost.
    pub not_observed: Usage,
    /// The part of both that is in huge pages.
    pub huge: u64,
}

impl MappedBytes {
    /// The frames of a stack were lost: its pages count as without a stack.
    pub fn lose(&mut self, usage: Usage) {
        self.attributed -= usage;
        self.not_observed += usage;
    }
}

/// A file with cached pages that the target brought in.
#[derive(Clone, Debug)]
pub struct CachedFile {
    /// The file's id.
    pub id: FileId,
    /// One of its paths, if known.
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
    /// True if the path no longer referred to the file when it was seen.
    pub deleted: bool,
    /// Where it was seen.
    pub from: PathFrom,
    /// When it was last seen there.
    pub seen: SystemTime,
}

/// Where a path was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFrom {
    /// Among the target's open files, `/proc/PID/fd`.
    OpenFile,
    /// Among its mappings, `/proc/PID/maps`.
    Mapping,
    /// In a directory near files that the target uses, by device and inode.
    Directory,
}

impl CachedFile {
    /// Page cache of the file, in bytes.
    pub fn cached(&self) -> u64 {
        self.lost
            + self
                .samples
                .iter()
                .map(|s| s.amounts.usage.cache)
                .sum::<u64>()
    }
}
