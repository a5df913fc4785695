//! memprof is killed at any moment of whatever it does: its target goes on, the kernel has nothing left of it, and the next
//! memprof works.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime};

use crate::common::effort;
use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{self, LIMIT, eventually, signal, state};
use crate::common::random::Random;
use crate::common::sentinel::{is_unharmed, sentinel, unharmed};
use crate::common::terminal::{Top, open};
use crate::common::workload::{Lines, Workload, program};
use crate::faults::kernel_objects::{KernelObjects, files_in};
use crate::faults::work_directory::{OLD, WorkDirectory};
use crate::faults::{equals_the_kernel, times};
use memprof_sys::ids::Pid;

/// What memprof does when it is killed.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Starting,
    Freezing,
    Reporting,
    Snapshots,
    View,
    Ending,
}

const ALL: [Doing; 6] = [
    Doing::Starting,
    Doing::Freezing,
    Doing::Reporting,
    Doing::Snapshots,
    Doing::View,
    Doing::Ending,
];
/// A moment during reports.
const LATEST: Duration = Duration::from_millis(150);
/// A process's descriptors, and its mappings with a name: arenas grow meanwhile.
fn belongings(pid: Pid) -> (usize, Vec<String>) {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let named = maps.lines().filter(|line| line.contains(['/', '[']));
    (files, named.map(str::to_owned).collect())
}

/// Kills a memprof, and says what it held at that moment.
fn kill(pid: Pid) -> KernelObjects {
    // It is stopped for that: what it holds then is what it holds when it is killed.
    process::stop(pid);
    let held = KernelObjects::by(pid, None);
    signal(pid, libc::SIGKILL);
    held
}

/// Has memprof do this all the time, and kills it at some moment.
fn kill_while(m: &mut Memprof, dice: &mut Random, ask: impl Fn(&Memprof) + Sync) -> KernelObjects {
    let (pid, moment) = (m.pid(), LATEST.mul_f64(dice.fraction()));
    let held = scope(|scope| {
        let killing = scope.spawn(move || {
            sleep(moment);
            kill(pid)
        });
        while !killing.is_finished() {
            ask(m);
        }
        killing.join().unwrap()
    });
    m.wait();
    held
}

