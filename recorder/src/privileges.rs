//! Gives up the privileges that a thread does not need.
//!
//! Privileges belong to a thread, and the threads that it starts inherit them. Errors are ignored: without them a thread can do more than it
//! needs to, and does not.

use std::fs;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl;
use nix::unistd::Uid;

/// Capturing: attaching programs again when a service has restarted, which needs its processes' sockets to be found.
pub const CAPTURE: &[Capability] = &[
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_READ_SEARCH,
];

/// Reading files that belong to the node: its identity and its logs.
pub const READ_FILES: &[Capability] = &[Capability::CAP_DAC_READ_SEARCH];

/// Following logs: reading them, and keeping positions in a directory.
pub fn for_logs(state: &Path) -> Vec<Capability> {
    let write = for_directories(iter::once(state));
    [READ_FILES, write].concat()
}

/// Reduces this thread's capabilities to those in `keep`, and those of programs that it starts to none.
pub fn reduce(keep: &[Capability]) {
    let _ = prctl::set_no_new_privs();
    let _ = caps::clear(None, CapSet::Bounding);
    let Ok(permitted) = caps::read(None, CapSet::Permitted) else {
        return;
    };
    let wanted: CapsHashSet = keep.iter().copied().collect();
    let kept: CapsHashSet = permitted.intersection(&wanted).copied().collect();
    let _ = caps::clear(None, CapSet::Ambient);
    let _ = caps::clear(None, CapSet::Inheritable);
    let _ = caps::set(None, CapSet::Effective, &kept);
    let _ = caps::set(None, CapSet::Permitted, &kept);
}

/// Keeps what is in memory, such as keys, out of core files and from other processes of the same user.
pub fn hide_memory() {
    let _ = prctl::set_dumpable(false);
}

/// The capabilities that writing below these directories needs: none, unless one of them belongs to another user.
pub fn for_directories<'a>(directories: impl Iterator<Item = &'a Path>) -> &'static [Capability] {
    let own = Uid::effective().as_raw();
    // What does not exist yet is made in the nearest directory that does.
    let owner = |path: &Path| path.ancestors().find_map(|path| fs::metadata(path).ok());
    let mut others = directories.filter_map(owner).filter(|of| of.uid() != own);
    match others.next() {
        Some(_) => &[
            Capability::CAP_DAC_OVERRIDE,
            Capability::CAP_DAC_READ_SEARCH,
            Capability::CAP_FOWNER,
        ],
        None => &[],
    }
}
