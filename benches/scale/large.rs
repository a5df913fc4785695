//! A target of 16 GiB: duration of a scan, how long the target waits, and the size of the page ledger.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use memprof_sys::residency::{Method, figures};

use crate::support::counters::{map_memory, memory_in_pieces_of_4_kib};
use crate::support::pairs::{Aim, Pairs, is_short, median, verdict};
use crate::support::{Bench, milliseconds};
use crate::target::{Target, rounds};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// Limit of the target's wait, in ms.
const STALL: Aim = Aim::AtMost(15.0);
/// Memory left to other processes on the machine, in MiB.
const RESERVE: u64 = 6 << 10;

/// 8 GiB of 4 KiB pages and 8 GiB of huge ones; in a short run an eighth of that.
pub fn large(bench: &Bench) -> Result<()> {
    let wanted = if is_short() { 2 << 10 } else { 16 << 10 };
    let free = spare_mib()?;
    let small = free.min(wanted / 2);
    let huge = free.min(wanted) - small;
    if small + huge < wanted {
        println!("  the machine has only {free} MiB to spare: less than {wanted} MiB");
    }
    let before = memory_in_pieces_of_4_kib()?;
    let args = ["--mib", &small.to_string(), "--huge-mib", &huge.to_string()];
    let mut target = Target::start(bench, &args, &[])?;
    let held = figures::rollup(target.pid)?;
    ensure!(
        held.anonymous >= (small + huge) << 20,
        "the workload holds {held:?}"
    );
    let what = format!(
        "{:.1} GiB, {:.1} of them huge",
        held.anonymous as f64 / GIB,
        held.anon_huge as f64 / GIB
    );
    println!("a target of {what}");
    times(&target, Aim::AtMost(1.3))?;
    waits(&mut target)?;
    let taken = memory_in_pieces_of_4_kib()?.saturating_sub(before);
    ledger(&target, held.anonymous, taken)?;
    target.end()
}

/// Scans by both methods and a complete report, compared with `smaps_rollup`.
pub fn times(target: &Target, aim: Aim) -> Result<()> {
    let ms = |name: &str, aim| Pairs::new(format!("  {name}, smaps_rollup"), "ms", aim);
    let mut scans = ms("scan", aim);
    let mut pages = ms("scan page by page", Aim::None);
    let mut reports = ms("short report", Aim::None);
    for _ in 0..rounds() {
        let rollup = milliseconds(|| target.roll_up())?;
        scans.add(rollup, milliseconds(|| target.scan(Method::Auto))?);
        pages.add(rollup, milliseconds(|| target.scan(Method::Pagemap))?);
        target.memprof.age();
        reports.add(rollup, milliseconds(|| target.report())?);
    }
    println!("{}\n{}\n{}", scans.row(), pages.row(), reports.row());
    Ok(())
}

/// The target's longest wait for its mmap lock or for a page.
pub fn waits(target: &mut Target) -> Result<()> {
    let pause = |_: &Target| {
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    };
    println!(
        "  longest wait of the target, ms             median    most of {}",
        rounds()
    );
    longest(target, "left alone", pause, Aim::None)?;
    longest(target, "during a short report", Target::report, STALL)?;
    let by = |method| move |target: &Target| target.scan(method);
    longest(target, "during a scan", by(Method::Auto), STALL)?;
    let by_page = by(Method::Pagemap);
    longest(target, "during a scan page by page", by_page, STALL)?;
    let roll_up = Target::roll_up;
    longest(target, "while smaps_rollup is read", roll_up, Aim::None)
}

fn longest(
    target: &mut Target,
    name: &str,
    work: impl Fn(&Target) -> Result<()>,
    aim: Aim,
) -> Result<()> {
    let mut longest = Vec::new();
    for _ in 0..rounds() {
        target.memprof.age();
        // Discard the maxima so far.
        target.workload.go()?;
        work(target)?;
        longest.push(target.longest_wait()?);
    }
    let most = longest.iter().copied().fold(0.0, f64::max);
    let median = median(longest);
    println!(
        "    {name:<38} {median:>8.2}  {most:>8.2}  {}",
        verdict(median, aim)
    );
    Ok(())
}

/// The ledger's size compared with the target's memory.
fn ledger(target: &Target, resident: u64, taken: u64) -> Result<()> {
    let percent = |bytes: u64| 100.0 * bytes as f64 / resident as f64;
    let said = map_memory(target.memprof.pid(), &["pages"])?;
    println!(
        "  page ledger, % of {:.1} GiB: {:.3} in pieces of 4 KiB  {}; {:.3} by the kernel's count",
        resident as f64 / GIB,
        percent(taken),
        verdict(percent(taken), Aim::AtMost(0.2)),
        percent(said)
    );
    Ok(())
}

/// Free memory of this machine and container beyond the reserve, in MiB.
pub fn spare_mib() -> Result<u64> {
    const LIMITS: [&str; 2] = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let limits = LIMITS.iter().filter_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().parse::<u64>().ok()? >> 20)
    });
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let free = kib.context("/proc/meminfo has no MemAvailable")? / 1024;
    Ok(limits.fold(free, u64::min).saturating_sub(RESERVE))
}
