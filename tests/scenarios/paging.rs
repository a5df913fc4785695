//! What the kernel does with pages by itself: huge pages, KSM, swap, compaction. Other ways to fill memory:
//! userfaultfd, hugetlb.

use std::fs;

use crate::common::machine::{Setting, Swap};
use crate::common::process::wait_until;
use crate::run::{KIB, MIB, Run};
use crate::{Scenario, Skip, scenario};
use memprof_profile::Kind::{Anon, Hugetlb, Resident, Shmem, Swap as Swapped};
use memprof_sys::ids::Pid;

pub const SCENARIOS: &[Scenario] = &[
    scenario!(huge_pages_by_fault),
    scenario!(huge_page_split),
    scenario!(huge_zero_page),
    scenario!(madv_collapse),
    scenario!(khugepaged),
    scenario!(large_folios),
    scenario!(ksm),
    scenario!(swap_out_and_in),
    scenario!(swap_of_shared_memory),
    scenario!(compaction),
    scenario!(userfaultfd),
    scenario!(hugetlb),
];

type Done = Result<(), Skip>;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const HUGE: u64 = 2 * MIB;

fn needs_huge_pages() -> Done {
    let enabled = fs::read_to_string(format!("{THP}/enabled"));
    match enabled {
        Ok(text) if !text.contains("[never]") => Ok(()),
        Ok(_) => Err("transparent huge pages are switched off".into()),
        Err(_) => Err("the kernel has no transparent huge pages".into()),
    }
}

fn set(path: &str, value: &str) -> Result<Setting, Skip> {
    Setting::set(path, value).ok_or_else(|| format!("{path} cannot be set"))
}

/// Bytes that are mapped as huge pages.
fn anon_huge(pid: Pid) -> u64 {
    memprof_sys::residency::figures::rollup(pid)
        .unwrap()
        .anon_huge
}

fn huge_pages_by_fault(run: &mut Run) -> Done {
    needs_huge_pages()?;
    run.tell(&["anon 0 8388608", "advise 0 0 8388608 14"]);
    // Each store brings in 2 MiB.
    run.tell(&["touch 0 0 4096", "again 0 3149824 4096"]);
    let report = run.check(&[]);
    let owned = report.under("cmd_touch", Anon) + report.under("cmd_again", Anon);
    // If memory is short, the kernel allocates small pages.
    let huge = anon_huge(run.pid());
    let small = (2 - huge / HUGE) * 4 * KIB;
    assert_eq!(owned, huge + small, "{}", report.text());
    run.after(&["touch 0 0 8388608"], &[]);
    Ok(())
}

fn huge_page_split(run: &mut Run) -> Done {
    needs_huge_pages()?;
    run.tell(&[
        "anon 0 8388608",
        "advise 0 0 8388608 14",
        "touch 0 0 8388608",
    ]);
    run.check(&[("cmd_touch", Anon, 8 * MIB)]);
    // Keeps khugepaged from merging the pages again.
    run.tell(&["advise 0 0 8388608 15"]);
    run.after(
        &["advise 0 4096 4096 4"],
        &[("cmd_touch", Anon, 8 * MIB - 4 * KIB)],
    );
    run.after(
        &["unmap 0 3145728 2097152"],
        &[("cmd_touch", Anon, 6 * MIB - 4 * KIB)],
    );
    run.after(
        &["again 0 0 1048576"],
        &[
            ("cmd_touch", Anon, 6 * MIB - 4 * KIB),
            ("cmd_again", Anon, 4 * KIB),
        ],
    );
    Ok(())
}

fn huge_zero_page(run: &mut Run) -> Done {
    needs_huge_pages()?;
    run.tell(&["anon 0 4194304", "advise 0 0 4194304 14"]);
    run.after(&["look 0 0 4194304"], &[("cmd_look", Resident, 0)]);
    let report = run.after(&["touch 0 8192 4096"], &[]);
    let own = report.under("cmd_touch", Anon);
    assert!(own == 4 * KIB || own == HUGE, "{own}");
    Ok(())
}

