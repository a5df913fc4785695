//! The kernel's figures by category, from the smaps of stopped processes.

use std::fs;
use std::os::fd::AsRawFd;

use memprof_sys::ids::Pid;
use memprof_sys::usage::Usage;

const TMPFS: i64 = 0x0102_1994;
const KIB: u64 = 1024;

/// Sums over the mappings of a process, in bytes; `cache` is 0.
pub fn read(pid: Pid) -> Usage {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut sum = Usage::default();
    let mut shmem = false;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            continue;
        };
        if !first.ends_with(':') {
            shmem = is_shmem(pid, first, line);
            continue;
        }
        let Ok(bytes) = second.parse::<u64>().map(|kib| kib * KIB) else {
            continue;
        };
        match first {
            // The anonymous part comes in a later line and is subtracted there.
            "Rss:" if shmem => sum.shmem += bytes,
            "Rss:" => sum.file += bytes,
            "Anonymous:" => {
                sum.anon += bytes;
                *(if shmem { &mut sum.shmem } else { &mut sum.file }) -= bytes;
            }
            // Swapped shmem pages belong to no process; VmSwap does not contain them either.
            "Swap:" if !shmem => sum.swap += bytes,
            "Private_Hugetlb:" | "Shared_Hugetlb:" => sum.hugetlb += bytes,
            _ => {}
        }
    }
    sum
}

/// Whether a mapping's file is on a tmpfs, according to the mapped inode itself.
fn is_shmem(pid: Pid, range: &str, line: &str) -> bool {
    let inode = line.split_whitespace().nth(4);
    if inode.is_none_or(|inode| inode == "0") {
        return false;
    }
    let Ok(file) = fs::File::options()
        .read(true)
        .open(format!("/proc/{pid}/map_files/{range}"))
    else {
        return line.contains("/memfd:") || line.contains("/dev/zero");
    };
    // SAFETY: a zeroed statfs is a value; the descriptor is open.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let done = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) };
    done == 0 && found.f_type == TMPFS
}
