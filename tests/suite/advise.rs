//! `memprof advise`: what it says of processes of several kinds, and the commands that it names, which are run.
//!
//! Needs root and a compiler.

use std::process::{Command, Stdio};

use crate::common::allocators::{JEMALLOC, allocator};
use crate::common::binary::{Ended, MEMPROF, memprof, run};
use crate::common::process::{LIMIT, eventually, state, wait_until};
use crate::common::programs::installed;
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::common::workload::{Running, Workload, program};
use crate::heap::glibc::compiled;
use memprof_sys::ids::Pid;
use memprof_sys::residency::figures;
use memprof_sys::text::size;

const GROWS: &str = "What grows?";
const OBJECTS: &str = "Which objects does it have?";
const HEAP: &str = "What is in use, free or lost in its heap?";
const HOLDS: &str = "Which code holds the memory that comes from now on?";
const ALLOCATES: &str = "Which code allocates and does not free?";
const OVER_DAYS: &str = "Its memory over days";

/// What memprof advises.
#[derive(Debug)]
struct Advice {
    first: String,
    /// Questions and the commands that answer them.
    commands: Vec<(String, String)>,
    notes: Vec<String>,
}

impl Advice {
    /// For a program that waits.
    #[track_caller]
    fn of(pid: Pid) -> Advice {
        let ended = memprof(&["advise", "--pid", &pid.to_string()]);
        ended.must(0, &[]);
        let mut lines = ended.stdout.lines();
        let first = lines.next().unwrap().to_owned();
        let (mut commands, mut notes) = (Vec::new(), Vec::new());
        while let Some(line) = lines.next() {
            if let Some(note) = line.strip_prefix("Note: ") {
                notes.push(note.to_owned());
            } else if !line.is_empty() {
                let command = lines.next().and_then(|line| line.strip_prefix("  "));
                commands.push((line.to_owned(), command.expect(line).to_owned()));
            }
        }
        Advice {
            first,
            commands,
            notes,
        }
    }

    /// Checks the first line, whose figures are the kernel's. While the process still maps pages, they differ: then the advice is
    /// taken again.
    #[track_caller]
    fn is_of(&self, comm: &str, pid: Pid, kind: &str) {
        let mut first = self.first.clone();
        eventually(LIMIT, "the first line is the kernel's", || {
            let kernel = figures::status(pid).unwrap();
            let rss = kernel.rss_anon + kernel.rss_shmem + kernel.rss_file;
            let (rss, anon) = (size(rss), size(kernel.rss_anon));
            let figures = format!("RSS {rss}, {anon} of it anonymous");
            let expected = format!("{comm} (pid {pid}): {kind}, {figures}");
            let said = std::mem::replace(&mut first, Advice::of(pid).first);
            if said != expected {
                println!("{said}; expected: {expected}");
            }
            said == expected
        });
    }

    #[track_caller]
    fn answers(&self, questions: &[&str]) {
        let asked: Vec<&str> = self
            .commands
            .iter()
            .map(|(question, _)| question.as_str())
            .collect();
        let alike = asked.len() == questions.len()
            && asked
                .iter()
                .zip(questions)
                .all(|(asked, question)| asked.starts_with(question));
        assert!(alike, "{asked:#?} instead of {questions:#?}");
    }

    #[track_caller]
    fn command(&self, question: &str) -> &str {
        let mut commands = self.commands.iter();
        let found = commands.find(|(asked, _)| asked.starts_with(question));
        &found.unwrap_or_else(|| panic!("{question}: {self:#?}")).1
    }

