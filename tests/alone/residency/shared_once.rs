//! With shared pages counted once, each mapping holds what the kernel says (`Pss:` of `/proc/PID/smaps`).

use std::collections::HashMap;
use std::path::Path;

use crate::residency::target::Target;
use crate::residency::{METHODS, say};
use memprof_sys::ids::Pid;
use memprof_sys::residency::{Classifier, MapCounts, PageKind, Scanner, page_size, proc_maps};

/// The kernel's proportional shares by the mapping's address, in KiB.
fn kernels(pid: Pid) -> HashMap<u64, u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut shares, mut start) = (HashMap::new(), 0);
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap();
        if let Some((from, _)) = first.split_once('-') {
            start = u64::from_str_radix(from, 16).unwrap();
        } else if let Some(kib) = line.strip_prefix("Pss:") {
            let kib = kib.trim().strip_suffix(" kB").unwrap();
            shares.insert(start, kib.parse().unwrap());
        }
    }
    shares
}

/// Compares both methods with the kernel; returns the sum and how much of it is of shared pages, in KiB.
fn check(pid: Pid) -> (u64, u64) {
    let counts = MapCounts::open().unwrap();
    let vmas = proc_maps::read(pid, &mut Classifier::new()).unwrap();
    let (mut sum, mut shared) = (0, 0);
    for method in METHODS {
        (sum, shared) = (0, 0);
        let scanner = Scanner::open(pid, method).unwrap();
        let mut scanner = scanner.count_maps(Some(counts.clone()));
        // The kernel's own page is mapped by every process of the machine: their number changes.
        for vma in vmas.iter().filter(|vma| vma.name != "[vdso]") {
            let (mut parts, mut of_shared) = (0, 0);
            let page = page_size();
            scanner
                .scan_vma(
                    vma,
                    &mut |run| {
                        if matches!(run.kind, PageKind::Swap | PageKind::Hugetlb) {
                            return;
                        }
                        let maps = u64::from(run.maps.unwrap().get());
                        // The kernel rounds each page down to 1/4096 byte.
                        let share = (page << 12) / maps * (run.len() / page);
                        parts += share;
                        of_shared += if maps > 1 { share } else { 0 };
                    },
                    &mut || (),
                )
                .unwrap();
            let kernel = kernels(pid)[&vma.start.0];
            assert_eq!(parts >> 22, kernel, "{method:?}: {vma:?}");
            sum += parts >> 22;
            shared += of_shared >> 22;
        }
    }
    (sum, shared)
}

fn shares(scenario: &str, dir: &Path) -> (Target, u64, u64) {
    let target = Target::start_alone(scenario, dir);
    target.stop();
    let (sum, shared) = check(target.pid());
    say!("{scenario}: {sum} KiB with shared pages once, {shared} of them shared");
    (target, sum, shared)
}

#[test]
fn a_parent_and_its_child_have_halves() {
    let _others = crate::beside_others();
    let (target, parent, shared) = shares("fork_child", Path::new("/"));
    let (child, of_child) = check(target.children[0]);
    // 8 MiB of shared memory, and what the child has not written.
    assert!(
        shared >= 4 << 10 && of_child >= 4 << 10,
        "{shared}, {of_child}"
    );
    assert!(parent > shared && child > of_child);
}

#[test]
fn pages_of_one_process_are_whole() {
    let _others = crate::beside_others();
    let dir = tempfile::tempdir().unwrap();
    for scenario in [
        "malloc_small",
        "shared_anon",
        "memfd",
        "sysv",
        "file_cow",
        "zero_read",
        "alternating",
        "sparse",
        "guard",
    ] {
        let (_target, sum, _) = shares(scenario, dir.path());
        assert!(sum > 1024, "{scenario}: {sum}");
    }
}

/// Pages that one process maps twice count as two halves.
#[test]
fn a_page_that_is_mapped_twice() {
    let _others = crate::beside_others();
    let (_target, sum, shared) = shares("mapped_twice", Path::new("/"));
    assert!((4 << 10..6 << 10).contains(&shared), "{shared} of {sum}");
}

/// Huge pages, of which parts are mapped by another process alone, are counted page by page.
#[test]
fn parts_of_huge_pages() {
    let _others = crate::beside_others();
    let (target, _, shared) = shares("huge_shared", Path::new("/"));
    let (_, of_child) = check(target.children[0]);
    assert!(shared > 0 && of_child > 0, "{shared}, {of_child}");
}
