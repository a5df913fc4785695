//! memprof with large targets: duration of a scan, how long the target waits, and the size of the page
//! ledger.
//!
//! ```text
//! cargo bench --bench scale [-- NAME…]      (as root)
//! ```
//!
//! The target has 16 GiB, or less if the machine does not have that much free; the output says so.

mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use memprof_sys::ids::Pid;
use memprof_sys::residency::{Classifier, Method, Scanner, add_run, figures, proc_maps};
use memprof_sys::usage::Usage;
use support::counters::{map_memory, memory_in_pieces_of_4_kib};
use support::pairs::{Aim, Pairs, is_short, median, verdict};
use support::profiler::Profiler;
use support::workload::{Workload, compile, figure};
use support::{Bench, Measurement, milliseconds};

const ROUNDS: usize = 7;
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// Limit of the target's wait, in ms.
const STALL: Aim = Aim::AtMost(15.0);
/// Memory left to other processes on the machine, in MiB.
const RESERVE: u64 = 3 << 10;

const MEASUREMENTS: [Measurement; 2] = [("large", large), ("mappings", many_mappings)];

fn main() -> ExitCode {
    let bench = Bench::prepare("bench-workloads", compile);
    Bench::main(bench, &MEASUREMENTS)
}

/// 8 GiB of 4 KiB pages and 8 GiB of huge ones; in a short run an eighth of that.
fn large(bench: &Bench) -> Result<()> {
    let wanted = if is_short() { 2 << 10 } else { 16 << 10 };
    let free = available_mib()?.saturating_sub(RESERVE);
    let small = free.min(wanted / 2);
    let huge = free.min(wanted) - small;
    if small + huge < wanted {
        println!("  the machine has only {free} MiB to spare: less than {wanted} MiB");
    }
    let before = memory_in_pieces_of_4_kib()?;
    let args = ["--mib", &small.to_string(), "--huge-mib", &huge.to_string()];
    let mut target = Target::start(bench, &args)?;
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
    target.times(Aim::AtMost(1.3))?;
    target.waits()?;
    let taken = memory_in_pieces_of_4_kib()?.saturating_sub(before);
    target.ledger(held.anonymous, taken)?;
    target.end()
}

/// 10,000 mappings that the kernel cannot merge with their neighbours.
fn many_mappings(bench: &Bench) -> Result<()> {
    const MAPPINGS: usize = 10_000;
    let mut target = Target::start(bench, &["--mappings", &MAPPINGS.to_string()])?;
    let found = proc_maps::read(target.pid, &mut Classifier::new())?.len();
    ensure!(found >= MAPPINGS, "the workload has {found} mappings");
    println!("a target of {found} mappings");
    target.times(Aim::None)?;
    target.waits()?;
    target.end()
}

/// A workload that keeps taking its mmap lock, and a memprof that was attached while it filled its memory.
struct Target {
    workload: Workload,
    memprof: Profiler,
    pid: Pid,
}

impl Target {
    fn start(bench: &Bench, args: &[&str]) -> Result<Target> {
        let mut workload = bench.start("stall", args)?;
        let memprof = Profiler::attach(workload.pid(), &[])?;
        workload.go()?;
        Ok(Target {
            pid: Pid(workload.pid()),
            workload,
            memprof,
        })
    }

    /// Scans by both methods and a complete report, compared with `smaps_rollup`.
    fn times(&self, aim: Aim) -> Result<()> {
        let ms = |name: &str, aim| Pairs::new(format!("  {name}, smaps_rollup"), "ms", aim);
        let mut scans = ms("scan", aim);
        let mut pages = ms("scan page by page", Aim::None);
        let mut reports = ms("short report", Aim::None);
        for _ in 0..ROUNDS {
            let rollup = milliseconds(|| self.roll_up())?;
            scans.add(rollup, milliseconds(|| self.scan(Method::Auto))?);
            pages.add(rollup, milliseconds(|| self.scan(Method::Pagemap))?);
            self.memprof.age();
            reports.add(rollup, milliseconds(|| self.report())?);
        }
        println!("{}\n{}\n{}", scans.row(), pages.row(), reports.row());
        Ok(())
    }

    /// The target's longest wait for its mmap lock or for a page.
    fn waits(&mut self) -> Result<()> {
        let pause = |_: &Target| {
            std::thread::sleep(Duration::from_millis(100));
            Ok(())
        };
        println!("  longest wait of the target, ms             median    most of {ROUNDS}");
        self.longest("left alone", pause, Aim::None)?;
        self.longest("during a short report", Target::report, STALL)?;
        let by = |method| move |target: &Target| target.scan(method);
        self.longest("during a scan", by(Method::Auto), STALL)?;
        self.longest("during a scan page by page", by(Method::Pagemap), STALL)?;
        self.longest("while smaps_rollup is read", Target::roll_up, Aim::None)
    }

    fn longest(
        &mut self,
        name: &str,
        work: impl Fn(&Target) -> Result<()>,
        aim: Aim,
    ) -> Result<()> {
        let mut longest = Vec::new();
        for _ in 0..ROUNDS {
            self.memprof.age();
            // Discard the maxima so far.
            self.workload.go()?;
            work(self)?;
            longest.push(self.longest_wait()?);
        }
        let most = longest.iter().copied().fold(0.0, f64::max);
        let median = median(longest);
        println!(
            "    {name:<38} {median:>8.2}  {most:>8.2}  {}",
            verdict(median, aim)
        );
        Ok(())
    }

    /// The longest wait in ms since the last answer. A round that began during the work may end later, on a
    /// busy machine much later: only after the second answered round it is known that all of them have ended.
    fn longest_wait(&mut self) -> Result<f64> {
        let began = Instant::now();
        let (mut rounds, mut longest) = (0.0, 0.0_f64);
        while rounds < 2.0 {
            ensure!(
                began.elapsed() < Duration::from_secs(60),
                "the target took its lock only {rounds} times in a minute"
            );
            let waits = self.workload.go()?;
            for operation in ["map_ms", "fault_ms"] {
                longest = longest.max(figure(&waits, operation)?);
            }
            rounds += figure(&waits, "rounds")?;
        }
        Ok(longest)
    }

    /// The ledger's size compared with the target's memory.
    fn ledger(&self, resident: u64, taken: u64) -> Result<()> {
        let percent = |bytes: u64| 100.0 * bytes as f64 / resident as f64;
        let said = map_memory(self.memprof.pid(), &["pages"])?;
        println!(
            "  page ledger, % of {:.1} GiB: {:.3} in pieces of 4 KiB  {}; {:.3} by the kernel's count",
            resident as f64 / GIB,
            percent(taken),
            verdict(percent(taken), Aim::AtMost(0.2)),
            percent(said)
        );
        Ok(())
    }

    fn roll_up(&self) -> Result<()> {
        figures::rollup(self.pid)?;
        Ok(())
    }

    fn report(&self) -> Result<()> {
        self.memprof.short("total").map(drop)
    }

    fn scan(&self, method: Method) -> Result<()> {
        let mut scanner = Scanner::open(self.pid, method)?;
        let mut total = Usage::default();
        let vmas = proc_maps::read(self.pid, &mut Classifier::new())?;
        scanner.scan(&vmas, &mut |_, run| add_run(&mut total, run), &mut || ())?;
        ensure!(total.anon > 0, "the scan found nothing");
        Ok(())
    }

    fn end(self) -> Result<()> {
        self.workload.end()?;
        self.memprof.end()
    }
}

/// Free memory of this machine and container.
fn available_mib() -> Result<u64> {
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
    Ok(limits.fold(free, u64::min))
}
