//! Every function that packaged allocators export, each called with known sizes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::process::wait_until;
use crate::common::skip::skip;
use crate::exact_window::allocators::{ALLOCATORS, installed, start};
use crate::exact_window::{below, totals};

/// How functions are called, in C: `F` is the function, `heap` mimalloc's default heap, `old()` a block of 50 bytes.
/// What that makes: allocations, bytes, live allocations, live bytes.
struct Shape {
    body: &'static str,
    makes: [u64; 4],
}

const fn shape(body: &'static str, makes: [u64; 4]) -> Shape {
    Shape { body, makes }
}

const THREE: [u64; 4] = [3, 300, 1, 100];
const THREE_OF_128: [u64; 4] = [3, 384, 1, 128];
const RESIZED: [u64; 4] = [2, 150, 1, 100];

const SIZE: Shape = shape("three(F(100UL, 64UL, 0UL))", THREE);
const ALIGNED: Shape = shape("three(F(64UL, 128UL))", THREE_OF_128);
const ARRAY: Shape = shape("three(F(4UL, 25UL, 64UL, 0UL))", THREE);
const STORED: Shape = shape("three((F(&p, 64UL, 128UL), p))", THREE_OF_128);
const RESIZE: Shape = shape("p = old(); p = F(p, 100UL, 64UL, 0UL)", RESIZED);
const RESIZE_ARRAY: Shape = shape("p = old(); p = F(p, 4UL, 25UL, 64UL, 0UL)", RESIZED);
const OF_HEAP: Shape = shape("three(F(heap(), 100UL, 64UL, 0UL))", THREE);
const ARRAY_OF_HEAP: Shape = shape("three(F(heap(), 4UL, 25UL, 64UL, 0UL))", THREE);
const RESIZE_OF_HEAP: Shape = shape("p = old(); p = F(heap(), p, 100UL, 64UL, 0UL)", RESIZED);
const RESIZE_ARRAY_OF_HEAP: Shape =
    shape("p = old(); p = F(heap(), p, 4UL, 25UL, 64UL, 0UL)", RESIZED);
const FREE: Shape = shape("p = allocate(128); F(p, 128UL, 64UL)", [1, 128, 0, 0]);
const RESIZE_AT: Shape = shape("p = old(); F(&p, 4UL, 25UL)", RESIZED);

