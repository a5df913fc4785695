//! mimalloc's heap: as a library, and built from sources without and with what changes its layout.

use std::path::PathBuf;
use std::process::Command;

use crate::common::allocators::{allocator, mimalloc_sources};
use crate::heap::glibc::{compiled, snapshot};
use crate::heap::spans::{Target, figures, is_read_or_refused, steps, variants};
use memprof_heap::SpanHeap;
use memprof_sys::ids::Pid;

const MIMALLOC: &str = "libmimalloc.so.2";
const LINK_MIMALLOC: &str = "-l:libmimalloc.so.2";

fn mimalloc() -> Option<Command> {
    allocator(MIMALLOC)?;
    let program: PathBuf = compiled("spans", &["-DMIMALLOC", LINK_MIMALLOC]);
    Some(Command::new(program))
}

/// In use is what the program has, and what the C library has for its threads. `mi_heap_visit_blocks` says the same, but
/// that it counts blocks that other threads freed until their owner allocates again. No heap that it visits has the blocks
/// of threads that ended (`x`), but the program's own sums have.
#[test]
fn mimalloc_s_figures_equal_what_it_visits() {
    for &(threads, seed) in variants(&[(1, 1), (8, 4), (2, 2), (3, 3)]) {
        let Some(program) = mimalloc() else { return };
        let mut target = Target::start(program, threads, seed);
        let mut ended = false;
        let first = target.ask("");
        let first = figures(&snapshot(Pid(first.pid)), "mimalloc");
        for line in steps() {
            ended |= line.contains('x');
            let said = target.ask(line);
            let read = figures(&snapshot(Pid(said.pid)), "mimalloc");
            let own = target.ask("v").own.expect("figures");
            let others = (read.live_blocks - said.blocks, read.live - said.bytes);
            assert_eq!(
                others,
                (first.live_blocks, first.live),
                "{threads} {line}: {said:?} {read:?}"
            );
            let freed_by_others = line.ends_with('h');
            if !ended && !freed_by_others {
                assert_eq!(
                    (read.live_blocks, read.live),
                    (own.blocks, own.bytes),
                    "{line}"
                );
            } else if !ended {
                assert!(
                    (read.live..=read.live + read.cached).contains(&own.bytes),
                    "{line}"
                );
                assert!(threads == 1 || read.cached > 0, "{read:?}");
            }
        }
        target.0.end();
    }
}

/// Sources of mimalloc that are compiled into the workload, which is stripped.
struct Build {
    sources: PathBuf,
    /// 302 for 3.2.
    release: u32,
    flags: &'static [&'static str],
}

/// Builds without and with encoded lists of free blocks, and in full with everything that changes the layout.
fn mimalloc_builds() -> Vec<Build> {
    const FLAGS: [&[&str]; 5] = [
        &["-DNDEBUG"],
        &["-DNDEBUG", "-DMI_SECURE=4"],
        &["-DMI_DEBUG=3"],
        &["-DNDEBUG", "-DMI_GUARDED=1"],
        &["-DNDEBUG", "-DMI_PADDING=1"],
    ];
    let sources = mimalloc_sources().into_iter();
    let builds = sources.flat_map(|(sources, release)| {
        variants(&FLAGS).iter().map(move |flags| Build {
            sources: sources.clone(),
            release,
            flags,
        })
    });
    builds.collect()
}

impl Build {
    fn program(&self) -> Command {
        let (include, source) = (
            format!("-I{}/include", self.sources.display()),
            format!("{}/src/static.c", self.sources.display()),
        );
        let object = tempfile::Builder::new().suffix(".o").tempfile().unwrap();
        let mut cc = Command::new("cc");
        cc.args([
            "-O1",
            "-w",
            "-c",
            "-DMI_MALLOC_OVERRIDE",
            "-fno-builtin-malloc",
        ])
        .args(self.flags)
        .args([&include, &source, "-o"])
        .arg(object.path());
        assert!(cc.status().unwrap().success(), "{cc:?}");
        let name = format!(
            "-o{}/spans-mimalloc-{}",
            env!("CARGO_TARGET_TMPDIR"),
            self.release
        );
        let name = name + &self.flags.concat();
        let mut cc = Command::new("cc");
        cc.args([
            "-O1",
            "-pthread",
            "-s",
            "-DMIMALLOC",
            "-DALIGN=262144",
            &name,
        ])
        .arg(format!(
            "{}/tests/workloads/spans.c",
            env!("CARGO_MANIFEST_DIR")
        ))
        .arg(object.path());
        assert!(cc.status().unwrap().success(), "{cc:?}");
        let mut program = Command::new(&name[2..]);
        // Without these, nothing visits the pages of ended threads that are full, or have mappings of their own.
        program.env("MIMALLOC_VISIT_ABANDONED", "1");
        program.env("MIMALLOC_PAGE_FULL_RETAIN", "-1");
        program
    }

    /// Whether all blocks are visited: before 3.2, those of ended threads are not.
    fn visits_all(&self, ended: bool) -> bool {
        !ended || self.release >= 302
    }
}

/// In use is what the program has, in number, and what the C library has for its threads; and what mimalloc visits, in
/// number and bytes. Release 2 also visits blocks that other threads freed and their owner has not collected.
#[test]
fn mimalloc_s_figures_equal_what_it_visits_in_static_programs() {
    for (build, (threads, seed)) in mimalloc_builds()
        .iter()
        .zip([(8, 4), (1, 1)].iter().cycle())
    {
        let mut target = Target::start(build.program(), *threads, *seed);
        let first = target.ask("");
        let first = figures(&snapshot(Pid(first.pid)), "mimalloc");
        let mut ended = false;
        for line in steps() {
            ended |= line.contains('x');
            let said = target.ask(line);
            let heap = snapshot(Pid(said.pid));
            let read = figures(&heap, "mimalloc");
            let own = target.ask("v").own.expect("figures");
            let of = format!(
                "{} {:?} {threads} {line}: {said:?} {read:?} {own:?}",
                build.release, build.flags
            );
            assert_eq!(read.live_blocks - said.blocks, first.live_blocks, "{of}");
            if !build.visits_all(ended) {
                continue;
            }
            if build.release >= 300 || read.cached == 0 {
                assert_eq!(
                    (read.live_blocks, read.live),
                    (own.blocks, own.bytes),
                    "{of}"
                );
            } else {
                let visited = read.live..=read.live + read.cached;
                assert!(visited.contains(&own.bytes), "{of}");
            }
            assert!(
                *threads == 1 || !line.ends_with('h') || read.cached > 0,
                "{of}"
            );
            if line.ends_with('m') {
                let SpanHeap::Read { caches, .. } = heap.other_heaps[0] else {
                    panic!("{of}");
                };
                assert_eq!(caches, u64::from(*threads) + 1, "{of}");
            }
        }
        target.0.end();
    }
}

#[test]
fn mimalloc_s_heap_is_read_or_refused_in_static_programs() {
    for build in mimalloc_builds()
        .iter()
        .step_by(variants(&[0, 1, 2, 3, 4]).len())
    {
        is_read_or_refused([build.program(), build.program()]);
    }
}

#[test]
fn mimalloc_s_heap_is_read_or_refused() {
    if let (Some(busy), Some(damaged)) = (mimalloc(), mimalloc()) {
        is_read_or_refused([busy, damaged]);
    }
}
