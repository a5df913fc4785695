//! The memory that the kernel charges to a control group, in bytes: `memory.current` and `memory.stat` of cgroup v2, and their v1
//! counterparts.
//!
//! The kernel counts `memory.stat` per CPU, so it may lag behind, and CPUs charge in advance. [`GroupFigures::tolerance`] bounds
//! the difference between the sum of its rows and the total.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use nix::unistd::{SysconfVar, sysconf};

use super::page::page_size;

/// The kernel's `MEMCG_CHARGE_BATCH`: the number of pages that a CPU charges to a group in advance, and the number of statistics
/// changes that a CPU accumulates before it publishes them.
const BATCH: u64 = 64;
/// Number of batches of statistics changes that may accumulate per online CPU before a reader has them flushed: one on the CPU
/// itself, and one in the group's own count (`memcg_vmstats_needs_flush`).
const STATISTICS: u64 = 2;

/// Version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1: a separate hierarchy.
    One,
    /// Version 2: the unified hierarchy.
    Two,
}

impl Version {
    /// The version number.
    pub fn number(self) -> u8 {
        match self {
            Version::One => 1,
            Version::Two => 2,
        }
    }

    /// The file with the group's total charge.
    pub fn usage_file(self) -> &'static str {
        match self {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        }
    }

    /// The file with the highest charge so far; that of version 2 exists since Linux 5.19 (8e20d4b33266).
    fn peak_file(self) -> &'static str {
        match self {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        }
    }
}

/// Memory charged to a group and its descendants, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFigures {
    /// `memory.current`; `None` for the v2 root group, which does not have the file.
    pub usage: Option<u64>,
    /// The highest usage since the group was created, page cache included; `None` for the root group and before Linux 5.19.
    pub peak: Option<u64>,
    /// Change of `usage` while the other figures were read.
    pub moved: u64,
    /// Mapped anonymous memory, including huge pages.
    pub anon: u64,
    /// Shared memory and tmpfs files, mapped or not.
    pub shmem: u64,
    /// Page cache of other files.
    pub file: u64,
    /// The part of `shmem` and `file` that any process maps.
    pub mapped: u64,
    /// Swap cache. Pages of it that are mapped are also part of `anon`.
    pub swap_cache: u64,
    /// All kernel memory.
    pub kernel: u64,
    /// Parts of `kernel` that the kernel counts, by their names in `memory.stat`.
    pub kernel_parts: Vec<(Cow<'static, str>, u64)>,
    /// Socket buffers; cgroup v1 does not charge them here.
    pub sock: u64,
    /// Huge pages of hugetlbfs, if the kernel is configured to charge them here.
    pub hugetlb: u64,
    /// Number of processes that the OOM killer has killed in the group since the group was created.
    pub oom_kills: Option<u64>,
    /// The lowest limit of the group and its ancestors, if there is one.
    pub limit: Option<u64>,
    /// Maximum difference between the sum of the other figures and `usage`.
    pub tolerance: u64,
}

impl GroupFigures {
    /// Reads the figures of the group in a directory. `groups` is the number of groups in its subtree, including itself.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(dir: &Path, version: Version, groups: u64) -> io::Result<GroupFigures> {
        let read = |name: &str| fs::read_to_string(dir.join(name));
        let number = |name: &str| read(name).ok()?.trim().parse::<u64>().ok();
        let usage = || number(version.usage_file());
        let before = usage();
        let stat = read("memory.stat")?;
        let mut figures = match version {
            Version::One => {
                // The usage of the root group is only the sum of its cache and anonymous memory.
                let is_root = dir.join("cgroup.sane_behavior").exists();
                let kernel = number("memory.kmem.usage_in_bytes").filter(|_| !is_root);
                GroupFigures::of_version_1(&stat, kernel.unwrap_or(0))
            }
            Version::Two => GroupFigures::of_version_2(&stat),
        };
        figures.usage = usage();
        figures.moved = match (before, figures.usage) {
            (Some(before), Some(after)) => before.abs_diff(after),
            _ => 0,
        };
        figures.peak = number(version.peak_file());
        let events = match version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        figures.limit = match version {
            Version::One => limit_of_version_1(&stat),
            Version::Two => limit_of_version_2(dir),
        };
        figures.oom_kills = read(events).ok().and_then(|text| oom_kills(&text));
        figures.tolerance = tolerance(online_cpus(), groups).saturating_add(figures.moved);
        Ok(figures)
    }

    fn of_version_2(stat: &str) -> GroupFigures {
        let rows = rows(stat);
        let row = |name: &str| rows.get(name).copied().unwrap_or(0);
        const PARTS: [&str; 7] = [
            "slab",
            "percpu",
            "kernel_stack",
            "pagetables",
            "sec_pagetables",
            "vmalloc",
            "zswap",
        ];
        let parts = PARTS.map(|name| (name, row(name)));
        let sum = parts.iter().map(|(_, bytes)| *bytes).sum();
        let (shmem, swap_cache) = (row("shmem"), row("swapcached"));
        GroupFigures {
            anon: row("anon"),
            shmem,
            // The kernel counts shared memory and the swap cache among its file pages.
            file: row("file").saturating_sub(shmem).saturating_sub(swap_cache),
            mapped: row("file_mapped"),
            swap_cache,
            // Added by 5.18 "memcg: add per-memcg total kernel memory stat".
            kernel: rows.get("kernel").copied().unwrap_or(sum),
            kernel_parts: parts
                .into_iter()
                .filter(|(_, bytes)| *bytes > 0)
                .map(|(name, bytes)| (name.into(), bytes))
                .collect(),
            sock: row("sock"),
            // Added by 6.13 "memcg/hugetlb: add hugeTLB counters to memcg"; present only if hugetlb memory is charged.
            hugetlb: row("hugetlb"),
            ..GroupFigures::default()
        }
    }

    /// The rows `total_*` include descendants.
    fn of_version_1(stat: &str, kernel: u64) -> GroupFigures {
        let rows = rows(stat);
        let row = |name: &str| rows.get(name).copied().unwrap_or(0);
        let (shmem, swap_cache) = (row("total_shmem"), row("total_swapcached"));
        let cache = row("total_cache");
        GroupFigures {
            // Contrary to the documentation, this excludes the swap cache: NR_ANON_MAPPED.
            anon: row("total_rss"),
            shmem,
            file: cache.saturating_sub(shmem).saturating_sub(swap_cache),
            mapped: row("total_mapped_file"),
            swap_cache,
            kernel,
            ..GroupFigures::default()
        }
    }
}

