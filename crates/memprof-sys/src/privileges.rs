//! Reduces the privileges of memprof's threads after the start: capabilities, their bounding set, `no_new_privs` and a
//! seccomp filter.
//!
//! All of them belong to a thread, and the threads and processes that it starts inherit them. The thread that
//! starts a command therefore keeps everything until the command runs, so the command has the full privileges
//! of memprof's user.
//!
//! Threads share memory, so this limits what a request or a file can make memprof's own code do. It does not
//! protect against an attacker's code running in memprof.

mod filter;

use std::cell::Cell;

use caps::{CapSet, Capability, CapsHashSet};

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns the probe and reads the followed processes.
    Collector,
    /// Takes a heap snapshot of a followed process.
    Heap,
    /// Looks whether processes can be read (`mmap_lock.rs`).
    Look,
    /// Forks processes for heap snapshots: a process of its own, without a filter.
    Guard,
    /// Has a process load a library: a process of its own, without a filter.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    Attach,
    /// Waits for the command, which memprof has already started.
    Command,
    /// Serves HTTP, draws the screen and writes the results.
    Server {
        /// It writes files (`--output`, `--on-oom`) or removes that of its socket, by [`writing_files`].
        writes_files: bool,
    },
    /// Reads symbols and debug information of untrusted files.
    Symbols,
    /// Fetches debug files from servers, and writes them into the cache directory of memprof's user.
    Fetch,
    /// Sends profiles to a store. Reads its credentials, which memprof's user may read.
    Push,
    /// Builds unwind tables of untrusted files, which are already open.
    Tables,
    /// Opens and reads files of targets for the others: processes of their own (`target_file.rs`).
    Files,
    /// Keeps the memory of a process; its `/proc/PID/mem` is already open.
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

impl Role {
    /// All roles of threads, which have filters, for the trial of `memprof doctor`.
    pub const ALL: [Role; 11] = [
        Role::Collector,
        Role::Heap,
        Role::Look,
        Role::Command,
        Role::Server { writes_files: true },
        Role::Symbols,
        Role::Fetch,
        Role::Push,
        Role::Tables,
        Role::Files,
        Role::Keep,
    ];

    /// The capabilities that the role needs after the start, if memprof has them.
    fn needs(self) -> Vec<Capability> {
        let more: &[Capability] = match self {
            // BPF maps and iterators may be created later. CAP_SYS_ADMIN shows page frames.
            Role::Collector => &[
                Capability::CAP_BPF,
                Capability::CAP_PERFMON,
                Capability::CAP_SYS_ADMIN,
            ],
            Role::Command | Role::Heap => &[],
            // Shows seccomp filters.
            Role::Guard | Role::Attach => &[Capability::CAP_SYS_ADMIN],
            // `/debug/memory` reads `smaps`; SIGTERM is forwarded to the command.
            Role::Server { .. } => return vec![Capability::CAP_SYS_PTRACE, Capability::CAP_KILL],
            // To open `/proc/PID/pagemap`.
            Role::Look => {
                return vec![Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH];
            }
            // For programs and debug files that only their owner may read.
            Role::Symbols => return vec![Capability::CAP_DAC_READ_SEARCH],
            // And for files that processes have mapped, but memprof cannot open.
            Role::Files => {
                return vec![Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH];
            }
            Role::Fetch | Role::Push | Role::Tables | Role::Keep => return Vec::new(),
        };
        [LOOKING, more].concat()
    }

    /// Whether the role reads processes. Without CAP_SYS_PTRACE a thread can read only processes that have no
    /// capability which the thread lacks. A command started with ambient capabilities has all of memprof's.
    fn looks_at_processes(self) -> bool {
        !matches!(
            self,
            Role::Symbols | Role::Fetch | Role::Push | Role::Tables | Role::Keep
        )
    }
}

thread_local! {
    static REDUCED: Cell<bool> = const { Cell::new(false) };
}

/// Drops the privileges that the role does not need, for this thread and those it starts from now on. Errors
/// are ignored here; `memprof doctor` reports them. A second call on the same thread changes nothing.
pub fn reduce(role: Role) {
    // A fuzzed thread that crashes must be able to write the crashing input to a file.
    if cfg!(fuzzing) {
        return;
    }
    if !REDUCED.replace(true) {
        let _ = try_reduce(role);
    }
}

/// As [`reduce`], but also on a repeated call, and with the result.
///
/// # Errors
/// The step that the kernel refused, and why. The capabilities may be dropped even so.
pub fn try_reduce(role: Role) -> Result<(), String> {
    let limited = limit_capabilities(role);
    let filtered = filter::install(role).map_err(|e| format!("seccomp filter: {e}"));
    tracing::debug!(?role, ?limited, ?filtered, "privileges were given up");
    filtered?;
    limited
}

/// Drops the capabilities of this thread that its role does not need.
///
/// # Errors
/// The kernel's reason for refusing.
pub fn limit_capabilities(role: Role) -> Result<(), String> {
    limit(role).map_err(|e| format!("capabilities: {e}"))
}

fn limit(role: Role) -> Result<(), caps::errors::CapsError> {
    drop_bounding_set()?;
    let permitted = caps::read(None, CapSet::Permitted)?;
    if role.looks_at_processes() && !permitted.contains(&Capability::CAP_SYS_PTRACE) {
        return Ok(());
    }
    let mut keep: CapsHashSet = role.needs().into_iter().collect();
    let effective = caps::read(None, CapSet::Effective)?;
    caps::set(None, CapSet::Effective, &(&effective & &keep))?;
    match role {
        Role::Server { writes_files: true } => keep.extend(FILES),
        // It says of the children that it makes that they are to go first if memory runs out. That file is their user's.
        Role::Guard => drop(keep.insert(Capability::CAP_DAC_OVERRIDE)),
        _ => {}
    }
    caps::set(None, CapSet::Permitted, &(&permitted & &keep))?;
    // The kernel drops ambient capabilities together with the inheritable ones.
    caps::clear(None, CapSet::Inheritable)
}

/// Empties the set of capabilities that programs which this thread starts could gain. Without CAP_SETPCAP it stays as it is,
/// and has no effect: `no_new_privs` lets them gain none.
fn drop_bounding_set() -> Result<(), caps::errors::CapsError> {
    match caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        true => caps::clear(None, CapSet::Bounding),
        false => Ok(()),
    }
}

/// Runs `write` with the file capabilities that memprof was started with.
pub fn writing_files<T>(write: impl FnOnce() -> T) -> T {
    /// Restores the effective capabilities, also if `write` panics.
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