/// All functions by the way in which they are called.
const TABLE: [(&Shape, &str); 12] = [
    (
        &SIZE,
        "malloc valloc pvalloc __libc_malloc __libc_valloc __libc_pvalloc mallocx tc_malloc tc_valloc tc_pvalloc tc_malloc_skip_new_handler \
         tc_new tc_newarray tc_new_nothrow tc_newarray_nothrow tc_new_aligned tc_newarray_aligned tc_new_aligned_nothrow \
         tc_newarray_aligned_nothrow _Znwm _Znam _ZnwmSt11align_val_t _ZnamSt11align_val_t _ZnwmRKSt9nothrow_t _ZnamRKSt9nothrow_t \
         _ZnwmSt11align_val_tRKSt9nothrow_t _ZnamSt11align_val_tRKSt9nothrow_t mi_malloc mi_zalloc mi_malloc_small mi_zalloc_small \
         mi_malloc_aligned mi_malloc_aligned_at mi_zalloc_aligned mi_zalloc_aligned_at mi_new mi_new_nothrow mi_new_aligned \
         mi_new_aligned_nothrow mi_valloc mi_pvalloc",
    ),
    (
        &ALIGNED,
        "aligned_alloc memalign __libc_memalign tc_memalign mi_aligned_alloc mi_memalign _aligned_malloc",
    ),
    (
        &ARRAY,
        "calloc __libc_calloc tc_calloc mi_calloc mi_mallocn mi_calloc_aligned mi_calloc_aligned_at mi_new_n",
    ),
    (
        &STORED,
        "posix_memalign __posix_memalign tc_posix_memalign mi_posix_memalign",
    ),
    (
        &RESIZE,
        "realloc reallocf __libc_realloc tc_realloc rallocx mi_realloc mi_reallocf mi_rezalloc mi_realloc_aligned mi_realloc_aligned_at \
         mi_rezalloc_aligned mi_rezalloc_aligned_at mi_new_realloc",
    ),
    (
        &RESIZE_ARRAY,
        "reallocarray __libc_reallocarray mi_reallocarray mi_reallocn mi_recalloc mi_recalloc_aligned mi_recalloc_aligned_at mi_aligned_recalloc \
         mi_aligned_offset_recalloc mi_new_reallocn",
    ),
    (&RESIZE_AT, "reallocarr mi_reallocarr"),
    (
        &OF_HEAP,
        "mi_heap_malloc mi_heap_zalloc mi_heap_malloc_small mi_heap_malloc_aligned mi_heap_malloc_aligned_at mi_heap_zalloc_aligned \
         mi_heap_zalloc_aligned_at mi_heap_alloc_new",
    ),
    (
        &ARRAY_OF_HEAP,
        "mi_heap_calloc mi_heap_mallocn mi_heap_calloc_aligned mi_heap_calloc_aligned_at mi_heap_alloc_new_n",
    ),
    (
        &RESIZE_OF_HEAP,
        "mi_heap_realloc mi_heap_reallocf mi_heap_rezalloc mi_heap_realloc_aligned mi_heap_realloc_aligned_at mi_heap_rezalloc_aligned \
         mi_heap_rezalloc_aligned_at",
    ),
    (
        &RESIZE_ARRAY_OF_HEAP,
        "mi_heap_reallocn mi_heap_recalloc mi_heap_recalloc_aligned mi_heap_recalloc_aligned_at",
    ),
    (
        &FREE,
        "free cfree __libc_free __libc_cfree tc_free tc_cfree tc_free_sized free_sized free_aligned_sized dallocx sdallocx mi_free mi_cfree mi_free_size \
         mi_free_aligned mi_free_size_aligned vfree _ZdlPv _ZdaPv _ZdlPvm _ZdaPvm _ZdlPvRKSt9nothrow_t _ZdaPvRKSt9nothrow_t \
         _ZdlPvSt11align_val_t _ZdaPvSt11align_val_t _ZdlPvmSt11align_val_t _ZdaPvmSt11align_val_t \
         _ZdlPvSt11align_val_tRKSt9nothrow_t _ZdaPvSt11align_val_tRKSt9nothrow_t tc_delete tc_delete_nothrow tc_delete_sized \
         tc_delete_aligned tc_delete_aligned_nothrow tc_delete_sized_aligned tc_deletearray tc_deletearray_nothrow tc_deletearray_sized \
         tc_deletearray_aligned tc_deletearray_aligned_nothrow tc_deletearray_sized_aligned",
    ),
];

/// Exported functions that sound as these, but neither allocate nor free a block of their caller's, or are described as not
/// seen in docs/exact-window.md: blocks that are resized in place, whole heaps that are destroyed, and strings that mimalloc
/// copies.
fn is_something_else(name: &str) -> bool {
    let parts = [
        "usable_size",
        "malloc_size",
        "good_size",
        "stats",
        "info",
        "trim",
        "mallctl",
        "mallopt",
        "nallocx",
        "sallocx",
        "xallocx",
        "expand",
        "allocated",
        "Allocat",
        "Hook",
        "Extension",
        "fallocate",
        "obstack",
        "pkey",
        "freeaddr",
        "freeif",
        "freelocale",
        "freename",
        "glob",
        "regfree",
        "wordfree",
        "xdr_free",
        "inet6",
        "_IO_",
        "alloca",
        "alloc_buffer",
        "allocate_rtsig",
        "freeres",
        "scratch",
        "sched_cpu",
        "deferred_free",
        "allocate_once",
        "Heap",
        "sysalloc",
        "SystemAlloc",
        "Profile",
        "google_malloc",
        "malloc_hook",
        "mi_heap_new",
        "mi_heap_delete",
        "tcmalloc",
        "new_mode",
        "GetenvBeforeMain",
        "TCMalloc",
        "_ZN",
        "_ZSt",
        "_ZTV",
        "__res_",
        "mi_heap_destroy",
        "newlocale",
        "_dl_",
        "__libc_freeres",
        "renameat",
        "mi_option",
    ];
    parts.iter().any(|part| name.contains(part))
}

fn functions() -> impl Iterator<Item = (&'static str, &'static Shape)> {
    TABLE
        .iter()
        .flat_map(|(shape, names)| names.split_whitespace().map(move |name| (name, *shape)))
}

/// The functions that a library exports, and whether programs of today can be linked with them.
fn exports(library: &Path) -> Vec<(String, bool)> {
    let out = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .unwrap();
    assert!(out.status.success());
    let text = String::from_utf8(out.stdout).unwrap();
    let symbols = text.lines().filter_map(|line| {
        let [_, kind, name] = line.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let (plain, version) = name.split_once('@').unwrap_or((name, "@"));
        let callable = version.starts_with('@');
        "TWi".contains(kind).then(|| (plain.to_owned(), callable))
    });
    symbols.collect()
}

