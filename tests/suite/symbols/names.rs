//! Mangling, kinds of programs, stripped programs, debug information.

use std::fs;
use std::path::Path;

use tempfile::tempdir;

use crate::symbols::fixture::{build, function, module, place, run, symbol};
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_profile::symbol::{Language, Symbol, UnknownReason};
use memprof_profile::{Frame, ModuleId};

const C: &str = r#"
#include <stdlib.h>
#define NEVER __attribute__((noinline, noclone))
NEVER void *leaf(int n) { return malloc(n); }
NEVER static void *inner_static(int n) { return leaf(n + 1); }
int main(int argc, char **argv) { return inner_static(argc) == 0; }
"#;

const CPP: &str = r#"
#include <vector>
namespace outer { namespace inner {
template <class T> struct Box {
  __attribute__((noinline)) T *grow(unsigned n) { return new T[n]; }
};
__attribute__((noinline)) int count(std::vector<int> const &v, const char *) { return v.size(); }
}}
extern "C" int plain_c() { return 7; }
template struct outer::inner::Box<long>;
"#;

const RUST: &str = r#"
pub mod demo {
    pub struct Tree<T>(pub T);
    impl<T: Clone> Tree<T> {
        #[inline(never)]
        pub fn clone_twice(&self) -> (T, T) { (self.0.clone(), self.0.clone()) }
    }
    #[unsafe(export_name = "_ZN4demo6legacy17h0123456789abcdefE")]
    #[inline(never)]
    pub fn legacy() -> Vec<u8> { vec![1; 100] }
    #[unsafe(no_mangle)]
    #[inline(never)]
    pub extern "C" fn unmangled() -> usize { legacy().len() }
}
fn main() {
    let tree = demo::Tree(String::from("x"));
    std::hint::black_box(tree.clone_twice());
    std::hint::black_box(demo::unmangled());
}
"#;

fn named(path: &Path, part: &str) -> (String, Language, u64) {
    let s = Symbolizer::start().unwrap();
    let (offset, size) = place(path, part);
    let m = module(path);
    let last = function(&s, &m, offset + size - 1, Detail::Names);
    let f = function(&s, &m, offset, Detail::Names);
    assert_eq!(f.offset_in_function, 0);
    assert_eq!((&last.name, last.offset_in_function), (&f.name, size - 1));
    assert!(f.inlined.is_empty() && f.location.is_none());
    (f.name, f.language, size)
}

#[test]
fn rust_names() {
    let dir = tempdir().unwrap();
    let v0 = build(
        dir.path(),
        "v0",
        "rustc",
        RUST,
        &["-Csymbol-mangling-version=v0", "-O"],
    );
    let (name, language, _) = named(&v0, "clone_twice");
    assert_eq!(
        name,
        "<v0_src::demo::Tree<alloc::string::String>>::clone_twice"
    );
    assert_eq!(language, Language::Rust);
    let (name, language, _) = named(&v0, "legacy17h");
    assert_eq!(name, "demo::legacy::h0123456789abcdef");
    assert_eq!(language, Language::Rust);
    let (name, language, _) = named(&v0, "unmangled");
    assert_eq!((name.as_str(), language), ("unmangled", Language::Other));
}

#[test]
fn debug_information_knows_the_language_of_unmangled_names() {
    let dir = tempdir().unwrap();
    let path = build(dir.path(), "lang", "rustc", RUST, &["-g", "-O"]);
    let (offset, _) = place(&path, "unmangled");
    let s = Symbolizer::start().unwrap();
    let f = function(&s, &module(&path), offset, Detail::Inlined);
    assert_eq!((f.name.as_str(), f.language), ("unmangled", Language::Rust));
}

#[test]
fn cpp_names_in_a_shared_library() {
    let dir = tempdir().unwrap();
    let path = build(
        dir.path(),
        "libbox.so",
        "c++",
        CPP,
        &["-O1", "-shared", "-fPIC"],
    );
    let (name, language, _) = named(&path, "3Box");
    assert_eq!(name, "outer::inner::Box<long>::grow(unsigned int)");
    assert_eq!(language, Language::Other);
    let (name, ..) = named(&path, "count");
    assert!(
        name.starts_with("outer::inner::count(std::vector<int,"),
        "{name}"
    );
    assert_eq!(named(&path, "plain_c").0, "plain_c");
    // A library's dynamic symbols survive strip, and cover only their own code.
    let (offset, size) = place(&path, "plain_c");
    run("strip", &[path.to_str().unwrap()]);
    let s = Symbolizer::start().unwrap();
    let m = module(&path);
    assert_eq!(function(&s, &m, offset, Detail::Names).name, "plain_c");
    let behind = symbol(&s, &m, offset + size, Detail::Names);
    assert!(
        !matches!(&behind, Symbol::Known(f) if f.name == "plain_c"),
        "{behind:?}"
    );
}

