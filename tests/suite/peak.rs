//! The peak: the profile of the moment with the most resident memory, beside the kernel's `VmHWM`.
//!
//! Needs root and `cc`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::cgroup::Group;
use crate::common::memprof::{BINARY, Memprof, run};
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::common::workload::program;
use memprof_profile::tree::Table;
use memprof_profile::{Kind, Profile, Report, Unobserved, saved};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// What `peaks.c` prints.
struct Said {
    held: BTreeMap<String, u64>,
    high_water: u64,
}

impl Said {
    fn read(out: &Output) -> Said {
        let text = String::from_utf8_lossy(&out.stdout);
        let mut held: BTreeMap<String, u64> = text
            .lines()
            .filter_map(|line| {
                let (name, bytes) = line.split_once(' ')?;
                Some((name.to_owned(), bytes.parse().ok()?))
            })
            .collect();
        let high_water = held.remove("VmHWM").unwrap_or_else(|| panic!("{out:?}"));
        Said { held, high_water }
    }
}

/// Runs a command under memprof with these options; returns the profile that memprof saved by default, and the output.
fn profiled(options: &[&str], command: &[&str]) -> (Report, Output) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("peak.memprof.json");
    let out = Command::new(BINARY)
        .args(["--no-server", "-o", file.to_str().unwrap()])
        .args(options)
        .arg("--")
        .args(command)
        .output()
        .unwrap();
    let report = opened(&file, &out);
    (report, out)
}

fn opened(file: &Path, out: &Output) -> Report {
    let saved = saved::open(file);
    let said = || String::from_utf8_lossy(&out.stderr).into_owned();
    saved.unwrap_or_else(|e| panic!("{e:#}\n{}", said())).into()
}

fn rss(profile: &Profile) -> u64 {
    profile.total.usage.resident() + profile.total.usage.file
}

/// The memory whose pages are not known.
fn gone(profile: &Profile) -> u64 {
    let rows = profile.not_observed.iter();
    let rows = rows.filter(|row| row.reason == Unobserved::Gone);
    rows.map(|row| row.amounts.usage.resident() + row.amounts.usage.file)
        .sum()
}

/// The memory of a function, with what it called.
fn of_function(report: &Report, name: &str) -> u64 {
    let table = Table::new([report.side()], Kind::All, false);
    let rows = table.rows.iter();
    let named = rows.filter(|row| row.code.function == Some(name));
    named.map(|row| row.total[0]).sum()
}

/// The profile shows the peak: at least 98.4 % of the kernel's figure, never more, and each function with what it held.
#[track_caller]
fn check(report: &Report, said: &Said, out: &Output) {
    let profile = &report.profile;
    let peak = profile.peak.unwrap();
    let (total, high_water) = (rss(profile), peak.high_water.unwrap());
    let stderr = String::from_utf8_lossy(&out.stderr);
    println!(
        "{} of {} KiB, {} KiB gone; the process says {} KiB",
        total / KIB,
        high_water / KIB,
        gone(profile) / KIB,
        said.high_water / KIB
    );
    assert!(peak.is_shown, "{stderr}");
    assert_eq!(total, peak.rss);
    assert!(total <= high_water, "{stderr}");
    assert!(total * 1000 >= high_water * 984, "{stderr}");
    // The process may have had more after it had read the figure, which is approximate before Linux 6.16.
    let apart = high_water.abs_diff(said.high_water);
    assert!(apart <= said.high_water / 50 + 512 * KIB, "{stderr}");
    for (function, bytes) in &said.held {
        let found = of_function(report, function);
        println!("  {function}: {} of {} KiB", found / KIB, bytes / KIB);
        let missing = gone(profile);
        assert!(found <= bytes + bytes / 100, "{function}: {stderr}");
        assert!(
            found + missing + bytes / 100 >= *bytes,
            "{function}: {stderr}"
        );
    }
}

#[track_caller]
fn check_workload(how: &[&str]) -> Report {
    let program = program("peaks");
    let command = [&[program.to_str().unwrap()], how].concat();
    let (report, out) = profiled(&["--stacks", "all"], &command);
    check(&report, &Said::read(&out), &out);
    report
}

/// What is missing is less than a hundredth.
#[track_caller]
fn check_whole(how: &[&str]) {
    let report = check_workload(how);
    let (gone, all) = (gone(&report.profile), rss(&report.profile));
    assert!(gone <= all / 100, "{} KiB are gone", gone / KIB);
}

