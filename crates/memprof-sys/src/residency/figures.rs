//! The kernel's own figures for a process: `/proc/PID/status` and `/proc/PID/smaps_rollup`, in bytes.
//!
//! `smaps_rollup` walks the page tables and is exact for a stopped process. `status` reads counters that
//! threads or CPUs update in batches; it is exact only from Linux 6.16 on (commit 82241a83cd15, "mm:
//! fix the inaccurate memory statistics issue for users", also in 6.12.39 and later of that series).

use super::error::{Error, Result, readable};
use super::smaps;
use super::vma::Vma;
use crate::ids::Pid;
use crate::kernel_figures::KernelFigures;
use crate::{proc_dir, procfs};

/// Memory counters of `/proc/PID/status`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `RssAnon`.
    pub rss_anon: u64,
    /// `RssFile`.
    pub rss_file: u64,
    /// `RssShmem`.
    pub rss_shmem: u64,
    /// `VmSwap`.
    pub swap: u64,
    /// `HugetlbPages`; 0 if the kernel is built without hugetlb.
    pub hugetlb: u64,
    /// `VmPTE`: page tables of all levels. Large changes are visible at once; a few pages per CPU may be visible late.
    pub page_tables: u64,
    /// `VmHWM`: the highest resident memory so far. Approximate up to Linux 6.15.
    pub high_water: u64,
}

impl From<Status> for KernelFigures {
    fn from(status: Status) -> KernelFigures {
        KernelFigures {
            anonymous: None,
            rss_anon: status.rss_anon,
            rss_shmem: status.rss_shmem,
            rss_file: status.rss_file,
            swap: status.swap,
            page_tables: status.page_tables,
        }
    }
}

/// Reads both files.
///
/// # Errors
/// As for [`status`] and [`rollup`].
pub fn read(pid: Pid) -> Result<KernelFigures> {
    let anonymous = Some(rollup(pid)?.anonymous);
    Ok(KernelFigures {
        anonymous,
        ..counters(pid)?
    })
}

/// Reads only `status`, which does not make the process wait.
///
/// # Errors
/// As for [`status`].
///
/// # Examples
///
/// ```
/// use memprof_sys::ids::Pid;
/// use memprof_sys::residency::figures;
///
/// let own = figures::counters(Pid(std::process::id()))?;
/// assert!(own.rss_anon > 0);
/// assert_eq!(own.resident(), own.rss_anon + own.rss_shmem);
/// # Ok::<(), memprof_sys::residency::Error>(())
/// ```
pub fn counters(pid: Pid) -> Result<KernelFigures> {
    Ok(status(pid)?.into())
}

/// Maximum size of a mapping, in bytes, that the kernel sums up quickly: in about 3 ms.
const BRIEF: u64 = 256 << 20;
/// Maximum size of the page tables of a process, in bytes, that the kernel walks as quickly: 0.8 to 1.1 us for 4 KiB of them, even if
/// they hold a single page. A process that touches one page in every 2 MiB has as many bytes of page tables as of pages.
const BRIEF_TABLES: u64 = 8 << 20;

/// Maximum number of mappings that the kernel sums up as quickly: 0.4 us each. It offers the lock to waiters after each, but takes it
/// again before one that was just woken: with 60,000 mappings, an `mmap` call waited for 20 to 60 ms.
const BRIEF_MAPPINGS: usize = 4096;

/// Whether `smaps_rollup` can be read without making a running process wait. The kernel holds the mmap lock while it walks one
/// whole mapping (10 ms per GiB of 4 KiB pages or per 40 MiB of page tables), and yields it to waiters only between mappings.
pub fn rollup_is_cheap(now: &KernelFigures, vmas: &[Vma]) -> bool {
    vmas.len() <= BRIEF_MAPPINGS && (holds_little(now) || vmas.iter().all(|vma| vma.len() <= BRIEF))
}

/// Whether a process has so little memory, and so few page tables, that its mappings may have any size.
pub(super) fn holds_little(now: &KernelFigures) -> bool {
    let pages = now.rss_anon + now.rss_shmem + now.rss_file + now.swap;
    pages <= BRIEF && now.page_tables <= BRIEF_TABLES
}

/// Reads `/proc/PID/status`.
///
/// # Errors
/// [`Error::Gone`] for a process that has ended, a zombie or a kernel thread.
pub fn status(pid: Pid) -> Result<Status> {
    let path = proc_dir::shown(pid, "status");
    let text = proc_dir::text(pid, "status").map_err(|e| Error::from_io(pid, &path, e))?;
    parse_status(&text).map_err(|line| match line {
        Some(line) => Error::malformed(path, line.as_bytes()),
        None => Error::Gone(pid),
    })
}

/// Reads `/proc/PID/smaps_rollup` (Linux 4.14). The time is proportional to the process's memory.
///
/// # Errors
/// [`Error::Held`]; [`Error::Gone`] for a process that has ended, a zombie or a kernel thread; [`Error::Denied`] without the right
/// to trace the process.
pub fn rollup(pid: Pid) -> Result<smaps::SmapsFigures> {
    readable(pid)?;
    let path = proc_dir::shown(pid, "smaps_rollup");
    let text = proc_dir::read(pid, "smaps_rollup").map_err(|e| Error::from_io(pid, &path, e))?;
    if text.is_empty() {
        return Err(Error::Gone(pid));
    }
    parse_rollup(&text).map_err(|line| Error::malformed(path, line))
}