fn madv_collapse(run: &mut Run) -> Done {
    needs_huge_pages()?;
    run.tell(&[
        "anon 0 4194304",
        "touch 0 0 2097152",
        "again 0 2097152 1048576",
    ]);
    run.tell(&["advise 0 0 4194304 14"]);
    run.can("advise 0 0 4194304 25")?;
    collapsed(run);
    Ok(())
}

/// Small pages become huge ones: each keeps its owner, and the added bytes get one.
fn collapsed(run: &mut Run) {
    assert_eq!(anon_huge(run.pid()), 4 * MIB);
    let report = run.check(&[("cmd_touch", Anon, 2 * MIB)]);
    let rest = report.under("cmd_again", Anon) + report.under("cmd_anon", Anon);
    assert_eq!(rest, 2 * MIB, "{}", report.text());
    assert!(report.under("cmd_again", Anon) >= MIB, "{}", report.text());
    // Split again, and not merged by khugepaged: the added bytes still have an owner.
    run.tell(&["advise 0 0 4194304 15"]);
    run.after(
        &["advise 0 0 4096 4", "unmap 0 3145728 1048576"],
        &[("cmd_touch", Anon, 2 * MIB - 4 * KIB)],
    );
}

fn khugepaged(run: &mut Run) -> Done {
    needs_huge_pages()?;
    let _often = set(&format!("{THP}/khugepaged/scan_sleep_millisecs"), "10")?;
    let _pages = set(&format!("{THP}/khugepaged/pages_to_scan"), "4096")?;
    let _soon = set(&format!("{THP}/khugepaged/alloc_sleep_millisecs"), "10")?;
    run.tell(&[
        "anon 0 4194304",
        "touch 0 0 2097152",
        "again 0 2097152 1048576",
    ]);
    run.tell(&["advise 0 0 4194304 14"]);
    let pid = run.pid();
    wait_until(|| anon_huge(pid) == 4 * MIB);
    collapsed(run);
    Ok(())
}

fn large_folios(run: &mut Run) -> Done {
    let _on = set(&format!("{THP}/hugepages-64kB/enabled"), "madvise")?;
    let _no_huge = set(&format!("{THP}/hugepages-2048kB/enabled"), "never")?;
    // Too small for a huge page, which needs 2 MiB in one mapping.
    run.tell(&["anon 0 1048576", "advise 0 0 1048576 14"]);
    let mut expected = 0;
    for at in (0..1024u64).step_by(64) {
        run.tell(&[&format!("touch 0 {} 4096", at * KIB + 8192)]);
        expected += 64 * KIB;
    }
    let report = run.check(&[]);
    let (own, all) = (
        report.under("cmd_touch", Anon),
        report.profile.total.usage.anon,
    );
    assert!(own > expected / 2 && own <= expected, "{own} of {all}");
    let rest = MIB - own;
    run.after(
        &["again 0 0 1048576"],
        &[("cmd_touch", Anon, own), ("cmd_again", Anon, rest)],
    );
    run.after(&["advise 0 4096 8192 4"], &[]);
    Ok(())
}

fn ksm(run: &mut Run) -> Done {
    let dir = "/sys/kernel/mm/ksm";
    let _pages = set(&format!("{dir}/pages_to_scan"), "10000")?;
    let _sleep = set(&format!("{dir}/sleep_millisecs"), "1")?;
    let on = set(&format!("{dir}/run"), "1")?;
    let merged = |pid: Pid| -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/ksm_merging_pages"));
        text.map_or(0, |t| t.trim().parse().unwrap())
    };
    run.tell(&[
        "anon 0 2097152",
        "touch 0 0 2097152",
        "anon 1 2097152",
        "again 1 0 2097152",
    ]);
    if fs::metadata(format!("/proc/{}/ksm_merging_pages", run.pid())).is_err() {
        return Err("the kernel does not say which pages it merged".into());
    }
    run.tell(&["advise 0 0 2097152 12", "advise 1 0 2097152 12"]);
    let pid = run.pid();
    wait_until(|| merged(pid) >= 1000);
    drop(on);
    let apart = 1024_u64.saturating_sub(merged(pid));
    run.check(&[("cmd_touch", Anon, 2 * MIB), ("cmd_again", Anon, 2 * MIB)]);
    // A store makes a copy, which belongs to the writer.
    let report = run.after(&["number 0 0 1048576"], &[("cmd_again", Anon, 2 * MIB)]);
    let (old, new) = (
        report.under("cmd_touch", Anon),
        report.under("cmd_number", Anon),
    );
    assert_eq!(old + new, 2 * MIB, "{}", report.text());
    // Pages that were not merged keep their owner.
    assert!(new >= MIB - apart * 4 * KIB, "{}", report.text());
    // The kernel unmerges them: they have their owners again.
    run.after(&["advise 1 0 2097152 13"], &[("cmd_again", Anon, 2 * MIB)]);
    Ok(())
}

