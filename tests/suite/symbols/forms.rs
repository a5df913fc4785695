//! Debug information in every form in which it comes: compressed, split, packed, shared. In each, functions, lines and inlined
//! functions are those of the plain form, which `names.rs` compares with binutils'; what is not found is said.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::tempdir;

use crate::common::skip::skip;
use crate::symbols::fixture::{module, place, run, symbol};
use memprof_code::symbolize::{Detail, Symbolizer};
use memprof_profile::symbol::Function;
use memprof_profile::{Frame, Module, ModuleId};

const SOURCE: &str = "#include <stddef.h>
static inline __attribute__((always_inline)) void inner(volatile char *p, size_t n) {
    for (size_t i = 0; i < n; i += 4096)
        p[i] = 1;
}
static inline __attribute__((always_inline)) void middle(volatile char *p, size_t n) {
    inner(p, n);
}
__attribute__((noinline)) void outer(volatile char *p, size_t n) {
    middle(p, n);
}
static char memory[1 << 20];
int main(int argc, char **argv) {
    outer(memory, sizeof memory / argc);
    return argv == NULL;
}
";

struct Fixture {
    dir: tempfile::TempDir,
    symbolizer: Symbolizer,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempdir().unwrap();
        fs::write(dir.path().join("prog.c"), SOURCE).unwrap();
        let symbolizer = Symbolizer::start().unwrap();
        Fixture { dir, symbolizer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a command in the directory.
    fn shell(&self, script: &str) {
        let out = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.dir.path())
            .output();
        let out = out.unwrap();
        assert!(
            out.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    }

    /// The functions at every address of `outer`, which must be the same as in all other forms.
    fn functions(&self, name: &str) -> Vec<Function> {
        let path = self.path(name);
        let (offset, size) = place(&path, "outer");
        let module = module(&path);
        let at = |inside| match symbol(&self.symbolizer, &module, offset + inside, Detail::Inlined)
        {
            memprof_profile::symbol::Symbol::Known(function) => function,
            other => panic!("{inside:#x}: {other:?}"),
        };
        (0..size).map(at).collect()
    }

    fn unread(&self, module: &Arc<Module>, offset: u64) -> Vec<String> {
        let modules = std::slice::from_ref(module);
        let frames = [Frame::code(ModuleId(0), offset)];
        let symbols = self
            .symbolizer
            .resolve_with(&frames, modules, Detail::Inlined);
        symbols.unread().map(str::to_owned).collect()
    }

    #[track_caller]
    fn is_like(&self, plain: &str, name: &str) {
        let (wanted, found) = (self.functions(plain), self.functions(name));
        assert_eq!(wanted.len(), found.len(), "{name} has other code");
        for (at, (wanted, found)) in wanted.iter().zip(&found).enumerate() {
            assert_eq!(wanted, found, "{name} at {at:#x}");
        }
        let whole = self.unread(
            &module(&self.path(name)),
            place(&self.path(name), "outer").0,
        );
        assert!(whole.is_empty(), "{name}: {whole:?}");
    }

    /// The plain form: somewhere both other functions are inlined.
    #[track_caller]
    fn has_all(&self, plain: &str) {
        let all = self.functions(plain);
        let inlined = all.iter().find(|f| f.inlined.len() == 2).expect(plain);
        let names: Vec<_> = inlined.inlined.iter().map(|f| &*f.name).collect();
        assert_eq!(
            (&*inlined.name, &names[..]),
            ("outer", &["inner", "middle"][..])
        );
        let line =
            |location: &Option<memprof_profile::symbol::Location>| location.as_ref().unwrap().line;
        assert_eq!(line(&inlined.inlined[1].location), Some(7));
        assert_eq!(line(&inlined.location), Some(10));
    }
}

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        skip(format!("{tool} is not installed"));
    }
    found
}

#[test]
fn compressed() {
    let f = Fixture::new();
    f.shell("gcc -O2 -g -gz=none -o plain prog.c");
    f.has_all("plain");
    for form in ["zlib", "zlib-gnu", "zstd"] {
        f.shell(&format!(
            "objcopy --compress-debug-sections={form} plain {form}"
        ));
        let sections = run("readelf", &["-SW", f.path(form).to_str().unwrap()]);
        assert!(
            form != "zlib-gnu" || sections.contains(".zdebug_info"),
            "{sections}"
        );
        f.is_like("plain", form);
    }
}

