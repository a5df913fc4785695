//! Every frame of stacks with known call chains, in programs without frame pointers.
//!
//! Needs root and `cc`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Once, OnceLock};

use super::packaged_programs::installed;
use super::results::{Found, attached, profile, profile_under};
use crate::common::skip::skip;
use crate::common::workload::Workload;

const KIB: u64 = 1024;
/// Bytes that a leaf function touches.
const LEAF: u64 = 64 * KIB;
pub const DEPTH_LIMIT: usize = 128;

fn dir() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwind");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

pub fn source(name: &str) -> String {
    format!(
        "{}/tests/suite/unwind/programs/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

/// Writes the chains `a0 … a99` and `b0 … b199`, each of which ends in a leaf. The file is written only once,
/// because another test's compiler may be reading it.
fn deep_chains() {
    static WRITTEN: Once = Once::new();
    WRITTEN.call_once(write_deep_chains);
}

fn write_deep_chains() {
    let mut text = String::new();
    for (letter, depth) in [('a', 100), ('b', 200)] {
        text += &format!("LEAF({letter}_leaf)\n");
        for n in (0..depth).rev() {
            let next = match n + 1 {
                n if n == depth => "_leaf".to_owned(),
                n => n.to_string(),
            };
            text += &format!("NOINLINE void {letter}{n}(void) {{ {letter}{next}(); STAY(); }}\n");
        }
    }
    std::fs::write(dir().join("deep.inc"), text).unwrap();
}

/// Compiles without frame pointers. Without the compiler, reports the test as skipped and returns `None`.
#[track_caller]
pub fn compile(compiler: &str, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let out = dir().join(name);
    let mut command = Command::new(compiler);
    if compiler.starts_with("rustc") {
        command.args(["-O", "-Cforce-frame-pointers=no", "--edition=2024"]);
    } else {
        command.args(["-g", "-O2", "-fomit-frame-pointer", "-pthread", "-I"]);
        command.arg(dir());
    }
    let Ok(ended) = command.arg(source).args(flags).arg("-o").arg(&out).output() else {
        skip(format_args!("{name}: {compiler} is not installed"));
        return None;
    };
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{compiler} {name}: {said}");
    // The kernel maps the pages around a fault, except locked ones. A page is locked when its writing to the disk begins; a
    // function in such a page would take a fault of its own, and hold 4 KiB of code.
    std::fs::File::open(&out).unwrap().sync_all().unwrap();
    Some(out)
}

fn numbered(letter: char, range: std::ops::Range<usize>) -> String {
    range.map(|n| format!("{letter}{n} ")).collect()
}

/// The node that the stacks deeper than the limit have in common.
const CUT_OFF: &str = "[cut_off:_depth_limit,_see_--max-frames] ";
const MAIN: &str = "_start * main ";

/// All cases of `chains.c`.
#[track_caller]
fn check_chains(program: &Path) {
    let cache = tempfile::NamedTempFile::new_in(dir()).unwrap();
    let found = profile(
        &[],
        &[program.to_str().unwrap(), cache.path().to_str().unwrap()],
    );
    let from_main = |chain: &str, leaf: &str| found.chain(&format!("{MAIN}{chain}"), leaf, LEAF);

    let deep = format!("deep100_case {}a_leaf", numbered('a', 0..100));
    from_main(&deep, "a_leaf");
    // The innermost frames are kept.
    let cut = format!("{CUT_OFF}{}b_leaf", numbered('b', 201 - DEPTH_LIMIT..200));
    found.chain(&cut, "b_leaf", LEAF);
    assert_eq!(found.ended("partial: depth limit"), LEAF / KIB);

    check_deep(program, "auto", &[MAIN], 200);

    from_main(
        "huge_frame_case huge_frame huge_frame_leaf",
        "huge_frame_leaf",
    );
    from_main("realigned_case realigned realigned_leaf", "realigned_leaf");
    from_main("alloca_case alloca_frame alloca_leaf", "alloca_leaf");
    from_main("qsort_case * qsort_callback qsort_leaf", "qsort_leaf");
    from_main(
        "bsearch_case bsearch bsearch_callback bsearch_leaf",
        "bsearch_leaf",
    );
    // The first of the frames in between is `raise` or one of its callees, the last is the trampoline.
    from_main("raised_case * raised_handler raised_leaf", "raised_leaf");
    from_main(
        "fault_case faulting * fault_handler fault_leaf",
        "fault_leaf",
    );
    from_main(
        "altstack_case bare_fault * altstack_handler altstack_leaf",
        "altstack_leaf",
    );
    from_main("vfork_case vfork_child vfork_leaf", "vfork_leaf");
    found.chain("* clone_child clone_leaf", "clone_leaf", LEAF);
    from_main("tail_case tail_leaf", "tail_leaf");
    let calls = "recursion ".repeat(30);
    from_main(
        &format!("recursion_case {calls}recursion_leaf"),
        "recursion_leaf",
    );
    found.chain("* thread_start thread_leaf", "thread_leaf", LEAF);
    from_main("read_case read_leaf *", "read_leaf");
    from_main("populate_case populate_leaf *", "populate_leaf");
    from_main("write_case write_leaf *", "write_leaf");

    for label in [
        "partial: unsupported unwind rule",
        "partial: code in no known file",
        "partial: no unwind table",
        "unreadable stack",
    ] {
        assert_eq!(found.ended(label), 0, "{label}\n{}", found.text());
    }
}

/// On request, all frames of a stack that is too deep for one record: the callers of `main`, the first functions of
/// chain `b`, and its leaf.
#[track_caller]
fn check_deep(program: &Path, unwind: &str, starts: &[&str], seen: usize) {
    let whole = |start: &&str| format!("{start}deep200_case {}b_leaf", numbered('b', 0..seen));
    let whole: Vec<String> = starts.iter().map(whole).collect();
    let cut = format!("{CUT_OFF}{}b_leaf", numbered('b', seen - 149..seen));
    for (frames, chains, ended) in [("1024", &whole[..], 0), ("150", &[cut], LEAF / KIB)] {
        let cache = tempfile::NamedTempFile::new_in(dir()).unwrap();
        let found = profile(
            &["--unwind", unwind, "--max-frames", frames],
            &[program.to_str().unwrap(), cache.path().to_str().unwrap()],
        );
        let chain = chains.iter().find(|chain| found.bytes(chain) > 0);
        found.chain(chain.unwrap_or(&chains[0]), "b_leaf", LEAF);
        assert_eq!(found.ended("partial: depth limit"), ended);
        assert!(found.summary.contains("Losses: none"), "{}", found.summary);
    }
}

#[test]
fn by_frame_pointers() {
    if let Some(program) = compile_chains("gcc", "chains_fp", &["-fno-omit-frame-pointer"]) {
        // The C library that calls `main` has no frame pointers. The leaf does not set up its own frame, so the walk
        // skips its caller.
        // On a busy machine, the program may end before memprof reads where the C library was mapped. Then its frame
        // is an address without a file, which folded stacks omit.
        let starts = ["__libc_start_call_main main ", "main "];
        check_deep(&program, "fp", &starts, 199);
    }
}

/// A child's first stacks are as complete as its parent's.
#[track_caller]
fn check_fork(program: &Path) {
    let found = profile(&["--follow-forks"], &[program.to_str().unwrap(), "fork"]);
    let chain = format!("{MAIN}fork_case fork_child fork_leaf");
    found.chain(&chain, "fork_leaf", LEAF);
}

/// Compiles `chains.c`.
pub fn compile_chains(compiler: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    deep_chains();
    let gcc = if compiler == "gcc" {
        &["-fno-ipa-icf"][..]
    } else {
        &[]
    };
    compile(compiler, name, &source("chains.c"), &[flags, gcc].concat())
}

fn check_compiled(compiler: &str, name: &str, flags: &[&str]) {
    if let Some(program) = compile_chains(compiler, name, flags) {
        check_chains(&program);
        check_fork(&program);
    }
}

#[test]
fn c_by_gcc() {
    check_compiled("gcc", "chains_gcc", &["-Wl,-z,lazy"]);
}

#[test]
fn c_by_clang() {
    check_compiled("clang", "chains_clang", &["-Wl,-z,now"]);
}

/// Its PLT has no unwind information, and adjacent segments share a page of the file.
#[test]
fn c_by_clang_and_lld() {
    if installed("ld.lld") {
        check_compiled("clang", "chains_lld", &["-fuse-ld=lld", "-Wl,-z,lazy"]);
    }
}

/// Code and data share a page of the file, and so do the headers and the code.
#[test]
fn c_with_segments_in_one_page_of_the_file() {
    let flags = ["-Wl,-z,noseparate-code", "-Wl,-z,lazy"];
    check_compiled("gcc", "chains_one_page", &flags);
}

/// This C library has no unwind information: its machine code says how much of the stack it has. The callers of `main` and of a
/// thread's function are recognised as outermost, and so is its signal trampoline.
#[test]
fn c_with_musl() {
    for (name, flags) in [
        ("chains_musl", &["-fno-ipa-icf"][..]),
        ("chains_musl_static", &["-fno-ipa-icf", "-static"]),
    ] {
        if let Some(program) = compile_chains("musl-gcc", name, flags) {
            check_chains(&program);
        }
    }
}

/// Functions in assembler, without unwind information, also if they have no symbols.
#[test]
#[cfg(target_arch = "x86_64")]
fn assembler() {
    for (name, flags) in [("bare", &[][..]), ("bare_stripped", &["-s"])] {
        let flags = [flags, &["-nostdlib", "-static"]].concat();
        let Some(program) = compile("gcc", name, &source("bare.s"), &flags) else {
            return;
        };
        let found = profile(&["--unwind", "tables"], &[program.to_str().unwrap()]);
        assert_eq!(found.complete(), (100.0, 100.0), "{}", found.text());
        if flags.contains(&"-s") {
            continue;
        }
        let ways = ["depth", "frame", "move", "switch"].map(|way| format!("by_{way}"));
        let others = ["by_pointer *", "*", "jumped"];
        for way in ways.iter().map(String::as_str).chain(others) {
            let chain = format!("_start {way} touch");
            assert!(found.bytes(&chain) >= LEAF, "{chain}\n{}", found.text());
        }
        assert_eq!(found.bytes("_start * touch"), 7 * LEAF, "{}", found.text());
    }
}

/// Stacks that begin in the middle of nowhere: contexts of `makecontext`, and a fiber like those of boost.context.
#[test]
fn fibers() {
    let Some(program) = compile("gcc", "fibers", &source("fibers.c"), &[]) else {
        return;
    };
    let found = profile(&[], &[program.to_str().unwrap()]);
    found.chain("__start_context context context_leaf", "context_leaf", LEAF);
    found.chain("fiber_end fiber fiber_leaf", "fiber_leaf", LEAF);
    found.chain("_start * main resumed_leaf", "resumed_leaf", LEAF);
    assert_eq!(found.complete().1, 100.0, "{}", found.text());
}

/// Their frames have no table, and the register leads to a return address of 0: that is not the end of the stack.
#[test]
fn a_frame_pointer_that_is_none_ends_no_stack() {
    let Some(program) = compile("gcc", "masked", &source("masked.c"), &[]) else {
        return;
    };
    let program = program.to_str().unwrap();
    let found = profile(&[], &[program]);
    let cut = "[cut_off:_no_unwind_table]";
    found.chain(&format!("{cut} masked_leaf"), "masked_leaf", LEAF);
    let called = format!("{cut} masked_caller called_leaf");
    found.chain(&called, "masked_caller", LEAF);
    assert_eq!(found.ended("assisted by frame pointers"), 0);
    let found = profile(&["--unwind", "fp"], &[program]);
    let cut = "[cut_off:_no_frame_pointer]";
    found.chain(&format!("{cut} masked_leaf"), "masked_leaf", LEAF);
}

/// There is no room for the program's table. A function that looks like a thread's outermost one ends no stack then.
#[test]
fn a_result_that_is_passed_on_ends_no_stack() {
    let source = source("passed_on.c");
    let shared = ["-shared", "-fPIC", "-DLIBRARY"];
    let Some(library) = compile("gcc", "libpassed.so", &source, &shared) else {
        return;
    };
    let program = compile("gcc", "passed_on", &source, &[library.to_str().unwrap()]).unwrap();
    let program = program.to_str().unwrap();
    let whole = profile(&[], &[program]);
    whole.chain("* body passed_leaf", "passed_leaf", LEAF);
    let full = ["env", "MEMPROF_TABLE_SIZES=unwind_pages=12"];
    let found = profile_under(&full, &[], &[program]);
    let cut = "[cut_off:_no_unwind_table] body passed_leaf";
    found.chain(cut, "passed_leaf", LEAF);
}

/// The library is found by a variable that the command has, and memprof has not; it is the first thing that runs.
#[test]
fn a_library_that_the_environment_names() {
    let source = source("served.c");
    let shared = ["-shared", "-fPIC", "-Wl,-soname,libnamed.so", "-DLIBRARY"];
    let Some(library) = compile("gcc", "libnamed.so", &source, &shared) else {
        return;
    };
    let program = compile("gcc", "named", &source, &[library.to_str().unwrap()]).unwrap();
    let path = format!("LD_LIBRARY_PATH={}", dir().display());
    let found = profile(&[], &["env", &path, program.to_str().unwrap()]);
    found.chain("_start * main served_leaf", "served_leaf", LEAF);
}

#[test]
fn c_static_at_any_address() {
    check_compiled("gcc", "chains_static_pie", &["-static-pie"]);
}

#[test]
fn c_static_at_a_fixed_address() {
    check_compiled("gcc", "chains_static", &["-static", "-no-pie"]);
}

#[test]
fn cpp() {
    let Some(program) = compile("g++", "exceptions", &source("exceptions.cpp"), &[]) else {
        return;
    };
    let found = profile(&[], &[program.to_str().unwrap()]);
    let from_main = |chain: &str, leaf: &str| found.chain(&format!("{MAIN}{chain}"), leaf, LEAF);
    from_main("catching catch_leaf", "catch_leaf");
    from_main(
        "catching guarded Guard::~Guard() destructor_leaf",
        "destructor_leaf",
    );
    found.chain("* thread_body std_thread_leaf", "std_thread_leaf", LEAF);
}

#[test]
fn rust() {
    let Some(program) = compile("rustc", "rust_chain", &source("chain.rs"), &[]) else {
        return;
    };
    let found = profile(&[], &[program.to_str().unwrap()]);
    // The first iteration of the loop is a separate call site.
    for start in [
        "_start * main *",
        "* <std::sys::thread::unix::Thread>::new::thread_start *",
    ] {
        let chain = format!("{start} rust_case rust_callback rust_leaf");
        assert_eq!(found.bytes(&chain), LEAF, "{chain}\n{}", found.text());
    }
}

/// Makes the program of [`compile_plugins`] wait briefly after it loads each library.
pub const PATIENT: &str = "patient";

/// Two libraries alternate at one address: no stack is walked with the table of the other one.
#[test]
fn libraries_that_come_and_go() {
    let [program, first, second] = compile_plugins();
    let command = [program, first, second].map(|p| p.to_str().unwrap());
    let chains = |found: &Found| {
        ["first", "second"].map(|name| {
            let chain = format!("{MAIN}use {name}_outer {name}_inner plugin_leaf");
            found.bytes(&chain)
        })
    };
    // A program is not stopped while it loads a library: its first stacks may be truncated, but none may be wrong.
    let found = profile(&[], &[command[0], command[1], command[2], PATIENT]);
    let [by_first, by_second] = chains(&found);
    assert!(by_first.min(by_second) >= LEAF / 2, "{}", found.text());

    let args = [command[1], command[2], "wait"];
    let mut workload = Workload::start_with(program, &args);
    let found = attached(workload.pid(), || {
        workload.lines.send("");
        workload.lines.line();
    });
    workload.end();
    let [first, second] = chains(&found);
    println!("attached: {first} and {second} bytes of {LEAF} each");
    assert!(first.min(second) >= LEAF / 2, "{}", found.text());
    let leaf = |frames: &[String]| frames.last().is_some_and(|f| f == "plugin_leaf");
    for (frames, _) in found.stacks.iter().filter(|(frames, _)| leaf(frames)) {
        let main = frames.iter().position(|f| f == "main");
        assert!(
            main.is_none() || frames.len() == main.unwrap() + 5,
            "{frames:?}"
        );
    }
}

/// A program that loads two libraries alternately, and these libraries. Compiled only once, because another test may be
/// running it.
pub fn compile_plugins() -> &'static [PathBuf; 3] {
    static COMPILED: OnceLock<[PathBuf; 3]> = OnceLock::new();
    COMPILED.get_or_init(plugins)
}

fn plugins() -> [PathBuf; 3] {
    let gcc = |name: &str, flags: &[&str]| {
        compile("gcc", name, &source("plugins.c"), flags).expect("gcc is needed for these tests")
    };
    let plugin = |name: &str, frame: &str| {
        let flags = [
            "-shared".to_owned(),
            "-fPIC".to_owned(),
            "-DPLUGIN".to_owned(),
            format!("-DFRAME={frame}"),
            format!("-DINNER={name}_inner"),
            format!("-DOUTER={name}_outer"),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        gcc(&format!("lib{name}.so"), &flags)
    };
    let (first, second) = (plugin("first", "200"), plugin("second", "3000"));
    [gcc("plugins", &[]), first, second]
}
