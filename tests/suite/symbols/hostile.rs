//! Damaged and invalid files cause no panic, no hang, and no error text in place of a name.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::tempdir;

use crate::common::random::Random;
use crate::symbols::fixture::{build, module, place, run};
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_profile::symbol::{Symbol, UnknownReason};
use memprof_profile::{Frame, Module, ModuleId};

const SOURCE: &str = "#include <stdlib.h>
static inline void *in(int n) { return malloc(n); }
__attribute__((noinline)) void *out(int n) { return in(n); }
int main(int c, char **v) { return out(c) == 0; }
";

struct Fixture {
    _dir: tempfile::TempDir,
    scratch: std::path::PathBuf,
    good: Vec<u8>,
    frames: Vec<Frame>,
}

fn fixture() -> Fixture {
    let dir = tempdir().unwrap();
    let path = build(dir.path(), "good", "cc", SOURCE, &["-g", "-O2"]);
    let (offset, _) = place(&path, "out");
    let good = fs::read(&path).unwrap();
    let all = (0..good.len() as u64)
        .step_by(61)
        .chain([offset, u64::MAX >> 16]);
    let frames = all.map(|o| Frame::code(ModuleId(0), o)).collect();
    Fixture {
        scratch: dir.path().join("bad"),
        _dir: dir,
        good,
        frames,
    }
}

impl Fixture {
    /// Looks every frame up in a file with these contents, at both levels of detail.
    fn try_bytes(&self, s: &Symbolizer, bytes: &[u8]) -> Vec<Symbol> {
        fs::write(&self.scratch, bytes).unwrap();
        self.try_file(s, &self.scratch)
    }

    fn try_file(&self, s: &Symbolizer, path: &Path) -> Vec<Symbol> {
        let modules: [Arc<Module>; 1] = [module(path)];
        let start = Instant::now();
        s.resolve_with(&self.frames, &modules, Detail::Inlined);
        let symbols = s.resolve(&self.frames, &modules);
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "took {:?}",
            start.elapsed()
        );
        self.frames
            .iter()
            .map(|f| symbols.get(*f).unwrap().clone())
            .collect()
    }
}

fn known(symbols: &[Symbol]) -> Vec<&str> {
    let mut names = Vec::new();
    for symbol in symbols {
        if let Symbol::Known(f) = symbol {
            names.push(f.name.as_str());
        }
    }
    names
}

#[test]
fn truncated_at_many_lengths() {
    let (f, s) = (fixture(), Symbolizer::start().unwrap());
    assert!(
        known(&f.try_bytes(&s, &f.good)).contains(&"out"),
        "the fixture itself must work"
    );
    let steps = (0..200).chain((200..f.good.len()).step_by(97));
    for len in steps {
        let symbols = f.try_bytes(&s, &f.good[..len]);
        // The section headers are at the end: without them there are no names.
        assert!(known(&symbols).is_empty(), "{len} bytes: {symbols:?}");
        let first = match len {
            0..4 => UnknownReason::NotElf,
            _ => match &symbols[0] {
                Symbol::Unknown(why @ UnknownReason::Unreadable(_)) => why.clone(),
                other => panic!("{len} bytes: {other:?}"),
            },
        };
        assert!(
            symbols.iter().all(|s| *s == Symbol::Unknown(first.clone())),
            "{len} bytes"
        );
    }
}

#[test]
fn other_kinds_of_files() {
    let (f, s) = (fixture(), Symbolizer::start().unwrap());
    let not_elf = Symbol::Unknown(UnknownReason::NotElf);
    assert!(
        f.try_bytes(&s, b"#!/bin/sh\n")
            .iter()
            .all(|s| *s == not_elf)
    );
    assert!(f.try_bytes(&s, b"").iter().all(|s| *s == not_elf));
    for (at, value) in [(4, 1), (4, 7), (5, 2), (16, 1), (16, 4)] {
        let mut bad = f.good.clone();
        bad[at] = value;
        for symbol in f.try_bytes(&s, &bad) {
            assert!(
                matches!(symbol, Symbol::Unknown(UnknownReason::Unreadable(_))),
                "{symbol:?}"
            );
        }
    }
}

