//! Where not every stack is walked, the sums stay the same and bytes by function are within their stated errors: one and
//! the same run of CPython, with all stacks and with a share of them. And the walks cost what the budget allows.
//!
//! Needs root and /usr/bin/python3. `MEMPROF_TEST_ROUNDS=100` compares 100 runs instead of 6.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::ProgInfoIter;
use serde_json::Value;

use crate::common::effort;
use crate::common::memprof::Memprof;
use crate::common::skip;
use crate::common::workload::{Workload, program};
use memprof_sys::residency::page_size;

/// Parses some of Python's library and keeps it: several hundred functions hold some 150 MiB, the same in each run
/// (without address randomization and with a fixed seed of its hashes).
const PROGRAM: &str = "
import sys, ast, glob, json
kept = []
for f in sorted(glob.glob('/usr/lib/python3.*/*.py'))[:100]:
    s = open(f, encoding='utf8').read()
    kept.append((ast.parse(s), s.split(), json.dumps(s), {i: w for i, w in enumerate(s.split())}))
print('ready', flush=True)
sys.stdin.read()
";

/// Bytes in all, and those of each function with their standard error.
struct Report {
    all: u64,
    functions: HashMap<(String, String), (u64, u64)>,
    unwalked: u64,
}

fn report(stacks: &str) -> Report {
    let command = [
        "setarch",
        "-R",
        "/usr/bin/env",
        "PYTHONHASHSEED=0",
        "/usr/bin/python3",
        "-c",
        PROGRAM,
    ];
    let (m, mut lines) = Memprof::start_command(&["--stacks", stacks], &command);
    assert_eq!(lines.line(), "ready");
    let table = m
        .get("/v2/functions?kind=anon&inlined=false&frames=all&limit=10000")
        .json();
    let rows = table["rows"].as_array().unwrap().iter();
    let functions = rows.map(|row| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let bytes = |key: &str| row[key].as_u64().unwrap();
        (
            (text("function"), text("path")),
            (bytes("total"), bytes("total_error")),
        )
    });
    Report {
        all: table["total"].as_u64().unwrap(),
        functions: functions.collect(),
        unwalked: table["report"]["faults"]["unwalked"].as_u64().unwrap(),
    }
}

#[test]
fn functions_are_within_their_errors() {
    let _others = crate::beside_others();
    let there = Command::new("/usr/bin/python3").arg("-V").output();
    if there.is_err() {
        return skip::skip("/usr/bin/python3 is not installed");
    }
    let runs = effort::rounds(6);
    // Some pages are not the same function's in each run.
    let truths = [(); 3].map(|()| report("all"));
    for truth in &truths {
        assert_eq!((truth.unwalked, truth.all), (0, truths[0].all));
        assert!(truth.functions.values().all(|(_, error)| *error == 0));
    }
    let (mut within, mut near, mut compared) = (0, 0, 0);
    for _ in 0..runs {
        let estimate = report("1/8");
        assert!(estimate.unwalked > 10_000, "{}", estimate.unwalked);
        assert_eq!(estimate.all, truths[0].all);
        // Functions that only call each other hold the same stacks: one figure.
        let mut figures = HashSet::new();
        for function in truths[0].functions.keys() {
            let bytes = truths.each_ref().map(|truth| {
                let found = truth.functions.get(function);
                found.map_or(0, |(bytes, _)| *bytes)
            });
            let (least, most) = (*bytes.iter().min().unwrap(), *bytes.iter().max().unwrap());
            let Some((found, error)) = estimate.functions.get(function) else {
                // Too small for a sample.
                assert!(least < estimate.all / 100, "{function:?}");
                continue;
            };
            let off = found.abs_diff(*found.clamp(&least, &most));
            // A page more or less: what has no event has no error either.
            if least < estimate.all / 100 || (*error == 0 && off <= 4096) {
                continue;
            }
            if !figures.insert((bytes, found, error)) {
                continue;
            }
            let off = off as f64 / (*error).max(1) as f64;
            within += u32::from(off <= 1.96);
            if off > 4.0 {
                println!("{function:?}: {bytes:?} bytes, estimated {found}, error {error}");
            }
            near += u32::from(off <= 0.5);
            compared += 1;
        }
    }
    let share = |of: u32| f64::from(of) / f64::from(compared);
    let (within, near) = (share(within), share(near));
    println!(
        "{runs} runs, {compared} functions with 1 % of the bytes: {within:.3} are within their 95 % interval,"
    );
    println!("{near:.3} within half a standard error (0.38 of a normal distribution)");
    // The errors of one run's functions depend on each other, so that few runs differ more.
    let least = if runs < 30 { 0.85 } else { 0.9 };
    assert!(within > least, "{within}");
    assert!(near < 0.75, "{near}: the errors are too large");
}

