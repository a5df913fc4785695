//! A program that makes hundreds of functions at one address. Their code is the same, so their stacks differ in nothing but
//! the time.

use std::collections::BTreeMap;

use crate::common::memprof::Memprof;
use crate::common::workload::program;
use crate::jit::{PAGE, by_function, parse, record};

fn jit() -> String {
    program("jit").to_str().unwrap().to_owned()
}

/// What function `fN` touches: one page and up to six more.
fn touched(rounds: u64) -> BTreeMap<u64, u64> {
    (0..rounds).map(|n| (n, (1 + n % 7) * PAGE)).collect()
}

#[test]
fn functions_at_one_address_each_have_their_own_bytes() {
    let r = record(&[], &[&jit(), "map", "400"]);
    assert_eq!(r.by_function(), (touched(400), 0), "{}", r.said());

    // The saved profile has the names.
    assert_eq!(r.opened(&[]).by_function(), (touched(400), 0));
}

#[test]
fn code_in_shared_memory_is_named() {
    let r = record(&[], &[&jit(), "memfd", "100"]);
    let mut expected = touched(100);
    // The first one brings in the page that contains the code.
    *expected.get_mut(&0).unwrap() += PAGE;
    assert_eq!(r.by_function(), (expected, 0), "{}", r.said());
    let cut = r
        .stacks
        .iter()
        .filter(|(frames, _)| frames.iter().any(|f| f == "touch"))
        .find(|(frames, _)| frames[0].starts_with("[cut off"));
    assert_eq!(cut, None);
}

#[test]
fn a_jitdump_file_names_functions_and_lines() {
    let r = record(&[], &[&jit(), "dump", "10"]);
    assert_eq!(r.by_function(), (touched(10), 0), "{}", r.said());
    let saved = std::fs::read_to_string(r.dir.path().join("out.memprof.json")).unwrap();
    assert!(
        saved.contains("/jit.x") && saved.contains("104"),
        "its file and lines are there"
    );
}

#[test]
fn trampolines_without_a_frame_pointer_lose_no_caller() {
    if !cfg!(target_arch = "x86_64") {
        crate::common::skip::skip("only x86-64 has such trampolines");
        return;
    }
    let r = record(&[], &[&jit(), "trampoline", "100"]);
    assert_eq!(r.by_function(), (touched(100), 0), "{}", r.said());
    for (frames, _) in r
        .stacks
        .iter()
        .filter(|(f, _)| f.contains(&"touch".to_owned()))
    {
        let at = frames
            .iter()
            .position(|f| f.starts_with('f'))
            .expect("its name");
        assert_eq!(
            (&*frames[at - 1], &*frames[at + 1]),
            ("main", "touch"),
            "{frames:?}"
        );
        assert!(!frames[0].starts_with("[cut off"), "{frames:?}");
    }
}

#[test]
fn a_map_is_found_in_the_programs_own_namespaces() {
    // Another /tmp, and process ids that begin at 1.
    let script = format!("mount -t tmpfs none /tmp && JIT_WAITS=1 {} map 50", jit());
    let unshare = [
        "unshare",
        "-mpf",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        &script,
    ];
    let (m, mut lines) = Memprof::start_command(&["--follow-forks"], &unshare);
    assert_eq!(lines.line(), "done");
    let reply = m.get("/v2/export/folded");
    assert_eq!(by_function(&parse(reply.text())), (touched(50), 0));
}
