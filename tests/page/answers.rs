//! From attaching to a program to the sentence or row with the function that has its memory: in at most three actions.

use std::process::{Command, Stdio};

use serde_json::json;

use super::common::memprof::{BINARY, Memprof};
use super::common::programs::installed;
use super::common::skip::skip;
use super::common::workload::{Workload, compiled_by, place, program, source};
use crate::common::browser::Browser;

/// Actions from the attached program to its answer.
const MAX_ACTIONS: usize = 3;

/// A user in front of the page, whose actions are counted.
struct User {
    browser: Browser,
    /// What was done.
    actions: Vec<String>,
}

impl User {
    /// Opens the page of a memprof: the first action.
    fn opens(m: &Memprof) -> User {
        let browser = Browser::start(m.address());
        browser.open("");
        User {
            browser,
            actions: vec!["open".to_owned()],
        }
    }

    /// Clicks on a link, a button or a row with this text, once it is shown.
    #[track_caller]
    fn clicks(&mut self, text: &str) {
        self.actions.push(format!("click on {text:?}"));
        let find = "const all = [...document.querySelectorAll('a, button, tr')];
            const found = all.find((e) => e.checkVisibility() && !e.disabled && e.textContent.includes(arguments[0]));";
        let shown = format!(
            "(() => {{ {} return found !== undefined }})()",
            find.replace("arguments[0]", &format!("{text:?}"))
        );
        self.browser.wait(&shown);
        self.browser
            .run(&format!("{find} found.click();"), json!([text]));
    }

    /// Waits until a sentence or a row has all of this; too many actions fail the test.
    #[track_caller]
    fn reads(&self, parts: &[&str]) {
        let find = "[...document.querySelectorAll('p, li, tr')].some((e) => e.checkVisibility() && PARTS.every((part) => e.textContent.includes(part)))";
        self.browser
            .wait(&find.replace("PARTS", &json!(parts).to_string()));
        assert!(self.actions.len() <= MAX_ACTIONS, "{:#?}", self.actions);
    }
}

/// A program that is ready for requests.
fn service(command: &mut Command) -> Workload {
    let mut service = Workload::start_as(command.stderr(Stdio::null()));
    assert_eq!(service.lines.line(), "ready");
    service
}

/// memprof attaches to a running service, which then answers requests.
fn attached(service: &mut Workload, requests: u32) -> Memprof {
    let m = Memprof::attach(service.pid(), &[]);
    m.said("following ");
    service.lines.tell(&requests.to_string());
    m
}

#[test]
fn a_web_service_in_python() {
    let mut service = service(Command::new("python3").arg(source("shop.py")));
    let m = attached(&mut service, 30);
    let user = User::opens(&m);
    user.reads(&["remember (shop.py:", "MiB"]);
    user.reads(&["remember", &place("shop.py", "# the leak")]);
}

/// The report of a job's peak is one file.
#[test]
fn a_batch_job_in_python() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.html");
    let job = source("job.py");
    let line = [
        "--no-server",
        "-o",
        file.to_str().unwrap(),
        "--",
        "python3",
        job.to_str().unwrap(),
    ];
    let done = Command::new(BINARY).args(line).output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let browser = Browser::start(std::net::SocketAddr::from(([127, 0, 0, 1], 9)));
    browser.open_url(&format!("file://{}", file.display()));
    let user = User {
        browser,
        actions: vec!["memprof -o".to_owned(), "open the file".to_owned()],
    };
    user.reads(&[
        "at the peak",
        "build_report",
        &place("job.py", "# the peak"),
    ]);
}

#[test]
fn a_service_in_rust() {
    let Some(shop) = compiled_by("rustc", "shop.rs", &["--edition=2021"]) else {
        return;
    };
    let mut service = service(&mut Command::new(shop));
    let m = attached(&mut service, 100);
    let user = User::opens(&m);
    user.reads(&["remember", &place("shop.rs", "// the leak"), "MiB"]);
}

/// The line is that of the function.
#[test]
fn a_service_in_node() {
    if !installed("node") {
        return skip("node is not installed");
    }
    let mut command = Command::new("node");
    command.env(
        "NODE_OPTIONS",
        "--perf-basic-prof --interpreted-frames-native-stack",
    );
    let dir = tempfile::tempdir().unwrap();
    // It writes the names of its code into its directory.
    let mut service = service(command.arg(source("shop.js")).current_dir(dir.path()));
    let m = attached(&mut service, 60);
    let user = User::opens(&m);
    user.reads(&[
        "remember",
        &place("shop.js", "function remember(user) {"),
        "MiB",
    ]);
}

/// Of Java there are names of compiled methods, without lines.
#[test]
fn a_service_in_java() {
    if !installed("javac") || !installed("jcmd") {
        return skip("a JDK is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let compiled = Command::new("javac")
        .arg("-d")
        .arg(dir.path())
        .arg(source("Shop.java"))
        .status();
    assert!(compiled.unwrap().success());
    let options = ["-Xmx300m", "-XX:+UseSerialGC", "-XX:+PreserveFramePointer"];
    // What the just-in-time compiler would compile after some time.
    let compile = [
        "-Xcomp",
        "-XX:TieredStopAtLevel=1",
        "-XX:CompileCommand=quiet",
    ];
    let only = [
        "-XX:CompileCommand=compileonly,Shop.*",
        "-XX:CompileCommand=dontinline,Shop.*",
    ];
    let mut command = Command::new("java");
    command.args(options).args(compile).args(only);
    let mut service = service(command.arg("-cp").arg(dir.path()).arg("Shop"));
    service.lines.tell("10");
    let pid = service.pid().to_string();
    let named = Command::new("jcmd")
        .args([&pid, "Compiler.perfmap"])
        .output()
        .unwrap();
    assert!(named.status.success(), "{named:?}");
    let m = attached(&mut service, 10_000);
    let user = User::opens(&m);
    user.reads(&["Shop.remember()", "MiB"]);
}

/// A fragmented heap: what is wrong, and the code whose blocks keep the memory.
#[test]
fn a_fragmented_heap() {
    let fragmented = program("verdict");
    let line = [fragmented.to_str().unwrap(), "fragments"];
    let (m, mut lines) = Memprof::start_command(&["--heap", "--heap-interval", "0"], &line);
    assert!(lines.line().starts_with('{'));
    let mut user = User::opens(&m);
    user.reads(&["take", &place("verdict.c", "void *block = malloc(size);")]);
    user.clicks("Take a snapshot");
    user.reads(&["Fragmentation: chunks of 416 bytes"]);
    user.clicks("Types, sizes and lost blocks");
    user.reads(&[
        "take \u{2190} take_all \u{2190} fragments \u{2190} main",
        "MiB",
    ]);
}
