//! Processes that share pages: fork with copy on write, parents and children apart and together.

use ::memprof::profile::Kind::{Anon, Shmem};

use crate::run::{MIB, Run};
use crate::{Scenario, Skip, scenario};

pub const SCENARIOS: &[Scenario] = &[
    scenario!(fork_parent_alone),
    scenario!(fork_both, forks: true),
    scenario!(fork_of_shared_memory, forks: true),
];

type Done = Result<(), Skip>;

/// The workload's children, which are followed from now on.
fn follow_children(run: &mut Run) {
    run.pids = run.family();
}

fn fork_parent_alone(run: &mut Run) -> Done {
    run.tell(&["anon 0 8388608", "touch 0 0 8388608", "fork 0 0 2097152"]);
    let all = [("cmd_touch", Anon, 8 * MIB), ("child_touches", Anon, 0)];
    run.check(&all);
    // The child has the first quarter for itself, so that the parent's store copies nothing there;
    // of the second it makes copies.
    let copied = [("cmd_touch", Anon, 6 * MIB), ("cmd_again", Anon, 2 * MIB)];
    run.after(&["again 0 0 4194304"], &copied);
    run.after(&["end"], &copied);
    run.after(&["again 0 0 8388608"], &copied);
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
    let owners = [
        ("cmd_again", Anon, 2 * MIB),
        ("child_touches", Anon, 2 * MIB),
    ];
    run.check(&owners);
    run.tell(&["end"]);
    follow_children(run);
    run.wait_for_processes();
    run.check(&[("cmd_touch", Anon, 6 * MIB), ("cmd_again", Anon, 2 * MIB)]);
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