/// One run of the program that touches pages in many orders: for each function the bytes that it owns, and those that
/// memprof finds, with their standard error.
fn orders(first: usize, stacks: &str) -> Vec<(String, u64, u64, u64)> {
    let program = program("orders");
    let command = [program.to_str().unwrap(), &first.to_string()];
    let options = ["--follow-forks", "--stacks", stacks];
    let (m, mut lines) = Memprof::start_command(&options, &command);
    let mut truths = Vec::new();
    loop {
        let line = lines.line();
        let Some((function, pages)) = line.split_once(' ') else {
            assert_eq!(line, "ready");
            break;
        };
        let pages: u64 = pages.parse().unwrap();
        truths.push((function.to_owned(), pages * page_size()));
    }
    let table = m
        .get("/v2/functions?kind=resident&inlined=false&frames=all&limit=10000")
        .json();
    let rows = table["rows"].as_array().unwrap();
    let found = truths.into_iter().map(|(function, truth)| {
        let row = rows.iter().find(|row| row["function"] == function.as_str());
        let row = row.unwrap_or_else(|| panic!("no row {function}"));
        let number = |key: &str| row[key].as_u64().unwrap();
        (function, truth, number("total"), number("total_error"))
    });
    found.collect()
}

/// The mean of what was found for a function, and how often it was within its error.
#[derive(Default)]
struct Found {
    truth: u64,
    sum: f64,
    variance: f64,
    within: u32,
    runs: u32,
}

#[test]
fn functions_whose_pages_interleave_are_within_their_errors() {
    let _others = crate::beside_others();
    let exact = orders(0, "all");
    for (function, truth, found, error) in &exact {
        assert_eq!((found, *error), (truth, 0), "{function}");
    }
    let runs: usize = effort::rounds(6);
    let mut functions: HashMap<String, Found> = HashMap::new();
    for run in 0..runs {
        let stacks = ["auto", "1/16"][run % 2];
        for (function, truth, found, error) in orders(run / 2, stacks) {
            assert!(
                error > 0 || found == truth,
                "{function}: {found}, not {truth}"
            );
            let off = found as f64 - truth as f64;
            let sum = functions.entry(function).or_default();
            sum.truth = truth;
            sum.sum += off;
            sum.variance += (error as f64).powi(2);
            sum.within += u32::from(off.abs() <= 1.96 * error as f64);
            sum.runs += 1;
        }
    }
    let mut names: Vec<&String> = functions.keys().collect();
    names.sort();
    for name in names {
        let f = &functions[name];
        let bias = f.sum / f64::from(f.runs);
        let off = f.sum.abs() / f.variance.sqrt();
        let (percent, within) = (
            100.0 * bias / f.truth as f64,
            f64::from(f.within) / f64::from(f.runs),
        );
        println!(
            "{name:20} mean {percent:+.2} %, {off:.1} standard errors of it; {within:.2} within"
        );
        assert!(off < 4.5, "{name} is biased");
    }
    let all = |of: fn(&Found) -> u32| -> f64 { functions.values().map(of).sum::<u32>().into() };
    let within = all(|f| f.within) / all(|f| f.runs);
    println!("{within:.3} of all are within 1.96 standard errors");
    assert!((0.88..).contains(&within), "{within}");
}

/// What the kernel counts for memprof's hook of page faults (`bpf_stats_enabled`): runs, and ns in them.
fn hook(m: &Memprof) -> (u64, u64) {
    let named = |id: u32| ProgInfoIter::default().any(|p| p.id == id && p.name == "fault_user");
    let fds = fs::read_dir(format!("/proc/{}/fdinfo", m.pid())).unwrap();
    let texts = fds.filter_map(|fd| fs::read_to_string(fd.ok()?.path()).ok());
    let found = texts.filter_map(|text| {
        let number = |key: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line?.trim().parse().ok()
        };
        // (Links name a program, too, but count nothing.)
        let counted = (number("run_cnt:")?, number("run_time_ns:")?);
        named(u32::try_from(number("prog_id:")?).unwrap()).then_some(counted)
    });
    found.max().expect("no program fault_user")
}

