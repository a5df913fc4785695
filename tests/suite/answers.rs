//! On the terminal: the function that has a program's memory, in one sentence or row, in at most three commands.
//!
//! Needs root.

use std::process::{Command, Stdio};

use crate::common::binary::{Ended, memprof};
use crate::common::skip::skip;
use crate::common::workload::{Workload, place, source};

/// Commands from the running program to its answer.
const MAX_COMMANDS: usize = 3;

/// A user of memprof's commands, which are counted.
struct User<'a> {
    service: &'a mut Workload,
    commands: usize,
}

impl User<'_> {
    /// Runs a command for the service, which answers requests meanwhile.
    #[track_caller]
    fn runs(&mut self, args: &[&str], requests: u32) -> Ended {
        self.commands += 1;
        assert!(self.commands <= MAX_COMMANDS);
        let pid = self.service.pid().to_string();
        let line = [args, &["--pid", &pid]].concat();
        let lines = &mut self.service.lines;
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(|| memprof(&line));
            while !running.is_finished() {
                if requests > 0 {
                    lines.tell(&requests.to_string());
                }
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            running.join().unwrap()
        });
        ended.must(0, &[]);
        ended
    }
}

fn shop(more: &[&str]) -> Workload {
    let mut command = Command::new("python3");
    command.arg(source("shop.py")).args(more);
    let mut shop = Workload::start_as(command.stderr(Stdio::null()));
    assert_eq!(shop.lines.line(), "ready");
    shop
}

/// The line of the output that contains this.
#[track_caller]
fn line_with<'o>(out: &'o str, part: &str) -> &'o str {
    let line = out.lines().find(|line| line.contains(part));
    line.unwrap_or_else(|| panic!("no {part:?} in {out}"))
}

/// One command for each question.
#[test]
fn what_holds_memory_and_what_grows() {
    let mut service = shop(&[]);
    let mut user = User {
        service: &mut service,
        commands: 0,
    };
    let leak = format!("remember ({})", place("shop.py", "# the leak"));
    let summary = user.runs(&["--no-server", "--duration", "3"], 2);
    let sentence = line_with(&summary.stdout, "memprof has seen ");
    assert!(sentence.contains(&format!(": {leak} ")), "{sentence}");
    let growth = user.runs(&["growth", "--duration", "20"], 1);
    let first = growth
        .stdout
        .lines()
        .skip_while(|line| !line.ends_with(" total"))
        .nth(1);
    let row = first.unwrap_or_else(|| panic!("{growth:?}"));
    let function = format!("remember ({})", place("shop.py", "def remember(path):"));
    assert!(
        row.contains("steady") && row.contains(&function),
        "{growth:?}"
    );
}

/// A page counts for the code that touched it first. Where that freed it before the leak got it, samples of allocations know.
#[test]
fn a_leak_in_memory_that_was_used_before() {
    if !cfg!(target_arch = "x86_64") {
        return skip("memprof loads its library into running processes on x86-64 only");
    }
    let mut service = shop(&["reuse"]);
    let mut user = User {
        service: &mut service,
        commands: 0,
    };
    user.runs(&["attach-heap", "--yes"], 0);
    let summary = user.runs(&["--heap", "--no-server", "--duration", "4"], 20);
    let sentence = line_with(&summary.stdout, "Live heap: ");
    let leak = format!("Live heap: remember ({})", place("shop.py", "# the leak"));
    assert!(sentence.contains(&leak), "{sentence}");
}