/// A program that calls the functions whose names it is told.
fn source() -> String {
    let mut text = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *kept[16];
static void *(*heap)();
__attribute__((noinline)) static void warm(void) { kept[0] = malloc(24); free(kept[0]); }
#define allocate(size) aligned_alloc(64, size)
#define old() malloc(50)
#define three(call) for (int i = 0; i < 3; i++) { p = call; if (i < 2) free(p); }
"#
    .to_owned();
    let mut table = String::new();
    for (name, shape) in functions() {
        let body = shape.body;
        let _ = writeln!(
            text,
            "__attribute__((noinline)) static void by_{name}(void *(*F)()) {{ void *p = 0; {body}; kept[1] = p; }}"
        );
        let _ = writeln!(table, "{{ \"{name}\", by_{name} }},");
    }
    let _ = writeln!(
        text,
        r#"static const struct {{ const char *name; void (*call)(void *(*)()); }} table[] = {{ {table} }};
int main(void)
{{
    char line[100];
    heap = dlsym(RTLD_DEFAULT, "mi_heap_get_default");
    while (fgets(line, sizeof(line), stdin)) {{
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "warm"))
            warm();
        for (unsigned i = 0; i < sizeof(table) / sizeof(*table); i++)
            if (!strcmp(line, table[i].name))
                table[i].call(dlsym(RTLD_DEFAULT, line));
        puts("ok");
        fflush(stdout);
    }}
}}"#
    );
    text
}

#[test]
fn every_exported_function_counts_once_with_the_right_argument() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (file, binary) = (dir.path().join("table.c"), dir.path().join("table"));
    fs::write(&file, source()).unwrap();
    let flags = [
        "-O1",
        "-g",
        "-w",
        "-std=gnu11",
        "-fno-builtin",
        "-fno-omit-frame-pointer",
        "-o",
    ];
    let cc = Command::new("cc")
        .args(flags)
        .args([&binary, &file])
        .status();
    if !cc.is_ok_and(|status| status.success()) {
        skip("there is no C compiler");
        return;
    }
    let known: BTreeMap<&str, &Shape> = functions().collect();
    let libraries = ALLOCATORS.iter().chain(&["libtcmalloc.so.4"]);
    let libraries = libraries.filter_map(|name| installed(name)).map(Some);
    for library in std::iter::once(None).chain(libraries) {
        let path = library.clone().or_else(|| installed("libc.so.6"));
        let Some(path) = path else { continue };
        let all = exports(&path);
        let sounds = |name: &&String| {
            [
                "alloc",
                "free",
                "memalign",
                "_Zn",
                "_Zd",
                "tc_new",
                "tc_delete",
                "mi_new",
            ]
            .iter()
            .any(|part| name.contains(part))
        };
        let unknown = all.iter().map(|(name, _)| name).filter(sounds);
        let unknown =
            unknown.filter(|name| !known.contains_key(name.as_str()) && !is_something_else(name));
        assert_eq!(unknown.collect::<Vec<_>>(), [""; 0], "{path:?}");
        let called: Vec<&str> = known
            .keys()
            .copied()
            .filter(|name| all.iter().any(|(one, callable)| *callable && one == name))
            .collect();
        assert!(called.len() >= 10, "{path:?}: {called:?}");
        let (m, mut lines) = start(binary.to_str().unwrap(), library.as_ref());
        wait_until(|| {
            lines.tell("warm");
            below(&m, "alloc_objects", ["warm"]) != [0]
        });
        called.iter().for_each(|name| lines.tell(name));
        let mut wrong = Vec::new();
        for (i, kind) in [
            "alloc_objects",
            "alloc_space",
            "inuse_objects",
            "inuse_space",
        ]
        .into_iter()
        .enumerate()
        {
            let all = totals(&m, kind);
            for name in &called {
                let seen = all.get(&format!("by_{name}")).copied().unwrap_or(0);
                if seen != known[name].makes[i] {
                    wrong.push(format!(
                        "{name}: {kind} {seen}, not {}",
                        known[name].makes[i]
                    ));
                }
            }
        }
        assert_eq!(wrong, [""; 0], "{path:?}; lost: {:?}", m.lost());
        assert_eq!(m.lost(), [""; 0], "{path:?}");
    }
}
