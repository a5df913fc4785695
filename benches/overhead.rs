//! memprof's cost for its target, for other processes, and its own.
//!
//! ```text
//! cargo bench [-- NAME…]      (as root; every measurement whose name contains one of the NAMEs)
//! ```
//!
//! Runs without and with memprof alternate, and the figure is the median of the pairs' ratios, which
//! cancels a shared machine's slow changes. If there are two CPUs, the workload has its own.
//! The exit status is 0 if workloads and memprof worked, nothing was lost, and every page fault of the
//! workload was counted. A missed aim is printed, but is not a failure.

mod support;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::statfs::{FsType, statfs};

use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;
use support::counters::{FaultCounter, bpf_memory};
use support::pairs::{Aim, Pairs, interleave, is_short, median, number, verdict};
use support::profiler::Profiler;
use support::skip::skip_named;
use support::workload::{Workload, compile, figure};
use support::{Bench, Cpus, Measurement, milliseconds};

/// Faults outside the workload's timed part that memprof may count: reading a line, printing one.
const OTHER_FAULTS: u64 = 64;
const MIB: f64 = 1024.0 * 1024.0;

const MEASUREMENTS: [Measurement; 11] = [
    ("noise", the_same_twice),
    ("touch-fp", touch_with_stacks),
    ("touch-off", touch_without_stacks),
    ("touch-auto", touch_within_the_budget),
    ("touch-threads", touch_by_threads),
    ("read", read_into_the_cache),
    ("unrelated-faults", unrelated_faults),
    ("unrelated-syscalls", unrelated_syscalls),
    ("idle", memprof_beside_an_idle_target),
    ("busy", memprof_beside_a_busy_target),
    ("report", time_of_a_report),
];

/// Number of pairs per ratio.
fn usual_pairs() -> usize {
    number(7, 7)
}

/// Number of pairs per ratio that is close to 1.
fn close_pairs() -> usize {
    number(9, 9)
}

/// Seconds over which memprof's own CPU time is measured.
fn seconds(usual: u64) -> Duration {
    Duration::from_secs(if is_short() { 2 } else { usual })
}

fn main() -> ExitCode {
    let bench = Bench::prepare("bench-workloads", compile);
    if let Ok(Bench { cpus, .. }) = &bench {
        match cpus {
            Cpus { workload, memprof } if workload == memprof => {
                println!("one CPU only: the workload and memprof share it");
            }
            Cpus { workload, memprof } => {
                println!("the workload has CPU {workload}, memprof CPU {memprof}");
            }
        }
    }
    Bench::main(bench, &MEASUREMENTS)
}

const TOUCH: [&str; 5] = ["--start-on-stdin", "--mib", "256", "--depth", "22"];

fn touch_with_stacks(bench: &Bench) -> Result<()> {
    let name = "page touch, all stacks, by frame pointers";
    let options = ["--stacks", "all", "--unwind", "fp"];
    touch(bench, &TOUCH, &options, name, Aim::AtMost(1.35)).map(drop)
}

fn touch_without_stacks(bench: &Bench) -> Result<()> {
    let name = "page touch, --unwind off";
    let options = ["--stacks", "all", "--unwind", "off"];
    touch(bench, &TOUCH, &options, name, Aim::AtMost(1.20))?;
    let pairs = Pairs::new("page touch, --stacks off", "ns/page", Aim::AtMost(1.12));
    let options = ["--stacks", "off"];
    bench
        .pairs("touch", &TOUCH, &options, usual_pairs(), pairs)
        .map(drop)
}

/// So many pages that few of them are among the first faults, which are always walked.
fn touch_within_the_budget(bench: &Bench) -> Result<()> {
    let args = ["--start-on-stdin", "--mib", "1024", "--depth", "22"];
    let name = "page touch, --stacks auto";
    touch(bench, &args, &[], name, Aim::AtMost(1.15)).map(drop)
}