/// Maximum difference between the sum of the rows and the usage, in bytes. Each CPU may have charged a batch in advance to each
/// group, and may have statistics changes that were not flushed. The kernel flushes them every 2 s, and earlier when there are more
/// of them.
fn tolerance(cpus: u64, groups: u64) -> u64 {
    let batches = groups.saturating_add(STATISTICS).saturating_mul(cpus);
    batches.saturating_mul(BATCH * page_size())
}

fn online_cpus() -> u64 {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online
        .and_then(|cpus| u64::try_from(cpus).ok())
        .unwrap_or(1)
}

/// Parses lines `NAME NUMBER`; other lines are skipped.
fn rows(stat: &str) -> HashMap<&str, u64> {
    let row = |line: &'_ str| -> Option<(usize, u64)> {
        let (name, number) = line.split_once(' ')?;
        Some((name.len(), number.trim().parse().ok()?))
    };
    let lines = stat.lines();
    lines
        .filter_map(|line| row(line).map(|(end, number)| (&line[..end], number)))
        .collect()
}

/// Without a limit, the kernel prints the largest number of whole pages that it can count.
const UNLIMITED: u64 = 1 << 62;

/// The kernel's row contains the lowest limit of the group and its ancestors.
fn limit_of_version_1(stat: &str) -> Option<u64> {
    let limit = rows(stat).get("hierarchical_memory_limit").copied();
    limit.filter(|bytes| *bytes < UNLIMITED)
}

/// Each group except the root has its own limit. `memory.max` is a number or `max`.
fn limit_of_version_2(dir: &Path) -> Option<u64> {
    let texts = dir
        .ancestors()
        .map_while(|group| fs::read_to_string(group.join("memory.max")).ok());
    texts.filter_map(|text| text.trim().parse().ok()).min()
}

