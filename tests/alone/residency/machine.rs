//! Scenarios that need a machine setting or a mount: huge pages, KSM, swap, compaction, overlayfs.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::machine::{Setting, Swap};
use crate::common::skip::skip;
use crate::residency::target::{Target, wait_until};
use crate::residency::{MIB, between, measure, measure_by_names, run, say};
use memprof_sys::ids::Pid;
use memprof_sys::residency::{Classifier, Method, PageRun, Scanner, figures, proc_maps};

/// Only one test at a time changes settings of the machine.
static MACHINE: Mutex<()> = Mutex::new(());

#[test]
fn overlay_on_tmpfs_is_shmem() {
    let _others = crate::beside_others();
    let dir = tempfile::tempdir().unwrap();
    let (_target, total) = run("overlay", dir.path());
    assert!(
        between(total.shmem, 26, 34) && between(total.anon, 7, 8),
        "{total:?}"
    );
}

#[test]
fn transparent_huge_pages() {
    let _others = crate::beside_others();
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !enabled.is_ok_and(|e| !e.contains("[never]")) {
        skip("the kernel has none or they are off");
        return;
    }
    let (target, total) = run("thp", Path::new("/"));
    assert!(between(total.anon, 61, 62), "{total:?}");
    let huge = huge_bytes(target.pid());
    assert_eq!(huge, figures::rollup(target.pid()).unwrap().anon_huge);
    assert!(huge >= 48 * MIB);
    let (target, total) = run("huge_zero", Path::new("/"));
    assert!(between(total.anon, 6, 7), "{total:?}");
    assert!(huge_bytes(target.pid()) >= 6 * MIB);
}

fn huge_bytes(pid: Pid) -> u64 {
    let mut scanner = Scanner::open(pid, Method::Ioctl).unwrap();
    let mut huge = 0;
    for vma in proc_maps::read(pid, &mut Classifier::new()).unwrap() {
        let mut found = |run: PageRun| huge += if run.huge { run.len() } else { 0 };
        scanner.scan_vma(&vma, &mut found, &mut || ()).unwrap();
    }
    huge
}

#[test]
fn hugetlb_is_kept_apart() {
    let _others = crate::beside_others();
    let _one = MACHINE.lock().unwrap_or_else(|e| e.into_inner());
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let Some(_pages) = Setting::set(path, "16") else {
        skip("no huge pages of 2 MiB can be reserved");
        return;
    };
    let (target, total) = run("hugetlb", Path::new("/"));
    assert_eq!(total.hugetlb, 14 * MIB);
    assert!(between(total.anon, 0, 1));
    measure_by_names(target.pid(), total);
}

#[test]
fn pages_merged_by_ksm_stay_anonymous() {
    let _others = crate::beside_others();
    let _one = MACHINE.lock().unwrap_or_else(|e| e.into_inner());
    let ksm = "/sys/kernel/mm/ksm";
    let zero = Setting::set(&format!("{ksm}/use_zero_pages"), "1");
    let pages = Setting::set(&format!("{ksm}/pages_to_scan"), "10000");
    let running = Setting::set(&format!("{ksm}/run"), "1");
    if running.is_none() || pages.is_none() || zero.is_none() {
        skip("KSM cannot be switched on");
        return;
    }
    let target = Target::start("ksm", Path::new("/"));
    let merged = || fs::read_to_string(format!("/proc/{}/ksm_stat", target.pid())).unwrap();
    let count = |key: &str| -> u64 {
        let text = merged();
        let line = text
            .lines()
            .find(|l| l.split(' ').next() == Some(key))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    wait_until(|| count("ksm_merging_pages") >= 3000 && count("ksm_zero_pages") >= 1000);
    drop(running);
    target.stop();
    let total = measure(target.pid());
    let zero_pages = count("ksm_zero_pages") * 4096;
    assert!(
        between(total.anon + zero_pages, 16, 17),
        "{total:?} {}",
        merged()
    );
    say!(
        "ksm: anon {} KiB with {} pages merged, difference 0",
        total.anon >> 10,
        count("ksm_merging_pages")
    );
}

#[test]
fn swapped_pages() {
    let _others = crate::beside_others();
    let _one = MACHINE.lock().unwrap_or_else(|e| e.into_inner());
    let Some(_swap) = Swap::on(256 * MIB) else {
        skip("no zram device to swap to");
        return;
    };
    let (_target, total) = run("swapped", Path::new("/"));
    assert!(between(total.swap, 8, 25), "{total:?}");
}

/// During migration, page table entries look swapped, but the pages are resident.
#[test]
fn pages_under_compaction_stay_what_they_are() {
    let _others = crate::beside_others();
    let _one = MACHINE.lock().unwrap_or_else(|e| e.into_inner());
    let compact = "/proc/sys/vm/compact_memory";
    if fs::write(compact, "1").is_err() {
        skip(format_args!("{compact} cannot be written"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The pages of a file on overlayfs are told from shmem by their flags.
    let targets = [
        Target::start("dontneed", Path::new("/")),
        Target::start("overlay", dir.path()),
    ];
    targets.iter().for_each(Target::stop);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            for _ in 0..20 {
                fs::write(compact, "1").unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut scans = 0;
        while !done.load(Ordering::Relaxed) || scans < 10 {
            for target in &targets {
                measure(target.pid());
            }
            scans += 1;
        }
        moving.join().unwrap();
        say!("compaction: {scans} scans meanwhile, difference 0");
    });
}
