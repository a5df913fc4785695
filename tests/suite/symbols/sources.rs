//! Sources of names beside the symbol tables of the file itself: `.gnu_debugdata`, the debuginfod cache, Go's table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;

use crate::symbols::fixture::{
    build, function, module, nm, offset_of_addr, place, run, segments, symbol,
};
use memprof_code::symbolize::debuginfod_cache::CacheDirs;
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_profile::symbol::Symbol;
use memprof_profile::{Frame, ModuleId};

/// Exports one function; the others are in no dynamic symbol table.
pub const PROGRAM: &str = r#"
#include <stdlib.h>
#define NEVER __attribute__((noinline, noclone))
__attribute__((visibility("default"))) NEVER void *exported(int n) { return malloc(n); }
NEVER static void *hidden(int n) { return exported(n + 1); }
NEVER static void *other(int n) { return hidden(n + 2); }
int main(int argc, char **argv) { return other(argc) == 0; }
"#;
pub const FLAGS: &[&str] = &[
    "-g",
    "-O1",
    "-rdynamic",
    "-fvisibility=hidden",
    "-Wl,--build-id",
];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The build id that `readelf` shows.
pub fn build_id(path: &Path) -> String {
    let notes = run("readelf", &["-n", text(path)]);
    let line = notes
        .lines()
        .find_map(|l| l.trim().strip_prefix("Build ID: "));
    line.expect("a build id").to_owned()
}

/// A stripped copy with the symbols of `path` in `.gnu_debugdata`, made as gdb's manual describes.
fn with_mini_debug_info(path: &Path, xz: &[&str]) -> PathBuf {
    let [dynamic, all, keep, debug, mini, out] = ["dynamic", "all", "keep", "debug", "mini", "out"]
        .map(|ending| path.with_extension(ending));
    let names = |flags: &[&str]| -> BTreeSet<String> {
        let listed = nm(path, flags)
            .into_iter()
            .filter(|s| "tT".contains(s.kind));
        listed.map(|s| s.name).collect()
    };
    let exported = names(&["-D"]);
    fs::write(&dynamic, "").unwrap();
    fs::write(&all, "").unwrap();
    let others: Vec<String> = names(&[]).difference(&exported).cloned().collect();
    assert!(others.contains(&"hidden".to_owned()) && !others.contains(&"exported".to_owned()));
    fs::write(&keep, others.join("\n") + "\n").unwrap();
    run("objcopy", &["--only-keep-debug", text(path), text(&debug)]);
    let list = format!("--keep-symbols={}", text(&keep));
    run(
        "objcopy",
        &[
            "-S",
            "--remove-section=.gdb_index",
            "--remove-section=.comment",
            &list,
            text(&debug),
            text(&mini),
        ],
    );
    run("strip", &["-o", text(&out), text(path)]);
    let mut pack = xz.to_vec();
    pack.push(text(&mini));
    run("xz", &pack);
    let section = format!(".gnu_debugdata={}.xz", text(&mini));
    run("objcopy", &["--add-section", &section, text(&out)]);
    out
}

#[test]
fn mini_debug_info_names_what_the_dynamic_symbols_do_not() {
    let dir = tempdir().unwrap();
    for (name, xz) in [
        ("usual", &["-k"][..]),
        ("best", &["-k", "-9e"]),
        ("sum", &["-k", "--check=sha256"]),
    ] {
        let path = build(dir.path(), name, "cc", PROGRAM, FLAGS);
        let places: Vec<_> = ["exported", "hidden", "other"]
            .map(|part| (part, place(&path, part)))
            .into();
        let out = with_mini_debug_info(&path, xz);
        let bare = path.with_extension("bare");
        run(
            "objcopy",
            &["--remove-section=.gnu_debugdata", text(&out), text(&bare)],
        );
        let s = Symbolizer::start_with(CacheDirs::default(), None).unwrap();
        let (with, without) = (module(&out), module(&bare));
        for (part, (offset, size)) in places {
            let found = function(&s, &with, offset + size - 1, Detail::Names);
            assert_eq!((&*found.name, found.offset_in_function), (part, size - 1));
            let named = symbol(&s, &without, offset, Detail::Names);
            assert_eq!(named.function().is_some(), part == "exported", "{named:?}");
        }
    }
}