#[test]
fn a_ramp_has_its_peak_at_its_end() {
    check_whole(&["ramp"]);
}

#[test]
fn teeth_of_a_saw() {
    check_whole(&["teeth"]);
}

#[test]
fn spikes_between_two_reports() {
    check_whole(&["spikes"]);
}

#[test]
fn spikes_without_a_pause() {
    check_whole(&["dense"]);
}

#[test]
fn a_mapping_that_is_emptied_in_part() {
    check_whole(&["emptied"]);
}

#[test]
fn blocks_that_are_freed() {
    check_whole(&["blocks"]);
}

#[test]
fn memory_filled_without_faults() {
    check_whole(&["populated"]);
}

#[test]
fn a_mapped_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    let report = check_workload(&["file", path.to_str().unwrap()]);
    assert!(report.profile.total.usage.file >= 32 * MIB);
}

#[test]
fn a_program_that_executes_another() {
    check_whole(&["exec"]);
}

/// The stacks of most faults are not walked: bytes by function are estimates, the total is not.
#[test]
fn unwalked_faults_count() {
    let program = program("peaks");
    let command = [program.to_str().unwrap(), "spikes"];
    for stacks in ["1/16", "auto", "off"] {
        let (report, out) = profiled(&["--stacks", stacks], &command);
        let said = Said {
            held: BTreeMap::new(),
            ..Said::read(&out)
        };
        check(&report, &said, &out);
        let gone = gone(&report.profile);
        assert!(
            gone <= rss(&report.profile) / 50,
            "{stacks}: {} KiB are gone",
            gone / KIB
        );
    }
}

/// Several processes: the highest sum that a report has seen.
#[test]
fn a_tree_of_processes() {
    let program = program("peaks");
    let command = [program.to_str().unwrap(), "tree"];
    let (report, out) = profiled(&["--stacks", "all", "--follow-forks"], &command);
    let (said, peak) = (Said::read(&out), report.profile.peak.unwrap());
    assert_eq!((peak.processes, report.profile.processes.len()), (4, 4));
    let kernel = &report.profile.kernel_after;
    let sum = kernel.resident() + kernel.rss_file;
    assert!(peak.high_water >= Some(sum), "{peak}");
    for (function, bytes) in &said.held {
        let found = of_function(&report, function);
        assert!(found.abs_diff(*bytes) <= bytes / 100, "{function}: {found}");
    }
}

/// Each process has its own peak, also those that have ended, and programs that a child executes.
#[test]
fn each_process_has_its_own_peak() {
    let program = program("peaks");
    let dir = tempfile::tempdir().unwrap();
    let files = ["peak", "largest"].map(|name| dir.path().join(format!("{name}.memprof.json")));
    let [peak, largest] = files.each_ref().map(|file| file.to_str().unwrap());
    let out = run(&[
        "--no-server",
        "--follow-forks",
        "--stacks",
        "all",
        "-o",
        peak,
        "-o",
        largest,
        "--at",
        "peak",
        "--at",
        "largest-process",
        "--",
        program.to_str().unwrap(),
        "family",
    ]);
    let [peak, largest] = files.each_ref().map(|file| opened(file, &out));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        said.contains("The highest resident memory of each process:"),
        "{said}"
    );
    let shown = largest.profile.peak.unwrap();
    let high_water = shown.high_water.unwrap();
    let total = rss(&largest.profile);
    assert_eq!(total, shown.rss);
    assert!(
        shown.is_shown && total <= high_water && total * 1000 >= high_water * 984,
        "{total} of {high_water}: {said}"
    );
    let highest = of_function(&largest, "hold_highest");
    let found = highest + gone(&largest.profile);
    assert!(
        highest <= 48 * MIB + MIB / 2 && found >= 48 * MIB / 100 * 99,
        "{highest}: {said}"
    );
    // The third child was the largest. Its parent had the base beside it, and has got more since.
    let sum = peak.profile.peak.unwrap();
    assert!(
        sum.processes == 2 && sum.rss >= total && sum.highest() <= total + 11 * MIB,
        "{sum}: {said}"
    );
    let highest = of_function(&peak, "hold_highest");
    assert!(highest <= 48 * MIB + MIB / 2, "{highest}: {said}");
    let base = of_function(&largest, "hold_base") + gone(&largest.profile);
    assert!(base >= 8 * MIB / 100 * 99, "{base}: {said}");
    assert_eq!(largest.profile.target.pids.len(), 1);
}

