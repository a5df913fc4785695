//! The kernel's own accounting of a process's memory.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The kernel's own figures for the target, in bytes. memprof's totals are checked against them. Saved
/// profiles have these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelFigures {
    /// `Anonymous` of `/proc/PID/smaps_rollup`; `None` if it was not read because that would have stalled
    /// the target (see [`figures::rollup_is_cheap`](crate::residency::figures::rollup_is_cheap)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous: Option<u64>,
    /// `RssAnon` of `/proc/PID/status` (approximate up to Linux 6.15). For a command that has ended, this figure and the next three
    /// are sums over `smaps`, grouped by the backing of each mapping (see [`ExitMemory`](crate::residency::ExitMemory)).
    pub rss_anon: u64,
    /// `RssShmem` of `/proc/PID/status`.
    pub rss_shmem: u64,
    /// `RssFile` of `/proc/PID/status`.
    pub rss_file: u64,
    /// `VmSwap` of `/proc/PID/status`.
    pub swap: u64,
    /// `VmPTE` of `/proc/PID/status`: page tables. They are kernel memory, not part of RSS.
    pub page_tables: u64,
}

impl Default for KernelFigures {
    /// All zero: the start of a sum.
    fn default() -> KernelFigures {
        KernelFigures {
            anonymous: Some(0),
            rss_anon: 0,
            rss_shmem: 0,
            rss_file: 0,
            swap: 0,
            page_tables: 0,
        }
    }
}

impl AddAssign for KernelFigures {
    fn add_assign(&mut self, o: KernelFigures) {
        self.anonymous = self.anonymous.zip(o.anonymous).map(|(a, b)| a + b);
        self.rss_anon += o.rss_anon;
        self.rss_shmem += o.rss_shmem;
        self.rss_file += o.rss_file;
        self.swap += o.swap;
        self.page_tables += o.page_tables;
    }
}

impl KernelFigures {
    /// `RssAnon + RssShmem`, in bytes.
    pub fn resident(&self) -> u64 {
        self.rss_anon + self.rss_shmem
    }
}
