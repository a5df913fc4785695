//! Programs that are linked statically, into which no loader can bring the library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::inside::estimates_are_right;
use super::preloaded::must_be;
use crate::common::binary::MEMPROF;
use crate::common::effort;
use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually};
use crate::common::random::Random;
use crate::common::workload::{Lines, program_with, program_with_musl};
use crate::samples::total;
use memprof_sys::ids::Pid;

const TCMALLOC: &str = "libtcmalloc_minimal.a";

/// A workload in each form of a static program.
pub fn forms(workload: &str) -> Vec<PathBuf> {
    let forms = [
        Some(program_with(workload, &["-static"])),
        Some(program_with(workload, &["-static-pie"])),
        program_with_musl(workload, &["-static"]),
    ];
    forms.into_iter().flatten().collect()
}

#[test]
fn estimates_of_each_form_are_right() {
    for program in forms("allocations") {
        println!("{}", program.display());
        estimates_are_right(&program);
    }
}

#[test]
fn a_static_allocator_of_a_static_program_is_sampled() {
    if super::inside::archive(TCMALLOC).is_some() {
        let link = ["-static", &format!("-l:{}", TCMALLOC), "-lstdc++", "-lm"];
        estimates_are_right(&program_with("allocations", &link));
    }
}

#[test]
fn forked_children_are_sampled() {
    for program in forms("allocations") {
        let args = ["--heap", "--heap-interval", "4KiB", "--follow-forks"];
        let (m, mut lines) = Memprof::start_command(&args, &[program.to_str().unwrap()]);
        lines.tell("hold 10000 100");
        let before = total(&m, "inuse_space");
        lines.tell("child 20000 100");
        must_be(&m, "child_holds", "inuse_space", 2_000_000);
        // The child's copy of what its parent had.
        assert!(total(&m, "inuse_space") > 2 * before);
        assert_eq!(m.lost(), [""; 0]);
    }
}

/// Children that do the same have different random numbers: their errors are independent.
#[test]
fn children_of_one_state_have_their_own_samples() {
    // (With musl, so small a program has no room for the code of system calls.)
    let forms = [["-static"], ["-static-pie"]];
    for program in forms.map(|link| program_with("twins", &link)) {
        let args = ["--heap", "--heap-interval", "4KiB", "--follow-forks"];
        let (m, mut lines) = Memprof::start_command(&args, &[program.to_str().unwrap()]);
        (0..3).for_each(|_| lines.tell(""));
        let figures_of_children = || -> Vec<u64> {
            let processes = m.get("/v2/processes").json();
            let rows = processes["rows"].as_array().unwrap().iter();
            rows.filter_map(|process| {
                let kind = "kind=inuse_objects&limit=10000";
                let path = format!("/v2/functions?{kind}&pid={}", process["pid"]);
                let table = m.get(&path).json();
                let mut rows = table["rows"].as_array()?.iter();
                rows.find(|row| row["function"] == "twin_holds")?["total"].as_u64()
            })
            .collect()
        };
        // A report that had begun before is still the newest one.
        eventually(LIMIT, "a report has all children", || {
            figures_of_children().len() == 3
        });
        must_be(&m, "twin_holds", "inuse_space", 3 * 20_000 * 100);
        let mut figures = figures_of_children();
        println!("{figures:?}");
        // Three independent estimates are equal with a probability of less than 1 in 10,000.
        figures.dedup();
        assert!(figures.len() > 1, "the same samples in all children");
    }
}

/// Without names of functions, nothing can be sampled, and memprof says so at once.
#[test]
fn a_program_without_symbols_is_refused() {
    let program = program_with("allocations", &["-static", "-s"]);
    let (m, mut lines) = Memprof::start_command(&["--heap"], &[program.to_str().unwrap()]);
    let said = m.said("no allocation is sampled");
    assert!(
        said.contains("linked statically, and no function of an allocator has a symbol"),
        "{said}"
    );
    lines.tell("hold 10 10");
}

/// memprof is killed while it gives the library to a command that has not begun: the command runs, with the library or without it.
#[test]
fn killing_memprof_at_its_start_harms_no_command() {
    let mut random = Random(0x2545_f491);
    let (mut caught, mut all) = (0, 0);
    for program in forms("allocating_threads") {
        for _ in 0..effort::rounds(4) {
            let mut memprof = Command::new(MEMPROF)
                .args([
                    "--heap",
                    "--no-server",
                    "--",
                    program.to_str().unwrap(),
                    "4",
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut lines = Lines::new(&mut memprof);
            let command = first_to_run(&program, memprof.id());
            // (To sleep takes longer than that.)
            let later = Instant::now() + Duration::from_micros(random.below(60_000));
            while Instant::now() < later {}
            let _ = memprof.kill();
            let _ = memprof.wait();
            let maps = std::fs::read_to_string(format!("/proc/{command}/maps")).unwrap();
            caught += u32::from(maps.contains("libmemprof_heap"));
            all += 1;
            let mut ask = || -> Vec<u64> {
                lines.send("");
                lines
                    .line()
                    .split(' ')
                    .map(|n| n.parse().unwrap())
                    .collect()
            };
            eventually(LIMIT, "all of its threads allocate", || {
                ask()[1..].iter().all(|blocks| *blocks > 1000)
            });
            assert_eq!(ask()[0], 0, "blocks have other contents");
            let files = std::fs::read_dir(format!("/proc/{command}/fd")).unwrap();
            for file in files.flatten() {
                let leads = std::fs::read_link(file.path()).unwrap_or_default();
                assert!(
                    !leads.to_string_lossy().contains("memprof_heap"),
                    "{leads:?}"
                );
            }
            drop(lines);
            let stat = format!("/proc/{command}/stat");
            eventually(LIMIT, "it ends with its input", || {
                std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
                    || !Path::new(&stat).exists()
            });
        }
    }
    println!("{caught} of {all} had the library");
}

/// The first process after another one that executes a program.
fn first_to_run(program: &Path, after: u32) -> Pid {
    let mut found = None;
    eventually(LIMIT, "the command is executed", || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let later = all
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| *pid > after);
        let runs = |pid: &u32| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
        };
        found = later.into_iter().find(runs);
        found.is_some()
    });
    Pid(found.unwrap())
}