#[test]
fn the_peak_of_a_process_is_a_mark_even_after_its_end() {
    let program = program("peaks");
    let command = [program.to_str().unwrap(), "family"];
    let (mut m, mut lines) = Memprof::start_command(&["--follow-forks"], &command);
    assert_eq!(lines.line(), "dropped");
    let processes = m.get("/v2/processes").json();
    let peak_of = |row: &serde_json::Value| {
        let peak = &row["peak"];
        let [rss, kernel] = ["rss", "high_water"].map(|name| peak[name].as_u64().unwrap());
        assert!(rss <= kernel && rss * 1000 >= kernel * 984, "{row}");
        (row["pid"].as_u64().unwrap(), rss)
    };
    let rows = processes["rows"].as_array().unwrap();
    let (parent, own) = peak_of(&rows[0]);
    assert!(
        rows.len() == 1 && (44 * MIB..48 * MIB).contains(&own),
        "{processes}"
    );
    let ended = processes["ended"].as_array().unwrap();
    let ended: Vec<_> = ended.iter().map(peak_of).collect();
    assert_eq!(ended.len(), 3, "{processes}");
    let all = ended.iter().map(|(pid, rss)| (*pid, *rss));
    for ((pid, rss), held) in all.chain([(parent, own)]).zip([12, 24, 48, 36]) {
        // Children of fork still have their parent's memory.
        let base = if held == 24 { 0 } else { 8 };
        assert!(
            rss >= (held + base) * MIB && rss < (held + base + 4) * MIB,
            "{pid}: {rss} with {held} MiB"
        );
        let tree = m.get(&format!("/v2/functions?mark=peak&pid={pid}&kind=anon"));
        let rows = tree.json()["rows"].as_array().unwrap().clone();
        let row = rows.iter().find(|row| row["function"] == "hold_highest");
        let found = row.unwrap_or_else(|| panic!("{}", tree.text()))["total"].as_u64();
        let found = found.unwrap();
        assert!(
            found.abs_diff(held * MIB) <= held * MIB / 100,
            "{pid}: {found} of {held} MiB"
        );
    }
    let diff = m.get(&format!("/v2/diff?from=peak&pid={parent}&by=function"));
    assert_eq!(diff.json()["from"]["id"], "peak", "{}", diff.text());
    let nobody = m.get("/v2/tree?mark=peak&pid=1");
    assert!(
        nobody.status == 404 && nobody.text().contains("no peak of process 1 is kept"),
        "{}",
        nobody.text()
    );
    lines.close();
    assert!(m.wait().success());
}

#[test]
fn a_child_that_is_killed_has_the_peak_that_reports_saw() {
    let program = program("peaks");
    let command = [program.to_str().unwrap(), "victim"];
    let (mut m, mut lines) = Memprof::start_command(&["--follow-forks"], &command);
    let child: u32 = lines.line().parse().unwrap();
    assert_eq!(lines.line(), "killed");
    let tree = m.get(&format!("/v2/functions?mark=peak&pid={child}&kind=anon"));
    let rows = tree.json()["rows"].as_array().unwrap().clone();
    let row = rows.iter().find(|row| row["function"] == "hold_highest");
    let found = row.unwrap_or_else(|| panic!("{}", tree.text()))["total"].as_u64();
    assert!(
        found.unwrap().abs_diff(20 * MIB) <= 20 * MIB / 100,
        "{found:?}"
    );
    lines.close();
    assert!(m.wait().success());
}

#[test]
fn a_python_job_that_frees_everything() {
    let Some((_, python)) = pythons().pop_last() else {
        return skip("there is no CPython whose frames memprof reads");
    };
    let script = "import time\n\
        def grow():\n    return [bytes(900) for _ in range(60000)]\n\
        data = grow()\ntime.sleep(0.05)\ndel data\ntime.sleep(0.05)\n\
        import re\n\
        print('VmHWM', int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1)) * 1024)\n";
    let command = [python.to_str().unwrap(), "-c", script];
    let (report, out) = profiled(&["--stacks", "all"], &command);
    check(&report, &Said::read(&out), &out);
    assert!(of_function(&report, "grow") >= 50 * MIB, "{out:?}");
}

