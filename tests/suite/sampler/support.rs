//! Compiling workloads and the library.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use crate::common::skip::skip;

/// The C libraries that programs are linked with.
pub const LIBCS: [&str; 2] = ["cc", "musl-gcc"];

const FLAGS: [&str; 7] = [
    "-O1",
    "-g",
    "-pthread",
    // Calls of malloc stay, and the library finds the program's listener.
    "-fno-builtin",
    "-rdynamic",
    "-Wall",
    "-Wextra",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn directory() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sampler");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Whether a command exists; skips the test's part otherwise.
pub fn exists(command: &str) -> bool {
    let found = Command::new(command).arg("--version").output();
    // musl-gcc passes --version on to a compiler that may be missing; that it starts is enough.
    if found.is_err() {
        skip(format!("there is no {command}"));
    }
    found.is_ok()
}

/// Compiles to a file of this name unless this process has done so before.
fn compiled(name: &str, command: &mut Command) -> PathBuf {
    static DONE: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = directory().join(name);
    if done.iter().any(|d| d == name) {
        return path;
    }
    // Another test binary may be running the existing file, so it is replaced, not overwritten.
    let fresh = directory().join(format!("{name}.{}", std::process::id()));
    let output = command.arg("-o").arg(&fresh).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    std::fs::rename(fresh, &path).unwrap();
    done.push(name.into());
    path
}

/// A program of `tests/workloads`.
pub fn program(source: &str, compiler: &str) -> PathBuf {
    program_with(source, compiler, &[])
}

/// As above, linked with more.
pub fn program_with(source: &str, compiler: &str, link: &[&str]) -> PathBuf {
    let path = root().join("tests/workloads").join(source);
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg(path).arg("-lm").args(link);
    compiled(&format!("{source}.{compiler}"), &mut command)
}

/// The library, such that it calls `sampler_test_alloc` and `sampler_test_free` in place of its probes.
pub fn listening_library(interval: u64, seed: u64) -> PathBuf {
    let dir = root().join("crates/memprof-heap/src/sampler");
    let flags = std::fs::read_to_string(dir.join("flags")).unwrap();
    let mut sources: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension() == Some(OsStr::new("c")))
        .collect();
    sources.sort();
    let mut command = Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".into()));
    command
        .args(flags.split_whitespace())
        .arg("-DMEMPROF_SAMPLER_TEST")
        .arg(format!("-DTEST_INTERVAL={interval}"))
        .arg(format!("-DTEST_SEED={seed}"))
        .args(sources);
    if cfg!(target_arch = "aarch64") {
        command.arg("-mno-outline-atomics");
    }
    compiled(&format!("listening-{interval}-{seed}.so"), &mut command)
}

/// Runs a program with these libraries preloaded.
#[track_caller]
pub fn run(program: &Path, args: &[&str], preload: &[&OsStr]) -> Output {
    let mut command = Command::new(program);
    command.args(args).env_remove("LD_PRELOAD");
    if !preload.is_empty() {
        command.env("LD_PRELOAD", preload.join(OsStr::new(":")));
    }
    command.output().unwrap()
}

/// Its stdout, if it succeeded and its stderr is empty.
#[track_caller]
pub fn stdout(output: Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    assert_eq!(stderr, "");
    String::from_utf8(output.stdout).unwrap()
}