/// What touching pages costs: faults, ns in memprof's hook, and ns of CPU time of the program.
fn cost(options: &[&str]) -> (u64, u64, u64) {
    const MIB: u64 = 64;
    const TIMES: u64 = 12;
    let mut workload = Workload::start(&program("moves"));
    let pid = workload.pid();
    let m = Memprof::attach(pid, options);
    let mut touch = |times: u64| {
        for _ in 0..times {
            workload.lines.tell(&format!("anon 0 {}", MIB << 20));
            workload.lines.tell(&format!("advise 0 0 {} 15", MIB << 20));
            workload.lines.tell(&format!("touch 0 0 {}", MIB << 20));
            workload.lines.tell(&format!("unmap 0 0 {}", MIB << 20));
        }
    };
    let ran = || -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    // The first faults are free.
    touch(3);
    let (before, cpu) = (hook(&m), ran());
    touch(TIMES);
    let (after, cpu) = (hook(&m), ran() - cpu);
    let runs = after.0 - before.0;
    assert!(runs >= TIMES * MIB * 256, "{runs} runs");
    (runs, after.1 - before.1, cpu)
}

/// The budget is kept by the probe's own clock and the scheduler's CPU time; here it is checked by the kernel's count of
/// the time in BPF programs, less what a fault costs that is not walked.
#[test]
fn walks_cost_what_the_budget_allows() {
    let _others = crate::beside_others();
    // SAFETY: no pointers; the descriptor that it returns is this test's.
    let stats = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    assert!(stats >= 0, "bpf_enable_stats: {stats}");
    // SAFETY: as above.
    let _stats = unsafe { OwnedFd::from_raw_fd(stats) };
    let (runs, unwalked, _) = cost(&["--stacks", "1/65536"]);
    let each = unwalked as f64 / runs as f64;
    for percent in [4.0, 8.0] {
        let text = percent.to_string();
        let (runs, spent, cpu) = cost(&["--stacks", "auto", "--max-overhead", &text]);
        let walks = spent as f64 - each * runs as f64;
        let share = 100.0 * walks / cpu as f64;
        println!(
            "{percent} % allowed, {share:.2} % spent: {:.1} ms, {runs} faults of {each:.0} ns",
            walks / 1e6
        );
        assert!(
            (percent / 2.0..percent * 1.5).contains(&share),
            "{share} of {percent} %"
        );
    }
}

/// The errors of anonymous memory by stack that are not 0, in bytes.
fn errors_of_stacks(saved: &Value) -> Vec<u64> {
    // By stack: the variance, and the largest of a single sample.
    let mut stacks: HashMap<u64, [f64; 2]> = HashMap::new();
    let all = saved["uncertainties"].as_array().unwrap().iter();
    for uncertainty in all.filter(|uncertainty| uncertainty[0] == "anon") {
        let parts = uncertainty[1].as_array().unwrap();
        let number = |part: &Value, at: usize| part[at].as_f64().unwrap();
        let whole: f64 = parts.iter().map(|part| number(part, 2)).sum();
        let mut sums: HashMap<u64, [f64; 3]> = HashMap::new();
        for part in parts.iter().filter(|part| !part[0].is_null()) {
            let [share, variance, single] = sums.entry(part[0].as_u64().unwrap()).or_default();
            *share += number(part, 1);
            *variance += number(part, 2);
            *single = single.max(number(part, 3));
        }
        for (stack, [share, variance, single]) in sums {
            let sum = stacks.entry(stack).or_default();
            sum[0] += variance * (1.0 - 2.0 * share) + whole * share * share;
            sum[1] = sum[1].max(single);
        }
    }
    let errors = stacks.values();
    let errors = errors.map(|[variance, single]| (variance + 1.5 * single).sqrt().round() as u64);
    errors.filter(|error| *error > 0).collect()
}

