//! The locations of a report's memory: mappings and cached files.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::saved::unix_ms;
use super::{Sample, Stack};
use memprof_sys::file_id::FileId;
use memprof_sys::ids::Pid;
use memprof_sys::residency::Category;
use memprof_sys::usage::Usage;

/// The locations of a report's memory.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The mappings of every followed process, sorted by process, then by address.
    pub mappings: Vec<Mapping>,
    /// The files in the page cache, sorted by device and inode.
    pub files: Vec<CachedFile>,
    /// Page cache of files that did not fit into `files`, in bytes.
    pub other_files: u64,
}

impl Places {
    /// The mappings of these processes, and the cached pages that their stacks brought in: the stacks of `samples` with
    /// page cache. Cached pages without a stack belong to no process.
    pub(super) fn for_processes(&self, pids: &BTreeSet<Pid>, samples: &[Sample]) -> Places {
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
    /// Permissions as in `/proc/PID/maps`, such as `rw-p`.
    pub permissions: String,
    /// Path, `[heap]`, `[stack]`, `[anon:NAME]`, or `[anon]` if it has no name.
    pub name: String,
    /// The category of the memory.
    pub category: Category,
    /// The pages of the mapping.
    pub bytes: MappedBytes,
}

/// The pages of a mapping, in bytes. Page cache is not included, because it belongs to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedBytes {
    /// Pages with a stack.
    pub attributed: Usage,
    /// Pages without a stack, or whose stack's frames were lost.
    pub not_observed: Usage,
    /// The part of `attributed` and `not_observed` that is in huge pages.
    pub huge: u64,
}

impl MappedBytes {
    /// Moves pages from `attributed` to `not_observed`, because the frames of their stack were lost.
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
    /// The stacks that brought in the pages. In their [`Usage`], only `cache` is set.
    pub samples: Vec<Sample>,
    /// Pages whose stack was lost, in bytes.
    pub lost: u64,
}

/// A path of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPath {
    /// The path, without a ` (deleted)` suffix.
    pub path: String,
    /// True if the path no longer referred to the file when it was observed.
    pub deleted: bool,
    /// Where the path was observed.
    pub from: PathFrom,
    /// When the path was last observed there.
    #[serde(rename = "seenUnixMs", with = "unix_ms")]
    pub seen: SystemTime,
}

/// The source of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathFrom {
    /// The target's open files, `/proc/PID/fd`.
    #[serde(rename = "open file")]
    OpenFile,
    /// The target's mappings, `/proc/PID/maps`.
    #[serde(rename = "mapping")]
    Mapping,
    /// A directory near files that the target uses, where device and inode matched.
    #[serde(rename = "directory")]
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