    /// Runs the commands that answer a question, for seconds where they would take longer; each must succeed. Returns what
    /// the last one says.
    #[track_caller]
    fn run(&self, question: &str) -> Ended {
        let dir = tempfile::tempdir().unwrap();
        let mut last = None;
        for command in self.command(question).split(" && ") {
            let words = command
                .strip_prefix("sudo memprof ")
                .expect(command)
                .split(' ');
            let mut args: Vec<&str> = words.collect();
            let limit = args.iter().position(|arg| *arg == "--duration");
            match (limit, args[0]) {
                (Some(at), _) => args[at + 1] = "1",
                (None, "heap") => args.extend(["--max-stop", "10000"]),
                (None, "attach-heap") => args.push("--yes"),
                (None, _) => args.extend(["--duration", "1"]),
            }
            if args[0].starts_with("--") {
                args.push("--no-server");
            }
            let ended = run(Command::new(MEMPROF).args(&args).current_dir(dir.path()));
            ended.must(0, &[]);
            last = Some(ended);
        }
        last.unwrap()
    }

    /// Whether a note contains this.
    fn notes(&self, part: &str) -> bool {
        self.notes.iter().any(|note| note.contains(part))
    }
}

const COMPILED: &str = "C, C++ or another compiled language";

fn waiting(command: &mut Command) -> Workload {
    let mut workload = Workload::start_as(command.env("MALLOC_CONF", "").stderr(Stdio::null()));
    assert_ne!(workload.lines.line(), "");
    // Its memory is that of a moment later.
    wait_until(|| state(workload.pid()) == 'S');
    workload
}

/// Its commands answer.
#[test]
fn a_c_program() {
    let workload = waiting(Command::new(program("verdict")).arg("fine"));
    let advice = Advice::of(workload.pid());
    advice.is_of("verdict", workload.pid(), COMPILED);
    assert!(advice.notes.is_empty(), "{advice:#?}");
    // (A program that does nothing has no trend.)
    for (question, answer) in [(HEAP, "is heap in use"), (HOLDS, "RSS "), (OVER_DAYS, "")] {
        let ended = advice.run(question);
        assert!(ended.stdout.contains(answer), "{question} {ended:?}");
    }
    advice.answers(&[GROWS, HEAP, HOLDS, ALLOCATES, OVER_DAYS]);
    let ended = advice.run(ALLOCATES);
    assert!(ended.stdout.contains("live heap"), "{ended:?}");
    workload.end();
}

/// Nothing is known of a static program's allocator without symbols, and without debug information there are no lines.
#[test]
fn a_static_program_without_debug_information() {
    let workload = waiting(Command::new(compiled("verdict", &["-static", "-s"])).arg("fine"));
    let advice = Advice::of(workload.pid());
    // The kernel keeps 15 characters of a name.
    advice.is_of("verdict-static-", workload.pid(), COMPILED);
    assert!(
        !advice.command(ALLOCATES).contains("attach-heap"),
        "{advice:#?}"
    );
    assert!(advice.notes("no debug information"), "{advice:#?}");
    workload.end();
}

/// With symbols, a static program can get the library.
#[test]
fn a_static_program() {
    let workload = waiting(Command::new(compiled("verdict", &["-static"])).arg("fine"));
    let advice = Advice::of(workload.pid());
    assert!(
        advice.command(ALLOCATES).contains("attach-heap"),
        "{advice:#?}"
    );
    let ended = advice.run(ALLOCATES);
    assert!(ended.stdout.contains("live heap"), "{ended:?}");
    workload.end();
}

/// musl's loader refuses the library, which memprof then maps by itself.
#[test]
fn a_program_with_musl() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, binary) = (dir.path().join("wait.c"), dir.path().join("wait"));
    let text = "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { for (;;) { free(malloc(9)); usleep(1000); } }\n";
    std::fs::write(&source, text).unwrap();
    match Command::new("musl-gcc")
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .status()
    {
        Ok(status) => assert!(status.success()),
        Err(e) => return skip(format!("musl-gcc: {e}")),
    }
    let child = Running(Command::new(&binary).spawn().unwrap());
    let advice = Advice::of(child.pid());
    let command = advice.command(ALLOCATES);
    assert!(command.contains("attach-heap"), "{advice:#?}");
    let ended = advice.run(ALLOCATES);
    assert!(ended.stdout.contains("live heap"), "{ended:?}");
}