/// Sends a request whose reply may never come.
fn try_to_ask(m: &Memprof, request: &str) {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(m.address()) else {
        return;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let _ = write!(
        stream,
        "{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        m.address()
    );
    let _ = stream.read(&mut [0; 512]);
}

impl Doing {
    /// Starts a memprof for this process, and kills it while it does that.
    fn killed(
        self,
        pid: Pid,
        place: &WorkDirectory,
        start: Duration,
        dice: &mut Random,
    ) -> KernelObjects {
        let target = pid.to_string();
        let args = |more: &[&str]| -> Vec<String> {
            let all = [&["--pid", &target], more].concat();
            all.into_iter().map(str::to_owned).collect()
        };
        let serving = |more: &[&str]| {
            let all = args(&[&["--listen", "127.0.0.1:0"], more].concat());
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            let m = Memprof::spawn_as(&mut place.memprof(&all));
            m.said("following ");
            m
        };
        match self {
            Doing::Starting => {
                let socket = format!("unix:{}", place.at("socket"));
                let mut command = place.memprof(&["--pid", &target, "--listen", &socket]);
                let mut memprof = command.stderr(Stdio::null()).spawn().unwrap();
                sleep(start.mul_f64(1.2 * dice.fraction()));
                let held = kill(Pid(memprof.id()));
                memprof.wait().unwrap();
                held
            }
            Doing::Freezing => {
                let mut m = serving(&["--freeze", "--max-freeze", "60000"]);
                kill_while(&mut m, dice, |m| try_to_ask(m, "GET /v1/tree?short=true"))
            }
            Doing::Reporting => {
                let mut m = serving(&["--heap", "--follow-forks"]);
                kill_while(&mut m, dice, |m| try_to_ask(m, "GET /v2/export/json"))
            }
            Doing::Snapshots => {
                let mut m = serving(&["--max-freeze", "60000"]);
                kill_while(&mut m, dice, |m| try_to_ask(m, "POST /v2/heap"))
            }
            Doing::View => {
                let mut top = Top::run_on(open(80, 24), &["top", "--no-server", "--pid", &target]);
                top.shows("Tab functions");
                sleep(LATEST.mul_f64(dice.fraction()));
                // `setsid` executes it in its own process.
                let held = kill(Pid(top.child.id()));
                top.child.wait().unwrap();
                held
            }
            Doing::Ending => {
                let mut m = serving(&[]);
                m.signal(libc::SIGINT);
                sleep(LATEST.mul_f64(0.3 * dice.fraction()));
                // It may have ended.
                let held = match state(m.pid()) {
                    'Z' | 'X' => KernelObjects::default(),
                    _ => kill(m.pid()),
                };
                m.wait();
                held
            }
        }
    }
}

#[test]
fn of_memprof_harm_nobody() {
    let mut dice = Random(effort::seed());
    let mut workload = sentinel(24);
    let pid = workload.pid();
    unharmed(&mut workload);
    let before = belongings(pid);
    // How long a start takes here.
    let begun = Instant::now();
    equals_the_kernel(&Memprof::attach(pid, &[]), pid);
    let start = begun.elapsed();
    let mut held_programs = 0;
    for n in 0..times(6, 78) {
        let (doing, place) = (ALL[n as usize % ALL.len()], WorkDirectory::new());
        let held = doing.killed(pid, &place, start, &mut dice);
        held.is_gone();
        let said = unharmed(&mut workload);
        assert_eq!(said.early, 0, "{doing:?}: {said:?}");
        assert_eq!(belongings(pid), before, "{doing:?}");
        // An output is written at the end: it may be there already.
        match doing {
            Doing::Ending if fs::read_to_string(place.at("profile.json")).unwrap() != OLD => {
                let text = fs::read(place.at("profile.json")).unwrap();
                serde_json::from_slice::<serde_json::Value>(&text).unwrap();
                assert_eq!(files_in(place.0.path()), ["profile.json"]);
            }
            _ => place.has_only(&["socket"]),
        }
        held_programs += u32::from(!held.programs.is_empty());
        println!("{n}, {doing:?}: {} programs", held.programs.len());
        let next = Memprof::attach(pid, &[]);
        equals_the_kernel(&next, pid);
        next.interrupt();
        assert_eq!(unharmed(&mut workload).early, 0, "{doing:?}");
    }
    println!("{held_programs} were killed with BPF programs loaded");
    // All but some of those that were starting or ending.
    assert!(held_programs >= times(4, 52), "{held_programs}");
    workload.end();
}

/// Of a command that memprof has preload the library: that stays as long as the command needs it, and no longer.
#[test]
fn with_a_command_leave_what_it_needs() {
    let mut dice = Random(effort::seed());
    let place = WorkDirectory::new();
    for _ in 0..times(2, 22) {
        let sentinel = program("sentinel");
        let mut command = place.memprof(&[]);
        command.args([
            "--listen",
            "127.0.0.1:0",
            "--heap",
            "--heap-interval",
            "65536",
        ]);
        command.arg("--").arg(&sentinel).arg("8");
        let mut m = Memprof::spawn_as(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        m.said("following ");
        let mut lines = Lines::new(&mut m.child);
        let target = m.followed();
        // Until it has executed its program, it is a part of memprof: tests/suite/life/endings.rs kills that.
        lines.send("");
        assert!(lines.line().starts_with('{'));
        sleep(LATEST.mul_f64(dice.fraction()));
        let held = KernelObjects::by(m.pid(), Some(target));
        m.signal(libc::SIGKILL);
        m.wait();
        held.is_gone();
        assert!(!held.programs.is_empty());
        let said = is_unharmed(target, &mut lines);
        assert_eq!(said.early, 0, "{said:?}");
        let left = files_in(place.0.path());
        let library: Vec<&String> = left
            .iter()
            .filter(|f| f.starts_with("memprof-heap-"))
            .collect();
        assert_eq!(library.len(), 1, "{left:?}");
        place.has_only(&[library[0]]);
        let next = Memprof::attach(target, &["--heap"]);
        equals_the_kernel(&next, target);
        next.interrupt();
        lines.close();
        eventually(LIMIT, "the command ends", || {
            matches!(state(target), 'Z' | 'X')
        });
        is_removed_by_the_next(&place, library[0]);
    }
}

/// A copy of the library that is older than a minute, and that nobody uses, is removed by the next memprof that places one.
fn is_removed_by_the_next(place: &WorkDirectory, library: &str) {
    let dir = fs::File::open(place.at(library)).unwrap();
    dir.set_modified(SystemTime::now() - Duration::from_secs(120))
        .unwrap();
    let mut command = Command::new(BINARY);
    command.env("TMPDIR", place.0.path());
    command.args(["--no-server", "--heap", "--", "true"]);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert!(!Path::new(&place.at(library)).exists());
    place.has_only(&[]);
}

/// A socket that a killed memprof has left is used again.
#[test]
fn leave_no_socket_in_the_way() {
    let place = WorkDirectory::new();
    let workload = Workload::start(&program("scenarios"));
    let (pid, socket) = (
        workload.pid().to_string(),
        format!("unix:{}", place.at("socket")),
    );
    for _ in 0..2 {
        let mut m =
            Memprof::spawn_unserved(&mut place.memprof(&["--pid", &pid, "--listen", &socket]));
        m.said("serving unix:");
        kill(m.pid()).is_gone();
        m.wait();
    }
    let m = Memprof::spawn_unserved(&mut place.memprof(&["--pid", &pid, "--listen", &socket]));
    m.said("serving unix:");
    m.said("following ");
    m.interrupt();
    assert_eq!(files_in(place.0.path()), ["profile.json"]);
    workload.end();
}
