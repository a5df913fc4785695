//! The breakdown by category equals `smaps_rollup`, and each category contains the right mappings.

use std::process::{Command, Stdio};

use crate::residency::MIB;
use crate::residency::target::{Target, wait_until};
use memprof_sys::breakdown::{Breakdown, Category, Show, Verdict, measure};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

/// The sums of a stopped process equal the kernel's, to the KiB.
pub fn equals(pid: Pid) -> Breakdown {
    let all = measure(pid, Show::All).unwrap();
    let kernel = figures::rollup(pid).unwrap();
    let ours = all.total.figures;
    assert_eq!(all.verdict, Verdict::Equal, "{all:?}");
    assert_eq!((ours.rss, ours.swap), (kernel.rss, kernel.swap));
    assert_eq!(ours.anonymous, kernel.anonymous);
    assert_eq!(ours.hugetlb, kernel.hugetlb);
    // The shared part depends on other processes.
    let shared = ours.shared_clean + ours.shared_dirty;
    assert_eq!(ours.private_clean + ours.private_dirty + shared, ours.rss);
    assert_eq!(all.regions.len() as u64, all.total.mappings);
    assert_eq!(all.regions_left_out, 0);
    all
}

/// All figures are equal while no other process starts or stops sharing pages with it.
#[test]
fn shared_and_private_are_the_kernels_too() {
    let _alone = crate::alone();
    let (target, mut all) = stopped("file_cow");
    wait_until(|| {
        all = equals(target.pid());
        // A process that started and ended between the two readings of the kernel's sum is visible only in the
        // shares.
        let (ours, kernel) = (all.total.figures, all.rollup_after.unwrap());
        // The kernel rounds these figures down for each mapping.
        let rounding = all.total.mappings << 10;
        let near = |ours: u64, kernel: u64| ours <= kernel && kernel < ours + rounding;
        all.sharing_differs.is_empty()
            && all.rollup_before == all.rollup_after
            && near(ours.pss, kernel.pss)
            && near(ours.swap_pss, kernel.swap_pss)
    });
    let (mut ours, kernel) = (all.total.figures, all.rollup_after.unwrap());
    (ours.pss, ours.swap_pss) = (kernel.pss, kernel.swap_pss);
    assert_eq!(ours, kernel);
}

fn figures_of(all: &Breakdown, category: Category) -> (u64, u64) {
    let row = all.categories.iter().find(|r| r.category == category);
    row.map_or((0, 0), |r| (r.sums.mappings, r.sums.figures.rss))
}

fn stopped(scenario: &str) -> (Target, Breakdown) {
    let dir = tempfile::tempdir().unwrap();
    let target = Target::start(scenario, dir.path());
    target.stop();
    let all = equals(target.pid());
    (target, all)
}

#[test]
fn threads_stacks_are_told_from_other_memory() {
    let _alone = crate::alone();
    let (_target, all) = stopped("threads");
    let threads = all.stacks.threads as u64;
    assert!(threads > 1);
    assert_eq!(all.stacks.found as u64, threads, "{all:?}");
    assert!(figures_of(&all, Category::ThreadStack).0 <= threads);
    assert!(figures_of(&all, Category::ThreadStack).1 > 0);
    assert_eq!(figures_of(&all, Category::MainStack).0, 1);
}

#[test]
fn shared_memory_is_told_apart() {
    let _alone = crate::alone();
    for (scenario, category, mib) in [
        ("shared_anon", Category::SharedAnon, 30),
        ("memfd", Category::Memfd, 45),
        ("sysv", Category::SysV, 20),
    ] {
        let (_target, all) = stopped(scenario);
        let (mappings, rss) = figures_of(&all, category);
        assert!(mappings > 0 && rss >= mib * MIB, "{scenario}: {all:?}");
    }
}

#[test]
fn the_heap_the_binary_and_the_libraries() {
    let _alone = crate::alone();
    let (_target, all) = stopped("malloc_small");
    for category in [
        Category::Heap,
        Category::OwnBinary,
        Category::Library,
        Category::Kernel,
    ] {
        let row = all.categories.iter().find(|r| r.category == category);
        assert!(row.is_some_and(|r| r.sums.size > 0), "{category}: {all:?}");
    }
    assert!(figures_of(&all, Category::Heap).1 > 20 * MIB, "{all:?}");
    assert!(all.names.iter().any(|n| n.name.ends_with("/workload")));
}

/// What the program wrote about itself in the text that it prints.
fn printed(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_memprof"))
        .arg("maps")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {said}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_command_prints_it() {
    let _alone = crate::alone();
    let (target, all) = stopped("memfd");
    let pid = target.pid().to_string();
    let text = printed(&["--pid", &pid, "--top", "3"]);
    let kib = (all.total.figures.rss >> 10).to_string();
    let line = |label: &str| {
        let line = text.lines().find(|l| l.ends_with(label));
        line.unwrap_or_else(|| panic!("no {label:?} in {text}"))
            .to_owned()
    };
    let total = line("  total");
    assert!(total.split_whitespace().any(|w| w == kib), "{text}");
    assert!(text.contains("equal the kernel's total."), "{text}");
    let left_out = all.total.mappings - 3;
    line(&format!(" {left_out} more mappings"));
    let every = printed(&["--pid", &pid, "--all"]);
    assert!(every.lines().count() as u64 > all.total.mappings);
    let json = printed(&["--pid", &pid, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["total"]["rss"], all.total.figures.rss);
    assert_eq!(json["rollup_after"]["rss"], all.total.figures.rss);
    assert_eq!(json["verdict"], "equal");
}

/// A running process: this test itself. Every mapping must be in a category.
#[test]
fn a_process_that_changes_meanwhile() {
    let _alone = crate::alone();
    let own = Pid(std::process::id());
    let all = measure(own, Show::All).unwrap();
    let sum: u64 = all.categories.iter().map(|r| r.sums.figures.rss).sum();
    assert_eq!(sum, all.total.figures.rss);
    assert_ne!(all.verdict, Verdict::Unknown);
}

#[test]
fn nobody_a_zombie_and_a_kernel_thread() {
    let _alone = crate::alone();
    let target = Target::start("malloc_large", "/".as_ref());
    target.kill();
    for pid in [Pid(u32::MAX >> 1), target.pid(), Pid(2)] {
        assert!(measure(pid, Show::All).unwrap_err().is_gone(), "{pid}");
    }
}
