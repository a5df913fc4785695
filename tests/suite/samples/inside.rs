//! Allocators inside the executable, whose calls pass through no import: jemalloc under two names, tcmalloc, and those of Rust
//! programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::preloaded::must_be;
use crate::common::memprof::Memprof;
use crate::common::skip::skip;
use crate::common::workload::{Lines, Workload, program, program_with};
use crate::samples::below;

/// A static library, as the linker finds it.
pub fn archive(name: &str) -> Option<PathBuf> {
    let out = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .unwrap();
    let path = PathBuf::from(String::from_utf8(out.stdout).unwrap().trim_end());
    if path.is_absolute() {
        return Some(path);
    }
    skip(format!("there is no {name}"));
    None
}

/// A C workload with an allocator inside; `None` without the library.
pub fn with_allocator(workload: &str, library: &str) -> Option<PathBuf> {
    archive(library)?;
    let name = format!("-l:{library}");
    Some(program_with(workload, &[&name, "-lstdc++", "-lm"]))
}

/// jemalloc's functions that get a prefix, as in Rust's crate.
const PREFIXED: [&str; 8] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "malloc_usable_size",
];

/// A static library of jemalloc with a prefix; `None` without jemalloc.
fn prefixed_jemalloc() -> Option<PathBuf> {
    let library = archive("libjemalloc.a")?;
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let renamed = format!("rjem-{}-{number}.a", std::process::id());
    let renamed = Path::new(env!("CARGO_TARGET_TMPDIR")).join(renamed);
    let mut objcopy = Command::new("objcopy");
    for name in PREFIXED {
        objcopy
            .arg("--redefine-sym")
            .arg(format!("{name}=_rjem_{name}"));
    }
    objcopy.args([&library, &renamed]);
    assert!(objcopy.status().unwrap().success());
    Some(renamed)
}

/// A C workload that calls jemalloc as Rust's crate does, by names with a prefix.
pub fn with_prefixed_jemalloc(workload: &str) -> Option<PathBuf> {
    let library = prefixed_jemalloc()?;
    let mut link: Vec<String> = PREFIXED
        .iter()
        .map(|name| format!("-D{name}=_rjem_{name}"))
        .collect();
    link.extend([library.to_str().unwrap(), "-lstdc++", "-lm"].map(str::to_owned));
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    let source = crate::common::workload::source(&format!("{workload}.c"));
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{workload}-rjem-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args([
        "-O1",
        "-g",
        "-pthread",
        "-fno-omit-frame-pointer",
        "-fno-inline",
        "-o",
    ]);
    cc.args([&binary, &source]).args(link);
    assert!(cc.status().unwrap().success());
    Some(binary)
}

fn start(program: &Path) -> (Memprof, Lines) {
    let args = ["--heap", "--heap-interval", "16KiB"];
    Memprof::start_command(&args, &[program.to_str().unwrap()])
}

/// Live and freed blocks of one thread and of several.
pub fn estimates_are_right(program: &Path) {
    let (m, mut lines) = start(program);
    lines.tell("hold 20000 500");
    lines.tell("churn 200000 64");
    lines.tell("threads 2000 3000");
    must_be(&m, "hold", "inuse_space", 20_000 * 500);
    must_be(&m, "hold", "inuse_objects", 20_000);
    must_be(&m, "churn", "alloc_space", 200_000 * 64);
    must_be(&m, "churn", "alloc_objects", 200_000);
    assert_eq!(below(&m, "churn", "inuse_space"), (0, 0));
    must_be(&m, "thread_holds", "inuse_space", 8_000 * 3_000);
    lines.tell("release 8000");
    assert_eq!(below(&m, "thread_holds", "inuse_space"), (0, 0));
    lines.tell("release 10000");
    must_be(&m, "hold", "inuse_space", 10_000 * 500);
    assert_eq!(m.lost(), [""; 0]);
}

#[test]
fn jemalloc() {
    if let Some(program) = with_allocator("allocations", "libjemalloc.a") {
        estimates_are_right(&program);
    }
}

#[test]
fn jemalloc_with_a_prefix() {
    if let Some(program) = with_prefixed_jemalloc("allocations") {
        estimates_are_right(&program);
    }
}

#[test]
fn tcmalloc() {
    if let Some(program) = with_allocator("allocations", "libtcmalloc_minimal.a") {
        estimates_are_right(&program);
    }
}

/// The library's functions are passed by exceptions, and an operator that calls `malloc` counts once.
#[test]
fn exceptions_pass() {
    const SOURCE: &str = r#"
#include <cstdio>
#include <new>
static char *held[20000];
__attribute__((noinline)) void hold() { for (auto &at : held) at = new char[700]; }
int main()
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        bool thrown = false;
        try { held[0] = new char[(size_t)1 << 60]; } catch (const std::bad_alloc &) { thrown = true; }
        if (!thrown) return 1;
        hold();
        puts("ok");
        fflush(stdout);
    }
}
"#;
    for library in ["libjemalloc.a", "libtcmalloc_minimal.a"] {
        if archive(library).is_none() {
            continue;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (source, binary) = (dir.path().join("a.cpp"), dir.path().join("throws"));
        std::fs::write(&source, SOURCE).unwrap();
        let mut cxx = Command::new("g++");
        let cxx = cxx
            .args(["-O1", "-g", "-fno-omit-frame-pointer", "-o"])
            .args([&binary, &source]);
        let archive = format!("-l:{library}");
        let built = cxx
            .args([
                "-Wl,--whole-archive",
                &archive,
                "-Wl,--no-whole-archive",
                "-lm",
                "-pthread",
            ])
            .status();
        assert!(built.unwrap().success());
        let (m, mut lines) = start(&binary);
        lines.tell("");
        must_be(&m, "hold()", "inuse_space", 20_000 * 700);
        must_be(&m, "hold()", "alloc_objects", 20_000);
    }
}

