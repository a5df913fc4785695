//! `memprof top` on a pseudoterminal: it shows the right contents, and restores the terminal.
//!
//! Needs root and `cc`.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use crate::common::cgroup::Group;
use crate::common::memprof::{BINARY, run_to_error};
use crate::common::process::{LIMIT, cont, signal, stop, wait_until};
use crate::common::terminal::{Top, open};
use crate::common::workload::{Workload, program};
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;

fn scenarios() -> (Workload, String) {
    let workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    (workload, pid)
}

#[test]
fn functions_are_seen_and_q_gives_the_terminal_back() {
    let (mut workload, pid) = scenarios();
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--pid", &pid]);
    // The answer first.
    top.shows("─ Grows ─");
    top.shows("= kernel");
    assert!(top.is_raw());
    workload.lines.tell("mmap 8388608");
    top.shows("  8.0 MiB  cmd_mmap (scenarios.c:");
    top.press("\t");
    top.shows("functions by self");
    top.shows("cmd_mmap (scenarios.c:");
    // The tree, fully unfolded, and back.
    top.press("t");
    top.shows("tree of callees");
    top.press("*");
    top.shows("↳ run_command (scenarios.c:");
    top.press("/cmd_mm\r");
    top.shows("\"cmd_mm\"");
    top.press("?");
    top.shows("set a mark");
    top.press("xq");
    let (status, after) = top.ends("Losses:");
    assert!(status.success(), "{status}");
    // The last messages and the summary are on the restored terminal.
    assert!(
        after.contains(&format!("following scenarios (pid {pid})")),
        "{after}"
    );
    assert!(after.contains("cmd_mmap (scenarios.c:"), "{after}");
}

#[test]
fn a_signal_and_ctrl_c_give_it_back() {
    let (_workload, pid) = scenarios();
    for by_signal in [true, false] {
        let mut top = Top::start(&["--no-server", "--pid", &pid]);
        top.shows("Tab functions");
        // The command reads its keys from its own terminal.
        match by_signal {
            true => signal(Pid(top.child.id()), libc::SIGTERM),
            false => top.press("\x03"),
        }
        let (status, _) = top.ends("Losses:");
        assert!(status.success(), "{status}");
    }
}

/// A terminal that goes away without a signal: memprof's is not the one of its session.
#[test]
fn it_ends_when_the_terminal_is_gone() {
    let (_workload, pid) = scenarios();
    let pty = open(80, 24);
    let end = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut top = Command::new(BINARY)
        .args(["top", "--no-server", "--pid", &pid])
        .env("TERM", "xterm-256color")
        .stdin(end())
        .stdout(end())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(pty.slave);
    let mut screen = File::from(pty.master);
    let (mut seen, begun) = (Vec::new(), Instant::now());
    while !String::from_utf8_lossy(&seen).contains("functions") {
        assert!(
            begun.elapsed() < LIMIT,
            "{}",
            String::from_utf8_lossy(&seen)
        );
        let mut ready = [PollFd::new(screen.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, 100_u8).unwrap() > 0 {
            let mut piece = [0; 4096];
            let n = screen.read(&mut piece).unwrap();
            seen.extend_from_slice(&piece[..n]);
        }
    }
    drop(screen);
    wait_until(|| top.try_wait().unwrap().is_some());
    let said = top.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        said.contains("terminal is gone") || said.contains("cannot draw"),
        "{said}"
    );
}

/// As on a serial line: the usual size.
#[test]
fn a_terminal_without_a_size_is_used() {
    let (_workload, pid) = scenarios();
    let mut top = Top::run_on(open(0, 0), &["top", "--no-server", "--pid", &pid]);
    top.shows("Tab functions");
    top.press("q");
    top.ends("");
}

#[test]
fn the_targets_end_gives_it_back() {
    let (workload, pid) = scenarios();
    let mut top = Top::start(&["--no-server", "--pid", &pid]);
    top.shows("Tab functions");
    workload.end();
    let (status, _) = top.ends(", ended)");
    assert!(status.success(), "{status}");
}

#[test]
fn with_a_server_the_last_report_stays() {
    let (workload, pid) = scenarios();
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--pid", &pid]);
    top.shows("Tab functions");
    workload.end();
    top.shows("ENDED");
    top.press("q");
    let (status, after) = top.ends("Losses:");
    assert!(status.success(), "{status}");
    assert!(
        after.contains("its last profile stays; q ends memprof"),
        "{after}"
    );
}

/// Its output would overwrite the screen, and its input would take the keys.
#[test]
fn a_command_that_is_started_is_kept_from_the_terminal() {
    let script = "echo out; echo err >&2; read x; test -z \"$x\" && exit 7";
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--", "sh", "-c", script]);
    top.shows("the command ended with status 7");
    // The view shows the message alone; on stderr, afterwards, memprof's name precedes it.
    let (view, _) = top.seen();
    assert!(!view.contains("memprof: the command ended"), "{view}");
    top.press("q");
    let (status, after) = top.ends("Losses:");
    assert!(after.contains("memprof: the command ended"), "{after}");
    assert_eq!(status.code(), Some(7), "{after}");
    assert!(
        !after.contains("out\r\n") && !after.contains("err\r\n"),
        "{after:?}"
    );
}