#[test]
fn every_kind_of_program() {
    let dir = tempdir().unwrap();
    for (name, flags) in [
        ("pie", &["-O1", "-pie", "-fPIE"][..]),
        ("no_pie", &["-O1", "-no-pie"]),
        ("static_no_pie", &["-O1", "-static", "-no-pie"]),
        ("static_pie", &["-O1", "-static-pie", "-fPIE"]),
        ("separate_code", &["-O1", "-Wl,-z,separate-code"]),
        ("shared_pages", &["-O1", "-Wl,-z,noseparate-code"]),
    ] {
        let path = build(dir.path(), name, "cc", C, flags);
        for part in ["main", "leaf", "inner_static"] {
            let all = crate::symbols::fixture::nm(&path, &[]);
            let exact = all.iter().find(|s| s.name == part).unwrap();
            let segments = crate::symbols::fixture::segments(&path);
            let offset = crate::symbols::fixture::offset_of_addr(&segments, exact.addr).unwrap();
            let s = Symbolizer::start().unwrap();
            let f = function(&s, &module(&path), offset + exact.size - 1, Detail::Names);
            assert_eq!(
                (f.name.as_str(), f.offset_in_function),
                (part, exact.size - 1),
                "{name}"
            );
        }
    }
}

#[test]
fn a_stripped_program_has_no_names() {
    let dir = tempdir().unwrap();
    // One function is exported: the code after it must not get its name.
    let flags = ["-O1", "-rdynamic", "-fvisibility=hidden"];
    let source = C.replace(
        "NEVER void *leaf",
        "__attribute__((visibility(\"default\"))) NEVER void *leaf",
    );
    let path = build(dir.path(), "stripped", "cc", &source, &flags);
    let (leaf, _) = place(&path, "leaf");
    let (hidden, size) = place(&path, "inner_static");
    let (main, _) = crate::symbols::fixture::nm(&path, &[])
        .into_iter()
        .find(|s| s.name == "main")
        .map(|s| {
            (
                crate::symbols::fixture::offset_of_addr(
                    &crate::symbols::fixture::segments(&path),
                    s.addr,
                )
                .unwrap(),
                s.size,
            )
        })
        .unwrap();
    run("strip", &[path.to_str().unwrap()]);
    let (s, m) = (Symbolizer::start().unwrap(), module(&path));
    assert_eq!(function(&s, &m, leaf, Detail::Names).name, "leaf");
    for inside in [0, size - 1] {
        for detail in [Detail::Names, Detail::Inlined] {
            let unnamed = symbol(&s, &m, hidden + inside, detail);
            assert_eq!(offset_in_unnamed(&unnamed), Some(inside), "{unnamed:?}");
        }
    }
    // `main` may be exported by the start-up code's reference to it; if not, it has no name.
    let main = symbol(&s, &m, main, Detail::Names);
    let exported = main.function().is_some_and(|f| f.name == "main");
    assert!(exported || offset_in_unnamed(&main) == Some(0), "{main:?}");
}

/// The position's distance from the start of its function, which has no symbol.
fn offset_in_unnamed(symbol: &Symbol) -> Option<u64> {
    match symbol {
        Symbol::Unnamed(function) => Some(function.offset_in_function),
        _ => None,
    }
}