/// Two threads fault at once: memprof may cost each of them as much as one thread alone.
fn touch_by_threads(bench: &Bench) -> Result<()> {
    if bench.cpus.workload == bench.cpus.memprof {
        skip_named("bench overhead: two threads", "there is one CPU only");
        return Ok(());
    }
    let mut ratios = [0.0; 2];
    for (threads, ratio) in ["1", "2"].into_iter().zip(&mut ratios) {
        let args = ["--start-on-stdin", "--mib", "256", "--threads", threads];
        let name = format!("page touch, all stacks, {threads} threads");
        *ratio = touch(bench, &args, &["--stacks", "all"], &name, Aim::None)?;
    }
    let scaling = ratios[1] / ratios[0];
    println!(
        "  two threads against one: {scaling:.2}  {}",
        verdict(scaling, Aim::AtMost(1.05))
    );
    Ok(())
}

/// The noise of this machine: ratios of pairs without memprof.
fn the_same_twice(bench: &Bench) -> Result<()> {
    let name = "noise: page touch twice without memprof";
    let mut figures = [Pairs::new(name, "ns/page", Aim::None)];
    let run = || -> Result<f64> {
        let mut workload = bench.start("touch", &TOUCH)?;
        let figures = workload.go()?;
        workload.end()?;
        figure(&figures, "ns_per_page")
    };
    Pairs::settle(&mut figures, usual_pairs(), |[pairs]| {
        pairs.add(run()?, run()?);
        Ok(())
    })?;
    println!("{}", figures[0].row());
    Ok(())
}

/// A target that touches pages as fast as it can. Returns the ratio.
fn touch(bench: &Bench, args: &[&str], options: &[&str], name: &str, aim: Aim) -> Result<f64> {
    let mut figures = [
        Pairs::new(name, "ns/page", aim),
        Pairs::new("  the same with mmap and munmap", "ns/page", Aim::None),
    ];
    Pairs::settle(&mut figures, usual_pairs(), |[stores, whole]| {
        let mut workload = bench.start("touch", args)?;
        let without = workload.go()?;
        workload.end()?;

        let mut workload = bench.start("touch", args)?;
        let memprof = Profiler::attach(workload.pid(), options)?;
        let counter = FaultCounter::open(memprof.pid())?;
        let before = counter.read()?;
        let with = workload.go()?;
        let counted = counter.read()? - before;
        let made = figure(&with, "faults")? as u64;
        ensure!(
            counted >= made && counted <= made + OTHER_FAULTS,
            "the workload made {made} page faults, memprof counted {counted}"
        );
        workload.end()?;
        stores.add_own(memprof.cpu_time()?);
        memprof.end()?;
        for (pairs, figure_name) in [(stores, "ns_per_page"), (whole, "ns_per_page_with_munmap")] {
            pairs.add(figure(&without, figure_name)?, figure(&with, figure_name)?);
        }
        Ok(())
    })?;
    figures.iter().for_each(|pairs| println!("{}", pairs.row()));
    Ok(figures[0].ratio())
}

/// A target that reads a file that is not cached.
fn read_into_the_cache(bench: &Bench) -> Result<()> {
    const FILE_MIB: u64 = 64;
    let path = bench.programs.join("file-to-read");
    let file = path.to_str().context("the target directory is not UTF-8")?;
    let mib = FILE_MIB.to_string();
    let args = [file, "--start-on-stdin", "--mib", &mib, "--passes", "3"];
    // Creates the file, so that the first pair is like the others.
    let mut workload = bench.start("readfile", &args)?;
    workload.go()?;
    workload.end()?;
    let kind = file_system(&path)?;
    ensure!(kind != "tmpfs", "{file} is on a tmpfs: no page cache");
    let name = format!("page-cache reads ({kind})");
    let mut figures = [Pairs::new(name, "ns/page", Aim::AtMost(1.08))];
    Pairs::settle(&mut figures, usual_pairs(), |[pairs]| {
        let mut workload = bench.start("readfile", &args)?;
        let without = workload.go()?;
        workload.end()?;

        let mut workload = bench.start("readfile", &args)?;
        let memprof = Profiler::attach(workload.pid(), &[])?;
        let with = workload.go()?;
        let (cached, whole) = (memprof.short("cache")?, FILE_MIB * 1024);
        ensure!(
            cached >= whole && cached <= whole + 1024,
            "{whole} KiB were read into the page cache, memprof reports {cached} KiB"
        );
        workload.end()?;
        pairs.add_own(memprof.cpu_time()?);
        memprof.end()?;
        let ns = "ns_per_page";
        pairs.add(figure(&without, ns)?, figure(&with, ns)?);
        Ok(())
    })?;
    std::fs::remove_file(&path)?;
    println!("{}", figures[0].row());
    Ok(())
}