pub fn swap_space() -> Result<Swap, Skip> {
    Swap::on(256 * MIB).ok_or_else(|| "no zram device to swap to".into())
}

fn swap_out_and_in(run: &mut Run) -> Done {
    let _swap = swap_space()?;
    run.tell(&["anon 0 8388608", "number 0 0 8388608"]);
    run.can("advise 0 0 8388608 21")?;
    let report = run.check(&[]);
    let (out, left) = (
        report.under("cmd_number", Swapped),
        report.under("cmd_number", Anon),
    );
    assert!(out >= 4 * MIB && out + left == 8 * MIB, "{}", report.text());
    assert_eq!(report.profile.total.usage.swap, out);
    // Swapped in by a load and by a store: the owner stays.
    run.after(&["look 0 0 4194304"], &[("cmd_look", Resident, 0)]);
    let back = [
        ("cmd_number", Anon, 8 * MIB),
        ("cmd_number", Swapped, 0),
        ("cmd_again", Anon, 0),
    ];
    run.after(&["again 0 0 8388608"], &back);
    // Swapped out and freed: the next function that touches it owns it.
    run.can("advise 0 0 4194304 21")?;
    run.tell(&["advise 0 0 4194304 4"]);
    run.after(
        &["again 0 0 8388608"],
        &[("cmd_number", Anon, 4 * MIB), ("cmd_again", Anon, 4 * MIB)],
    );
    Ok(())
}

fn swap_of_shared_memory(run: &mut Run) -> Done {
    let _swap = swap_space()?;
    run.tell(&["shared 0 4194304", "number 0 0 4194304"]);
    run.can("advise 0 0 4194304 21")?;
    run.check(&[]);
    run.after(&["again 0 0 4194304"], &[("cmd_number", Shmem, 4 * MIB)]);
    Ok(())
}

fn compaction(run: &mut Run) -> Done {
    run.tell(&[
        "anon 0 16777216",
        "touch 0 0 16777216",
        "shared 1 4194304",
        "again 1 0 4194304",
    ]);
    // Holes, so that compaction has pages to move.
    for at in (0..16 * MIB).step_by(16 * 4096) {
        run.tell(&[&format!("advise 0 {at} 4096 4")]);
    }
    let compact = "/proc/sys/vm/compact_memory";
    fs::write(compact, "1").map_err(|e| format!("{compact}: {e}"))?;
    run.check(&[("cmd_touch", Anon, 15 * MIB), ("cmd_again", Shmem, 4 * MIB)]);
    Ok(())
}

fn userfaultfd(run: &mut Run) -> Done {
    run.can("uffd 0 2097152 0")?;
    let report = run.check(&[]);
    let thread = report.under("pthread_create", Anon);
    let bytes = report.under("cmd_uffd", Anon);
    // The rest is the small amount of memory that the userfaultfd thread itself needed. (Without debugging symbols, what
    // the thread does has the name pthread_create, too, and is not cmd_uffd's.)
    assert!(
        bytes >= 2 * MIB && bytes < 2 * MIB + 64 * KIB + thread,
        "{}",
        report.text()
    );
    Ok(())
}

fn hugetlb(run: &mut Run) -> Done {
    let _pages = set(
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "8",
    )?;
    run.can("hugetlb 0 8388608")?;
    let owners = [("cmd_touch", Hugetlb, 8 * MIB), ("cmd_touch", Resident, 0)];
    run.after(&["touch 0 0 8388608"], &owners);
    run.after(&["unmap 0 0 8388608"], &[("cmd_touch", Hugetlb, 0)]);
    Ok(())
}