#[test]
fn assembler_symbols_without_a_size() {
    let dir = tempdir().unwrap();
    let source = r#"
__asm__(".text\n.p2align 4\n"
        ".globl bare\nbare:\n.skip 32, 0x90\n"
        ".globl sized\n.type sized,@function\nsized:\n.skip 16, 0x90\n.size sized, 16\n"
        ".skip 16, 0x90\n.globl end_of_sized\nend_of_sized:\nnop\n"
        ".section .lastcode,\"ax\",@progbits\n.globl last\nlast:\n.skip 24, 0x90\n"
        ".section .nameless,\"ax\",@progbits\n.skip 24, 0x90\n"
        ".section .data.fake,\"aw\"\n.globl datum\ndatum:\n.quad 1\n.text\n");
int main(void) { return 0; }
"#;
    let path = build(dir.path(), "asm", "cc", source, &["-O1", "-no-pie"]);
    let segments = crate::symbols::fixture::segments(&path);
    let at = |name: &str| {
        let listed = run("nm", &[path.to_str().unwrap()]);
        let line = listed
            .lines()
            .find(|l| l.ends_with(&format!(" {name}")))
            .unwrap();
        let addr = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        crate::symbols::fixture::offset_of_addr(&segments, addr).unwrap()
    };
    let (s, m) = (Symbolizer::start().unwrap(), module(&path));
    let named = |symbol: &Symbol| {
        let function = symbol.function()?;
        Some((function.name.clone(), function.offset_in_function))
    };
    let name = |offset: u64| named(&symbol(&s, &m, offset, Detail::Names));
    let bare = at("bare");
    assert_eq!(name(bare), Some(("bare".into(), 0)));
    assert_eq!(name(bare + 31), Some(("bare".into(), 31)));
    assert_eq!(name(bare + 32), Some(("sized".into(), 0)));
    assert_eq!(name(bare + 47), Some(("sized".into(), 15)));
    // After the end of the sized symbol, before the next one: neither of the two preceding symbols.
    assert_eq!(name(bare + 48), None);
    assert_eq!(name(bare + 64), Some(("end_of_sized".into(), 0)));
    // A symbol without a size ends with its section.
    let last = at("last");
    assert_eq!(name(last + 23), Some(("last".into(), 23)));
    assert_eq!(name(last + 24), None);
    // A batch lookup returns the same names.
    let frames: Vec<Frame> = (0..66)
        .map(|i| Frame::code(ModuleId(0), bare + i))
        .collect();
    let fresh = Symbolizer::start().unwrap();
    let all = fresh.resolve(&frames, std::slice::from_ref(&m));
    for (i, frame) in frames.iter().enumerate() {
        let want = name(bare + i as u64);
        assert_eq!(named(all.get(*frame).unwrap()), want, "bare + {i}");
    }
}

#[test]
fn an_exported_symbol_without_a_size_names_its_own_address_only() {
    let dir = tempdir().unwrap();
    let source = r#"
__asm__(".text\n.globl bare\nbare:\n.skip 32, 0x90\n");
"#;
    let path = build(dir.path(), "libbare.so", "cc", source, &["-shared"]);
    let listed = run("nm", &["-D", path.to_str().unwrap()]);
    let line = listed.lines().find(|l| l.ends_with(" bare")).unwrap();
    let addr = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let bare =
        crate::symbols::fixture::offset_of_addr(&crate::symbols::fixture::segments(&path), addr)
            .unwrap();
    let (s, m) = (Symbolizer::start().unwrap(), module(&path));
    assert_eq!(function(&s, &m, bare + 20, Detail::Names).name, "bare");
    run("strip", &[path.to_str().unwrap()]);
    let m = module(&path);
    assert_eq!(function(&s, &m, bare, Detail::Names).name, "bare");
    let behind = symbol(&s, &m, bare + 20, Detail::Names);
    assert_eq!(behind, Symbol::Unknown(UnknownReason::NoSymbol));
}

#[test]
fn a_deleted_file_keeps_its_names() {
    let dir = tempdir().unwrap();
    let path = build(dir.path(), "gone", "cc", C, &["-O1"]);
    let (offset, _) = place(&path, "leaf");
    let m = module(&path);
    fs::remove_file(&path).unwrap();
    let s = Symbolizer::start().unwrap();
    assert_eq!(function(&s, &m, offset, Detail::Names).name, "leaf");
}

const INLINED: &str = r#"#include <stdlib.h>
static inline __attribute__((always_inline)) void *deepest(int n) {
  return malloc(n);
}
static inline __attribute__((always_inline)) void *middle(int n) {
  char *p = deepest(n + 3);
  p[0] = 1;
  return p;
}
__attribute__((noinline)) void *outermost(int n) {
  char *p = middle(n * 2);
  p[1] = 2;
  return p;
}
int main(int argc, char **argv) { return outermost(argc) == 0; }
"#;