fn file_system(path: &Path) -> Result<&'static str> {
    const KNOWN: [(i64, &str); 5] = [
        (libc::EXT4_SUPER_MAGIC, "ext4"),
        (libc::XFS_SUPER_MAGIC, "xfs"),
        (libc::BTRFS_SUPER_MAGIC, "btrfs"),
        (libc::OVERLAYFS_SUPER_MAGIC, "overlayfs"),
        (libc::TMPFS_MAGIC, "tmpfs"),
    ];
    let FsType(magic) = statfs(path)?.filesystem_type();
    let known = KNOWN.iter().find(|(number, _)| *number == magic);
    Ok(known.map_or("a file system of another kind", |(_, name)| name))
}

/// A process that memprof does not follow, next to a sleeping target.
fn unrelated_faults(bench: &Bench) -> Result<()> {
    let name = "unrelated process: page touch and free";
    let mut pairs = Pairs::new(name, "ns/page", Aim::AtMost(1.04));
    let run = || -> Result<f64> {
        let mut workload = bench.start("touch", &TOUCH)?;
        let figures = workload.go()?;
        workload.end()?;
        figure(&figures, "ns_per_page_with_munmap")
    };
    beside_an_idle_target(bench, close_pairs(), |half| {
        let figure = run()?;
        let Half(Some(without)) = half else {
            return Ok(Some(figure));
        };
        pairs.add(without, figure);
        Ok(None)
    })?;
    println!("{}", pairs.row());
    Ok(())
}

/// The result of the first half of a pair; `None` during the first half.
struct Half<T>(Option<T>);

/// Calls `half` alternately without memprof and with memprof attached to an idle target.
fn beside_an_idle_target<T>(
    bench: &Bench,
    pairs: usize,
    mut half: impl FnMut(Half<T>) -> Result<Option<T>>,
) -> Result<()> {
    let idle = bench.start("touch", &TOUCH)?;
    interleave(pairs, || {
        let without = half(Half(None))?;
        let memprof = Profiler::attach(idle.pid(), &[])?;
        half(Half(without))?;
        memprof.end()
    })?;
    idle.end()
}

/// Tracepoints of system calls put every process on the kernel's slow path.
fn unrelated_syscalls(bench: &Bench) -> Result<()> {
    let args = ["--start-on-stdin", "--calls", "500000"];
    let mut getppid = Pairs::new("unrelated process: getppid", "ns/call", Aim::None);
    let mut read = Pairs::new("unrelated process: read of 0 bytes", "ns/call", Aim::None);
    beside_an_idle_target(bench, close_pairs(), |half| {
        let mut workload = bench.start("syscalls", &args)?;
        let figures = workload.go()?;
        workload.end()?;
        let Half(Some(without)) = half else {
            return Ok(Some(figures));
        };
        for (pairs, name) in [(&mut getppid, "getppid_ns"), (&mut read, "read_ns")] {
            pairs.add(figure(&without, name)?, figure(&figures, name)?);
        }
        Ok(None)
    })?;
    println!("{}\n{}", getppid.row(), read.row());
    Ok(())
}