#[test]
fn a_python_program() {
    let Some((_, python)) = pythons().pop_first() else {
        return skip("there is no CPython");
    };
    let script =
        "import sys; kept = [[n] for n in range(50000)]; print('ok', flush=True); sys.stdin.read()";
    let workload = waiting(Command::new(python).args(["-c", script]));
    let advice = Advice::of(workload.pid());
    advice.is_of("python3", workload.pid(), "Python");
    advice.answers(&[GROWS, OBJECTS, HOLDS, ALLOCATES, OVER_DAYS]);
    assert!(advice.notes.is_empty(), "{advice:#?}");
    let ended = advice.run(OBJECTS);
    let has_lists = |line: &str| line.ends_with(" list") || line.contains(" list, ");
    assert!(ended.stdout.lines().any(has_lists), "{ended:?}");
    workload.end();
}

/// An allocator that is a library is seen by the loaded library.
#[test]
fn a_program_with_jemalloc() {
    let Some(jemalloc) = allocator(JEMALLOC) else {
        return;
    };
    let mut command = Command::new(program("verdict"));
    let workload = waiting(command.arg("fine").env("LD_PRELOAD", jemalloc));
    let advice = Advice::of(workload.pid());
    advice.is_of("verdict", workload.pid(), COMPILED);
    let ended = advice.run(HEAP);
    assert!(ended.stdout.contains("Allocator: jemalloc"), "{ended:?}");
    if cfg!(target_arch = "x86_64") {
        assert!(
            advice.command(ALLOCATES).contains("attach-heap"),
            "{advice:#?}"
        );
    }
    let ended = advice.run(ALLOCATES);
    assert!(ended.stdout.contains("live heap"), "{ended:?}");
    workload.end();
}

/// Objects of JavaScript are not malloc's, so that nothing is loaded into it.
#[test]
fn a_node_program() {
    if !installed("node") {
        return skip("node is not installed");
    }
    let script = "console.log('ok'); process.stdin.resume();";
    let workload = waiting(Command::new("node").args(["-e", script]));
    let advice = Advice::of(workload.pid());
    assert!(
        advice.first.contains(" (pid ") && advice.first.contains(": node, RSS "),
        "{advice:#?}"
    );
    advice.answers(&[GROWS, HEAP, HOLDS, OVER_DAYS]);
    assert!(advice.notes("--perf-basic-prof"), "{advice:#?}");
    let ended = advice.run(HEAP);
    assert!(ended.stdout.contains("V8"), "{ended:?}");
    workload.end();
}

/// The command that lists its objects is Java's own.
#[test]
fn a_java_program() {
    if !installed("java") || !installed("jcmd") {
        return skip("java, with jcmd, is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Wait.java");
    let text = "public class Wait { public static void main(String[] args) throws Exception { System.out.println(\"ok\"); System.in.read(); } }";
    std::fs::write(&file, text).unwrap();
    let workload = waiting(
        Command::new("java")
            .args(["-Xmx64m", "-XX:+UseSerialGC"])
            .arg(file),
    );
    let advice = Advice::of(workload.pid());
    assert!(
        advice.first.starts_with("java (pid ") && advice.first.contains(": Java, RSS "),
        "{advice:#?}"
    );
    advice.answers(&[GROWS, OBJECTS, HOLDS, OVER_DAYS]);
    assert!(advice.notes("-XX:+PreserveFramePointer"), "{advice:#?}");
    let mut words = advice.command(OBJECTS).split(' ');
    let ended = run(Command::new(words.next().unwrap()).args(words));
    ended.must(0, &[]);
    assert!(ended.stdout.contains("java.lang.String"), "{ended:?}");
    workload.end();
}

#[test]
fn processes_that_do_not_exist() {
    // Larger than each possible id.
    memprof(&["advise", "--pid", "4194305"]).must(1, &["there is no such process: 4194305"]);
    memprof(&["advise", "--comm", "no-such-program"])
        .must(1, &["no process is named no-such-program"]);
    memprof(&["advise"]).must(2, &["--pid"]);
}
