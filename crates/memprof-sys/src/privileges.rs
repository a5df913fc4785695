//! Reduces the privileges of memprof's threads after startup: capabilities, the capability bounding set, `no_new_privs` and a
//! seccomp filter.
//!
//! Privileges belong to a thread, and the threads and processes that it starts inherit them. The thread that starts a command
//! therefore keeps all privileges until the command runs, so the command has the full privileges of memprof's user.
//!
//! Threads share memory, so this limits the actions that a request or a file can make memprof's own code perform. It does not
//! protect against an attacker's code running in memprof.

mod filter;

use std::cell::Cell;

use caps::{CapSet, Capability, CapsHashSet};

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRole {
    /// Owns the BPF programs and reads the followed processes.
    Collector,
    /// Takes a heap snapshot of a followed process.
    Heap,
    /// Checks whether the address spaces of processes can be read (`mmap_lock.rs`).
    Look,
    /// Forks processes for heap snapshots. A separate process, without a filter.
    Guard,
    /// Makes a process load a library. A separate process, without a filter.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    Attach,
    /// Waits for the command that memprof has started.
    Command,
    /// Serves HTTP, draws the screen and writes the results.
    Server {
        /// The thread writes files (`--output`, `--on-oom`) or removes its socket's file, through [`writing_files`].
        writes_files: bool,
    },
    /// Reads symbols and debug information from untrusted files.
    Symbols,
    /// Fetches debug files from servers, and writes them to the cache directory of memprof's user.
    Fetch,
    /// Pushes profiles to a remote store. Reads credential files that memprof's user may read.
    Push,
    /// Writes the recording: in memory, or to a file through [`writing_files`].
    Record {
        /// Whether it is the file of `--record`.
        writes_files: bool,
    },
    /// Builds unwind tables from untrusted files, which are already open.
    Tables,
    /// Opens and reads files of targets for the other threads. Separate processes (`target_file.rs`).
    Files,
    /// Retains the memory of a process. The process's `/proc/PID/mem` is already open.
    Keep,
}

/// Capabilities for reading another user's process, its mapped files and its memory.
const LOOKING: &[Capability] = &[
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_CHECKPOINT_RESTORE,
    Capability::CAP_KILL,
];

/// Capabilities for writing files as root can.
const FILES: &[Capability] = &[
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
];

impl ThreadRole {
    /// All roles that have filters; `memprof doctor` tries each of them.
    pub const ALL: [ThreadRole; 12] = [
        ThreadRole::Collector,
        ThreadRole::Heap,
        ThreadRole::Look,
        ThreadRole::Command,
        ThreadRole::Server { writes_files: true },
        ThreadRole::Symbols,
        ThreadRole::Fetch,
        ThreadRole::Push,
        ThreadRole::Record { writes_files: true },
        ThreadRole::Tables,
        ThreadRole::Files,
        ThreadRole::Keep,
    ];

    /// The capabilities that the role needs after startup. memprof need not have all of them.
    fn needs(self) -> Vec<Capability> {
        let more: &[Capability] = match self {
            // BPF maps and iterators may be created later. CAP_SYS_ADMIN makes page frame numbers visible.
            ThreadRole::Collector => &[
                Capability::CAP_BPF,
                Capability::CAP_PERFMON,
                Capability::CAP_SYS_ADMIN,
            ],
            ThreadRole::Command | ThreadRole::Heap => &[],
            // CAP_SYS_ADMIN makes other processes' seccomp filters visible.
            ThreadRole::Guard | ThreadRole::Attach => &[Capability::CAP_SYS_ADMIN],
            // CAP_SYS_PTRACE is for `smaps` (`/debug/memory`), CAP_KILL for forwarding SIGTERM to the command.
            ThreadRole::Server { .. } => {
                return vec![Capability::CAP_SYS_PTRACE, Capability::CAP_KILL];
            }
            // Both are for opening `/proc/PID/pagemap`.
            ThreadRole::Look => {
                return vec![Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH];
            }
            // Programs and debug files may be readable only by their owner.
            ThreadRole::Symbols => return vec![Capability::CAP_DAC_READ_SEARCH],
            // CAP_SYS_PTRACE is for files that processes have mapped but memprof cannot open by path.
            ThreadRole::Files => {
                return vec![Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH];
            }
            ThreadRole::Fetch
            | ThreadRole::Push
            | ThreadRole::Record { .. }
            | ThreadRole::Tables
            | ThreadRole::Keep => return Vec::new(),
        };
        [LOOKING, more].concat()
    }