/// `memory.events` and `memory.oom_control` contain the same line.
fn oom_kills(text: &str) -> Option<u64> {
    rows(text).get("oom_kill").copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18, cgroup v1.
    const ONE: &str = "cache 1048576\nrss 0\nrss_huge 0\nshmem 1048576\nmapped_file 4096\ndirty 0\nwriteback 0\n\
        workingset_refault_anon 0\nworkingset_refault_file 0\nswap 0\nswapcached 0\npgpgin 0\npgpgout 0\npgfault 0\n\
        pgmajfault 0\ninactive_anon 0\nactive_anon 0\ninactive_file 0\nactive_file 0\nunevictable 0\n\
        hierarchical_memory_limit 9223372036854771712\nhierarchical_memsw_limit 9223372036854771712\n\
        total_cache 5242880\ntotal_rss 8388608\ntotal_rss_huge 2097152\ntotal_shmem 1048576\ntotal_mapped_file 4096\n\
        total_dirty 0\ntotal_writeback 0\ntotal_swap 0\ntotal_swapcached 65536\ntotal_unevictable 0\n";

    /// Linux 6.1.192, cgroup v2, without the rows about reclaim: 8 MiB mapped, and 4 MiB on a tmpfs.
    const TWO: &str = "anon 8491008\nfile 4194304\nkernel 94208\nkernel_stack 0\npagetables 45056\nsec_pagetables 0\n\
        percpu 0\nsock 0\nvmalloc 0\nshmem 4194304\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\n\
        swapcached 0\nanon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon 12681216\nactive_anon 4096\n\
        inactive_file 0\nactive_file 0\nunevictable 0\nslab_reclaimable 8488\nslab_unreclaimable 8432\n\
        slab 16920\npgfault 2120\npgmajfault 0\npgrefill 0\npgactivate 0\npgdeactivate 0\npglazyfree 0\n\
        pglazyfreed 0\nthp_fault_alloc 0\nthp_collapse_alloc 0\n";

    #[test]
    fn file_pages_of_version_2_include_shared_memory() {
        let figures = GroupFigures::of_version_2(TWO);
        assert_eq!(
            (figures.anon, figures.shmem, figures.file),
            (8_491_008, 4 << 20, 0)
        );
        assert_eq!((figures.kernel, figures.swap_cache), (94_208, 0));
        assert_eq!(
            figures.kernel_parts,
            [("slab".into(), 16_920), ("pagetables".into(), 45_056)]
        );
    }

    /// The same group on Linux 7.3.
    const NEWER: &str = "anon 8495104\nfile 4194304\nkernel 90112\nkernel_stack 0\npagetables 65536\nsec_pagetables 0\n\
        percpu 64\nsock 0\nvmalloc 0\nshmem 4194304\nzswap 0\nzswapped 0\nzswap_incomp 0\nfile_mapped 0\n\
        file_dirty 0\nfile_writeback 0\nswapcached 0\nanon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon 0\n\
        active_anon 12689408\ninactive_file 0\nactive_file 0\nunevictable 0\nslab_reclaimable 8488\n\
        slab_unreclaimable 8352\nslab 16840\n";

    #[test]
    fn rows_of_later_kernels_are_found() {
        let figures = GroupFigures::of_version_2(NEWER);
        assert_eq!(
            (figures.anon, figures.shmem, figures.file),
            (8495104, 4194304, 0)
        );
        assert_eq!(figures.kernel, 90112);
        assert_eq!(
            figures.kernel_parts,
            [
                ("slab".into(), 16840),
                ("percpu".into(), 64),
                ("pagetables".into(), 65536)
            ]
        );
    }

    #[test]
    fn the_lowest_limit_counts() {
        assert_eq!(limit_of_version_1(ONE), None);
        let limited = ONE.replace("memory_limit 9223372036854771712", "memory_limit 67108864");
        assert_eq!(limit_of_version_1(&limited), Some(64 << 20));
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        fs::create_dir_all(&dir).unwrap();
        let write = |group: &str, text: &str| {
            fs::write(root.path().join(group).join("memory.max"), text).unwrap()
        };
        assert_eq!(limit_of_version_2(&dir), None);
        write("a", "max\n");
        write("a/b", "max\n");
        assert_eq!(limit_of_version_2(&dir), None);
        write("a", "8192\n");
        assert_eq!(limit_of_version_2(&dir), Some(8192));
        write("a/b", "4096\n");
        assert_eq!(limit_of_version_2(&dir), Some(4096));
    }

    #[test]
    fn version_1_has_totals_of_the_hierarchy() {
        let figures = GroupFigures::of_version_1(ONE, 8192);
        assert_eq!((figures.anon, figures.shmem), (8 << 20, 1 << 20));
        assert_eq!(figures.file, (4 << 20) - 65_536);
        assert_eq!((figures.kernel, figures.mapped), (8192, 4096));
    }

    #[test]
    fn unknown_and_odd_lines_are_skipped() {
        let figures = GroupFigures::of_version_2("anon 1\nnew_row 5\nfile x\n\nshmem\nkernel -3\n");
        assert_eq!((figures.anon, figures.file, figures.kernel), (1, 0, 0));
    }

    #[test]
    fn without_a_row_kernel_memory_is_the_sum_of_its_parts() {
        let figures = GroupFigures::of_version_2("slab 10\npercpu 5\nkernel_stack 1\n");
        assert_eq!(figures.kernel, 16);
    }

    #[test]
    fn the_peak_is_read_in_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let peak = |version| GroupFigures::read(dir.path(), version, 1).unwrap().peak;
        fs::write(dir.path().join("memory.stat"), "").unwrap();
        assert_eq!([Version::One, Version::Two].map(peak), [None, None]);
        fs::write(dir.path().join("memory.max_usage_in_bytes"), "8192\n").unwrap();
        fs::write(dir.path().join("memory.peak"), "4096\n").unwrap();
        assert_eq!(
            [Version::One, Version::Two].map(peak),
            [Some(8192), Some(4096)]
        );
    }

    #[test]
    fn kills_are_counted_in_both_versions() {
        assert_eq!(
            oom_kills("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n"),
            Some(2)
        );
        assert_eq!(
            oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            Some(1)
        );
        assert_eq!(oom_kills(""), None);
    }

    #[test]
    fn the_tolerance_grows_with_the_groups() {
        assert_eq!(tolerance(2, 1), 2 * 3 * 64 * page_size());
    }
}
