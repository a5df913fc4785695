//! For stopped programs, the sums of the page scan equal the kernel's figures.
//!
//! Needs root and `cc`. Scenarios that this kernel does not support are reported as skipped.

mod breakdown;
mod cost;
mod machine;
mod processes;
mod shared_once;
mod target;

use std::path::Path;

use memprof_sys::ids::Pid;
use memprof_sys::residency::{
    Backing, Classifier, Method, PageKind, PageRun, Scanner, VmaKind, figures, proc_maps, read_with,
};
use memprof_sys::usage::Usage;
use target::Target;

const MIB: u64 = 1 << 20;
const METHODS: [Method; 2] = [Method::Ioctl, Method::Pagemap];

/// Prints directly to stderr: the test harness captures the usual output.
macro_rules! say {
    ($($arg:tt)*) => { $crate::residency::target::say(format_args!($($arg)*)) };
}
pub(crate) use say;

/// All pages of a process; adjacent ranges are merged across windows and page sizes.
fn pages(pid: Pid, method: Method) -> Vec<(u64, u64, PageKind)> {
    let mut scanner = Scanner::open(pid, method).unwrap();
    assert_eq!(scanner.method(), method);
    let mut runs: Vec<(u64, u64, PageKind)> = Vec::new();
    for vma in proc_maps::read(pid, &mut Classifier::new()).unwrap() {
        let mut found = |run: PageRun| {
            assert!(vma.start <= run.start && run.start < run.end && run.end <= vma.end);
            match runs.last_mut() {
                Some(last) if last.1 == run.start.0 && last.2 == run.kind => last.1 = run.end.0,
                last => {
                    assert!(last.is_none_or(|l| l.1 <= run.start.0), "{run:?}");
                    runs.push((run.start.0, run.end.0, run.kind));
                }
            }
        };
        scanner.scan_vma(&vma, &mut found, &mut || ()).unwrap();
    }
    runs
}

/// Compares both methods with the kernel's figures and with each other; the process must be stopped.
fn measure(pid: Pid) -> Usage {
    let status = figures::status(pid).unwrap();
    let rollup = figures::rollup(pid).unwrap();
    let mut totals = Vec::new();
    for method in METHODS {
        let r = read_with(pid, method, &mut Classifier::new()).unwrap();
        assert_eq!(
            r.before, r.after,
            "the kernel's figures changed although it was stopped"
        );
        let (kernel, ours) = (r.before, r.total);
        assert_eq!(Some(ours.anon), kernel.anonymous, "{method:?}: Anonymous");
        assert_eq!(ours.anon, kernel.rss_anon, "{method:?}: RssAnon");
        assert_eq!(ours.shmem, kernel.rss_shmem, "{method:?}: RssShmem");
        assert_eq!(ours.resident(), kernel.resident());
        assert_eq!(ours.file, kernel.rss_file, "{method:?}: RssFile");
        assert_eq!(ours.swap, kernel.swap, "{method:?}: VmSwap");
        assert_eq!(ours.hugetlb, status.hugetlb, "{method:?}: HugetlbPages");
        assert_eq!(ours.hugetlb, rollup.hugetlb, "{method:?}: *_Hugetlb");
        assert_eq!(ours.cache, 0);
        totals.push(ours);
    }
    assert_eq!(totals[0], totals[1]);
    breakdown::equals(pid);
    assert_eq!(pages(pid, METHODS[0]), pages(pid, METHODS[1]));
    totals[0]
}

/// Without access to `/proc/PID/map_files` the sums are the same.
fn measure_by_names(pid: Pid, total: Usage) {
    let mut classifier = Classifier::without_map_files();
    let r = read_with(pid, Method::Auto, &mut classifier).unwrap();
    assert_eq!(r.total, total, "without map_files");
}

fn run(scenario: &str, dir: &Path) -> (Target, Usage) {
    let target = Target::start(scenario, dir);
    target.stop();
    let total = measure(target.pid());
    let [anon, shmem, file, swap, hugetlb] = [
        total.anon,
        total.shmem,
        total.file,
        total.swap,
        total.hugetlb,
    ]
    .map(|b| b >> 10);
    say!(
        "{scenario}: anon {anon} shmem {shmem} file {file} swap {swap} hugetlb {hugetlb} KiB, \
         difference 0"
    );
    (target, total)
}

/// A scenario and the minimum amounts in it, so that no test passes on empty sums.
macro_rules! scenario {
    ($name:ident, $check:expr) => {
        #[test]
        fn $name() {
            let dir = tempfile::tempdir().unwrap();
            let (target, total) = run(stringify!($name), dir.path());
            let check: fn(Usage) -> bool = $check;
            assert!(check(total), "{total:?}");
            measure_by_names(target.pid(), total);
        }
    };
}

fn between(bytes: u64, low_mib: u64, high_mib: u64) -> bool {
    (low_mib * MIB..high_mib * MIB).contains(&bytes)
}

scenario!(malloc_small, |u| between(u.anon, 30, 60));
scenario!(malloc_large, |u| between(u.anon, 43, 46));
scenario!(mmap_munmap, |u| between(u.anon, 56, 58));
scenario!(dontneed, |u| between(u.anon, 42, 44));
scenario!(threads, |u| between(u.anon, 24, 27));
scenario!(shared_anon, |u| between(u.shmem, 30, 31));
scenario!(memfd, |u| between(u.shmem, 45, 46) && between(u.anon, 3, 4));
scenario!(sysv, |u| between(u.shmem, 20, 21));
scenario!(file_cow, |u| between(u.file, 16, 22)
    && between(u.anon, 7, 8));
scenario!(zero_read, |u| between(u.anon, 11, 12)
    && between(u.shmem, 2, 3));
scenario!(mlock, |u| between(u.anon, 23, 24));
scenario!(many_vmas, |u| between(u.anon, 39, 42));
scenario!(alternating, |u| between(u.anon, 150, 151)
    && between(u.shmem, 10, 11));
scenario!(sparse, |u| between(u.anon, 400, 401));
scenario!(guard, |u| between(u.anon, 14, 15) && between(u.shmem, 6, 7));

#[test]
fn brk_growth_and_trim() {
    let _others = crate::beside_others();
    let (_target, total) = run("brk", Path::new("/"));
    assert!(between(total.anon, 28, 29), "{total:?}");
}

#[test]
fn fork_parent_and_child() {
    let _others = crate::beside_others();
    let (target, parent) = run("fork_child", Path::new("/"));
    assert!(between(parent.anon, 32, 33) && between(parent.shmem, 8, 9));
    let child = measure(target.children[0]);
    assert!(between(child.anon, 35, 36), "{child:?}");
    measure_by_names(target.children[0], child);
}

#[test]
fn tmpfs_files() {
    let _others = crate::beside_others();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (target, shared) = run("tmpfs_shared", dir.path());
    assert!(between(shared.shmem, 16, 20) && between(shared.anon, 1, 2));
    measure_by_names(target.pid(), shared);
    let (target, private) = run("tmpfs_private", dir.path());
    assert!(between(private.shmem, 10, 14) && between(private.anon, 7, 8));
    measure_by_names(target.pid(), private);
    let vmas = proc_maps::read(target.pid(), &mut Classifier::new()).unwrap();
    let vma = vmas.iter().find(|v| v.label() == "tmpfs file").unwrap();
    assert_eq!(
        (vma.backing, vma.kind()),
        (Backing::Shmem, VmaKind::Private)
    );
}
