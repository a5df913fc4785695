//! Other allocators, as they are packaged, and the operators of C++.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::memprof::Memprof;
use crate::common::process::wait_until;
use crate::common::skip::skip;
use crate::common::workload::{Lines, program};
use crate::exact_window::below;
use crate::exact_window::calls::CALLS;

pub const ALLOCATORS: [&str; 3] = [
    "libjemalloc.so.2",
    "libtcmalloc_minimal.so.4",
    "libmimalloc.so.2",
];

/// Where the loader finds a library.
pub fn installed(library: &str) -> Option<PathBuf> {
    let directories = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ];
    let paths = directories.map(|directory| PathBuf::from(directory).join(library));
    let found = paths.into_iter().find(|path| path.exists());
    if found.is_none() {
        skip(format!("{library} is not installed"));
    }
    found
}

/// Starts a program with a preloaded allocator.
pub fn start(program: &str, allocator: Option<&PathBuf>) -> (Memprof, Lines) {
    let preload = allocator.map_or(String::new(), |path| {
        format!("LD_PRELOAD={} ", path.display())
    });
    let script = format!("{preload}exec {program}");
    Memprof::start_command(
        &["--heap=exact", "--duration", "600"],
        &["sh", "-c", &script],
    )
}

#[test]
fn other_allocators_functions_count_once() {
    for library in ALLOCATORS {
        let Some(path) = installed(library) else {
            continue;
        };
        let (m, mut lines) = start(program("every_call").to_str().unwrap(), Some(&path));
        // Its functions are found a moment after it was mapped.
        wait_until(|| {
            lines.tell("hold 1 24");
            below(&m, "alloc_objects", ["hold"]) != [0]
        });
        lines.tell("all");
        let functions = CALLS.map(|(function, _)| function);
        for (i, kind) in [
            "alloc_objects",
            "alloc_space",
            "inuse_objects",
            "inuse_space",
        ]
        .into_iter()
        .enumerate()
        {
            let seen = below(&m, kind, functions);
            for ((function, known), seen) in CALLS.into_iter().zip(seen) {
                // Some return a block of no bytes from `realloc(block, 0)`.
                let more = if (function, kind) == ("by_realloc", "alloc_objects") {
                    100
                } else {
                    0
                };
                assert!(
                    seen == known[i] || seen == known[i] + more,
                    "{library}: {kind} of {function}: {seen}, not {}",
                    known[i]
                );
            }
        }
        assert_eq!(m.lost(), [""; 0], "{library}");
    }
}

const OPERATORS: &str = r#"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

struct alignas(128) Wide { char bytes[256]; };
static std::vector<void *> kept;
static volatile size_t too_much = PTRDIFF_MAX;

__attribute__((noinline)) static void by_new()
{
    for (int i = 0; i < 1000; i++)
        if (i % 2) {
            char *volatile block = new char[48];
            delete[] block;
        } else {
            kept[i] = ::operator new(48);
        }
}

__attribute__((noinline)) static void by_aligned_new()
{
    for (int i = 0; i < 100; i++) {
        Wide *volatile block = new Wide;
        delete block;
    }
}

__attribute__((noinline)) static void by_nothrow()
{
    for (int i = 0; i < 50; i++)
        kept[i] = new (std::nothrow) char[24];
}

__attribute__((noinline)) static int by_failing_new()
{
    int caught = 0;
    for (int i = 0; i < 10; i++) {
        try {
            kept[0] = ::operator new(too_much);
        } catch (const std::bad_alloc &) {
            caught++;
        }
        if (!::operator new(too_much, std::nothrow))
            caught++;
    }
    return caught;
}

__attribute__((noinline)) static void warm()
{
    void *volatile block = malloc(24);
    free(block);
    puts("ok");
    fflush(stdout);
}

int main()
{
    char line[100];
    kept.resize(1000);
    while (fgets(line, sizeof(line), stdin)) {
        if (line[0] == 'w') {
            warm();
            continue;
        }
        by_new();
        by_aligned_new();
        by_nothrow();
        puts(by_failing_new() == 20 ? "ok" : "nothing was thrown");
        fflush(stdout);
    }
}
"#;

/// A program that catches `bad_alloc` goes on.
#[test]
fn operators_of_cpp_count_once_and_may_throw() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = dir.path().join("operators.cpp");
    fs::write(&source, OPERATORS).unwrap();
    let link = |name: &str, libraries: &[&str]| {
        let binary = dir.path().join(name);
        let flags = [
            "-O1",
            "-g",
            "-std=c++17",
            "-fno-omit-frame-pointer",
            "-Wno-alloc-size-larger-than",
            "-o",
        ];
        let compiled = Command::new("c++")
            .args(flags)
            .args([&binary, &source])
            .args(libraries)
            .stderr(Stdio::null())
            .status();
        if compiled.is_ok_and(|status| status.success()) {
            return Some(binary);
        }
        skip(format!("c++ cannot link {name} {libraries:?}"));
        None
    };
    // (mimalloc, which is built as C, ends a program whose `new` fails.)
    let preloaded = ALLOCATORS[..2].iter().filter_map(|name| installed(name));
    let plain = link("operators", &[]);
    let mut programs = vec![(plain.clone(), None)];
    programs.extend(preloaded.map(|path| (plain.clone(), Some(path))));
    programs.push((link("static", &["-static"]), None));
    let jemalloc = ["-l:libjemalloc.a", "-ldl", "-lpthread", "-lm"];
    programs.push((link("with_jemalloc", &jemalloc), None));
    for (binary, allocator) in programs {
        let Some(binary) = binary else { continue };
        let (m, mut lines) = start(binary.to_str().unwrap(), allocator.as_ref());
        let allocator = (binary, allocator);
        wait_until(|| {
            lines.tell("warm");
            below(&m, "alloc_objects", ["warm()"]) != [0]
        });
        lines.tell("all");
        let functions = [
            "by_new()",
            "by_aligned_new()",
            "by_nothrow()",
            "by_failing_new()",
        ];
        let [new, aligned, nothrow, failing] = below(&m, "alloc_objects", functions);
        assert_eq!((new, nothrow), (1000, 50), "{allocator:?}");
        assert_eq!(aligned, 100, "{allocator:?}");
        // Exceptions are allocated, also those that end within an operator, and two tables of a static program's unwinder.
        assert!(failing <= 22, "{allocator:?}: {failing}");
        assert_eq!(
            below(&m, "alloc_space", ["by_new()", "by_nothrow()"]),
            [48_000, 1_200],
            "{allocator:?}"
        );
        let [new, aligned, nothrow, failing] = below(&m, "inuse_objects", functions);
        assert_eq!((new, aligned, nothrow), (500, 0, 50), "{allocator:?}");
        assert!(failing <= 2, "{allocator:?}: {failing}");
        assert_eq!(m.lost(), [""; 0], "{allocator:?}");
    }
}