#[test]
fn killed_at_its_peak() {
    let program = program("peaks");
    let script = format!("exec {} killed", program.display());
    let (report, out) = profiled(&["--stacks", "all"], &["sh", "-c", &script]);
    assert_eq!(out.status.code(), Some(128 + libc::SIGKILL));
    let peak = report.profile.peak.unwrap();
    let (total, high_water) = (rss(&report.profile), peak.high_water.unwrap());
    assert!(total <= high_water && total * 1000 >= high_water * 984);
    assert!(of_function(&report, "hold_highest") >= 47 * MIB);
}

/// Killed because memory had run out: the state at the end is the peak.
#[test]
fn killed_by_the_kernel() {
    let Some((group, _)) = Group::new_where_memory_is_limited() else {
        return skip("no hierarchy of control groups limits memory");
    };
    group.limit_memory(64 * MIB);
    let (procs, program) = (group.dir.join("cgroup.procs"), program("peaks"));
    let (procs, program) = (procs.display(), program.display());
    let script = format!("echo $$ > {procs} && exec {program} greedy");
    let (report, out) = profiled(&["--stacks", "all"], &["sh", "-c", &script]);
    assert_eq!(out.status.code(), Some(128 + libc::SIGKILL), "{out:?}");
    let peak = report.profile.peak.unwrap();
    let (total, high_water) = (rss(&report.profile), peak.high_water.unwrap());
    assert!(
        total <= high_water && total * 1000 >= high_water * 984,
        "{peak}"
    );
    let held = of_function(&report, "hold_highest");
    assert!((48 * MIB..=64 * MIB).contains(&held), "{held}");
}

/// A program that nobody wrote for this test: threads, 100 MiB of its libraries' files, an allocator of its own.
#[test]
fn a_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.rs");
    let text = "use std::collections::BTreeMap;\n\
        pub fn f(n: u64) -> BTreeMap<String, Vec<u64>> {\n    \
        let mut m = BTreeMap::new();\n    \
        for i in 0..n { m.entry(format!(\"{}\", i % 7)).or_insert_with(Vec::new).push(i); }\n    m\n}\n";
    std::fs::write(&path, text).unwrap();
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(sysroot.unwrap().stdout).unwrap();
    let rustc = Path::new(sysroot.trim()).join("bin/rustc");
    let object = dir.path().join("x.o");
    let command = [
        rustc.to_str().unwrap(),
        "--crate-type=lib",
        "--emit=obj",
        "-O",
        "-o",
        object.to_str().unwrap(),
        path.to_str().unwrap(),
    ];
    for options in [&["--stacks", "all"][..], &[]] {
        let (report, out) = profiled(options, &command);
        assert!(out.status.success(), "{out:?}");
        let peak = report.profile.peak.unwrap();
        let (total, high_water) = (rss(&report.profile), peak.high_water.unwrap());
        println!("{peak}, {} KiB gone", gone(&report.profile) / KIB);
        assert!(
            total <= high_water && total * 1000 >= high_water * 984,
            "{peak}"
        );
        assert!(gone(&report.profile) <= total / 50, "{peak}");
    }
}

#[test]
fn the_summary_and_the_outputs_name_the_moment() {
    let program = program("peaks");
    let dir = tempfile::tempdir().unwrap();
    let [peak, end, now] = ["peak", "end", "now"].map(|name| {
        let file = dir.path().join(format!("{name}.memprof.json"));
        file.to_str().unwrap().to_owned()
    });
    let out = run(&[
        "--no-server",
        "--stacks",
        "all",
        "-o",
        &peak,
        "-o",
        &end,
        "-o",
        &now,
        "--at",
        "peak",
        "--at",
        "end",
        "--at",
        "now",
        "--",
        program.to_str().unwrap(),
        "spikes",
    ]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        said.contains("at its peak (") && said.contains(" KiB VmHWM, after "),
        "{said}"
    );
    assert!(said.contains("at its end"), "{said}");
    assert!(said.contains("hold_highest"), "{said}");
    let [peak, end, now] = [peak, end, now].map(|file| opened(Path::new(&file), &out));
    assert!(of_function(&peak, "hold_highest") >= 47 * MIB);
    for report in [end, now] {
        assert_eq!(of_function(&report, "hold_highest"), 0);
        let moment = report.profile.peak.unwrap();
        assert!(!moment.is_shown && moment.rss == rss(&peak.profile));
    }
    // Of a target that runs on, the state at the end is the default.
    let wrong = run(&[
        "--no-server",
        "-o",
        "a.svg",
        "-o",
        "b.svg",
        "-o",
        "c.svg",
        "--at",
        "end",
        "--at",
        "peak",
        "--",
        "true",
    ]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        wrong.status.code() == Some(2) && said.contains("there are 2 --at and 3 --output"),
        "{said}"
    );
}