#[test]
fn quitting_ends_a_command_too() {
    let mut top = Top::start(&["--listen", "127.0.0.1:0", "--", "sleep", "600"]);
    top.shows("sleep (pid ");
    top.press("q");
    let (status, after) = top.ends("Losses:");
    assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{after}");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let said = run_to_error(&["top", "--pid", &std::process::id().to_string()]);
    assert!(
        said.contains("stdout is not one") && said.contains("--output"),
        "{said}"
    );
}

/// What grows is the recorded trend, with its rate, beside the function that has most of it. A difference from the first report
/// would be a size.
#[test]
fn growth_in_the_overview_is_the_recorded_trend() {
    let (mut workload, pid) = scenarios();
    let mut top = Top::start(&["--no-server", "--pid", &pid]);
    top.shows("memprof has seen ");
    let end = Instant::now() + LIMIT;
    while !words(&top).contains(" an hour, steady for ") {
        assert!(Instant::now() < end, "{}", top.seen().0);
        workload.lines.tell("mmap 1048576");
        std::thread::sleep(Duration::from_millis(500));
    }
    top.shows("/h  cmd_mmap");
    let said = words(&top);
    assert!(said.contains(": cmd_mmap (scenarios.c:"), "{said}");
    // The same sentence is above the table.
    top.press("f");
    top.shows(" an hour, steady for ");
    // A moment has no trend of its own.
    top.press("v[");
    top.shows("RECORDED");
    top.shows("memprof has seen ");
    top.press("q");
    top.ends("Losses:");
}

/// Screens of every size have all cards; a small one scrolls.
#[test]
fn the_overview_fits_the_terminal() {
    let (mut workload, pid) = scenarios();
    workload.lines.tell("mmap 8388608");
    for (columns, lines) in [(80, 24), (120, 40), (40, 20)] {
        let args = ["top", "--no-server", "--pid", &pid];
        let mut top = Top::run_on(open(columns, lines), &args);
        top.shows("─ Grows ─");
        top.shows("? help");
        let mut seen = String::new();
        for _ in 0..lines {
            seen += &top.seen().0;
            top.press("j");
            std::thread::sleep(Duration::from_millis(100));
        }
        for title in ["─ Grows ─", "─ Made of ─", "─ Heap ─", "─ Peak ─"] {
            assert!(seen.contains(title), "no {title} in {}", top.seen().0);
        }
        top.press("q");
        top.ends("Losses:");
    }
}

/// Moments are recorded without a server and without `--record`, too.
#[test]
fn keys_step_through_recorded_moments() {
    let (mut workload, pid) = scenarios();
    let mut top = Top::start(&["--no-server", "--pid", &pid]);
    top.shows("= kernel");
    // At most one moment a second is recorded.
    std::thread::sleep(Duration::from_secs(3));
    workload.lines.tell("mmap 8388608");
    top.shows("cmd_mmap (scenarios.c:");
    wait_until(|| {
        top.press("[");
        words(&top).contains("RECORDED")
    });
    wait_until(|| {
        top.press("[");
        words(&top).contains("this is the first recorded moment")
    });
    // The moment has its own overview. The card of the peak, on the right, is that of all the time.
    let (text, _) = top.seen();
    let left = text.lines().map(|line| line.chars().take(39).collect());
    let left = left.collect::<Vec<String>>().join("\n");
    assert!(left.contains("─ Grows ─"), "{text}");
    assert!(!left.contains("cmd_mmap"), "{text}");
    top.press("f");
    top.shows("functions by self");
    // A screen is drawn line by line.
    wait_until(|| !words(&top).contains("cmd_mmap"));
    top.press("p");
    top.shows("cmd_mmap (scenarios.c:");
    wait_until(|| !words(&top).contains("RECORDED"));
    top.press("q");
    assert!(top.ends("Losses:").0.success());
}

