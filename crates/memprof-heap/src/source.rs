//! Where a snapshot comes from: a process or its core. Its memory is in the snapshot; its files are found here.

use super::core_file::CoreFiles;
use memprof_code::modules;
use memprof_sys::ids::Pid;
use memprof_sys::process;
use memprof_sys::residency::Vma;
use memprof_sys::residency::category::{self, Category};
use memprof_sys::target_file::{FileTree, TargetFile};

use super::snapshot::Snapshot;

/// The source of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// A process, which may have ended.
    Process(Pid),
    /// A core, with the files that were found for it.
    Core(&'a CoreFiles),
    /// No files: for measurements, and for synthetic snapshots.
    Nothing,
}

impl Source<'_> {
    /// The file behind a mapping; `None` if it cannot be opened.
    pub(crate) fn file_of(self, vma: &Vma) -> Option<TargetFile> {
        match self {
            Source::Process(pid) => modules::file_of(pid, vma),
            Source::Core(files) => files.file_of(vma),
            Source::Nothing => None,
        }
    }

    /// The file tree of the process's files; `None` if it is memprof's own.
    pub(crate) fn file_tree(self) -> Option<FileTree> {
        match self {
            Source::Process(pid) => FileTree::for_process(pid),
            Source::Core(_) | Source::Nothing => None,
        }
    }

    /// The process's id.
    pub(crate) fn pid(self) -> u32 {
        match self {
            Source::Process(pid) => pid.0,
            Source::Core(files) => files.pid(),
            Source::Nothing => 0,
        }
    }

    /// The process's name (`comm`).
    pub(crate) fn comm(self) -> String {
        match self {
            Source::Process(pid) => process::comm(pid).unwrap_or_default(),
            Source::Core(files) => files.comm().to_owned(),
            Source::Nothing => String::new(),
        }
    }

    /// The category of each mapping of its snapshot.
    pub(crate) fn categories(self, snapshot: &Snapshot) -> Vec<Category> {
        let vmas = &snapshot.vmas;
        match self {
            Source::Process(pid) => category::of_all(pid, vmas, category::executable(pid)),
            Source::Core(files) => {
                let others = snapshot.threads.iter().filter(|thread| {
                    // The first thread's stack is known by its name.
                    u32::try_from(thread.tid) != Ok(files.pid())
                });
                let pointers = others.map(|thread| thread.stack_pointer).collect();
                category::of_core(vmas, files.executable(), pointers, |bytes, at| {
                    let copied = snapshot.memory.from(at);
                    let copied = copied.and_then(|copied| copied.get(..bytes.len()));
                    copied.map(|copied| bytes.copy_from_slice(copied)).is_some()
                })
            }
            Source::Nothing => Vec::new(),
        }
    }
}