#[test]
fn a_gate_on_the_peak() {
    let program = program("peaks");
    let program = program.to_str().unwrap();
    let status = |gate: &str, how: &str| {
        let out = run(&["--no-server", "--fail-if", gate, "--", program, how]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code(), said)
    };
    let (code, said) = status("peak > 40MiB", "spikes");
    assert!(
        code == Some(3) && said.contains("gate fired: peak has "),
        "{said}"
    );
    assert_eq!(status("peak > 80MiB", "spikes").0, Some(0));
    // Only the peak was that high.
    assert_eq!(status("anon > 40MiB", "spikes").0, Some(0));
    assert_eq!(status("peak > 1KiB", "killed").0, Some(128 + libc::SIGKILL));
    let (code, said) = status("growth > 5%", "spikes");
    assert!(code == Some(2) && said.contains("memprof diff"), "{said}");
}

#[test]
fn a_gate_of_a_difference() {
    let program = program("peaks");
    let dir = tempfile::tempdir().unwrap();
    let saved = |how: &str| {
        let file = dir.path().join(format!("{how}.memprof.json"));
        let file = file.to_str().unwrap().to_owned();
        let out = run(&[
            "--no-server",
            "-o",
            &file,
            "--at",
            "end",
            "--",
            program.to_str().unwrap(),
            how,
        ]);
        assert!(out.status.success());
        file
    };
    let (low, high) = (saved("populated"), saved("spikes"));
    let diff = |gate: &str| run(&["diff", &low, &high, "--fail-if", gate]).status.code();
    assert_eq!(diff("peak > 50MiB"), Some(3));
    assert_eq!(diff("peak growth > 40%"), Some(3));
    assert_eq!(diff("peak growth > 400%"), Some(0));
}

#[test]
fn the_peak_is_a_mark_that_is_always_there() {
    let program = program("peaks");
    let (mut m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap(), "served"]);
    assert_eq!(lines.line(), "dropped");
    let marks = m.get("/v2/marks").json();
    assert_eq!(marks["marks"].as_array().unwrap().len(), 0);
    assert_eq!(
        (&marks["peak"]["id"], &marks["peak"]["name"]),
        (&"peak".into(), &"peak".into())
    );
    let total = |target: &str| {
        let reply = m.get(target);
        assert_eq!(reply.status, 200, "{target}: {}", reply.text());
        reply.json()["total"]["anon"].as_u64().unwrap()
    };
    let (peak, now) = (total("/v2/summary?mark=peak"), total("/v2/summary"));
    // The kernel's counters of a running process lack some pages.
    assert!(peak >= 48 * MIB / 64 * 63 && now < 8 * MIB, "{peak} {now}");
    let tree = m.get("/v2/tree?mark=peak");
    assert!(tree.text().contains("hold_highest"), "{}", tree.text());
    let diff = m.get("/v2/diff?from=peak&by=function").json();
    assert_eq!(
        (&diff["from"]["id"], &diff["to"]["id"]),
        (&"peak".into(), &"now".into())
    );
    let folded = m.get("/v2/export/folded?to=peak");
    assert!(folded.text().contains("hold_highest"), "{}", folded.text());
    assert_eq!(m.send("DELETE", "/v2/marks/peak", "").status, 404);
    let metrics = m.get("/metrics").text().to_owned();
    let metric = |name: &str| -> u64 {
        let value = metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.expect(name).parse().unwrap()
    };
    let (ours, kernel) = (
        metric("memprof_peak_resident_bytes"),
        metric("memprof_kernel_peak_bytes"),
    );
    assert!(ours >= peak && ours <= kernel, "{ours} of {kernel}");
    lines.close();
    assert!(m.wait().success());
}