    /// Whether the role reads other processes. Without CAP_SYS_PTRACE, a thread can read only processes whose capabilities are a
    /// subset of its own. A command started with ambient capabilities has all of memprof's capabilities.
    fn looks_at_processes(self) -> bool {
        !matches!(
            self,
            ThreadRole::Symbols
                | ThreadRole::Fetch
                | ThreadRole::Push
                | ThreadRole::Record { .. }
                | ThreadRole::Tables
                | ThreadRole::Keep
        )
    }
}

thread_local! {
    static REDUCED: Cell<bool> = const { Cell::new(false) };
}

/// Drops the privileges that the role does not need, for this thread and for the threads it starts from now on. Ignores errors;
/// `memprof doctor` reports them. A second call on the same thread changes nothing.
pub fn reduce(role: ThreadRole) {
    // A fuzzed thread that crashes must be able to write the crashing input to a file.
    if cfg!(fuzzing) {
        return;
    }
    if !REDUCED.replace(true) {
        let _ = try_reduce(role);
    }
}

/// Like [`reduce`], but repeats the work on a second call, and returns the result.
///
/// # Errors
/// The step that the kernel refused, and the reason. The capabilities may be dropped nevertheless.
pub fn try_reduce(role: ThreadRole) -> Result<(), String> {
    let limited = limit_capabilities(role);
    let filtered = filter::install(role).map_err(|e| format!("seccomp filter: {e}"));
    tracing::debug!(?role, ?limited, ?filtered, "privileges were given up");
    filtered?;
    limited
}

/// Drops the capabilities of this thread that its role does not need.
///
/// # Errors
/// The kernel's reason for the refusal.
pub fn limit_capabilities(role: ThreadRole) -> Result<(), String> {
    limit(role).map_err(|e| format!("capabilities: {e}"))
}

fn limit(role: ThreadRole) -> Result<(), caps::errors::CapsError> {
    drop_bounding_set()?;
    let permitted = caps::read(None, CapSet::Permitted)?;
    if role.looks_at_processes() && !permitted.contains(&Capability::CAP_SYS_PTRACE) {
        return Ok(());
    }
    let mut keep: CapsHashSet = role.needs().into_iter().collect();
    let effective = caps::read(None, CapSet::Effective)?;
    caps::set(None, CapSet::Effective, &(&effective & &keep))?;
    match role {
        ThreadRole::Server { writes_files: true } | ThreadRole::Record { writes_files: true } => {
            keep.extend(FILES);
        }
        // The guard makes its children the first choice of the OOM killer. A child's `oom_score_adj` belongs to the user of the
        // target process.
        ThreadRole::Guard => drop(keep.insert(Capability::CAP_DAC_OVERRIDE)),
        _ => {}
    }
    caps::set(None, CapSet::Permitted, &(&permitted & &keep))?;
    // The kernel drops ambient capabilities together with the inheritable ones.
    caps::clear(None, CapSet::Inheritable)
}

/// Empties the capability bounding set, which limits the capabilities that programs started by this thread can gain. Without
/// CAP_SETPCAP the set remains, without effect: `no_new_privs` prevents any gain.
fn drop_bounding_set() -> Result<(), caps::errors::CapsError> {
    match caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        true => caps::clear(None, CapSet::Bounding),
        false => Ok(()),
    }
}

/// Runs `write` with the file capabilities that memprof was started with.
pub fn writing_files<T>(write: impl FnOnce() -> T) -> T {
    /// Restores the effective capabilities, even if `write` panics.
    struct Back(Option<CapsHashSet>);
    impl Drop for Back {
        fn drop(&mut self) {
            if let Some(before) = self.0.take() {
                let _ = caps::set(None, CapSet::Effective, &before);
            }
        }
    }
    let before = caps::read(None, CapSet::Effective).ok();
    let permitted = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let _back = Back(before.clone());
    let files: CapsHashSet = FILES.iter().copied().collect();
    let raised = &before.unwrap_or_default() | &(&permitted & &files);
    // If this is refused, `write` fails with an error that names the file.
    let _ = caps::set(None, CapSet::Effective, &raised);
    write()
}

#[cfg(test)]
mod tests;