/// A function that passes some calls on to another one, and serves others itself: each allocation counts once.
#[test]
fn functions_that_call_each_other_count_once() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <string.h>
void *_rjem_malloc(size_t size);
static char pool[64 << 20];
static size_t used;
__attribute__((noinline)) static void *pass_on(size_t size) { return _rjem_malloc(size); }
__attribute__((noinline)) void *je_malloc(size_t size)
{
	if (size > 100) {
		void *block = pass_on(size);
		__asm__ volatile("" : "+r"(block));
		return block;
	}
	void *block = pool + used;
	used = (used + 112) % (sizeof pool - 112);
	return block;
}
__attribute__((noinline)) void je_free(void *block) { __asm__ volatile("" : : "r"(block)); }
static char *held[20000];
__attribute__((noinline)) void small(void) { for (int n = 0; n < 200000; n++) *(char *)je_malloc(64) = 1; }
__attribute__((noinline)) void large(void) { for (int n = 0; n < 20000; n++) held[n] = je_malloc(500); }
int main(void)
{
	char line[64];
	while (fgets(line, sizeof line, stdin)) {
		small();
		large();
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
"#;
    let Some(jemalloc) = prefixed_jemalloc() else {
        return;
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, binary) = (dir.path().join("a.c"), dir.path().join("passes_on"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-fno-omit-frame-pointer", "-o"])
        .args([&binary, &source, &jemalloc])
        .args(["-lstdc++", "-lm", "-pthread"]);
    assert!(cc.status().unwrap().success());
    let (m, mut lines) = start(&binary);
    lines.tell("");
    must_be(&m, "small", "alloc_space", 200_000 * 64);
    must_be(&m, "large", "inuse_space", 20_000 * 500);
    must_be(&m, "large", "alloc_objects", 20_000);
}

/// Rust programs with the allocators of two crates; `None` where they cannot be built.
pub fn rust_program(name: &str) -> Option<PathBuf> {
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/workloads/rust_allocators/Cargo.toml");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rust_allocators");
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--bin",
            name,
            "--manifest-path",
        ])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .output()
        .unwrap();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        skip(format!("{name} cannot be built: {stderr}"));
        return None;
    }
    Some(target.join("release").join(name))
}

fn rust_is_sampled(name: &str) {
    let Some(program) = rust_program(name) else {
        return;
    };
    let (m, mut lines) = start(&program);
    lines.tell("hold 20000 500");
    lines.tell("churn 200000 64");
    lines.tell("grow 5000 3000");
    let of = |function: &str| format!("rust_allocators::{function}");
    must_be(&m, &of("hold"), "inuse_space", 20_000 * 500);
    must_be(&m, &of("churn"), "alloc_space", 200_000 * 64);
    must_be(&m, &of("grow"), "inuse_space", 5_000 * 3_000);
    must_be(&m, &of("grow"), "alloc_space", 5_000 * 3_016);
    lines.tell("release 15000");
    must_be(&m, &of("hold"), "inuse_space", 10_000 * 500);
    assert_eq!(below(&m, &of("grow"), "inuse_space"), (0, 0));
    assert_eq!(m.lost(), [""; 0]);
}

#[test]
fn rust_with_mimalloc() {
    rust_is_sampled("mimalloc");
}

#[test]
fn rust_with_jemalloc() {
    rust_is_sampled("jemalloc");
}

/// Functions that cannot be changed safely stay as they are, and memprof says that they are not sampled.
#[test]
fn what_cannot_be_changed_is_said_to_be_missing() {
    let program = program("unmovable_malloc");
    let (m, mut lines) = Memprof::start_command(&["--heap"], &[program.to_str().unwrap()]);
    assert_eq!(lines.line(), "ready");
    // Nothing of its heap is known, and 0 bytes would say otherwise.
    let said = m.said("own allocator (malloc)");
    assert!(said.contains("--heap=exact"), "{said}");
    let lost = m.lost();
    let named = |what: &String| what.contains("allocator of their own");
    assert!(lost.iter().any(named), "{lost:?}");
}

/// The kernel's probes would execute the instructions of the file where the jumps are.
#[test]
fn an_exact_window_leaves_changed_functions_alone() {
    let Some(program) = with_allocator("allocations", "libjemalloc.a") else {
        return;
    };
    let mut workload = Workload::start(&program);
    workload.lines.tell("hold 10 100");
    let pid = workload.pid().to_string();
    crate::common::binary::memprof(&["attach-heap", "--yes", "--pid", &pid]).must(0, &[]);
    let m = Memprof::start(&["--heap=exact", "--duration", "5", "--pid", &pid]);
    let said = m.said("lead to the sampling library already");
    assert!(said.contains("are not counted"), "{said}");
    workload.lines.tell("hold 1000 100");
    workload.lines.tell("release 1000");
    workload.end();
}