/// The same errors in trees and tables, in differences and in the formats that have them.
#[test]
fn errors_are_in_differences_and_exports() {
    let _others = crate::beside_others();
    let there = Command::new("/usr/bin/python3").arg("-V").output();
    if there.is_err() {
        return skip::skip("/usr/bin/python3 is not installed");
    }
    let command = ["/usr/bin/python3", "-c", PROGRAM];
    let (m, mut lines) = Memprof::start_command(&["--stacks", "1/8"], &command);
    assert_eq!(lines.line(), "ready");
    // Marks never change: everything below shows the same two states.
    let mark = || {
        let made = m.send("POST", "/v2/marks", "{}").json();
        made["id"].as_str().unwrap().to_owned()
    };
    let (from, to) = (mark(), mark());
    fn number(row: &Value, at: impl serde_json::value::Index) -> u64 {
        row[at].as_u64().unwrap()
    }
    // Names are not unique: two files of one name, or inlined functions.
    let table = |path: &str, key: &str| -> HashMap<String, Vec<[u64; 2]>> {
        let mut found: HashMap<String, Vec<[u64; 2]>> = HashMap::new();
        for row in m.get(path).json()["rows"].as_array().unwrap() {
            let name = format!("{} {}", row["function"].as_str().unwrap_or(""), row["path"]);
            let errors = [number(row, "self_error"), number(row, key)];
            found.entry(name).or_default().push(errors);
        }
        found
    };
    let functions = "/v2/functions?kind=anon&inlined=false&frames=all&limit=10000&mark=";
    let [before, now] = [&from, &to].map(|id| table(&format!("{functions}{id}"), "total_error"));
    let path = format!(
        "/v2/diff?by=function&kind=anon&inlined=false&frames=all&limit=10000&from={from}&to={to}"
    );
    let both = table(&path, "total_error");
    let mut compared = 0;
    for (name, errors) in both.iter().filter(|(_, errors)| errors.len() == 1) {
        let [Some([one]), Some([other])] = [&before, &now].map(|t| t.get(name).map(|e| &e[..]))
        else {
            continue;
        };
        for at in 0..2 {
            let sum = (one[at] as f64).hypot(other[at] as f64);
            assert!(
                (errors[0][at] as f64 - sum).abs() <= 2.0,
                "{name}: {errors:?}"
            );
            compared += u32::from(sum > 0.0);
        }
    }
    assert!(compared > 100, "{compared}");

    // By stack: the nodes below the root are the innermost functions.
    let top = |path: &str| -> HashMap<String, u64> {
        let tree = m.get(path).json();
        let (nodes, frames) = (&tree["nodes"], &tree["frames"]);
        let errors = nodes["error"].as_array().expect("it is an estimate");
        assert_eq!(errors[0], 0, "the root is exact");
        let found = (0..errors.len()).filter(|at| nodes["parent"][at] == 0);
        let found = found.map(|at| {
            let frame = number(&nodes["frame"], at) as usize;
            let part = |list: &str, key: &str| match frames[key][frame].as_u64() {
                Some(index) => tree[list][index as usize].to_string(),
                None => String::new(),
            };
            let name = [part("strings", "name"), part("modules", "module")].concat();
            (
                format!("{} {name}", frames["type"][frame]),
                errors[at].as_u64().unwrap(),
            )
        });
        found.collect()
    };
    let parameters = "kind=anon&direction=callers&threshold=0";
    let trees = [&from, &to].map(|id| top(&format!("/v2/tree?{parameters}&mark={id}")));
    let both = top(&format!(
        "/v2/diff?by=stack&{parameters}&from={from}&to={to}"
    ));
    let mut compared = 0;
    for (name, error) in &both {
        let [Some(one), Some(other)] = [&trees[0], &trees[1]].map(|tree| tree.get(name)) else {
            continue;
        };
        let sum = (*one as f64).hypot(*other as f64);
        assert!((*error as f64 - sum).abs() <= 2.0, "{name}: {error}, {sum}");
        compared += u32::from(sum > 0.0);
    }
    // How many functions there are depends on the Python; nearly all that have an error were compared.
    let with_error = trees[1].values().filter(|error| **error > 0).count();
    assert!(
        with_error > 20 && compared as usize * 10 >= with_error * 9,
        "{compared} of {with_error}"
    );

    // The tables as CSV have the same errors as over HTTP.
    let rows = |format: &str| -> Vec<HashMap<String, String>> {
        let reply = m.get(&format!("/v2/export/{format}&to={to}"));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let text = reply.text().to_owned();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        reader.deserialize().map(|row| row.unwrap()).collect()
    };
    let cell = |row: &HashMap<String, String>, key: &str| -> u64 { row[key].parse().unwrap() };
    let exported = rows("functions?kind=anon&inlined=false&frames=all");
    let mut errors: Vec<[u64; 2]> = exported
        .iter()
        .map(|row| ["self_error_bytes", "total_error_bytes"].map(|key| cell(row, key)))
        .filter(|errors| *errors != [0; 2])
        .collect();
    let mut wanted: Vec<[u64; 2]> = now
        .values()
        .flatten()
        .copied()
        .filter(|e| *e != [0; 2])
        .collect();
    errors.sort_unstable();
    wanted.sort_unstable();
    assert!(wanted.len() > 100);
    assert_eq!(errors, wanted);

    // One row per stack, with the error that follows from a saved profile as docs/formats.md says.
    let exported = rows("csv?");
    let saved = m.get(&format!("/v2/export/profile?to={to}")).json();
    let errors = exported.iter().map(|row| cell(row, "anon_error_bytes"));
    let mut errors: Vec<u64> = errors.filter(|error| *error > 0).collect();
    let mut wanted = errors_of_stacks(&saved);
    errors.sort_unstable();
    wanted.sort_unstable();
    assert!(errors.len() > 100);
    assert_eq!(errors, wanted);
    let path = format!("/v2/tree?kind=anon&max_nodes=1&mark={to}");
    let tree = m.get(&path).json();
    let bytes = exported.iter().map(|row| cell(row, "anon_bytes"));
    assert_eq!(Value::from(bytes.sum::<u64>()), tree["total"]);
}