/// The screen's words, whatever lines they are in.
fn words(top: &Top) -> String {
    let (text, _) = top.seen();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn h_shows_the_heap() {
    let mut workload = Workload::start_with(&program("heap"), &["1", "41"]);
    workload.lines.send("m");
    workload.lines.line();
    let pid = workload.pid().to_string();
    // The limit of the stop is long, as the machine may be busy.
    let args = ["--listen", "127.0.0.1:0", "--max-freeze", "10000"];
    let mut top = Top::start(&[&args[..], &["--pid", &pid]].concat());
    // The first report names the process.
    top.shows(&format!("(pid {pid})"));
    top.shows("No snapshot of the heap yet.");
    top.press("h");
    top.shows("Stop ");
    // Beside the overview's other cards, and above a table.
    assert!(!words(&top).contains("No snapshot"), "{}", words(&top));
    top.press("f");
    top.shows("Stop ");
    let said = words(&top);
    for part in [" is heap in use, ", " is free heap.", " Stop "] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    // Why there is none stands in the same line.
    workload.end();
    top.shows("ENDED");
    top.press("h");
    wait_until(|| words(&top).contains("heap: cannot take a heap snapshot of process"));
    assert!(words(&top).contains("has ended"), "{}", words(&top));
    top.press("q");
    top.ends("Losses:");
}

const MIB: u64 = 1 << 20;

/// KiB of the chosen kind in the line of a list that has these words behind its four figures.
fn listed(top: &Top, words: &str) -> Option<u64> {
    let (text, _) = top.seen();
    let lines = text.lines().map(|line| line.split_whitespace());
    let found = lines.map(|line| line.collect::<Vec<_>>()).find(|line| {
        let rest = line.get(4..).unwrap_or_default().join(" ");
        rest.starts_with(words)
    });
    found?.first()?.replace(',', "").parse().ok()
}

/// Waits until the line of these words has the kernel's figure for these processes.
#[track_caller]
fn lists(top: &Top, words: &str, pids: &[Pid]) {
    let end = Instant::now() + LIMIT;
    while listed(top, words) != Some(anon(pids)) {
        let late = Instant::now() > end;
        assert!(!late, "no {words} with {} in\n{}", anon(pids), top.seen().0);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// KiB of anonymous memory, as the kernel says.
fn anon(pids: &[Pid]) -> u64 {
    let each = pids.iter().map(|pid| figures::rollup(*pid).unwrap());
    each.map(|rollup| rollup.anonymous).sum::<u64>() / 1024
}

#[test]
fn processes_and_control_groups_have_lists_and_views_of_their_own() {
    let group = Group::new();
    let below = group.child();
    let mut all = [(); 3].map(|()| Workload::start(&program("scenarios")));
    let pids = all.each_ref().map(Workload::pid);
    for (workload, group) in all.iter().zip([&group, &group, &below]) {
        group.put(workload.pid());
    }
    let name = format!("/{}", group.name().display());
    let mut top = Top::start(&["--no-server", "--cgroup", &name]);
    top.shows(" and 2 more processes");
    for (workload, mib) in all.iter_mut().zip([2, 4, 8]) {
        workload.lines.tell(&format!("mmap {}", mib * MIB));
    }
    pids.into_iter().for_each(stop);
    // Each process has the kernel's figure, and the sum is that of all of them.
    top.press("fnnP");
    top.shows("processes by size, anon only");
    for pid in pids {
        lists(&top, &format!("{pid} scenarios"), &[pid]);
    }
    lists(&top, "3 processes", &pids);
    top.press("\t");
    top.shows("groups by size, anon only");
    lists(&top, &format!("2 {name}"), &pids[..2]);
    // The beginning of its path does not fit.
    lists(&top, "1 …", &pids[2..]);
    lists(&top, "2 groups", &pids);

    // Down to the group itself, which has the one below it.
    top.press("j\r");
    top.shows(&format!("control group {name} and below, 3 of 3 processes"));
    top.shows("     14,336");
    top.shows("cmd_mmap (scenarios.c:");
    top.press("\x1b");
    top.shows("groups by size, anon only");
    top.press("\t");
    top.shows("processes by size, anon only");
    // The largest process.
    top.press("\r");
    top.shows(&format!("scenarios (pid {}), 1 of 3 processes", pids[2]));
    top.shows("      8,192");
    top.shows("cmd_mmap (scenarios.c:");
    // As on the page, the figures of one that has ended stay until the user goes back.
    pids.into_iter().for_each(cont);
    let [first, second, third] = all;
    third.end();
    top.shows("ENDED, last figures");
    top.shows("      8,192");
    top.press("P");
    top.shows("2  processes (1 more ended)");
    assert_eq!(listed(&top, &format!("{} scenarios", pids[2])), None);
    top.press("P");
    top.shows("functions by self, anon only");
    top.shows(" and 1 more processes");
    top.press("q");
    let (status, _) = top.ends("Losses:");
    assert!(status.success(), "{status}");
    first.end();
    second.end();
}

#[test]
fn every_process_of_the_machine_is_listed() {
    let (mut workload, pid) = scenarios();
    workload.lines.tell("mmap 8388608");
    let mut top = Top::start(&["--no-server", "--all"]);
    top.shows(" more processes");
    top.press(&format!("fP/scenarios {pid} \r"));
    top.shows("processes by size, \"scen");
    stop(workload.pid());
    top.press("n");
    top.press("n");
    lists(&top, &format!("{pid} scenarios"), &[workload.pid()]);
    top.press("\r");
    top.shows(&format!("scenarios (pid {pid}), 1 of "));
    cont(workload.pid());
    top.press("PP");
    top.shows("functions by self, anon only");
    top.press("q");
    top.ends("Losses:");
    workload.end();
}
