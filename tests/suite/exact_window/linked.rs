//! Allocators that are linked statically, have a prefix, or are left by `longjmp`.

use std::fs;
use std::process::Command;

use crate::common::memprof::Memprof;
use crate::common::skip::skip;
use crate::exact_window::below;

/// An allocator with the names that jemalloc has in Redis and in Rust programs, which can be left by `longjmp`.
const PREFIXED: &str = r#"
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char memory[1 << 20];
static size_t used;
static jmp_buf away;
static volatile int leave;
__attribute__((noinline)) static void hook(void) { if (leave) longjmp(away, 1); }
__attribute__((noinline)) void *je_malloc(size_t size)
{
    void *block = memory + used;
    hook();
    used += (size + 15) / 16 * 16;
    return block;
}
__attribute__((noinline)) void *_rjem_mallocx(size_t size, int flags)
{
    void *block = memory + used;
    used += (size + 15) / 16 * 16 + (flags != 0);
    return block;
}
__attribute__((noinline)) void je_free(void *block) { *(char *)block = 0; }
__attribute__((noinline)) void _rjem_sdallocx(void *block, size_t size, int flags) { ((char *)block)[size - 1] = flags; }

__attribute__((noinline)) static void by_prefix(void)
{
    for (int i = 0; i < 30; i++) {
        void *block = je_malloc(100);
        if (i % 3)
            je_free(block);
    }
}
__attribute__((noinline)) static void by_other_prefix(void)
{
    void *first = _rjem_mallocx(40, 0);
    _rjem_mallocx(60, 0);
    _rjem_sdallocx(first, 40, 0);
}
/* The frames between are larger than that of the call that is left. */
__attribute__((noinline)) static void after(void)
{
    volatile char room[4096];
    room[0] = 1;
    je_malloc(70 + room[0]);
}
__attribute__((noinline)) static void by_leaving(void)
{
    for (volatile int i = 0; i < 5; i++) {
        leave = 1;
        if (!setjmp(away))
            je_malloc(200);
        leave = 0;
        after();
    }
}
__attribute__((noinline)) static void by_libc(void)
{
    void *block[3] = { malloc(100), calloc(10, 20), NULL };
    block[2] = realloc(block[0], 300);
    free(block[1]);
    *(void *volatile *)memory = block[2];
}
int main(void)
{
    char line[100];
    setvbuf(stdout, NULL, _IONBF, 0);
    while (fgets(line, sizeof(line), stdin)) {
        by_prefix();
        by_other_prefix();
        by_leaving();
        by_libc();
        puts("ok");
    }
}
"#;

const KINDS: [&str; 4] = [
    "alloc_objects",
    "alloc_space",
    "inuse_objects",
    "inuse_space",
];

#[test]
fn static_programs_and_prefixed_names_are_counted_and_calls_that_are_left_are_lost() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = dir.path().join("prefixed.c");
    fs::write(&source, PREFIXED).unwrap();
    for linked in ["-pie", "-static"] {
        let binary = dir.path().join(format!("prefixed{linked}"));
        let flags = [
            "-O1",
            "-g",
            "-fno-builtin",
            "-fno-omit-frame-pointer",
            linked,
            "-o",
        ];
        let cc = Command::new("cc")
            .args(flags)
            .args([&binary, &source])
            .status();
        if !cc.is_ok_and(|status| status.success()) {
            skip(format!("cc {linked} does not work"));
            continue;
        }
        let args = ["--heap=exact", "--duration", "600"];
        let (m, mut lines) = Memprof::start_command(&args, &[binary.to_str().unwrap()]);
        lines.tell("all");
        let functions = ["by_prefix", "by_other_prefix", "after", "by_libc"];
        let seen = KINDS.map(|kind| below(&m, kind, functions));
        assert_eq!(seen[0], [30, 2, 5, 3], "{linked}");
        assert_eq!(seen[1], [3000, 100, 355, 600], "{linked}");
        assert_eq!(seen[2], [10, 1, 5, 1], "{linked}");
        assert_eq!(seen[3], [1000, 60, 355, 300], "{linked}");
        // What was left is not counted; the losses have it.
        assert_eq!(below(&m, "alloc_objects", ["by_leaving"]), [5]);
        let lost = m.lost();
        assert_eq!(lost.len(), 1, "{lost:?}");
        let said = lost[0].contains("return was not seen") && lost[0].contains(":5,");
        assert!(said, "{linked}: {lost:?}");
    }
}
