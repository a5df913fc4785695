//! Programs do the same with the library as without.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{LIBCS, exists, listening_library, program, run, stdout};
use memprof_heap::sampler::{Library, Options};

/// Every allocation is a sample.
fn sampling_all() -> Library {
    let options = Options {
        interval: 0,
        ..Options::default()
    };
    Library::place(&options).unwrap()
}

#[test]
fn results_and_errors_are_the_same() {
    let placed = sampling_all();
    for libc in LIBCS {
        if !exists(libc) {
            continue;
        }
        let program = program("sampler_behaviour.c", libc);
        let expected = stdout(run(&program, &[], &[]));
        assert!(
            expected.contains("without memory: NULL, errno -1"),
            "{expected}"
        );
        assert_eq!(
            stdout(run(&program, &[], &[placed.path().as_os_str()])),
            expected,
            "{libc}"
        );
        // The whole path of a sample, with a listener.
        let listener = listener();
        for interval in [0, 4096] {
            let library = listening_library(interval, 1);
            let preload = [library.as_os_str(), listener.as_os_str()];
            assert_eq!(
                stdout(run(&program, &[], &preload)),
                expected,
                "{libc}, {interval}"
            );
        }
    }
}

/// A library that listens and does nothing; without a C library, as programs with any may preload it.
fn listener() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = dir.join("sampler_listener.c");
    fs::write(
        &source,
        "void sampler_test_alloc(void *p, unsigned long s, unsigned long w) { (void)p, (void)s, (void)w; }\n\
         void sampler_test_free(void *p) { (void)p; }\n",
    )
    .unwrap();
    let path = dir.join(format!("sampler_listener.{}.so", std::process::id()));
    let mut command = Command::new("cc");
    command
        .args(["-shared", "-fPIC", "-nostdlib", "-o"])
        .args([&path, &source]);
    assert!(command.status().unwrap().success());
    path
}

#[test]
fn a_double_free_ends_the_program_as_it_did() {
    let placed = sampling_all();
    let listener = listener();
    let library = listening_library(0, 1);
    for libc in LIBCS {
        if !exists(libc) {
            continue;
        }
        let program = program("sampler_behaviour.c", libc);
        let expected = run(&program, &["twice"], &[]).status.signal();
        assert!(expected.is_some(), "{libc} does not notice");
        let preloads: [&[&OsStr]; 2] = [
            &[placed.path().as_os_str()],
            &[library.as_os_str(), listener.as_os_str()],
        ];
        for preload in preloads {
            let status = run(&program, &["twice"], preload).status;
            assert_eq!(status.signal(), expected, "{libc}, {preload:?}");
        }
    }
}

#[test]
fn usual_programs_run_as_before() {
    let placed = sampling_all();
    let commands: [&[&str]; 4] = [
        &["sh", "-c", "for i in 1 2 3; do echo $i | cat; done"],
        &[
            "python3",
            "-c",
            "import json; print(json.dumps([str(n) * 9 for n in range(9999)])[-99:])",
        ],
        &[
            "sqlite3",
            ":memory:",
            "with recursive n(i) as (select 1 union all select i + 1 from n limit 9999) select sum(i) from n",
        ],
        &["sort", "--parallel=4", "/proc/self/environ"],
    ];
    for command in commands {
        let [program, args @ ..] = command else {
            unreachable!()
        };
        if !exists(program) {
            continue;
        }
        let output = |preload: Option<&Path>| {
            let mut command = Command::new(program);
            command
                .args(args)
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap());
            if let Some(path) = preload {
                command.env("LD_PRELOAD", path);
            }
            command.output().unwrap()
        };
        let (without, with) = (output(None), output(Some(placed.path())));
        assert_eq!(with.status, without.status, "{program}");
        assert_eq!(
            String::from_utf8_lossy(&with.stderr),
            String::from_utf8_lossy(&without.stderr)
        );
        if program != &"sort" {
            assert_eq!(with.stdout, without.stdout, "{program}");
        }
    }
}
