//! Recordings: of real programs, by the real memprof, which is killed at any moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::effort;
use crate::common::memprof::{BINARY, Memprof, run, run_to_error};
use crate::common::process::{cont, stop, wait_until};
use crate::common::random::Random;
use crate::common::workload::{Workload, program};
use memprof_recording::{MomentInfo, Recording};

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Directory {
        Directory(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// The moments of a recording that is still being made.
fn moments(path: &Path) -> Vec<MomentInfo> {
    match Recording::open(path) {
        Ok(recording) => recording.moments().unwrap(),
        Err(e) => panic!("{e}"),
    }
}

/// memprof that records a process and serves nothing.
fn recorder(file: &Path, workload: &Workload) -> Memprof {
    let mut command = Command::new(BINARY);
    command.arg("record").arg(file);
    command.args(["--stacks", "all", "--pid", &workload.pid().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Memprof::spawn_unserved(&mut command)
}

/// A saved profile of a moment.
fn exported(file: &str, place: &Directory) -> Value {
    let out = place.text("moment.memprof.json");
    let done = run(&["open", file, "-o", &out]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{file}: {said}");
    serde_json::from_slice(&fs::read(out).unwrap()).unwrap()
}

/// A memprof that serves a recording.
fn opened(file: &str) -> Memprof {
    let mut command = Command::new(BINARY);
    command.args(["open", file, "--listen", "127.0.0.1:0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Memprof::spawn_as(&mut command)
}

fn anon(profile: &Value) -> u64 {
    profile["total"]["anon"].as_u64().unwrap()
}

/// The peak, the end and the difference between them are what the program did.
#[test]
fn a_program_that_peaked_and_shrank() {
    let place = Directory::new();
    let file = place.path("r.memprof.db");
    let mut workload = Workload::start(&program("scenarios"));
    let m = recorder(&file, &workload);
    m.said("following");
    // Each of the states is recorded, because memprof scans a target that changes once a second.
    let recorded = |states: &dyn Fn(&[MomentInfo]) -> bool| {
        wait_until(|| file.exists() && states(&moments(&file)));
    };
    workload.lines.tell("mmap 33554432");
    recorded(&|all| all.iter().any(|m| m.total >= 32 << 20));
    workload.lines.tell("munmap");
    recorded(&|all| all.last().is_some_and(|m| m.total < 32 << 20));
    let said = m.interrupt();
    assert!(said.contains("recorded "), "{said}");
    assert!(!place.path("r.memprof.db-wal").exists());

    let named = |at: &str| format!("{}@{at}", file.display());
    let (peak, end) = (
        exported(&named("peak"), &place),
        exported(&named("end"), &place),
    );
    assert!(anon(&peak) >= 32 << 20 && anon(&end) < 16 << 20);
    let functions = peak["frames"].as_array().unwrap();
    assert!(
        functions
            .iter()
            .any(|frame| frame["function"] == "cmd_mmap")
    );
    let last = exported(&file.display().to_string(), &place);
    assert_eq!(last, end);
    let diff = run(&[
        "diff",
        &named("peak"),
        &named("end"),
        "--fail-if",
        "growth > 0",
    ]);
    assert!(diff.status.success());
    let diff = run(&[
        "diff",
        &named("end"),
        &named("peak"),
        "--fail-if",
        "growth > 16MiB",
    ]);
    assert_eq!(diff.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&diff.stdout).contains("cmd_mmap"));
    // The page and the API, without a target.
    let opened = opened(&named("peak"));
    opened.said("the report of 20");
    let summary = opened.get("/v2/summary").json();
    assert_eq!(summary["total"]["anon"], peak["total"]["anon"], "{summary}");
}

/// A program that grows by up to 2 MiB a second: from the command line, and from the API.
#[test]
fn what_grows_is_ranked() {
    let place = Directory::new();
    let file = place.path("r.memprof.db");
    let mut workload = Workload::start(&program("scenarios"));
    let m = recorder(&file, &workload);
    m.said("following");
    let (started, mut grown) = (Instant::now(), 0.0);
    // A trend needs ten moments, one a second at most.
    while !file.exists() || moments(&file).len() < 14 {
        workload.lines.tell("mmap 524288");
        grown += 0.5;
        sleep(Duration::from_millis(250));
    }
    let wanted = grown / started.elapsed().as_secs_f64();
    m.interrupt();
    let file = file.to_str().unwrap();
    let gate = |limit: &str| {
        let gate = format!("function:cmd_mmap growth_rate > {limit}");
        let done = run(&["growth", file, "--format", "json", "--fail-if", &gate]);
        let table: Value = serde_json::from_slice(&done.stdout).unwrap();
        (done.status.code(), table)
    };
    let (status, table) = gate("64KiB/s");
    assert_eq!(status, Some(3), "{table}");
    assert_eq!(gate("8MiB/s").0, Some(0));
    let row = &table["rows"][0];
    assert!(
        row["name"].as_str().unwrap().starts_with("cmd_mmap ("),
        "{table}"
    );
    assert_eq!(row["shape"], "steady");
    let rate = row["per_hour"].as_f64().unwrap() / 3600.0 / f64::from(1 << 20);
    assert!(
        (0.8..=1.2).contains(&(rate / wanted)),
        "{rate} of {wanted} MiB/s: {table}"
    );
    let text = run(&["growth", file, "--by", "stack", "-n", "1"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(" ← main ("), "{text}");

    let opened = opened(file);
    opened.said("opened ");
    assert_eq!(opened.get("/v2/growth").json()["rows"][0], *row);
    let all = moments(Path::new(file));
    let series = opened.get("/v2/series").json();
    assert_eq!(series["times"].as_array().unwrap().len(), all.len());
    assert_eq!(series["recorded"], true);
    let anon =
        |at: &str| opened.get(&format!("/v2/summary?at={at}")).json()["total"]["anon"].clone();
    for (at, column) in series["times"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            anon(&column.to_string()),
            series["series"][0]["values"][at],
            "{at}"
        );
    }
    assert_eq!(anon("peak"), anon("end"));
    assert_eq!(opened.get("/v2/summary?at=noon").status, 400);
    assert_eq!(opened.get("/v2/summary?at=1&mark=1").status, 400);
    // A time before the first moment.
    assert_eq!(anon("100000000000"), series["series"][0]["values"][0]);
    assert_eq!(
        opened.get("/v2/summary?at=1973-03-03T00:00:00Z").status,
        404
    );
    assert_eq!(opened.get("/v2/diff?from=@-5s&to=@end").status, 200);
    let short = opened.get("/v2/growth?from=-2s").json();
    assert!(
        short.get("total").is_none() && short["to"].is_u64(),
        "{short}"
    );
    let metrics = opened.get("/metrics").text().to_owned();
    let rate = metrics
        .lines()
        .find_map(|line| line.strip_prefix("memprof_growth_bytes_per_second "));
    let total = &table["total"];
    let certain = total["per_hour"].as_f64().unwrap() - 2.0 * total["error"].as_f64().unwrap();
    let rate: f64 = rate.unwrap().parse().unwrap();
    assert!((rate - certain / 3600.0).abs() < 1.0, "{rate}: {table}");
}

/// Without a file: what grows in a running process.
#[test]
fn what_grows_in_a_process_is_ranked() {
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid().to_string();
    let line = "growth --duration 16 --format json --fail-if growth_rate>64KiB/s --pid";
    let line: Vec<&str> = line.split(' ').chain([pid.as_str()]).collect();
    let done = std::thread::scope(|scope| {
        let watched = scope.spawn(|| run(&line));
        while !watched.is_finished() {
            workload.lines.tell("mmap 524288");
            sleep(Duration::from_millis(250));
        }
        watched.join().unwrap()
    });
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(3), "{said}");
    let table: Value = serde_json::from_slice(&done.stdout).unwrap();
    let row = &table["rows"][0];
    assert!(
        row["name"].as_str().unwrap().starts_with("cmd_mmap ("),
        "{table}"
    );
    assert_eq!(row["shape"], "steady");
    // Of one that does nothing, there is no trend.
    let done = run(&["growth", "--duration", "2", "--pid", &pid]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("watch the process for longer"), "{said}");
}

/// A recorded moment is the report of that moment, as clients get it.
#[test]
fn the_last_moment_is_the_report_that_the_api_has() {
    let place = Directory::new();
    let file = place.text("r.memprof.db");
    let mut workload = Workload::start(&program("scenarios"));
    let m = Memprof::attach(workload.pid(), &["--record", &file, "--follow-forks"]);
    for command in ["mmap 8388608", "shared_anon 2097152", "fork_cow"] {
        workload.lines.tell(command);
    }
    stop(workload.pid());
    sleep(Duration::from_millis(300));
    let live: Value = m.get("/v2/export/profile").json();
    let number = live["report"].as_u64().unwrap();
    let has = |number| {
        let all = moments(Path::new(&file));
        let last = all.last().map(|last| {
            let recording = Recording::open(Path::new(&file)).unwrap();
            recording.state(last.id).unwrap().sequence
        });
        last >= Some(number)
    };
    wait_until(|| has(number));
    let all = moments(Path::new(&file));
    let recording = Recording::open(Path::new(&file)).unwrap();
    let states = all.iter().map(|moment| recording.state(moment.id).unwrap());
    let state = states.into_iter().find(|state| state.sequence == number);
    cont(workload.pid());
    let mut bytes = Vec::new();
    let report = state.expect("the report was recorded").into();
    memprof_profile::saved::write(&report, memprof_code::layout::of_module, &mut bytes).unwrap();
    let mut found: Value = serde_json::from_slice(&bytes).unwrap();
    let mut live = live;
    // The API adds source lines to a saved profile; a recording has the names of functions.
    for profile in [&mut found, &mut live] {
        for frame in profile["frames"].as_array_mut().unwrap() {
            for field in ["file", "line", "inlined"] {
                frame.as_object_mut().unwrap().remove(field);
            }
        }
    }
    for (name, value) in live.as_object().unwrap() {
        assert_eq!(&found[name], value, "{name}");
    }
    let said = m.interrupt();
    assert!(said.contains(&format!("reports to {file}")), "{said}");
}

/// memprof is killed at random moments, again and again, and records to the same file each time.
#[test]
fn a_recording_survives_kills() {
    let place = Directory::new();
    let file = place.path("r.memprof.db");
    let mut workload = Workload::start(&program("scenarios"));
    let mut random = Random(effort::seed());
    let mut before = 0;
    for round in 0..effort::rounds(10) {
        let mut m = recorder(&file, &workload);
        if round == 0 {
            wait_until(|| {
                file.exists()
                    && Recording::open(&file).is_ok_and(|r| !r.moments().unwrap().is_empty())
            });
        }
        workload.lines.tell("mmap 1048576");
        sleep(Duration::from_millis(random.below(2500)));
        m.signal(libc::SIGKILL);
        m.wait();
        let all = moments(&file);
        assert!(
            all.len() >= before,
            "{} moments, {before} before",
            all.len()
        );
        before = all.len();
        let recording = Recording::open(&file).unwrap();
        for moment in &all {
            recording.state(moment.id).unwrap();
        }
    }
    let m = recorder(&file, &workload);
    let runs = |file: &Path| moments(file).last().unwrap().run;
    let last = runs(&file);
    wait_until(|| runs(&file) > last);
    m.interrupt();
    exported(&format!("{}@peak", file.display()), &place);
}

/// A command is recorded to its end, with its peak, which is between two reports. memprof exits with its status.
#[test]
fn a_command_is_recorded_to_its_end() {
    let place = Directory::new();
    let file = place.text("job.memprof.db");
    let script = "import time; x = b'x' * (40 << 20); del x; time.sleep(1); exit(7)";
    let done = run(&["record", &file, "--", "python3", "-c", script]);
    let said = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(127) {
        return crate::common::skip::skip("python3 is not installed");
    }
    assert_eq!(done.status.code(), Some(7), "{said}");
    let (peak, end) = (format!("{file}@peak"), format!("{file}@end"));
    assert!(anon(&exported(&peak, &place)) >= 40 << 20);
    assert!(anon(&exported(&end, &place)) < 40 << 20);
}

#[test]
fn errors_say_what_is_wrong() {
    let place = Directory::new();
    let text = place.text("letter");
    fs::write(&text, "dear reader").unwrap();
    let said = run_to_error(&[
        "--pid",
        &std::process::id().to_string(),
        "--no-server",
        "--record",
        &text,
    ]);
    assert!(
        said.contains("not a recording of memprof") && said.contains("--record"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&text).unwrap(), "dear reader");
    let said = run_to_error(&["open", &format!("{text}@peak"), "-o", "-"]);
    assert!(said.contains("only a recording has moments"), "{said}");
    let said = run_to_error(&["open", &format!("{text}@noon"), "-o", "-"]);
    assert!(said.contains("names no moment"), "{said}");
    let said = run_to_error(&["open", &place.text("none@peak"), "-o", "-"]);
    assert!(said.contains("No such file"), "{said}");
    let said = run_to_error(&[
        "--all",
        "--no-server",
        "--record",
        &place.text("no/directory"),
    ]);
    assert!(said.contains("No such file"), "{said}");
}

/// A full disk ends the recording; memprof goes on and says so.
#[test]
fn a_full_disk_stops_the_recording_alone() {
    let place = Directory::new();
    let disk = place.path("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "memprof-test"])
        .arg(&disk)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return crate::common::skip::skip("a tmpfs cannot be mounted");
    }
    let unmount = || Command::new("umount").arg("-l").arg(&disk).status();
    let mut workload = Workload::start(&program("scenarios"));
    let file = disk.join("r.memprof.db");
    let m = Memprof::attach(workload.pid(), &["--record", file.to_str().unwrap()]);
    wait_until(|| file.exists() && !moments(&file).is_empty());
    fs::write(disk.join("rest"), vec![0; 4 << 20]).unwrap_err();
    for _ in 0..40 {
        workload.lines.tell("mmap 1048576");
        sleep(Duration::from_millis(200));
        if !m.has_said("memprof goes on without it").is_empty() {
            break;
        }
    }
    m.said("memprof goes on without it");
    assert_eq!(m.get("/v2/summary").status, 200);
    let recorded = moments(&file);
    let said = m.interrupt();
    unmount().unwrap();
    assert!(!recorded.is_empty());
    assert_eq!(said.matches("stopped after").count(), 2, "{said}");
}