/// The offset of the last byte of `outermost`'s call to malloc.
fn call_in_outermost(path: &Path) -> u64 {
    let (start, _) = place(path, "outermost");
    let text = run(
        "objdump",
        &["-d", "--no-show-raw-insn", path.to_str().unwrap()],
    );
    let body = text.split("<outermost>:").nth(1).unwrap();
    let mut lines = body.lines().skip(1).skip_while(|l| !l.contains("malloc"));
    let hex = |l: &str| u64::from_str_radix(l.trim().split(':').next().unwrap(), 16).unwrap();
    lines.next().unwrap();
    let behind = hex(lines.next().unwrap());
    let listed = crate::symbols::fixture::nm(path, &[]);
    let addr = listed.iter().find(|s| s.name == "outermost").unwrap().addr;
    start + (behind - addr) - 1
}

fn check_inlined(path: &Path, offset: u64, compressed: bool) {
    let s = Symbolizer::start().unwrap();
    let m = module(path);
    let f = function(&s, &m, offset, Detail::Inlined);
    let line = |l: &Option<memprof_profile::symbol::Location>| l.as_ref().and_then(|l| l.line);
    let got: Vec<_> = f
        .inlined
        .iter()
        .map(|i| (i.name.as_str(), line(&i.location)))
        .collect();
    assert_eq!(
        got,
        [("deepest", Some(3)), ("middle", Some(6))],
        "compressed: {compressed}"
    );
    assert_eq!(
        (f.name.as_str(), line(&f.location)),
        ("outermost", Some(11))
    );
    let file = &f.location.unwrap().file;
    assert!(file.ends_with("_src.c"), "{file}");
    // Without details there are only names.
    let f = function(&s, &m, offset, Detail::Names);
    assert!(f.name == "outermost" && f.inlined.is_empty() && f.location.is_none());
}

#[test]
fn inlined_functions_innermost_first() {
    let dir = tempdir().unwrap();
    for (name, flags, compressed) in [
        ("inl5", &["-g", "-O2"][..], false),
        ("inl4", &["-gdwarf-4", "-O2"], false),
        ("inlz", &["-g", "-O2", "-gz=zlib"], true),
    ] {
        let path = build(dir.path(), name, "cc", INLINED, flags);
        let offset = call_in_outermost(&path);
        check_inlined(&path, offset, compressed);
        // An independent reader agrees.
        let listed = crate::symbols::fixture::nm(&path, &[]);
        let addr = listed.iter().find(|s| s.name == "outermost").unwrap().addr;
        let addr = addr + offset - place(&path, "outermost").0;
        let hex = format!("{addr:#x}");
        let said = run(
            "addr2line",
            &["-f", "-i", "-s", "-e", path.to_str().unwrap(), &hex],
        );
        let said: Vec<&str> = said.lines().step_by(2).collect();
        assert_eq!(said, ["deepest", "middle", "outermost"]);
    }
}

#[test]
fn separate_debug_files() {
    let dir = tempdir().unwrap();
    for (name, id, wrong) in [
        (
            "with_id",
            "-Wl,--build-id=sha1",
            "-Wl,--build-id=0x1234567890",
        ),
        ("without_id", "-Wl,--build-id=none", "-Wl,--build-id=none"),
    ] {
        let path = build(dir.path(), name, "cc", INLINED, &["-g", "-O2", id]);
        let offset = call_in_outermost(&path);
        let p = path.to_str().unwrap();
        let debug = format!("{p}.debug");
        run("objcopy", &["--only-keep-debug", p, &debug]);
        run("strip", &[p]);
        run("objcopy", &[&format!("--add-gnu-debuglink={debug}"), p]);
        check_inlined(&path, offset, false);
        // A debug file of another build is not used.
        let other = INLINED.replace("outermost", "stranger");
        let other = build(
            dir.path(),
            &format!("{name}_other"),
            "cc",
            &other,
            &["-g", "-O2", wrong],
        );
        run(
            "objcopy",
            &["--only-keep-debug", other.to_str().unwrap(), &debug],
        );
        let s = Symbolizer::start().unwrap();
        let got = symbol(&s, &module(&path), offset, Detail::Inlined);
        assert!(offset_in_unnamed(&got).is_some(), "{name}: {got:?}");
    }
}

#[test]
fn frames_without_a_file() {
    let s = Symbolizer::start().unwrap();
    let frames = [Frame::unmapped(0x1234), Frame::code(ModuleId(9), 5)];
    let symbols = s.resolve(&frames, &[]);
    for frame in frames {
        assert_eq!(
            symbols.get(frame),
            Some(&Symbol::Unknown(UnknownReason::NoFile))
        );
    }
    assert_eq!(symbols.get(Frame::unmapped(1)), None);
}
