//! A real, stopped program: all formats of one profile, read by their readers, agree with each other and with the
//! kernel.

use std::process::Stdio;

use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop};
use crate::common::workload::{Workload, program};
use crate::exports::readers;
use ::memprof::http::exporters::EXPORTERS;
use memprof_profile::Kind;
use memprof_sys::residency::figures;

const MIB: u64 = 1 << 20;

#[test]
fn all_formats_of_a_stopped_program_agree_with_the_kernel() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = |ending: &str| dir.path().join(format!("profile.{ending}"));
    let mut workload = Workload::start(&program("scenarios"));
    let pid = workload.pid();
    let mut args = vec![
        "--pid".to_owned(),
        pid.to_string(),
        "--no-server".to_owned(),
    ];
    for format in EXPORTERS {
        let path = file(format.extension)
            .into_os_string()
            .into_string()
            .unwrap();
        args.extend(["--output".to_owned(), path]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let m = Memprof::spawn(&args, Stdio::null(), Stdio::null());
    m.said("following ");
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    for command in [
        "mmap 8388608",
        "shared_anon 2097152",
        &format!("write {data} 4194304"),
    ] {
        workload.lines.tell(command);
    }
    stop(pid);
    m.interrupt();
    let kernel = figures::read(pid).unwrap();
    cont(pid);

    let bytes = |format: &str| {
        let format = EXPORTERS.iter().find(|e| e.name == format).unwrap();
        std::fs::read(file(format.extension)).unwrap()
    };
    let complete = readers::read("profile", &bytes("profile"));
    let resident = complete["anon"] + complete["shmem"];
    let of = |kind: Kind| match kind {
        Kind::All => resident + complete["cache"],
        Kind::Resident => resident,
        // What was not counted is left out.
        one => complete.get(one.name()).copied().unwrap_or(0),
    };
    println!("{complete:?}; the kernel: {kernel:?}");
    assert_eq!(resident, kernel.resident());
    assert_eq!(complete["anon"], kernel.anonymous.unwrap());
    for format in EXPORTERS.iter().map(|e| e.name) {
        let found = readers::read(format, &bytes(format));
        println!("{format}: {found:?}");
        assert_eq!(found, readers::wanted(format, of), "{format}");
    }

    // Every reader finds the program's own memory under its functions.
    let raw = readers::pprof(&bytes("pprof")).raw;
    assert!(raw.contains("cmd_mmap"), "{raw}");
    let flat = |file: &[u8], index: &str, function: &str| {
        let top = readers::pprof_says(&["-top", "-unit=B", index], file);
        let line = top.lines().find(|line| line.ends_with(function));
        let line = line.unwrap_or_else(|| panic!("no {function}:\n{top}"));
        line.split_whitespace().nth(3).unwrap().to_owned()
    };
    let file = bytes("pprof");
    assert_eq!(
        flat(&file, "-sample_index=resident_space", "cmd_mmap"),
        format!("{}B", 8 * MIB)
    );
    assert_eq!(
        flat(&file, "-sample_index=resident_space", "cmd_shared_anon"),
        format!("{}B", 2 * MIB)
    );
    let rows = readers::table(&bytes("functions"));
    let row = rows
        .iter()
        .find(|row| row["function"] == "cmd_mmap")
        .unwrap();
    assert_eq!(row["total_bytes"], (8 * MIB).to_string());
    assert_eq!(row["category"], "own");
    // With `-g` there are lines: that of the store or of the call.
    let located = |line: &&str| line.contains(" cmd_mmap ") && line.contains("scenarios.c:");
    assert!(raw.lines().any(|line| located(&line)), "{raw}");
    let build_id = readelf_build_id();
    assert!(raw.contains(&build_id), "{build_id}: {raw}");
}

/// Functions that the compiler inlined, with their lines, as pprof shows them.
#[test]
fn pprof_shows_inlined_functions() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("profile.pb.gz");
    let mut workload = Workload::start(&program("inlined"));
    let pid = workload.pid().to_string();
    let args = [
        "--pid",
        &pid,
        "--no-server",
        "--output",
        path.to_str().unwrap(),
    ];
    let m = Memprof::spawn(&args, Stdio::null(), Stdio::null());
    m.said("following ");
    workload.lines.tell("go");
    m.interrupt();
    let raw = readers::pprof(&std::fs::read(path).unwrap()).raw;
    let source = include_str!("../../workloads/inlined.c");
    let line = |mark: &str| 1 + source.lines().position(|l| l.ends_with(mark)).unwrap();
    let wanted = [
        ("inner", "// INNER"),
        ("middle", "// MIDDLE"),
        ("outer", "// OUTER"),
    ];
    let wanted = wanted.map(|(function, mark)| (function, line(mark)));
    let lines: Vec<&str> = raw.lines().collect();
    let stands = |at: usize| {
        wanted
            .iter()
            .enumerate()
            .all(|(below, (function, number))| {
                let line = lines.get(at + below).copied().unwrap_or_default();
                let place = format!("/inlined.c:{number}");
                // Newer versions append a column.
                let ends = |rest: &str| rest.starts_with([' ', ':']);
                line.contains(&format!("{function} "))
                    && line.split_once(&place).is_some_and(|(_, rest)| ends(rest))
            })
    };
    // `-raw` lists a location's functions line by line, the innermost first.
    assert!((0..lines.len()).any(stands), "{wanted:?}:\n{raw}");
}

/// The build id of the profiled program, as read by binutils.
fn readelf_build_id() -> String {
    let out = std::process::Command::new("readelf")
        .arg("-n")
        .arg(program("scenarios"))
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let line = text.lines().find(|l| l.contains("Build ID:")).unwrap();
    line.split_whitespace().last().unwrap().to_owned()
}
