//! The target is killed, executes itself and renames itself at every step of memprof's start and of its reports.
//!
//! The steps are the lines of memprof's diagnostics (`-vv`): at each of them memprof is stopped, something happens to the target,
//! and memprof goes on.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread::{scope, sleep};
use std::time::Duration;

use crate::common::effort;
use crate::common::memprof::{BINARY, Memprof};
use crate::common::process::{cont, signal, state, threads, wait_until};
use crate::common::random::Random;
use crate::common::workload::{Workload, program};
use crate::faults::{equals_the_kernel, times};
use memprof_sys::ids::Pid;

/// What happens to the target.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Killed,
    Executes,
    Renamed,
}

const ALL: [Fate; 3] = [Fate::Killed, Fate::Executes, Fate::Renamed];

impl Fate {
    fn befalls(self, workload: &mut Workload) {
        match self {
            Fate::Killed => {
                signal(workload.pid(), libc::SIGKILL);
                workload.child.0.wait().unwrap();
            }
            // It may be stopped for memprof, which is stopped: it does that later then.
            Fate::Executes => workload.lines.send("exec"),
            Fate::Renamed => workload.lines.send("rename"),
        }
    }
}

/// What a memprof that was disturbed said, and how it ended.
struct Disturbed {
    steps: u32,
    said: String,
    status: Option<i32>,
}

/// Starts a memprof that writes one profile, and has this happen to its target at a step; `None`: at none.
fn disturb(workload: &mut Workload, fate: Fate, at: Option<u32>, more: &[&str]) -> Disturbed {
    let pid = workload.pid().to_string();
    let mut memprof = Command::new(BINARY)
        .args([
            "-vv",
            "--no-server",
            "--duration",
            "0.3",
            "--pid",
            &pid,
            "-o",
            "-",
        ])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = Pid(memprof.id());
    let mut profile = memprof.stdout.take().unwrap();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        profile.read_to_string(&mut text).unwrap();
        text
    });
    let (mut steps, mut said) = (0, String::new());
    for line in BufReader::new(memprof.stderr.take().unwrap()).lines() {
        said += &(line.unwrap() + "\n");
        if Some(steps) == at {
            // (It may have ended.)
            signal(id, libc::SIGSTOP);
            wait_until(|| {
                threads(id)
                    .into_iter()
                    .all(|t| matches!(state(t), 'T' | 'Z' | 'X'))
            });
            fate.befalls(workload);
            cont(id);
        }
        steps += 1;
    }
    let status = memprof.wait().unwrap().code();
    let profile = reading.join().unwrap();
    if status == Some(0) {
        let profile: serde_json::Value = serde_json::from_str(&profile).unwrap();
        assert!(profile["value"].is_u64(), "{profile}");
    }
    Disturbed {
        steps,
        said,
        status,
    }
}

#[test]
fn at_every_step_of_a_run() {
    let mut dice = Random(effort::seed());
    let freeze: [&[&str]; 2] = [&[], &["--freeze", "--follow-forks", "--heap"]];
    for more in freeze {
        let mut workload = Workload::start(&program("restless"));
        let undisturbed = disturb(&mut workload, Fate::Killed, None, more);
        assert_eq!(undisturbed.status, Some(0), "{}", undisturbed.said);
        let steps = undisturbed.steps;
        println!("{more:?}: {steps} steps");
        // Every step in full, in each of the ways; some in short.
        let tried = times(2, steps);
        for n in 0..tried {
            for fate in ALL {
                let at = match tried == steps {
                    true => n,
                    false => dice.below(steps.into()) as u32,
                };
                let found = disturb(&mut workload, fate, Some(at), more);
                let about = format!("{fate:?} at step {at} of {steps}: {}", found.said);
                assert!(!found.said.contains("panicked"), "{about}");
                match found.status {
                    Some(0) => assert!(found.said.contains("memprof: following "), "{about}"),
                    // It had ended when memprof looked, or before there was a profile.
                    Some(1) if fate == Fate::Killed => {
                        let why = [
                            "no such process",
                            "is a zombie",
                            "has ended",
                            "ended before",
                        ];
                        assert!(why.iter().any(|why| found.said.contains(why)), "{about}");
                    }
                    status => panic!("{status:?}: {about}"),
                }
                // If the step came.
                if found.steps > at {
                    match fate {
                        Fate::Killed => workload = Workload::start(&program("restless")),
                        _ => assert_eq!(workload.lines.line(), "ok", "{about}"),
                    }
                }
            }
        }
        workload.lines.tell("touch");
        workload.end();
    }
}

