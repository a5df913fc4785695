//! Reports of several processes, and the rows that their lists show.

use super::*;
use memprof_profile::{FreezeOutcome, ProcessProfile, Profile};
use memprof_sys::ids::Pid;
use memprof_sys::process::Container;

pub(super) const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
pub(super) const POD: &str = "b15e0b8f-6d25-4d1f-9d2c-3a1f6f0a1b2c";

/// A process: its id, name, control group, KiB of its function `grow`, and KiB of page cache that `read` brought in.
pub(super) type Process<'a> = (u32, &'a str, &'a str, u64, u64);

/// nginx in one group, another program in a group below it, and a program in a container.
pub(super) const THREE: [Process<'_>; 3] = [
    (7, "nginx", "/web", 4000, 0),
    (30, "worker", "/web/below", 1000, 500),
    (8, "redis-server", "/pods/redis", 2000, 3000),
];

fn container(group: &str) -> Container {
    let in_pod = group.starts_with("/pods");
    Container {
        group: group.to_owned(),
        id: in_pod.then(|| ID.to_owned()),
        pod: in_pod.then(|| POD.to_owned()),
    }
}

fn share(whole: &Profile, process: &Process<'_>, at: usize) -> ProcessProfile {
    let (pid, comm, group, ..) = *process;
    let samples = whole.samples[2 * at..2 * at + 2].to_vec();
    let mut total = samples[0].amounts;
    total += samples[1].amounts;
    let mut kernel = whole.kernel_before;
    (kernel.rss_anon, kernel.anonymous) = (total.usage.anon, Some(total.usage.anon));
    ProcessProfile {
        pid: Pid(pid),
        comm: comm.to_owned(),
        container: (!group.is_empty()).then(|| container(group)),
        samples,
        not_observed: Vec::new(),
        total,
        uncertainties: Vec::new(),
        kernel_before: kernel,
        kernel_after: kernel,
        freeze: FreezeOutcome::Ran,
        peak: None,
    }
}

/// A report of these processes, and of page cache that an ended process brought in. A profile of a single process has
/// no shares.
pub(super) fn report_of(processes: &[Process<'_>], ended_cache: u64) -> Arc<Report> {
    let f = |(module, offset)| at(module, offset);
    let (main, grow, read) = (f(MAIN), at(0, 2), at(0, 3));
    let (growing, reading) = ([grow, main], [read, main]);
    let mut stacks: Vec<(&[Frame], Usage)> = Vec::new();
    for (.., anon, cache) in processes {
        stacks.push((&growing, kib(*anon, 0)));
        stacks.push((&reading, kib(0, *cache)));
    }
    if ended_cache > 0 {
        stacks.push((&reading, kib(0, ended_cache)));
    }
    let mut profile = profile(&stacks, &[]);
    profile.target.pids = processes.iter().map(|process| Pid(process.0)).collect();
    profile.target.pid = profile.target.pids[0];
    profile.target.comm = processes[0].1.to_owned();
    if processes.len() > 1 {
        let shares = processes.iter().enumerate();
        profile.processes = shares.map(|(at, p)| share(&profile, p, at)).collect();
    }
    let names = [
        (main, "main", Language::Other),
        (grow, "grow", Language::Other),
        (read, "read", Language::Other),
    ];
    Arc::new(Report {
        profile: Arc::new(profile),
        symbols: Arc::new(symbols(&names)),
        sequence: 1,
    })
}

/// A report with `processes` processes in ten control groups.
pub(super) fn crowd(processes: usize, first: u64) -> Arc<Report> {
    let groups: Vec<String> = (0..10).map(|n| format!("/group{n}")).collect();
    let process = |n: usize| {
        (
            n as u32 + 1,
            "one",
            groups[n % 10].as_str(),
            first + n as u64,
            0,
        )
    };
    let processes: Vec<Process<'_>> = (0..processes).map(process).collect();
    report_of(&processes, 0)
}

pub(super) fn shown(size: (u16, u16), processes: &[Process<'_>], keys: &str) -> UiState {
    let mut state = of_functions(false, size);
    feed(&mut state, Input::Report(report_of(processes, 64)));
    types(&mut state, keys);
    state
}

/// The sum and the rows of the visible list.
pub(super) fn listed(state: &UiState) -> Vec<String> {
    let text = text(state);
    let heading = text.iter().position(|l| l.contains(" by ")).unwrap();
    let rows = text[heading + 1..text.len() - 2].iter();
    rows.take_while(|l| !l.is_empty()).cloned().collect()
}

/// The names in the visible rows: the text after the number.
pub(super) fn who(state: &UiState) -> Vec<String> {
    let rows = listed(state).into_iter().skip(1);
    let name = |row: String| {
        row.split_whitespace()
            .skip_while(|w| !is_name(w))
            .collect::<Vec<_>>()
            .join(" ")
    };
    rows.map(name).collect()
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '[' || c == '/' || c == '(')
}