#[test]
fn split() {
    let f = Fixture::new();
    for (compiler, version) in [("gcc", 4), ("gcc", 5), ("clang", 4), ("clang", 5)] {
        if !has(compiler) {
            continue;
        }
        let name = format!("{compiler}{version}");
        let flags = format!("-O2 -g -gdwarf-{version}");
        f.shell(&format!("{compiler} {flags} -o plain-{name} prog.c"));
        f.has_all(&format!("plain-{name}"));
        // Where the compiler wrote the file, then beside a program that was moved; each in a directory of its own.
        let build = format!(
            "mkdir {name}; {compiler} {flags} -gsplit-dwarf -c prog.c -o {name}/{name}.o; {compiler} -o {name}/prog {name}/{name}.o; ls {name}/{name}.dwo"
        );
        f.shell(&build);
        f.is_like(&format!("plain-{name}"), &format!("{name}/prog"));
        f.shell(&format!(
            "mkdir moved-{name}; mv {name}/prog {name}/{name}.dwo moved-{name}"
        ));
        f.is_like(&format!("plain-{name}"), &format!("moved-{name}/prog"));
        // binutils' leaves everything of DWARF 5 out.
        let tool = match (compiler, version) {
            ("gcc", 4) => "dwp",
            _ => "llvm-dwp",
        };
        if has(tool) {
            f.shell(&format!(
                "cd moved-{name}; {tool} {name}.dwo -o prog.dwp; rm {name}.dwo"
            ));
            f.is_like(&format!("plain-{name}"), &format!("moved-{name}/prog"));
        }
    }
}

/// Without the other file there are no inlined functions and no line that might be one of theirs.
#[test]
fn split_and_lost() {
    let f = Fixture::new();
    f.shell(
        "gcc -O2 -g -gsplit-dwarf -c prog.c -o lost.o; gcc -o lost lost.o; mv lost.dwo elsewhere",
    );
    let (path, offset) = (f.path("lost"), place(&f.path("lost"), "outer").0);
    for function in f.functions("lost") {
        assert_eq!((&*function.name, function.inlined.len()), ("outer", 0));
        assert_eq!(function.location, None);
    }
    let unread = f.unread(&module(&path), offset);
    assert_eq!(
        unread,
        ["Not all debug information of lost was read: lost.dwo was not found"]
    );
    // Neither with that of another program.
    f.shell("gcc -O1 -g -gsplit-dwarf -c prog.c -o other.o; mv other.dwo lost.dwo");
    assert_eq!(f.unread(&module(&path), offset), unread);
}

#[test]
fn shared() {
    if !has("dwz") {
        return;
    }
    for (option, section) in [("", ".gnu_debugaltlink"), ("-5", ".debug_sup")] {
        let f = Fixture::new();
        f.shell("gcc -O2 -g -gz=none -o plain prog.c; cp plain one; cp plain two");
        let common = f.path("common");
        f.shell(&format!(
            "dwz {option} -m common -M {} one two",
            common.display()
        ));
        let sections = run("readelf", &["-SW", f.path("one").to_str().unwrap()]);
        assert!(sections.contains(section), "{sections}");
        f.is_like("plain", "one");
        fs::remove_file(&common).unwrap();
        for function in f.functions("two") {
            assert_eq!(function.name, "outer");
            let named = function.inlined.iter().all(|f| !f.name.is_empty());
            assert!(named, "{function:?}");
        }
        let two = module(&f.path("two"));
        let unread = f.unread(&two, place(&f.path("two"), "outer").0);
        let wanted = format!(
            "Not all debug information of two was read: {} was not found",
            common.display()
        );
        assert_eq!(unread, [wanted]);
    }
}

#[test]
fn damaged() {
    let f = Fixture::new();
    f.shell("gcc -O2 -g -gz=zlib -o packed prog.c");
    let path = f.path("packed");
    let mut bytes = fs::read(&path).unwrap();
    let listed = run("readelf", &["-SW", path.to_str().unwrap()]);
    let line = listed
        .lines()
        .find(|line| line.contains(" .debug_info "))
        .unwrap();
    let words: Vec<&str> = line.split(']').nth(1).unwrap().split_whitespace().collect();
    let offset = usize::from_str_radix(words[3], 16).unwrap();
    bytes[offset + 40] ^= 0xff;
    fs::write(f.path("broken"), bytes).unwrap();
    for function in f.functions("broken") {
        assert_eq!((&*function.name, function.location), ("outer", None));
    }
    let unread = f.unread(
        &module(Path::new(&f.path("broken"))),
        place(&path, "outer").0,
    );
    assert!(
        unread[0].starts_with("No debug information of broken was read"),
        "{unread:?}"
    );
}
