//! Functions without a symbol begin where the symbols of an unstripped copy of the same build say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::skip::skip_named;
use crate::symbols::fixture::{build, module, nm, offset_of_addr, run, segments};
use memprof_code::symbolize::Symbolizer;
use memprof_code::symbolize::debuginfod_cache::CacheDirs;
use memprof_profile::symbol::Symbol;
use memprof_profile::{Frame, ModuleId};

/// What became of the functions that have a symbol in the unstripped copy only.
struct Starts {
    /// Positions whose function has the symbol's start.
    same: usize,
    /// Positions without unwind information.
    without: usize,
    /// Last bytes that lie in a further unwind entry of their function: assembler code whose author wrote several.
    later_part: Vec<String>,
    /// Positions whose function begins elsewhere.
    other: Vec<String>,
}

/// Looks up the first and the last byte of each function of `listed` in `stripped`.
fn starts(stripped: &Path, listed: &Path) -> Starts {
    let name = stripped.file_name().unwrap().to_str().unwrap();
    let segments = segments(stripped);
    let exported = nm(stripped, &["-D"]);
    let exported: BTreeSet<u64> = exported.iter().map(|s| s.addr).collect();
    let mut functions: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for s in nm(listed, &[]) {
        if "Tt".contains(s.kind) && s.size > 0 && !exported.contains(&s.addr) {
            functions.entry(s.addr).or_insert((s.size, s.name));
        }
    }
    let asked: Vec<(u64, u64, &str)> = functions
        .iter()
        .flat_map(|(addr, (size, name))| [(*addr, *addr, &**name), (*addr, addr + size - 1, name)])
        .collect();
    let frame = |at: u64| Frame::code(ModuleId(0), offset_of_addr(&segments, at).unwrap());
    let frames: Vec<Frame> = asked.iter().map(|(_, at, _)| frame(*at)).collect();
    let symbolizer = Symbolizer::start_with(CacheDirs::default(), None).unwrap();
    let symbols = symbolizer.resolve(&frames, &[module(stripped)]);
    let mut found = Starts {
        same: 0,
        without: 0,
        later_part: Vec::new(),
        other: Vec::new(),
    };
    for ((start, at, symbol), frame) in asked.iter().zip(&frames) {
        match symbols.get(*frame).unwrap() {
            Symbol::Unnamed(f)
                if f.name == format!("{name}+{start:#x}") && f.offset_in_function == at - start =>
            {
                found.same += 1;
            }
            Symbol::Unknown(_) => found.without += 1,
            Symbol::Unnamed(f) if start < at && f.offset_in_function < at - start => {
                found.later_part.push((*symbol).to_owned());
            }
            // (An entry that glibc's assembler begins in the padding before the function.)
            _ if symbol.starts_with("_dl_tlsdesc_") => {}
            other => found
                .other
                .push(format!("{symbol}, {start:#x}, {at:#x}: {other:?}")),
        }
    }
    found
}

/// Compares a stripped copy of an unstripped file with it, and prints the figures.
fn of_stripped_copy(path: &Path) -> Starts {
    let dir = tempfile::tempdir().unwrap();
    let stripped = dir.path().join(path.file_name().unwrap());
    run(
        "strip",
        &["-o", stripped.to_str().unwrap(), path.to_str().unwrap()],
    );
    shown(path, starts(&stripped, path))
}

fn shown(path: &Path, found: Starts) -> Starts {
    let (same, without, other) = (found.same, found.without, found.other.len());
    println!(
        "{}: {same} positions have the symbol's start, {without} no unwind information, {other} another start; \
         in a further entry of their function: {:?}",
        path.display(),
        found.later_part
    );
    found
}

impl Starts {
    /// Every position with unwind information has its function's start; at most one of `share` has no such information.
    fn are_exact(self, least: usize, share: usize) {
        assert!(
            self.later_part.len() <= self.same / 500,
            "{:?}",
            self.later_part
        );
        assert!(
            self.other.is_empty(),
            "{:#?}",
            &self.other[..self.other.len().min(20)]
        );
        assert!(self.same >= least, "{} of {least}", self.same);
        let all = self.same + self.without;
        assert!(
            self.without <= all / share,
            "{} of {all} without",
            self.without
        );
    }
}

