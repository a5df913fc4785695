//! The pid namespace that the recorder is in. The BPF programs have the numbers that processes have in the initial one.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The inode number of the initial pid namespace, the same in all kernels since 3.8.
const INITIAL: u64 = 0xEFFF_FFFC;

/// Whether processes have the same numbers for the recorder and for its BPF programs. Not so in a container without the host's
/// processes.
pub fn has_initial_pids() -> bool {
    let namespace = fs::metadata("/proc/self/ns/pid");
    namespace.is_ok_and(|namespace| namespace.ino() == INITIAL)
}