#[test]
fn flipped_bytes() {
    let (f, s) = (fixture(), Symbolizer::start().unwrap());
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    // Everything depends on the headers, so half of the damage is there.
    let shdrs = f.good.len() - 64 * usize::from(f.good[60]);
    for round in 0..600 {
        let mut bad = f.good.clone();
        for _ in 0..1 + random.index(8) {
            let at = match round % 4 {
                0 => random.index(64 + 56 * 13),
                1 => shdrs + random.index(bad.len() - shdrs),
                _ => random.index(bad.len()),
            };
            bad[at] = match random.index(3) {
                0 => 0xff,
                1 => bad[at] ^ (1 << random.index(8)),
                _ => random.index(256) as u8,
            };
        }
        for name in known(&f.try_bytes(&s, &bad)) {
            assert!(
                name.len() <= 4096 && !name.chars().any(char::is_control),
                "{name:?}"
            );
        }
    }
    // The symbolizer thread still works.
    assert!(known(&f.try_bytes(&s, &f.good)).contains(&"out"));
}

#[test]
fn names_that_are_no_text() {
    let (f, s) = (fixture(), Symbolizer::start().unwrap());
    let at = f.good.windows(5).rposition(|w| w == b"\0out\0").unwrap();
    let mut bad = f.good.clone();
    bad[at + 1..at + 4].copy_from_slice(b"\xff\n\x80");
    let symbols = f.try_bytes(&s, &bad);
    let names = known(&symbols);
    assert!(names.contains(&"\u{fffd}\u{fffd}\u{fffd}"), "{names:?}");
}

#[test]
fn a_huge_name_is_cut() {
    let dir = tempdir().unwrap();
    let name = "n".repeat(50_000);
    let source = format!("int {name}(void) {{ return 1; }} int main(void) {{ return {name}(); }}");
    let path = build(dir.path(), "huge", "cc", &source, &[]);
    let (offset, _) = place(&path, "nnnn");
    let s = Symbolizer::start().unwrap();
    let f = crate::symbols::fixture::function(&s, &module(&path), offset, Detail::Names);
    assert!(f.name.len() <= 4096 && f.name.starts_with("nnnn") && f.name.ends_with('…'));
}

#[test]
fn a_file_that_shrinks_while_open() {
    let (f, s) = (fixture(), Symbolizer::start().unwrap());
    fs::write(&f.scratch, &f.good).unwrap();
    let modules = [module(&f.scratch)];
    let half = f.frames.len() / 2;
    let out = f.frames[f.frames.len() - 2];
    let whole = s.resolve_with(&[out], &modules, Detail::Inlined);
    assert!(matches!(whole.get(out), Some(Symbol::Known(f)) if f.location.is_some()));
    s.resolve(&f.frames[..half], &modules);
    fs::OpenOptions::new()
        .write(true)
        .open(&f.scratch)
        .unwrap()
        .set_len(5000)
        .unwrap();
    s.resolve_with(&f.frames, &modules, Detail::Inlined);
    let symbols = s.resolve(&f.frames[half..], &modules);
    let symbol = symbols.get(f.frames[half]).unwrap();
    assert!(
        matches!(symbol, Symbol::Unknown(UnknownReason::Unreadable(_))),
        "{symbol:?}"
    );
}

#[test]
fn a_debug_file_that_shrinks_while_it_is_mapped() {
    let dir = tempdir().unwrap();
    let second = dir.path().join("second.c");
    let body = |i| format!("int f{i}(int n) {{\n  n += {i};\n  return n;\n}}\n");
    fs::write(&second, (0..2000).map(body).collect::<String>()).unwrap();
    let flags = ["-g", "-O1", "-Wl,--build-id=sha1", second.to_str().unwrap()];
    let path = build(dir.path(), "split", "cc", SOURCE, &flags);
    let (out, _) = place(&path, "out");
    let (other, _) = place(&path, "f1999");
    let (p, debug) = (path.to_str().unwrap(), dir.path().join("split.debug"));
    run(
        "objcopy",
        &["--only-keep-debug", p, debug.to_str().unwrap()],
    );
    run("strip", &[p]);
    run(
        "objcopy",
        &[&format!("--add-gnu-debuglink={}", debug.display()), p],
    );
    let (s, m) = (Symbolizer::start().unwrap(), module(&path));
    assert!(
        crate::symbols::fixture::function(&s, &m, out, Detail::Inlined)
            .location
            .is_some()
    );
    fs::OpenOptions::new()
        .write(true)
        .open(&debug)
        .unwrap()
        .set_len(64)
        .unwrap();
    let symbol = crate::symbols::fixture::symbol(&s, &m, other, Detail::Inlined);
    assert!(matches!(symbol, Symbol::Unnamed(_)), "{symbol:?}");
}