/// Parses `status`. `Err(None)` if the text has no memory figures.
fn parse_status(text: &str) -> std::result::Result<Status, Option<String>> {
    let figure = |key| lookup(text, key);
    Ok(Status {
        rss_anon: figure("RssAnon")?.ok_or(None)?,
        rss_file: figure("RssFile")?.ok_or(None)?,
        rss_shmem: figure("RssShmem")?.ok_or(None)?,
        swap: figure("VmSwap")?.unwrap_or(0),
        hugetlb: figure("HugetlbPages")?.unwrap_or(0),
        page_tables: figure("VmPTE")?.unwrap_or(0),
        high_water: figure("VmHWM")?.unwrap_or(0),
    })
}

fn parse_rollup(text: &[u8]) -> std::result::Result<smaps::SmapsFigures, &[u8]> {
    let mut figures = smaps::SmapsFigures::default();
    for line in text.split(|b| *b == b'\n') {
        figures.take(line)?;
    }
    Ok(figures)
}

/// The value, in bytes, of the line `KEY: N kB`. `Err` with the line if the line has another form.
fn lookup(text: &str, key: &str) -> std::result::Result<Option<u64>, Option<String>> {
    let Some(value) = procfs::value(text, key) else {
        return Ok(None);
    };
    let bytes = procfs::kib(value).ok_or_else(|| Some(format!("{key}:{value}")))?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::residency::proc_maps;

    const STATUS: &str = "Name:\tRssAnon: 5 kB\nState:\tT (stopped)\nVmHWM:\t    1900 kB\n\
        RssAnon:\t      96 kB\nRssFile:\t    1748 kB\nRssShmem:\t       8 kB\n\
        VmPTE:\t      52 kB\nVmSwap:\t       4 kB\nHugetlbPages:\t    2048 kB\nThreads:\t1\n";
    const ROLLUP: &str = "55fab31c2000-ffffffffff601000 ---p 00000000 00:00 0     [rollup]\n\
        Rss:                1612 kB\nPss:                 230 kB\nPss_Anon:             92 kB\n\
        Anonymous:            92 kB\nAnonHugePages:         0 kB\nSwap:                  4 kB\n\
        SwapPss:               4 kB\nPrivate_Hugetlb:    2048 kB\nShared_Hugetlb:     4096 kB\n";

    #[test]
    fn one_mapping_that_may_hold_much_is_not_summed_up_while_the_process_runs() {
        const SOME: u64 = BRIEF / 4096;
        let mapping = |pages: u64| {
            proc_maps::parse_line(
                format!(
                    "100000000-{:x} rw-p 00000000 00:00 0 ",
                    0x1_0000_0000 + pages * 4096
                )
                .as_bytes(),
            )
        };
        let holding = |rss_anon| KernelFigures {
            rss_anon,
            ..KernelFigures::default()
        };
        let many: Vec<Vma> = (0..100).filter_map(|_| mapping(SOME)).collect();
        let one: Vec<Vma> = mapping(SOME + 1).into_iter().collect();
        assert_eq!((many.len(), one.len()), (100, 1));
        assert!(rollup_is_cheap(&holding(100 * BRIEF), &many));
        assert!(rollup_is_cheap(&holding(BRIEF), &one));
        assert!(!rollup_is_cheap(&holding(BRIEF + 4096), &one));
        let sparse = |page_tables| KernelFigures {
            page_tables,
            ..holding(BRIEF / 2)
        };
        assert!(rollup_is_cheap(&sparse(BRIEF_TABLES), &one));
        assert!(!rollup_is_cheap(&sparse(BRIEF_TABLES + 4096), &one));
        assert!(rollup_is_cheap(&sparse(BRIEF_TABLES + 4096), &many));
        let most = vec![many[0].clone(); BRIEF_MAPPINGS + 1];
        assert!(rollup_is_cheap(&holding(0), &most[1..]));
        assert!(!rollup_is_cheap(&holding(0), &most));
    }

    #[test]
    fn figures_are_bytes() {
        let s = parse_status(STATUS).unwrap();
        assert_eq!((s.rss_anon, s.rss_file), (96 << 10, 1748 << 10));
        assert_eq!(
            (s.rss_shmem, s.swap, s.hugetlb),
            (8 << 10, 4 << 10, 2 << 20)
        );
        assert_eq!(s.page_tables, 52 << 10);
        let r = parse_rollup(ROLLUP.as_bytes()).unwrap();
        assert_eq!((r.rss, r.anonymous, r.anon_huge), (1612 << 10, 92 << 10, 0));
        assert_eq!((r.swap, r.hugetlb), (4 << 10, 6 << 20));
    }

    #[test]
    fn zombies_and_nonsense() {
        assert_eq!(parse_status("Name:\tx\nState:\tZ (zombie)\n"), Err(None));
        let odd = ROLLUP.replace("230 kB", "230 MB");
        assert_eq!(
            parse_rollup(odd.as_bytes()),
            Err(&b"Pss:                 230 MB"[..])
        );
        let odd = STATUS.replace("96 kB", "96 MB");
        assert_eq!(
            parse_status(&odd),
            Err(Some("RssAnon:\t      96 MB".into()))
        );
        let big = STATUS.replace("96 kB", "18446744073709551615 kB");
        assert!(parse_status(&big).is_err());
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "\\PC{0,200}", at in 0usize..300) {
            let _ = parse_status(&text);
            let _ = parse_rollup(text.as_bytes());
            let _ = parse_rollup(&ROLLUP.as_bytes()[..at.min(ROLLUP.len())]);
        }
    }

    #[test]
    fn a_process_that_never_was() {
        let nobody = Pid(u32::MAX >> 1);
        assert!(status(nobody).unwrap_err().is_gone());
        assert!(rollup(nobody).unwrap_err().is_gone());
        assert!(read(nobody).unwrap_err().is_gone());
    }
}