/// A target with 256 MiB under 1,024 stacks; checks that all its memory has a stack.
///
/// A busy target has up to `moving` KiB unmapped during a scan.
fn with_stacks(bench: &Bench, args: &[&str], moving: u64) -> Result<(Workload, Profiler)> {
    // The program's own data adds one or two pages.
    const MIB: u64 = 256;
    let mut workload = bench.start("stacks", args)?;
    let memprof = Profiler::attach(workload.pid(), &[])?;
    workload.go()?;
    let tree = memprof.get("/v1/tree?threshold=0")?;
    let tree: serde_json::Value = serde_json::from_slice(&tree)?;
    let own = held_by(&tree, "hold_part");
    ensure!(
        (MIB * 1024 - moving..=MIB * 1024 + 64).contains(&own),
        "the workload holds {MIB} MiB, memprof shows {own} KiB under its function"
    );
    Ok((workload, memprof))
}

/// KiB under the function, in a tree with the innermost functions at the first level.
fn held_by(tree: &serde_json::Value, function: &str) -> u64 {
    let frames = tree["frames"].as_array();
    let named = frames
        .into_iter()
        .flatten()
        .filter(|f| f["name"]["functionName"] == function);
    named.filter_map(|f| f["value"].as_u64()).sum()
}

fn memprof_beside_an_idle_target(bench: &Bench) -> Result<()> {
    let (workload, memprof) = with_stacks(bench, &[], 0)?;
    print_memory(&memprof, "idle target", Aim::AtMost(60.0))?;
    print_cpu(&memprof, "idle target", seconds(20), Aim::AtMost(0.5))?;
    workload.end()?;
    memprof.end()
}

fn memprof_beside_a_busy_target(bench: &Bench) -> Result<()> {
    let (workload, memprof) = with_stacks(bench, &["--busy"], 16 * 1024)?;
    print_cpu(&memprof, "busy target", seconds(8), Aim::None)?;
    print_memory(&memprof, "busy target", Aim::None)?;
    workload.end()?;
    memprof.end()
}

fn print_memory(memprof: &Profiler, when: &str, aim: Aim) -> Result<()> {
    let rss = memprof.rollup("Rss")? as f64 / 1024.0;
    let pss = memprof.rollup("Pss")? as f64 / 1024.0;
    let (maps, programs) = bpf_memory(memprof.pid())?;
    println!(
        "memprof's memory, {when}: RSS {rss:.1} MiB, PSS {pss:.1} MiB  {}",
        verdict(rss, aim)
    );
    println!(
        "  in the kernel besides: BPF maps {:.1} MiB, BPF programs {:.1} MiB; all together {:.1} MiB",
        maps as f64 / MIB,
        programs as f64 / MIB,
        rss + (maps + programs) as f64 / MIB
    );
    Ok(())
}

fn print_cpu(memprof: &Profiler, when: &str, span: Duration, aim: Aim) -> Result<()> {
    let (before, start) = (memprof.cpu_time()?, Instant::now());
    std::thread::sleep(span);
    let used = memprof.cpu_time()? - before;
    let percent = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
    println!(
        "memprof's CPU time, {when}, {} s: {percent:.2} % of a core  {}",
        span.as_secs(),
        verdict(percent, aim)
    );
    Ok(())
}

/// A report of a target with 1 GiB under 1,024 stacks, compared with `smaps_rollup`.
fn time_of_a_report(bench: &Bench) -> Result<()> {
    let mut workload = bench.start("stacks", &["--mib", "1024"])?;
    let memprof = Profiler::attach(workload.pid(), &[])?;
    workload.go()?;
    let pid = Pid(workload.pid());
    let mut reports = Pairs::new("short report of 1 GiB, smaps_rollup", "ms", Aim::None);
    memprof.short("total")?;
    for _ in 0..9 {
        let rollup = milliseconds(|| figures::rollup(pid).map(drop).map_err(Into::into))?;
        memprof.age();
        reports.add(rollup, milliseconds(|| memprof.short("total").map(drop))?);
    }
    let tree = median(
        (0..5)
            .map(|_| {
                memprof.age();
                milliseconds(|| memprof.get("/v1/tree?threshold=0").map(drop))
            })
            .collect::<Result<_>>()?,
    );
    println!("{}", reports.row());
    println!("  /v1/tree of 1,024 stacks: {tree:.1} ms");
    workload.end()?;
    memprof.end()
}
