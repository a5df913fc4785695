//! What each thread of memprof may still do once it has started: capabilities, `no_new_privs` and a
//! seccomp filter.
//!
//! All three belong to a thread and pass to the threads and processes that it starts. The thread that starts
//! a command therefore keeps everything until the command runs, and the command has what memprof's user has.
//!
//! Threads share memory, so this bounds what a request or a file can make memprof's own code do. It is no
//! wall against code that an attacker runs in memprof.

mod filter;

use std::cell::Cell;

use caps::{CapSet, Capability, CapsHashSet};

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Owns the probe and looks at the followed processes.
    Collector,
    /// Waits for the command that memprof started; it has been started.
    Command,
    /// Serves HTTP, draws the screen and writes the results.
    Server {
        /// It writes `--output` files at the end, by [`writing_files`].
        writes_files: bool,
    },
    /// Reads symbols and debug information of other people's files.
    Symbols,
    /// Builds unwind tables of other people's files, which are open.
    Tables,
    /// Keeps the memory of a process, which is open.
    Keep,
}

/// Reading what belongs to a process of another user, its mapped files and its memory.
const LOOKING: &[Capability] = &[
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_CHECKPOINT_RESTORE,
    Capability::CAP_KILL,
];

/// Writing files where and as root can.
const FILES: &[Capability] = &[
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
];

impl Role {
    /// Every role, for a trial.
    pub const ALL: [Role; 6] = [
        Role::Collector,
        Role::Command,
        Role::Server { writes_files: true },
        Role::Symbols,
        Role::Tables,
        Role::Keep,
    ];

    /// The capabilities that the rest of the run needs, where memprof has them.
    fn needs(self) -> Vec<Capability> {
        let more: &[Capability] = match self {
            // Maps and iterators of BPF may be made later. CAP_SYS_ADMIN shows page frames.
            Role::Collector => &[
                Capability::CAP_BPF,
                Capability::CAP_PERFMON,
                Capability::CAP_SYS_ADMIN,
            ],
            Role::Command => &[],
            // `/debug/memory` reads `smaps`; the command is passed SIGTERM.
            Role::Server { .. } => return vec![Capability::CAP_SYS_PTRACE, Capability::CAP_KILL],
            // Programs that only their owner may read, and debug files in his directories.
            Role::Symbols => return vec![Capability::CAP_DAC_READ_SEARCH],
            Role::Tables | Role::Keep => return Vec::new(),
        };
        [LOOKING, more].concat()
    }

    /// Without CAP_SYS_PTRACE the kernel shows a thread only processes that have no capability which
    /// the thread lacks. A command started with ambient capabilities has all of memprof's.
    fn looks_at_processes(self) -> bool {
        !matches!(self, Role::Symbols | Role::Tables | Role::Keep)
    }
}

thread_local! {
    static REDUCED: Cell<bool> = const { Cell::new(false) };
}

/// Gives up, for this thread and those it starts from now on, what its role does not need. What the
/// kernel refuses stays as it was: `memprof doctor` says so. A second call changes nothing.
pub fn reduce(role: Role) {
    if !REDUCED.replace(true) {
        let _ = try_reduce(role);
    }
}

/// As [`reduce`], once more where it was done, and with the outcome.
///
/// # Errors
/// What the kernel refused and why. The capabilities may be gone all the same.
pub fn try_reduce(role: Role) -> Result<(), String> {
    let limited = limit_capabilities(role);
    let filtered = filter::install(role).map_err(|e| format!("seccomp filter: {e}"));
    tracing::debug!(?role, ?limited, ?filtered, "privileges were given up");
    filtered?;
    limited
}

/// Gives up the capabilities of this thread that its role does not need.
///
/// # Errors
/// What the kernel refused and why.
pub fn limit_capabilities(role: Role) -> Result<(), String> {
    limit(role).map_err(|e| format!("capabilities: {e}"))
}

fn limit(role: Role) -> Result<(), caps::errors::CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    if role.looks_at_processes() && !permitted.contains(&Capability::CAP_SYS_PTRACE) {
        return Ok(());
    }
    let mut keep: CapsHashSet = role.needs().into_iter().collect();
    let effective = caps::read(None, CapSet::Effective)?;
    caps::set(None, CapSet::Effective, &(&effective & &keep))?;
    if role == (Role::Server { writes_files: true }) {
        keep.extend(FILES);
    }
    caps::set(None, CapSet::Permitted, &(&permitted & &keep))?;
    // Ambient capabilities go with the inheritable ones.
    caps::clear(None, CapSet::Inheritable)
}

/// Runs `write` with the rights over files that memprof was started with.
pub fn writing_files<T>(write: impl FnOnce() -> T) -> T {
    /// Puts the effective capabilities back, also when `write` panics.
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
    // What is refused here fails below with the file's name.
    let _ = caps::set(None, CapSet::Effective, &raised);
    write()
}

#[cfg(test)]
mod tests;
