//! Processes that share pages: copy-on-write after fork, with parents and children separately and together.

use crate::live::Report;
use crate::run::{MIB, Run};
use crate::{Scenario, Skip, scenario};
use memprof_profile::Kind::{Anon, Shmem};

pub const SCENARIOS: &[Scenario] = &[
    scenario!(fork_parent_alone),
    scenario!(fork_both, forks: true),
    scenario!(fork_and_the_parent_drops, forks: true),
    scenario!(fork_and_the_parent_drops_much, forks: true),
    scenario!(fork_of_shared_memory, forks: true),
];

type Done = Result<(), Skip>;

/// The workload's children, after memprof follows them.
fn follow_children(run: &mut Run) {
    run.pids = run.family();
}

/// The kernel may copy a page that is no longer shared: one of its per-CPU batches may still hold a
/// reference.
const COPIED: u64 = 256 * 1024;

/// The bytes that the parent's second store owns in addition to `least`, the copies that it certainly made.
#[track_caller]
fn copies(report: &Report, least: u64) -> u64 {
    let copied = report.under("cmd_again", Anon);
    assert!(
        (least..=least + COPIED).contains(&copied),
        "{}",
        report.text()
    );
    copied
}

fn fork_parent_alone(run: &mut Run) -> Done {
    run.tell(&["anon 0 8388608", "touch 0 0 8388608", "fork 0 0 2097152"]);
    let all = [("cmd_touch", Anon, 8 * MIB), ("child_touches", Anon, 0)];
    run.check(&all);
    // The child has its own copy of the first quarter, so the parent's store copies nothing there; it copies the
    // second quarter.
    for commands in [&["again 0 0 4194304"][..], &["end"], &["again 0 0 8388608"]] {
        let report = run.after(commands, &[]);
        let copied = copies(&report, 2 * MIB);
        report.must_hold("cmd_touch", Anon, 8 * MIB - copied);
    }
    Ok(())
}

fn fork_both(run: &mut Run) -> Done {
    run.tell(&["anon 0 8388608", "touch 0 0 8388608", "fork 0 0 2097152"]);
    follow_children(run);
    run.begin_anew_for_children();
    let owners = [
        ("cmd_touch", Anon, 14 * MIB),
        ("child_touches", Anon, 2 * MIB),
    ];
    run.check(&owners);
    run.tell(&["again 0 0 4194304"]);
    let report = run.check(&[("child_touches", Anon, 2 * MIB)]);
    let copied = copies(&report, 2 * MIB);
    report.must_hold("cmd_touch", Anon, 14 * MIB - copied);
    run.tell(&["end"]);
    follow_children(run);
    run.wait_for_processes();
    run.check(&[
        ("cmd_touch", Anon, 8 * MIB - copied),
        ("cmd_again", Anon, copied),
    ]);
    Ok(())
}

/// The child's pages keep their owner after the parent replaces its own at the same addresses.
fn fork_and_the_parent_drops(run: &mut Run) -> Done {
    run.tell(&["anon 0 8388608", "touch 0 0 8388608", "fork 0 0 4096"]);
    follow_children(run);
    run.begin_anew_for_children();
    run.tell(&[
        "advise 0 1052672 2097152 4",
        "again 0 0 8388608",
        "fork 0 0 8192",
    ]);
    follow_children(run);
    run.begin_anew_for_children();
    // The first child has all pages but one from the parent's first store, the second child from the parent's
    // second store.
    let page = 4096;
    let owners = [
        ("child_touches", Anon, 3 * page),
        ("cmd_touch", Anon, 8 * MIB - page),
        ("cmd_again", Anon, 16 * MIB - 2 * page),
    ];
    let report = run.sums();
    for (function, kind, bytes) in owners {
        let found = report.under(function, kind);
        // The parent's first page is no longer shared: it was not copied and stays cmd_touch's.
        let slack = 2 * page;
        assert!(
            found.abs_diff(bytes) <= slack,
            "{function}: {found}, not {bytes}\n{}",
            report.text()
        );
    }
    run.tell(&["unmap 0 0 8388608"]);
    let report = run.sums();
    assert!(
        report.under("cmd_touch", Anon) >= 8 * MIB - 2 * page,
        "{}",
        report.text()
    );
    assert!(
        report.under("cmd_again", Anon) >= 8 * MIB - 4 * page,
        "{}",
        report.text()
    );
    run.tell(&["end", "end"]);
    follow_children(run);
    run.wait_for_processes();
    run.check(&[("cmd_touch", Anon, 0)]);
    Ok(())
}

/// The parent frees more than 8 GiB at once, including the pages that the child shares.
fn fork_and_the_parent_drops_much(run: &mut Run) -> Done {
    const LEN: u64 = 10 << 30;
    const FAR: u64 = 9 << 30;
    run.tell(&[
        &format!("reserve 0 {LEN}"),
        &format!("touch 0 {FAR} 8388608"),
        "fork 0 0 4096",
    ]);
    follow_children(run);
    run.begin_anew_for_children();
    let owners = |touch, again| {
        [
            ("child_touches", Anon, 4096),
            ("cmd_touch", Anon, touch),
            ("cmd_again", Anon, again),
        ]
    };
    run.check(&owners(16 * MIB, 0));
    run.after(&[&format!("advise 0 0 {LEN} 4")], &owners(8 * MIB, 0));
    let again = format!("again 0 {FAR} 8388608");
    run.after(&[&again], &owners(8 * MIB, 8 * MIB));
    run.after(&[&format!("unmap 0 0 {LEN}")], &owners(8 * MIB, 0));
    run.tell(&["end"]);
    Ok(())
}

fn fork_of_shared_memory(run: &mut Run) -> Done {
    run.tell(&["shared 0 4194304", "touch 0 0 2097152", "fork 0 0 4194304"]);
    follow_children(run);
    run.begin_anew_for_children();
    let report = run.check(&[]);
    let (old, new) = (
        report.under("cmd_touch", Shmem),
        report.under("child_touches", Shmem),
    );
    assert_eq!(old + new, 6 * MIB, "{}", report.text());
    run.tell(&["end"]);
    follow_children(run);
    run.wait_for_processes();
    run.check(&[("cmd_touch", Shmem, 2 * MIB)]);
    Ok(())
}
