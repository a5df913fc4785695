//! Real runtimes.

use std::path::PathBuf;
use std::process::Command;

use crate::common::memprof::Memprof;
use crate::common::process::{LIMIT, eventually};
use crate::common::programs::installed;
use crate::common::pythons::pythons;
use crate::common::skip::skip;
use crate::jit::{Recorded, record};

const NO_NAMES: &str = " writes no names of its code (";

fn script(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

/// Bytes of all stacks, of those without a name for a frame, and of those that are cut off.
fn shares(r: &Recorded) -> (u64, u64, u64) {
    let of = |wanted: &dyn Fn(&str) -> bool| {
        let stacks = r
            .stacks
            .iter()
            .filter(|(frames, _)| frames.iter().any(|f| wanted(f)));
        stacks.map(|(_, bytes)| bytes).sum::<u64>()
    };
    (
        of(&|_| true),
        of(&|f| f == "[JIT]"),
        of(&|f| f.starts_with("[cut off")),
    )
}

/// Functions that are made, called and collected, each with its own name, its own path of calls and its own number of bytes,
/// which stay. Their code is at addresses that are used again and again.
const CHURN: &str = "
const kept = [];
const size = i => 262144 + 16384 * (i % 16);
for (let i = 0; i < 600; i++) {
    const made = new Function('kept', 'size', `return function f${i}(n) {
        let sum = 0;
        for (let k = 0; k < n; k++) sum += k;
        if (n === 7) { const b = new Uint8Array(new ArrayBuffer(size)); b.fill(1); kept.push(b); }
        return sum;
    }`)(kept, size(i));
    made(3);
    made(7);
    if (i % 20 === 0) gc();
}
process.kill(process.pid, 'SIGKILL');
";

#[test]
fn functions_of_node_are_never_mixed_up() {
    if !installed("node") {
        return skip("node is not installed");
    }
    let (_dir, path) = script("churn.js", CHURN);
    let options = [
        "--expose-gc",
        "--perf-basic-prof",
        "--interpreted-frames-native-stack",
        "--always-sparkplug",
    ];
    let command = [&["node"], &options[..], &[path.to_str().unwrap()]].concat();
    let r = record(&[], &command);
    let (_, nameless, _) = shares(&r);
    let (named, _) = r.by_function();
    println!(
        "{} functions, {nameless} bytes of code without a name",
        named.len()
    );
    assert!(
        named.len() >= 590,
        "{} functions: {}",
        named.len(),
        r.said()
    );
    // Its own buffer; besides it pages that the heap happened to need while it ran. A buffer of another function would be
    // larger or smaller by 16 KiB, or one too many.
    let own = |i: &u64| 262_144 + 16_384 * (i % 16);
    for (i, bytes) in &named {
        assert!(
            (own(i)..own(i) + 262_144).contains(bytes),
            "f{i} has {bytes} bytes, not {}",
            own(i)
        );
    }
    let exact = named
        .iter()
        .filter(|(i, bytes)| **bytes < own(i) + 12_288)
        .count();
    assert!(exact * 10 >= named.len() * 9, "{exact} of {}", named.len());
}

#[test]
fn code_of_node_has_functions_files_and_lines() {
    if !installed("node") {
        return skip("node is not installed");
    }
    let text = "
const objects = [];
function fill(i) { return { a: i, b: [i, i + 1], c: 'x' + i }; }
function build() { for (let i = 0; i < 200000; i++) objects.push(fill(i)); }
build();
process.kill(process.pid, 'SIGKILL');
";
    let (_dir, path) = script("objects.js", text);
    let path = path.to_str().unwrap();
    let r = record(&[], &["node", path]);
    let said = r.said();
    let advice = said.lines().find(|line| line.contains(NO_NAMES));
    let advice = advice.unwrap_or_else(|| panic!("no advice: {said}"));
    assert!(advice.contains("node"), "{advice}");
    assert!(
        advice.ends_with("NODE_OPTIONS='--perf-basic-prof --interpreted-frames-native-stack'"),
        "{advice}"
    );

    for option in ["--perf-basic-prof", "--perf-prof"] {
        let r = record(
            &[],
            &["node", option, "--interpreted-frames-native-stack", path],
        );
        let below = r
            .stacks
            .iter()
            .filter(|(frames, _)| frames.iter().any(|f| f == "build"));
        let (below, (all, nameless, _)) = (below.map(|(_, b)| b).sum::<u64>(), shares(&r));
        println!("{option}: {all} bytes, {below} below build(), {nameless} without a name");
        assert!(below > 8 << 20, "{option}: {}", r.said());
        assert!(!r.said().contains(NO_NAMES), "{option}: {}", r.said());
        if option == "--perf-basic-prof" {
            assert!(
                nameless * 100 <= all,
                "{nameless} of {all} bytes have code without a name"
            );
        }
        let saved = std::fs::read_to_string(r.dir.path().join("out.memprof.json")).unwrap();
        assert!(saved.contains("objects.js") && saved.contains("javascript"));
    }
}

#[test]
fn stacks_through_pythons_trampolines_are_complete() {
    let pythons = pythons();
    let has_trampolines =
        |version: &&String| version.starts_with("3.12.") || version.starts_with("3.13.");
    let Some(python) = pythons.keys().find(has_trampolines) else {
        return skip("neither Python 3.12 nor 3.13 is installed");
    };
    let python = pythons[python].to_str().unwrap();
    let text = "
import os
kept = []
def leaf(n):
    kept.append([bytes(100 + i % 7) for i in range(n)])
def build():
    for i in range(100):
        leaf(2000)
build()
os.kill(os.getpid(), 9)
";
    let (_dir, path) = script("bytes.py", text);
    // (Python's own frames would name the functions without the trampolines.)
    let command = [python, "-X", "perf", path.to_str().unwrap()];
    let r = record(&["--python", "off"], &command);
    let (all, nameless, cut) = shares(&r);
    println!("{all} bytes, {cut} in stacks that are cut off, {nameless} without a name");
    let order = |frames: &[String]| {
        let at = |name: &str| frames.iter().position(|f| f == name);
        at("build")
            .zip(at("leaf"))
            .is_some_and(|(build, leaf)| build < leaf)
    };
    let right: u64 = r
        .stacks
        .iter()
        .filter(|(f, _)| order(f))
        .map(|(_, b)| b)
        .sum();
    assert!(right > 20 << 20, "{}", r.said());
    assert!(cut * 20 <= all, "{cut} of {all} bytes: {}", r.said());

    // With Python's own frames each function is there once: its own frame, or its trampoline among native frames.
    let r = record(&[], &command);
    for shown in ["all", "source", "native"] {
        let r = r.opened(&["--frames", shown]);
        let count = |frames: &[String], name: &str| frames.iter().filter(|f| *f == name).count();
        let below = r
            .stacks
            .iter()
            .filter(|(f, _)| f.iter().any(|f| f == "leaf"));
        let (mut all, mut right) = (0, 0);
        for (frames, bytes) in below {
            all += bytes;
            if count(frames, "leaf") == 1 && count(frames, "build") == 1 {
                right += bytes;
            }
        }
        println!("{shown}: {right} of {all} bytes below functions that are there once");
        assert!(
            all > 20 << 20 && right * 100 >= all * 99,
            "{shown}: {}",
            r.said()
        );
    }
}

const JAVA: &str = "
import java.nio.ByteBuffer;
import java.util.*;
public class Kept {
    static List<Object> kept = new ArrayList<>();
    static void direct() {
        ByteBuffer b = ByteBuffer.allocateDirect(1 << 20);
        for (int i = 0; i < b.capacity(); i += 4096) b.put(i, (byte) 1);
        kept.add(b);
    }
    public static void main(String[] args) throws Exception {
        // Until it is compiled.
        for (int i = 0; i < 64; i++) direct();
        System.out.println(\"ready\");
        System.in.read();
    }
}
";

#[test]
fn java_names_its_code_on_request() {
    if !installed("java") || !installed("jcmd") {
        return skip("java or jcmd is not installed");
    }
    let (_dir, path) = script("Kept.java", JAVA);
    // A short program is mostly interpreted, and its functions are not in the map then.
    let only = "-XX:CompileCommand=compileonly,Kept.direct";
    let quiet = "-XX:CompileCommand=quiet";
    let options = ["-XX:+PreserveFramePointer", "-Xcomp", quiet, only];
    let command = [&["java"], &options[..], &[path.to_str().unwrap()]].concat();
    let (m, mut lines) = Memprof::start_command(&["--stacks", "all"], &command);
    assert_eq!(lines.line(), "ready");
    let advice = |m: &Memprof| m.get("/v2/summary").json()["names_advice"].to_string();
    let before = advice(&m);
    assert!(before.contains(NO_NAMES), "{before}");
    assert!(before.contains("Compiler.perfmap"), "{before}");

    let pid = m.get("/v2/summary").json()["target"]["pid"].to_string();
    let out = Command::new("jcmd")
        .args([&pid, "Compiler.perfmap"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    eventually(LIMIT, "the names appear", || {
        let reply = m.get("/v2/export/folded");
        let stacks = crate::jit::parse(reply.text());
        let named = |f: &String| f.contains("Kept.direct()");
        let of = |wanted: &dyn Fn(&Vec<String>) -> bool| -> u64 {
            stacks
                .iter()
                .filter(|(f, _)| wanted(f))
                .map(|(_, b)| b)
                .sum()
        };
        let nameless = of(&|frames| frames.iter().any(|f| f == "[JIT]"));
        of(&|frames| frames.iter().any(named)) > 0 && nameless < 1 << 20
    });
    assert!(!advice(&m).contains(NO_NAMES), "{}", advice(&m));
}
