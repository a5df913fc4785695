//! `memprof -- COMMAND`.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::common::files::{evict, require_page_cache};
use crate::common::memprof::{BINARY, Memprof, run};
use crate::common::process::{comm, cont, signal, stop, wait_until};
use crate::common::programs::copy_program;
use crate::common::tree::Node;
use crate::common::workload::{Lines, program};
use crate::life::{KIB, MIB};
use memprof_sys::ids::Pid;

#[test]
fn its_exit_status_is_passed_on() {
    for (script, status) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + libc::SIGTERM),
        ("kill -KILL $$", 128 + libc::SIGKILL),
        ("kill -SEGV $$", 128 + libc::SIGSEGV),
    ] {
        let out = run(&["--no-server", "--", "sh", "-c", script]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{script}: {said}");
        assert!(said.contains("resident "), "no summary: {said}");
    }
}

#[test]
fn its_output_is_its_own() {
    let out = run(&["--no-server", "--", "sh", "-c", "echo one; echo two >&2"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "one\n");
    assert!(String::from_utf8_lossy(&out.stderr).contains("two\n"));
}

#[test]
fn its_arguments_are_any_bytes() {
    let word = OsStr::from_bytes(b"caf\xe9 \xff");
    let mut memprof = Command::new(BINARY);
    memprof
        .args(["--no-server", "--", "printf", "%s"])
        .arg(word);
    let out = memprof.output().unwrap();
    assert_eq!(out.stdout, word.as_bytes(), "{out:?}");
}

#[test]
fn one_that_cannot_be_run() {
    let dir = tempfile::tempdir().unwrap();
    let not_executable = dir.path().join("text");
    std::fs::write(&not_executable, "hello").unwrap();
    let [text, no_interpreter] = ["script text", "script"].map(|name| dir.path().join(name));
    std::fs::write(&text, "#!/nonexistent/interpreter\n").unwrap();
    copy_program(&text, &no_interpreter);
    std::fs::set_permissions(&no_interpreter, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (path, why, status) in [
        ("/nonexistent/command", "No such file", 127),
        ("not-in-any-directory-of-path", "No such file", 127),
        (no_interpreter.to_str().unwrap(), "No such file", 127),
        (not_executable.to_str().unwrap(), "Permission denied", 126),
        (dir.path().to_str().unwrap(), "Permission denied", 126),
    ] {
        let out = run(&["--listen", "127.0.0.1:0", "--", path]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{said}");
        assert!(
            !said.contains("serving") && !said.contains("following"),
            "{said}"
        );
        assert!(
            said.contains(&format!("cannot run `{path}`: {why}")),
            "{said}"
        );
    }
}

/// memprof's own process becomes the command: the page cache that `exec` itself reads is not the command's.
#[test]
fn nothing_of_memprof_is_in_its_profile() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    require_page_cache(dir.path());
    let cold = dir.path().join("false");
    copy_program("/bin/false", &cold);
    let file = std::fs::File::open(&cold).unwrap();
    file.sync_all().unwrap();
    evict(&file);
    let out = run(&[
        "--no-server",
        "--stacks",
        "all",
        "--",
        cold.to_str().unwrap(),
    ]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(
        said.contains("; equal") && said.contains("Top functions"),
        "{said}"
    );
    assert!(!said.contains("(memprof)"), "{said}");
}

/// Runs `scenarios` with this input under memprof. Returns the profile that memprof wrote to a file, and its exit
/// status and output.
fn final_profile(input: &str, args: &[&str]) -> (Node, Output) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    let mut child = Command::new(BINARY)
        .args(["--no-server", "--at", "end", "-o", file.to_str().unwrap()])
        .args(args)
        .arg("--")
        .arg(program("scenarios"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let text = std::fs::read(&file).unwrap_or_else(|e| panic!("{e}: {said}"));
    (Node::parse(&text), out)
}

#[test]
fn the_final_profile_is_of_its_end() {
    for round in 0..3 {
        // Fewer pages than the first faults, which are all walked.
        let (tree, out) = final_profile("mmap 33554432\nexit 7\n", &[]);
        assert_eq!(out.status.code(), Some(7));
        assert_eq!(
            tree.at(&["cmd_mmap"]).value * KIB,
            32 * MIB,
            "{round}\n{}",
            tree.text()
        );
    }
    // With threads, after exec, at the end of main, and with children.
    let (tree, _) = final_profile("threads 30\nmmap 4194304\nexit 0\n", &[]);
    tree.must_hold(&["cmd_mmap"], 4 * MIB);
    assert_eq!(tree.at(&["thread_body"]).value, 30 * 64, "{}", tree.text());
    let (tree, _) = final_profile("mmap 4194304\nexec\nmmap 8388608\n", &[]);
    tree.must_hold(&["cmd_mmap"], 8 * MIB);
    let input = "pin\nmmap 4194304\nfork_cow\nfork_end\nexit 0\n";
    for args in [&[][..], &["--follow-forks"]] {
        let (tree, _) = final_profile(input, args);
        tree.must_hold(&["cmd_mmap"], 4 * MIB);
    }
}

#[test]
fn the_final_profile_of_a_killed_command() {
    for kill in [libc::SIGTERM, libc::SIGSEGV, libc::SIGKILL] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.json");
        let args = ["-o", file.to_str().unwrap()];
        let program = program("scenarios");
        let (mut m, mut lines) = Memprof::start_command(&args, &[program.to_str().unwrap()]);
        lines.tell("mmap 8388608");
        signal(m.followed(), kill);
        assert_eq!(m.wait().code(), Some(128 + kill));
        let tree = Node::parse(&std::fs::read(&file).unwrap());
        let found = tree.at(&["cmd_mmap"]).value * KIB;
        println!("signal {kill}: {found} bytes");
        assert_eq!(found, 8 * MIB, "signal {kill}\n{}", tree.text());
    }
}

#[test]
fn it_is_still_served_after_its_end() {
    let program = program("scenarios");
    let program = program.to_str().unwrap();
    let (mut m, mut lines) = Memprof::start_command(&["--serve-after-exit"], &[program]);
    lines.tell("mmap 8388608");
    signal(m.followed(), libc::SIGTERM);
    m.said("ended with status 143");
    // It says again where.
    m.said_times("serving http://", 2);
    let summary = m.get("/v2/summary").json();
    assert_eq!(summary["target"]["alive"], false);
    for path in ["/v1/tree", "/v2/tree?mark=peak", "/v2/overview"] {
        assert_eq!(m.get(path).status, 200, "{path}");
    }
    assert_eq!(m.tree().at(&["cmd_mmap"]).value, 8 * 1024);
    m.signal(libc::SIGINT);
    assert_eq!(m.wait().code(), Some(128 + libc::SIGTERM));
}

#[test]
fn it_stops_and_goes_on() {
    let program = program("scenarios");
    let (m, mut lines) = Memprof::start_command(&[], &[program.to_str().unwrap()]);
    let pid = m.followed();
    for n in 1..=3 {
        stop(pid);
        assert!(m.tree().value > 0);
        cont(pid);
        lines.tell("mmap 1048576");
        assert_eq!(m.tree().at(&["cmd_mmap"]).value, n * 1024);
    }
}

#[test]
fn it_is_stopped_before_it_runs() {
    let program = program("scenarios");
    let args = ["--listen", "127.0.0.1:0", "--", program.to_str().unwrap()];
    let mut m = Memprof::spawn(&args, Stdio::piped(), Stdio::piped());
    let mut lines = Lines::new(&mut m.child);
    let mut child = None;
    wait_until(|| {
        let mut children = children(m.pid()).into_iter();
        child = children.find(|child| comm(*child) == "memprof-command");
        child.is_some()
    });
    let child = child.unwrap();
    stop(child);
    assert_eq!(comm(child), "memprof-command");
    // memprof does not wait for it for ever.
    m.wait_served();
    assert_eq!(m.followed(), child);
    cont(child);
    lines.tell("mmap 1048576");
    assert_eq!(m.tree().at(&["cmd_mmap"]).value, 1024);
}

/// The children of all threads of a process.
fn children(of: Pid) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{of}/task")).unwrap();
    let lists =
        threads.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .map(|pid| Pid(pid.parse().unwrap()))
                .collect::<Vec<_>>()
        })
        .collect()
}