#[test]
fn functions_without_a_symbol_are_called_after_their_start() {
    // This test itself (Rust), and C: what the system's start-up files and libraries brought along is in both.
    of_stripped_copy(&std::env::current_exe().unwrap()).are_exact(10_000, 1000);
}

/// Exceptions move code that rarely runs to `NAME.cold`, which has an unwind entry and a symbol of its own.
const THROWS: &str = r#"
#include <map>
#include <stdexcept>
#include <string>
#include <vector>
#define NEVER __attribute__((noinline, noclone))
struct Guard { std::string s; ~Guard() { s.clear(); } };
NEVER static int parse(std::string const &s) {
  Guard g{s};
  if (s.size() > 3) throw std::runtime_error("long " + s);
  return s.size();
}
NEVER static int sum(std::vector<std::string> const &all) {
  std::map<std::string, int> seen;
  for (auto const &one : all) {
    try { seen[one] += parse(one); }
    catch (std::runtime_error const &e) { seen[e.what()] -= 1; }
    if (__builtin_expect(seen.size() > 1000, 0)) throw std::length_error(one);
  }
  return seen.size();
}
int main(int argc, char **argv) { return sum({argv, argv + argc}); }
"#;

#[test]
fn so_are_the_parts_that_compilers_move_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let path = build(dir.path(), "throws", "c++", THROWS, &["-O2", "-static"]);
    let cold = nm(&path, &[])
        .iter()
        .filter(|s| s.name.ends_with(".cold"))
        .count();
    println!("{cold} symbols of moved parts");
    assert!(cold > 50, "{cold}");
    // (The C library's hand-written parts have symbols without unwind entries, or several in one.)
    of_stripped_copy(&path).are_exact(1000, 20);
}

#[test]
fn so_are_functions_of_the_c_library() {
    let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let debug = libc.exists().then(|| debug_file_of(libc)).flatten();
    let Some(debug) = debug else {
        return skip_named("starts of the C library", "libc6-dbg is not installed");
    };
    // Without its build id nobody finds the debug file.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("libc.so.6");
    let flags = [
        "--remove-section=.note.gnu.build-id",
        "--remove-section=.gnu_debuglink",
    ];
    run(
        "objcopy",
        &[
            flags[0],
            flags[1],
            libc.to_str().unwrap(),
            copy.to_str().unwrap(),
        ],
    );
    shown(libc, starts(&copy, &debug)).are_exact(1000, 20);
}

fn debug_file_of(path: &Path) -> Option<PathBuf> {
    let id = crate::symbols::sources::build_id(path);
    let file = format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    Some(PathBuf::from(file)).filter(|file| file.exists())
}

#[test]
fn so_are_functions_of_a_static_program_with_musl() {
    if std::process::Command::new("musl-gcc")
        .arg("--version")
        .output()
        .is_err()
    {
        return skip_named("starts of a program with musl", "musl-gcc is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-static"];
    let path = build(
        dir.path(),
        "musl",
        "musl-gcc",
        crate::symbols::sources::PROGRAM,
        &flags,
    );
    // (musl itself is compiled without unwind information.)
    of_stripped_copy(&path).are_exact(8, 1);
}

#[test]
fn so_are_functions_of_cpython() {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let versions = Path::new(&home).join(".pyenv/versions");
    let mut pythons = Vec::new();
    for version in fs::read_dir(versions).into_iter().flatten().flatten() {
        let name = version.file_name().into_string().unwrap_or_default();
        let short = name.rsplit_once('.').map_or("", |(short, _)| short);
        // The interpreter is in the program or in a library beside it.
        for file in [
            format!("bin/python{short}"),
            format!("lib/libpython{short}.so.1.0"),
        ] {
            let path = version.path().join(file);
            let is_elf = fs::read(&path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
            if is_elf && nm(&path, &[]).len() > 5000 {
                pythons.push(path);
            }
        }
    }
    if pythons.is_empty() {
        return skip_named(
            "starts of CPython",
            "no unstripped CPython below ~/.pyenv/versions",
        );
    }
    for path in pythons {
        of_stripped_copy(&path).are_exact(1000, 20);
    }
}
