//! Every state of a thread, every way in which memprof stops a process, and every way in which memprof ends while it does: the process
//! goes on, and nothing of memprof's remains in it.

use std::fs;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ::memprof::event::Pid;

use crate::common::process::{LIMIT, eventually, signal};
use crate::common::random::Random;
use crate::common::skip::skip;
use crate::start;
use crate::subject::{STATES, Subject};

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

/// Number of rounds.
fn rounds() -> usize {
    let set = std::env::var("MEMPROF_STATES").ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(50)
}

#[test]
fn whatever_it_does_it_goes_on() {
    let mut random = Random(0x5eed_0028);
    let mut subjects = Vec::new();
    for state in STATES {
        match Subject::start(state) {
            Ok(subject) => subjects.push(subject),
            Err(why) => skip(format!("state {state}: {why}")),
        }
    }
    let mut pairs: Vec<(usize, &[&str])> = Vec::new();
    let mut usual = WAYS.map(|way| (way, Duration::from_millis(500)));
    for round in 0..rounds() {
        if pairs.is_empty() {
            pairs = (0..subjects.len())
                .flat_map(|n| WAYS.map(|way| (n, way)))
                .collect();
        }
        let (n, way) = pairs.swap_remove(random.index(pairs.len()));
        let end = random.of(&[
            End::ByItself,
            End::Killed,
            End::Killed,
            End::StoppedAndKilled,
        ]);
        let subject = &subjects[n];
        println!("{round}: {} {way:?} {end:?}", subject.state);
        let mut before = Left::of(subject.pid());
        let took = usual.iter_mut().find(|(w, _)| *w == way).unwrap();
        let begun = Instant::now();
        let mut memprof = start(&[way, &["--pid", &subject.pid().to_string()]].concat());
        match end {
            End::ByItself => {}
            End::Killed => sleep(took.1.mul_f64(random.fraction())),
            End::StoppedAndKilled => {
                sleep(took.1.mul_f64(random.fraction()));
                signal(Pid(memprof.id()), libc::SIGSTOP);
                subject.beats_on_unless_stopped();
            }
        }
        if matches!(end, End::ByItself) {
            crate::binary::wait(&mut memprof);
            took.1 = begun.elapsed();
        } else {
            kill(&mut memprof);
        }
        subject.is_unharmed();
        before.except_the_library(way);
        eventually(LIMIT, "nothing of memprof's remains", || {
            before.has_all_of(&Left::of(subject.pid()))
        });
        if is_loaded(subject.pid()) {
            subjects[n] = Subject::start(subject.state).unwrap();
        }
    }
}

fn kill(memprof: &mut Child) {
    let _ = memprof.kill();
    memprof.wait().unwrap();
}

fn maps(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default()
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
    fn of(pid: Pid) -> Left {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
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
