//! The system's own libraries, compared with `nm` and `c++filt`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::symbols::fixture::{Listed, cxxfilt, module, nm, offset_of_addr, run, segments};
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_profile::symbol::{Language, Symbol};
use memprof_profile::{Frame, ModuleId};

fn library(name: &str) -> PathBuf {
    let path = run("cc", &[&format!("-print-file-name={name}")]);
    fs::canonicalize(path.trim()).unwrap_or_else(|e| panic!("{name} is needed: {e}"))
}

fn debug_file(path: &Path) -> Option<PathBuf> {
    let notes = run("readelf", &["-n", path.to_str().unwrap()]);
    let id = notes
        .lines()
        .find_map(|l| l.trim().strip_prefix("Build ID: ").map(str::to_owned))?;
    let file = format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    Path::new(&file).exists().then(|| file.into())
}

/// Functions by address. Of overlapping symbols, only those with identical ranges are kept, so that the possible names
/// of an address are known.
fn functions(path: &Path) -> BTreeMap<u64, Vec<Listed>> {
    let mut all = nm(path, &["-D"]);
    if let Some(debug) = debug_file(path) {
        all.extend(nm(&debug, &[]));
    }
    let mut by_addr: BTreeMap<u64, Vec<Listed>> = BTreeMap::new();
    for s in all
        .into_iter()
        .filter(|s| "TtWwi".contains(s.kind) && s.size > 0)
    {
        by_addr.entry(s.addr).or_default().push(s);
    }
    by_addr
}

fn agree(path: &Path) -> (usize, usize) {
    let (by_addr, segments) = (functions(path), segments(path));
    let mut asked: Vec<(u64, u64)> = Vec::new();
    for (addr, listed) in &by_addr {
        let size = listed.iter().map(|s| s.size).min().unwrap();
        let next = by_addr
            .range(addr + 1..)
            .next()
            .map_or(u64::MAX, |(a, _)| *a);
        for at in [0, size / 2, size - 1] {
            if addr + at < next {
                asked.extend(offset_of_addr(&segments, addr + at).map(|o| (o, addr + at)));
            }
        }
    }
    let (s, m) = (Symbolizer::start().unwrap(), module(path));
    let frames: Vec<Frame> = asked
        .iter()
        .map(|(o, _)| Frame::code(ModuleId(0), *o))
        .collect();
    let symbols = s.resolve(&frames, &[m]);
    let raw: Vec<String> = by_addr.values().flatten().map(|s| s.name.clone()).collect();
    let shown: BTreeMap<String, String> = raw.iter().cloned().zip(cxxfilt(&raw)).collect();
    // Demanglers differ: one prints the full type for the other's `std::string`, and `&` may be before or after a
    // nested name. The letters must be the same.
    let string = "std::basic_string<char,std::char_traits<char>,std::allocator<char>>";
    let letters = |s: &str| {
        let s = s.replace(' ', "").replace(string, "std::string");
        let mut letters = s.into_bytes();
        letters.sort_unstable();
        letters
    };
    let (mut same, mut odd) = (0, 0);
    for (frame, (_, addr)) in frames.iter().zip(&asked) {
        let Symbol::Known(f) = symbols.get(*frame).unwrap() else {
            panic!("{}: {addr:#x} has no name", path.display());
        };
        assert_eq!(f.language, Language::Other, "{}", f.name);
        let start = addr - f.offset_in_function;
        let listed = by_addr
            .get(&start)
            .unwrap_or_else(|| panic!("{addr:#x}: {f:?}"));
        // The mangled name must match exactly; binutils gives the demangled form.
        let own = |l: &Listed| match cpp_demangle::Symbol::new(&l.name) {
            Ok(symbol) => symbol.demangle().unwrap(),
            Err(_) => l.name.clone(),
        };
        assert!(
            listed.iter().any(|l| f.name == own(l)),
            "{addr:#x}: {f:?} {listed:?}"
        );
        let same_letters = |l: &Listed| letters(&f.name) == letters(&shown[&l.name]);
        let hit = listed.iter().any(same_letters);
        if hit {
            same += 1;
        } else {
            odd += 1;
        }
    }
    (same, odd)
}

#[test]
fn libc_agrees_with_nm() {
    let (same, odd) = agree(&library("libc.so.6"));
    println!("libc: {same} addresses agree, {odd} do not");
    assert!(same > 1000 && odd == 0, "{same} agree, {odd} do not");
}

#[test]
fn libstdcxx_agrees_with_nm() {
    let (same, odd) = agree(&library("libstdc++.so.6"));
    println!("libstdc++: {same} addresses agree, {odd} do not");
    // The two demanglers print thunks and the constructors of `std::string` differently.
    assert!(same > 1000 && odd * 20 < same, "{same} agree, {odd} do not");
}

#[test]
fn libc_names_are_those_its_users_write() {
    let path = library("libc.so.6");
    let (listed, segments) = (nm(&path, &["-D"]), segments(&path));
    let (s, m) = (Symbolizer::start().unwrap(), module(&path));
    for name in ["malloc", "mmap", "read", "fork"] {
        let addr = listed.iter().find(|s| s.name == name).unwrap().addr;
        let offset = offset_of_addr(&segments, addr).unwrap();
        assert_eq!(
            crate::symbols::fixture::function(&s, &m, offset, Detail::Names).name,
            name
        );
    }
}