/// Sections that unpack to more than their size allows, that need too much memory, or that are no such thing, bring
/// nothing, and quickly.
#[test]
fn mini_debug_info_that_is_none_is_passed_over() {
    let dir = tempdir().unwrap();
    let path = build(dir.path(), "hostile", "cc", PROGRAM, FLAGS);
    let (exported, hidden) = (place(&path, "exported").0, place(&path, "hidden").0);
    let zeros = dir.path().join("zeros");
    fs::File::create(&zeros).unwrap().set_len(1 << 30).unwrap();
    run("xz", &["-k", "-1", text(&zeros)]);
    let good = with_mini_debug_info(&path, &["-k"]);
    let packed = fs::read(path.with_extension("mini.xz")).unwrap();
    let mut damaged = packed.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    // The dictionary of the block (the property of its LZMA2 filter) becomes 4 GiB, the sum of the header is mended.
    let mut greedy = packed.clone();
    assert_eq!(greedy[14..16], [0x21, 1]);
    greedy[16] = 40;
    let header = (usize::from(greedy[12]) + 1) * 4;
    let crc = crc32(&greedy[12..12 + header - 4]);
    greedy[12 + header - 4..12 + header].copy_from_slice(&crc.to_le_bytes());
    let bomb = fs::read(dir.path().join("zeros.xz")).unwrap();
    for (name, bytes) in [
        ("bomb", &bomb[..]),
        ("damaged", &damaged),
        ("greedy", &greedy),
        ("cut", &packed[..packed.len() / 2]),
        ("empty", &[]),
        ("text", b"no xz at all"),
    ] {
        let (section, out) = (
            dir.path().join(name),
            dir.path().join(format!("{name}.out")),
        );
        fs::write(&section, bytes).unwrap();
        let update = format!(".gnu_debugdata={}", text(&section));
        run(
            "objcopy",
            &["--update-section", &update, text(&good), text(&out)],
        );
        let s = Symbolizer::start_with(CacheDirs::default(), None).unwrap();
        let m = module(&out);
        let began = std::time::Instant::now();
        assert_eq!(
            function(&s, &m, exported, Detail::Names).name,
            "exported",
            "{name}"
        );
        let found = symbol(&s, &m, hidden, Detail::Names);
        assert!(matches!(found, Symbol::Unnamed(_)), "{name}: {found:?}");
        assert!(began.elapsed().as_secs() < 30, "{name}");
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |c: u32| {
        if c & 1 == 1 {
            0xedb8_8320 ^ (c >> 1)
        } else {
            c >> 1
        }
    };
    !bytes.iter().fold(u32::MAX, |crc, b| {
        (0..8).fold(crc ^ u32::from(*b), |c, _| step(c))
    })
}

#[test]
fn the_cache_of_debuginfod_clients_is_read_and_checked() {
    let dir = tempdir().unwrap();
    let path = build(dir.path(), "cached", "cc", PROGRAM, FLAGS);
    let (hidden, size) = place(&path, "hidden");
    let stripped = dir.path().join("stripped");
    run("strip", &["-o", text(&stripped), text(&path)]);
    let cache = dir.path().join("cache");
    let entry = cache.join(build_id(&path));
    fs::create_dir_all(&entry).unwrap();
    let debug = entry.join("debuginfo");
    let dirs = CacheDirs::only(&cache);
    let look_up = || {
        let s = Symbolizer::start_with(dirs.clone(), None).unwrap();
        symbol(&s, &module(&stripped), hidden + size - 1, Detail::Inlined)
    };
    // Empty (as elfutils remembers that no server has a file), garbage, a directory, and another program's file.
    let without = |what: &str| assert!(look_up().function().is_none(), "{what}");
    without("no file");
    fs::write(&debug, "").unwrap();
    without("empty");
    fs::write(&debug, "garbage").unwrap();
    without("garbage");
    fs::remove_file(&debug).unwrap();
    fs::create_dir(&debug).unwrap();
    without("directory");
    fs::remove_dir(&debug).unwrap();
    let other = build(
        dir.path(),
        "other",
        "cc",
        &PROGRAM.replace("n + 1", "n + 3"),
        FLAGS,
    );
    run(
        "objcopy",
        &["--only-keep-debug", text(&other), text(&debug)],
    );
    without("another build id");
    fs::remove_file(&debug).unwrap();
    run("objcopy", &["--only-keep-debug", text(&path), text(&debug)]);
    let found = look_up();
    let found = found.function().expect("a name");
    assert_eq!(
        (&*found.name, found.offset_in_function),
        ("hidden", size - 1)
    );
    let location = found.location.as_ref().expect("a source line");
    assert!(
        location.file.ends_with("cached_src.c") && location.line == Some(5),
        "{location:?}"
    );
}

const GO: &str = r#"
package main

import (
	"fmt"
	"os"
	"sort"
)

type node struct{ next *node }

//go:noinline
func (n *node) grow(size int) []byte { return make([]byte, size) }

//go:noinline
func largest[T int | string](all []T) T {
	most := all[0]
	for _, one := range all {
		if one > most {
			most = one
		}
	}
	return most
}

func main() {
	all := []int{len(os.Args), 2}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	fmt.Println(len((&node{}).grow(largest(all))), largest(os.Args))
}
"#;

/// The name as both tables have it: the linker shortens what is in brackets (until Go 1.20), and only the ELF symbols of
/// assembler functions say so.
fn without_types(name: &str) -> String {
    let name = name.strip_suffix(".abi0").unwrap_or(name);
    let (mut depth, mut out) = (0, String::new());
    for c in name.chars() {
        depth -= i32::from(c == ']');
        if depth == 0 {
            out.push(c);
        }
        depth += i32::from(c == '[');
    }
    out
}

#[test]
fn stripped_go_programs_have_the_names_of_gos_own_table() {
    if std::process::Command::new("go")
        .arg("version")
        .output()
        .is_err()
    {
        return crate::common::skip::skip("Go's own names: go is not installed");
    }
    let dir = tempdir().unwrap();
    let source = dir.path().join("main.go");
    fs::write(&source, GO).unwrap();
    for mode in ["exe", "pie"] {
        let [whole, stripped] =
            ["whole", "stripped"].map(|kind| dir.path().join(format!("{kind}-{mode}")));
        for (out, flags) in [(&whole, ""), (&stripped, "-s -w")] {
            let done = std::process::Command::new("go")
                .args([
                    "build",
                    "-trimpath",
                    "-buildmode",
                    mode,
                    "-ldflags",
                    flags,
                    "-o",
                ])
                .args([out, &source])
                .env("GOCACHE", dir.path().join("cache"))
                .env("GO111MODULE", "off")
                .output()
                .unwrap();
            assert!(
                done.status.success(),
                "{}",
                String::from_utf8_lossy(&done.stderr)
            );
        }
        let (loads, found) = (segments(&stripped), segments(&whole));
        let mut wanted: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for listed in nm(&whole, &[])
            .iter()
            .filter(|s| "tT".contains(s.kind) && s.size > 0)
        {
            let offset = offset_of_addr(&found, listed.addr).unwrap();
            let at = offset_of_addr(&loads, listed.addr);
            assert_eq!(at, Some(offset), "the copies have the same code");
            wanted
                .entry(offset)
                .or_default()
                .insert(without_types(&listed.name));
        }
        let s = Symbolizer::start_with(CacheDirs::default(), None).unwrap();
        let frames: Vec<Frame> = wanted
            .keys()
            .map(|at| Frame::code(ModuleId(0), *at))
            .collect();
        let modules = [module(&stripped)];
        let symbols = s.resolve(&frames, &modules);
        let mut wrong = Vec::new();
        for (frame, names) in frames.iter().zip(wanted.values()) {
            let found = symbols.function(*frame);
            let same = found.is_some_and(|f| {
                f.offset_in_function == 0 && names.contains(&without_types(&f.name))
            });
            if !same {
                wrong.push(format!("{names:?}: {:?}", symbols.get(*frame)));
            }
        }
        println!(
            "{mode}: {} of {} starts of Go functions have their names",
            frames.len() - wrong.len(),
            frames.len()
        );
        assert!(frames.len() > 1000, "{}", frames.len());
        assert!(
            wrong.is_empty(),
            "{} of {}: {:#?}",
            wrong.len(),
            frames.len(),
            &wrong[..wrong.len().min(20)]
        );
    }
}
