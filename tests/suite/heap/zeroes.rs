//! Resident pages that contain only zeroes: equal to a second look at the stopped process's memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::common::binary::memprof;
use crate::common::document::check;
use crate::common::memprof::Memprof;
use crate::common::process::{cont, stop};
use crate::common::skip::skip;
use crate::common::workload::{Workload, program};
use memprof_sys::ids::Pid;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes on the pages that `touch_rarely` does not touch of its 8 MiB.
const RARELY: u64 = 8 * MIB - 128 * 4 * KIB;

/// A mapping's resident anonymous bytes, and those of them on pages of zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    resident: u64,
    zero: u64,
}

/// Reads the page tables and the memory of a stopped process, page by page.
fn second_look(pid: Pid) -> BTreeMap<u64, Seen> {
    const PRESENT: u64 = 1 << 63;
    const FILE: u64 = 1 << 61;
    const FRAME: u64 = (1 << 55) - 1;
    const ZERO_PAGE: u64 = 1 << 24;
    let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).unwrap();
    let (pagemap, memory) = (open("pagemap"), open("mem"));
    let flags = File::open("/proc/kpageflags").unwrap();
    let word = |file: &File, index: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 8 * index)
            .map(|()| u64::from_ne_bytes(word))
    };
    let mut seen = BTreeMap::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))
        .unwrap()
        .lines()
    {
        let (range, rest) = line.split_once(' ').unwrap();
        if !rest.starts_with('r') {
            continue;
        }
        let [start, end] = {
            let (start, end) = range.split_once('-').unwrap();
            [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap())
        };
        let of: &mut Seen = seen.entry(start).or_default();
        for at in (start..end).step_by(4096) {
            // The page tables of [vsyscall] cannot be read.
            let Ok(entry) = word(&pagemap, at / 4096) else {
                continue;
            };
            if entry & PRESENT == 0 || entry & FILE != 0 {
                continue;
            }
            if word(&flags, entry & FRAME).unwrap() & ZERO_PAGE != 0 {
                continue;
            }
            let mut page = [0; 4096];
            if memory.read_exact_at(&mut page, at).is_err() {
                continue;
            }
            of.resident += 4096;
            of.zero += 4096 * u64::from(page.iter().all(|byte| *byte == 0));
        }
    }
    seen
}

/// The kernel's figure for the huge pages of a process.
fn huge_pages(pid: Pid) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = smaps
        .lines()
        .find(|line| line.starts_with("AnonHugePages:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * KIB
}

fn figure(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name}: {value}"))
}

#[test]
fn they_equal_a_second_look() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut workload = Workload::start_with(&program("zeroes"), &[]);
    workload.lines.line();
    workload.lines.tell("");
    let pid = workload.pid();
    stop(pid);
    let of = |how: &str| -> Value {
        let saved = dir.path().join(how);
        let (saved, pid) = (saved.to_str().unwrap(), pid.to_string());
        let snapshot = ["heap", "--format", "json", "--top", "1000", "--snapshot"];
        let args = [&snapshot[..], &[how, "--pid", &pid, "--save", saved]].concat();
        let ended = memprof(&args);
        ended.must(0, &[]);
        let live: Value = serde_json::from_str(&ended.stdout).unwrap();
        let ended = memprof(&["heap", "--format", "json", "--top", "1000", "--core", saved]);
        ended.must(0, &[]);
        let core: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(core["zero_pages"], live["zero_pages"], "{how}");
        live["zero_pages"].clone()
    };
    let zero = of("copy");
    assert_eq!(of("fork"), zero);

    let seen = second_look(pid);
    let sum = |part: fn(&Seen) -> u64| seen.values().map(part).sum::<u64>();
    assert_eq!(figure(&zero, "zero"), sum(|seen| seen.zero), "{zero}");
    assert_eq!(figure(&zero, "examined"), sum(|seen| seen.resident));
    let mappings = zero["mappings"].as_array().unwrap();
    for row in mappings {
        let found = Seen {
            resident: figure(row, "resident"),
            zero: figure(row, "zero"),
        };
        assert_eq!(found, seen[&figure(row, "address")], "{row}");
    }
    let with_zeroes = seen.values().filter(|seen| seen.zero > 0).count();
    assert_eq!(mappings.len(), with_zeroes, "{zero}");

    // The workload's own figures.
    assert_eq!(figure(&zero, "not_examined"), 256 * KIB);
    let regions = zero["regions"].as_array().unwrap();
    let live = regions.iter().find(|row| row["what"] == "live_mapped");
    let live = figure(live.expect("a block with a mapping of its own"), "zero");
    // The header is on the first page, and the last bytes on a page behind 1 MiB.
    assert_eq!(live, MIB, "{zero}");
    let huge = huge_pages(pid);
    match zero["huge"].as_u64() {
        Some(found) => {
            assert_eq!(found, huge);
            match huge == 8 * MIB {
                true => assert_eq!(figure(&zero, "huge_zero"), RARELY),
                false => skip("the kernel gave the workload other huge pages than it asked for"),
            }
        }
        None => {
            assert!(zero["huge_zero"].is_null());
            skip("the kernel does not say which pages are huge (Linux before 6.7)");
        }
    }
    cont(pid);
    workload.end();
}

#[test]
fn they_have_the_stacks_that_brought_them_in() {
    let mut workload = Workload::start_with(&program("zeroes"), &[]);
    workload.lines.line();
    let m = Memprof::attach(workload.pid(), &[]);
    m.said("following ");
    workload.lines.tell("");
    stop(workload.pid());
    let info = m.send("POST", "/v2/heap", r#"{"max_stop": 10000, "top": 1000}"#);
    assert_eq!(info.status, 201, "{}", info.text());
    let path = format!("/v2/heap/{}", info.json()["id"].as_str().unwrap());
    let whole = m.get(&path).json();
    let document = m.get("/openapi/memprof-v2.json").json();
    check(&document, "/v2/heap/{id}", "get", 200, &whole);
    let zero = figure(&whole["heap"]["zero_pages"], "zero");
    let by = &whole["zero_by"];
    assert_eq!(by["error"], Value::Null, "{by}");
    assert_eq!(figure(by, "resident"), zero, "{by}");
    let rows = by["rows"].as_array().unwrap();
    let of = |function: &str| -> u64 {
        let name = |row: &Value| row["stack"].as_str().unwrap().ends_with(function);
        let rows = rows.iter().filter(|row| name(row));
        rows.map(|row| figure(row, "bytes")).sum()
    };
    assert_eq!(of("clear_mapping"), 2 * MIB, "{by}");
    assert_eq!(of("clear_block"), MIB, "{by}");
    assert_eq!(of("fill_block") + of("only_read"), 0, "{by}");
    if figure(&whole["heap"]["zero_pages"], "huge") == 8 * MIB {
        assert_eq!(of("touch_rarely"), RARELY, "{by}");
    }
    cont(workload.pid());
    workload.end();
}