/// A name that the kernel has cut in the middle of a character: it is stopped, forked and followed as any other.
#[test]
fn a_name_that_is_no_text() {
    let mut workload = Workload::start(&program("restless"));
    let pid = workload.pid();
    // The fourth one, of its first thread.
    for _ in 0..4 {
        workload.lines.tell("rename");
    }
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
    assert!(String::from_utf8(stat).is_err());
    let m = Memprof::attach(pid, &["--max-freeze", "60000"]);
    m.said("following ");
    let mark = m.send("POST", "/v2/marks", r#"{"freeze": true}"#);
    assert_eq!(mark.json()["exact"], true, "{}", mark.text());
    let heap = m.send("POST", "/v2/heap", "");
    assert_eq!(heap.status, 201, "{}", heap.text());
    let heap = m
        .get(&format!("/v2/heap/{}", heap.json()["id"].as_str().unwrap()))
        .json();
    // Of a snapshot by a child nothing is left in the process.
    let children = format!("/proc/{pid}/task/{pid}/children");
    assert_eq!(
        std::fs::read_to_string(children).unwrap(),
        "",
        "{}",
        heap["heap"]["taken"]
    );
    equals_the_kernel(&m, pid);
    m.interrupt();
    workload.end();
}

/// Reports of a target that executes and renames itself all the time, and what they say once it is calm.
#[test]
fn during_reports() {
    for args in [&[][..], &["--freeze", "--max-freeze", "60000"]] {
        let mut workload = Workload::start(&program("restless"));
        let pid = workload.pid();
        let m = Memprof::attach(pid, args);
        m.said("following ");
        for _ in 0..times(2, 20) {
            workload.lines.send("wild 30");
            scope(|scope| {
                let asking = scope.spawn(|| {
                    for path in [
                        "/v1/tree?threshold=0",
                        "/v2/maps",
                        "/v2/processes",
                        "/v2/export/json",
                    ] {
                        let reply = m.get(path);
                        // 503 if the process became another one meanwhile.
                        let status = reply.status;
                        assert!(matches!(status, 200 | 503), "{path}: {}", reply.text());
                    }
                    m.send("POST", "/v2/heap", "").status
                });
                assert_eq!(workload.lines.line(), "ok");
                // A snapshot of a process that becomes another one may fail.
                let status = asking.join().unwrap();
                assert!(matches!(status, 201 | 409 | 422 | 503), "{status}");
            });
            assert_eq!(m.followed(), pid);
            equals_the_kernel(&m, pid);
            workload.lines.tell("rename");
            wait_until(|| m.tree().through("restless_touch").value >= 2048);
            equals_the_kernel(&m, pid);
        }
        let said = m.interrupt();
        assert!(!said.contains("panicked"), "{said}");
        workload.end();
    }
}

/// Followed by its name: one that has the name when memprof looks is followed, whatever it is called later.
#[test]
fn a_name_that_it_gives_up() {
    let named =
        crate::common::workload::named("restless", &crate::common::workload::unique_name("r"));
    let m = Memprof::start(&["--comm", &named.name]);
    for round in 1..=times(3, 30) {
        let mut workload = Workload::start(&named.path);
        sleep(Duration::from_millis(u64::from(round) % 7));
        workload.lines.tell("rename");
        m.said_times("following ", round as usize);
        assert_eq!(m.followed(), workload.pid());
        equals_the_kernel(&m, workload.pid());
        signal(workload.pid(), libc::SIGKILL);
        m.said_times("its last profile stays", round as usize);
    }
    m.interrupt();
}
