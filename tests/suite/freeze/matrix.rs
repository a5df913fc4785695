//! Every state of a thread, every way in which memprof stops a process, and every way in which memprof ends while it does: the process
//! goes on, and nothing of memprof's remains in it.

use std::fs;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::effort;
use crate::common::process::{LIMIT, eventually, living, signal};
use crate::common::random::Random;
use crate::common::skip::skip;
use crate::freeze::start;
use crate::freeze::states::{STATES, Subject};
use memprof_sys::ids::Pid;

/// How a process is stopped: the arguments of memprof.
const WAYS: [&[&str]; 4] = [
    &["heap", "--snapshot", "fork", "--max-stop", "500"],
    &["heap", "--snapshot", "copy", "--max-stop", "500"],
    &["attach-heap", "--yes", "--wait", "0.5"],
    &[
        "--freeze",
        "--duration",
        "0.2",
        "--no-server",
        "--output",
        "/dev/null",
    ],
];

/// How memprof ends.
#[derive(Clone, Copy, Debug)]
enum End {
    ByItself,
    Killed,
    /// After it was stopped for a moment.
    StoppedAndKilled,
}

#[test]
fn whatever_it_does_it_goes_on() {
    let mut random = Random(0x5eed_0028);
    let mut usual = [Duration::from_millis(500); WAYS.len()];
    let (mut round, rounds) = (0, effort::rounds(50_usize));
    while round < rounds {
        for state in STATES {
            // One at a time: some need a processor all the time.
            let mut subject = match Subject::start(state) {
                Ok(subject) => subject,
                Err(why) => {
                    skip(format!("state {state}: {why}"));
                    continue;
                }
            };
            for (way, usual) in WAYS.iter().zip(&mut usual) {
                if round == rounds {
                    return;
                }
                round += 1;
                let ends = [
                    End::ByItself,
                    End::Killed,
                    End::Killed,
                    End::StoppedAndKilled,
                ];
                let end = random.choose(&ends);
                println!("{round}: {state} {way:?} {end:?}");
                one_round(&subject, way, end, usual, random.fraction());
                if is_loaded(subject.pid()) {
                    subject = Subject::start(state).unwrap();
                }
            }
        }
    }
}

/// Has memprof stop a process, and ends memprof after this part of its usual time.
fn one_round(subject: &Subject, way: &[&str], end: End, usual: &mut Duration, part: f64) {
    let pid = subject.pid();
    let mut before = Left::read(pid);
    let begun = Instant::now();
    let mut memprof = start(&[way, &["--pid", &pid.to_string()]].concat());
    match end {
        End::ByItself => {
            crate::common::binary::wait(&mut memprof);
            *usual = begun.elapsed();
        }
        End::Killed => {
            sleep(usual.mul_f64(part));
            kill(&mut memprof);
        }
        End::StoppedAndKilled => {
            sleep(usual.mul_f64(part));
            signal(Pid(memprof.id()), libc::SIGSTOP);
            subject.beats_on_unless_stopped();
            kill(&mut memprof);
        }
    }
    subject.is_unharmed();
    before.except_the_library(way);
    eventually(LIMIT, "nothing of memprof's remains", || {
        before.has_all_of(&Left::read(pid))
    });
}

fn kill(memprof: &mut Child) {
    let _ = memprof.kill();
    memprof.wait().unwrap();
}

fn maps(pid: Pid) -> String {
    fs::read_to_string(living(pid).join("maps")).unwrap_or_default()
}

fn is_loaded(pid: Pid) -> bool {
    maps(pid).contains("/memfd:libmemprof_heap.so")
}

/// What memprof could leave in a process.
struct Left {
    /// Where its descriptors lead.
    files: Vec<String>,
    /// Whether it has code that is in no file.
    code: bool,
    library: bool,
}

impl Left {
    fn read(pid: Pid) -> Left {
        let files = fs::read_dir(living(pid).join("fd")).into_iter().flatten();
        let files = files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok());
        // Others have a number of their own.
        let named = |file: &String| file.starts_with('/');
        let files = files.map(|file| file.to_string_lossy().into_owned());
        let code = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields[1].contains('x') && fields[4] == "0" && fields.len() == 5
        };
        Left {
            files: files.filter(named).collect(),
            code: maps(pid).lines().any(code),
            library: is_loaded(pid),
        }
    }

    fn except_the_library(&mut self, way: &[&str]) {
        self.library |= way[0] == "attach-heap";
    }

    fn has_all_of(&self, now: &Left) -> bool {
        now.files.iter().all(|file| self.files.contains(file))
            && (self.code || !now.code)
            && (self.library || !now.library)
    }
}
