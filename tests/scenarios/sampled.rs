//! Scenarios in which only a share of the faults has its stack walked: the sums stay those of the kernel, and a
//! function has about the bytes that it touched.

use crate::paging::swap_space;
use crate::random::sequences;
use crate::run::{KIB, MIB, Run};
use crate::{BUDGET, SAMPLED, Scenario, Skip, scenario};
use memprof_profile::Kind::Anon;

pub const SCENARIOS: &[Scenario] = &[
    scenario!(shares, forks: false, stacks: SAMPLED),
    scenario!(copies_after_fork, forks: true, stacks: SAMPLED),
    scenario!(swapped_before_sampled, forks: false, stacks: SAMPLED),
    scenario!(random_sampled, forks: false, stacks: SAMPLED),
    scenario!(random_forks_sampled, forks: true, stacks: SAMPLED),
    scenario!(budget, forks: true, stacks: BUDGET),
    scenario!(random_forks_budget, forks: true, stacks: BUDGET),
];

/// Faults that are walked in any case, with a reserve.
const FIRST: u64 = 20_000 * 4 * KIB;

/// Touches so many small pages that from now on a share of the faults is walked.
fn use_up_the_first_walks(run: &mut Run) {
    run.tell(&[
        &format!("anon 7 {FIRST}"),
        &format!("advise 7 0 {FIRST} 15"),
        &format!("touch 7 0 {FIRST}"),
        &format!("unmap 7 0 {FIRST}"),
    ]);
    run.forget_said();
}

/// Two functions touch a part each.
fn shares(run: &mut Run) -> Result<(), Skip> {
    use_up_the_first_walks(run);
    let unwalked = run.sums().profile.faults.unwrap().unwalked;
    let (whole, part) = (32 * MIB, 12 * MIB);
    run.tell(&[
        &format!("anon 0 {whole}"),
        &format!("advise 0 0 {whole} 15"),
        &format!("touch 0 0 {part}"),
        &format!("number 0 {part} {}", whole - part),
    ]);
    let report = run.sums();
    let faults = report.profile.faults.unwrap();
    let pages = whole / (4 * KIB);
    let share = (faults.unwalked - unwalked) as f64 / pages as f64;
    assert!((0.85..0.90).contains(&share), "{share} went unwalked");
    // One of eight faults is a sample: the standard error is 1.3 % of the whole.
    for (function, bytes) in [("cmd_touch", part), ("cmd_number", whole - part)] {
        let found = report.under(function, Anon);
        let off = found.abs_diff(bytes);
        assert!(off <= whole / 15, "{function}: {found}\n{}", report.text());
    }
    Ok(())
}

/// Whoever brings a page back from swap does not own it, if its first fault was not walked either.
fn swapped_before_sampled(run: &mut Run) -> Result<(), Skip> {
    let _swap = swap_space()?;
    // The report lets memprof know of it.
    run.sums();
    use_up_the_first_walks(run);
    let bytes = 32 * MIB;
    run.tell(&[
        &format!("anon 0 {bytes}"),
        &format!("advise 0 0 {bytes} 15"),
        &format!("number 0 0 {bytes}"),
    ]);
    run.can(&format!("advise 0 0 {bytes} 21"))?;
    run.tell(&[&format!("again 0 0 {bytes}")]);
    let report = run.sums();
    let returned = report.under("cmd_again", Anon);
    let owned = report.under("cmd_number", Anon);
    assert!(
        owned >= bytes && returned <= 64 * 4 * KIB,
        "{owned} and {returned}\n{}",
        report.text()
    );
    Ok(())
}

/// A page that a child copies in an unwalked fault is not its parent's.
fn copies_after_fork(run: &mut Run) -> Result<(), Skip> {
    use_up_the_first_walks(run);
    let bytes = 16 * MIB;
    run.tell(&[
        &format!("anon 0 {bytes}"),
        &format!("advise 0 0 {bytes} 15"),
        &format!("touch 0 0 {bytes}"),
        &format!("fork 0 0 {bytes}"),
    ]);
    run.pids = run.family();
    run.wait_for_processes();
    let report = run.sums();
    let child = report.report_of(run.pids[1]);
    let copied = child.under("child_touches", Anon);
    assert!(copied >= bytes - 64 * 4 * KIB, "{copied}\n{}", child.text());
    run.tell(&["end"]);
    Ok(())
}

fn random_sampled(run: &mut Run) -> Result<(), Skip> {
    use_up_the_first_walks(run);
    sequences(run, false)
}

fn random_forks_sampled(run: &mut Run) -> Result<(), Skip> {
    use_up_the_first_walks(run);
    sequences(run, true)
}

/// A program that does nothing but fault exceeds the budget; of one that seldom faults, most stacks are walked.
fn budget(run: &mut Run) -> Result<(), Skip> {
    use_up_the_first_walks(run);
    let bytes = 256 * MIB;
    run.tell(&[
        &format!("anon 0 {bytes}"),
        &format!("advise 0 0 {bytes} 15"),
        &format!("touch 0 0 {bytes}"),
    ]);
    let busy = run.sums().profile.faults.unwrap();
    let walked = busy.walked() as f64 / busy.all as f64;
    assert!((0.05..0.6).contains(&walked), "{busy:?}");
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(300));
        run.tell(&[
            &format!("anon 1 {}", 8 * KIB),
            &format!("touch 1 0 {}", 8 * KIB),
        ]);
        run.tell(&["unmap 1 0 8192"]);
        run.forget_said();
    }
    let rare = run.sums().profile.faults.unwrap();
    let (all, unwalked) = (rare.all - busy.all, rare.unwalked - busy.unwalked);
    assert!(all >= 40 && unwalked < all / 2, "{unwalked} of {all}");
    Ok(())
}

fn random_forks_budget(run: &mut Run) -> Result<(), Skip> {
    use_up_the_first_walks(run);
    sequences(run, true)
}
